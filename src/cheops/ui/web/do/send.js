// Sends an operation to a resource that is there.

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
      wish: () => (type.value() && command.value() ? { type: type.value(), command: command.value(), files: files.names() } : { lacks: "Say which type, and what is to be run." }),
      preview: ({ files: _names, ...wish }, signal) => post(path`/resources/${id}/dry-run`, wish, signal),
      run: async (wish) => outcome(await submitted(id, wish, files.files())),
    },
    onClose,
  );
}
