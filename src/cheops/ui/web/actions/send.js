// Send an operation to an existing resource.

import { at as path, get, post } from "../api.js";
import { openForm, outcome } from "./dialog.js";
import { allowed, commandInput, fileInput, submitted, typePicker } from "./inputs.js";

export async function sendDialog(answer, onClose) {
  const id = answer.resource;
  const [matrix, types] = await Promise.all([get(path`/resources/${id}/matrix`).catch(() => ({ types: [] })), get("/types").catch(() => ({ types: [] }))]);
  const type = typePicker(matrix.types);
  const command = commandInput(allowed(types.types.find((one) => one.name === answer.type)));
  const files = fileInput();
  openForm(
    {
      title: "Send an operation",
      lead: `To ${id}, at ${answer.lanes.map((lane) => lane.site).join(", ")}.`,
      verb: "Send",
      fields: [type.element, command.element, files.element],
      request: () => (type.value() && command.value() ? { type: type.value(), command: command.value(), files: files.names() } : { missing: "Enter the type and the command." }),
      preview: ({ files: _names, ...request }, signal) => post(path`/resources/${id}/dry-run`, request, signal),
      run: async (request) => outcome(await submitted(id, request, files.files())),
    },
    onClose,
  );
}
