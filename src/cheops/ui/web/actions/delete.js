// Delete a resource at all its sites: an operation that supersedes all others.

import { at as path, post, remove } from "../api.js";
import { openForm, outcome } from "./dialog.js";
import { commandInput } from "./inputs.js";

export function deleteDialog(answer, onClose) {
  const id = answer.resource;
  const command = commandInput("Optional if the type has a ‘reset’ command.", false);
  openForm(
    {
      title: "Delete this resource",
      lead: `${id}, at ${answer.lanes.map((lane) => lane.site).join(", ")}.`,
      verb: "Delete",
      kind: "danger",
      fields: [command.element],
      request: () => ({ type: "delete", kind: "delete", command: command.value() }),
      preview: (request, signal) => post(path`/resources/${id}/dry-run`, request, signal),
      run: async (request) => {
        const query = new URLSearchParams({ wait: "first", timeout: "20", ...(request.command ? { command: request.command } : {}) });
        return outcome(await remove(`${path`/resources/${id}`}?${query}`));
      },
    },
    onClose,
  );
}
