// Deletes a resource at all its sites: an operation that beats all others.

import { at as path, post, remove } from "../api.js";
import { openForm, outcome } from "./dialog.js";
import { commandInput } from "./inputs.js";

export function deleteDialog(answer, onClose) {
  const id = answer.resource;
  const command = commandInput("May be left empty where the type says how it is deleted.", false);
  openForm(
    {
      title: "Delete this resource",
      lead: `${id}, at ${answer.lanes.map((lane) => lane.site).join(", ")}.`,
      verb: "Delete",
      kind: "danger",
      fields: [command.element],
      wish: () => ({ type: "delete", kind: "delete", command: command.value() }),
      preview: (wish, signal) => post(path`/resources/${id}/dry-run`, wish, signal),
      run: async (wish) => {
        const query = new URLSearchParams({ wait: "first", timeout: "20", ...(wish.command ? { command: wish.command } : {}) });
        return outcome(await remove(`${path`/resources/${id}`}?${query}`));
      },
    },
    onClose,
  );
}
