// Forces a state: an operation that becomes the new base, whatever was before. It ends any divergence.

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
      lead: `A command that makes the state of ${id}, at every site. It beats all that was before.`,
      verb: "Force it",
      kind: "danger",
      fields: [command.element],
      wish: () => (command.value() ? { type: "force", kind: "force", command: command.value() } : { lacks: "Say which command makes the state." }),
      preview: (wish, signal) => post(path`/resources/${id}/dry-run`, wish, signal),
      run: async (wish) => outcome(await post(`${path`/resources/${id}/operations`}?wait=first&timeout=20`, wish)),
    },
    onClose,
  );
}
