// Force a state: an operation that becomes the new base. It ends any divergence.

import { at as path, get, post } from "../api.js";
import { openForm, outcome } from "./dialog.js";
import { allowed, commandInput } from "./inputs.js";

export async function forceDialog(answer, onClose) {
  const id = answer.resource;
  const types = await get("/types").catch(() => ({ types: [] }));
  const command = commandInput(allowed(types.types.find((one) => one.name === answer.type)));
  openForm(
    {
      title: "Force a state",
      lead: `A command that sets the state of ${id} at every site. It supersedes all earlier operations.`,
      verb: "Force",
      kind: "danger",
      fields: [command.element],
      request: () => (command.value() ? { type: "force", kind: "force", command: command.value() } : { missing: "Enter the command that sets the state." }),
      preview: (request, signal) => post(path`/resources/${id}/dry-run`, request, signal),
      run: async (request) => outcome(await post(`${path`/resources/${id}/operations`}?wait=first&timeout=20`, request)),
    },
    onClose,
  );
}
