// Changes where a resource is.

import { at as path, post, put } from "../api.js";
import { h } from "../dom.js";
import { openForm, outcome } from "./dialog.js";
import { scopeOf, sitePicker } from "./inputs.js";

export function moveDialog(answer, onClose) {
  const id = answer.resource;
  const before = answer.lanes.map((lane) => lane.site);
  const sites = sitePicker(before);
  const copies = h("input", { type: "checkbox", name: "delete_copy" });
  openForm(
    {
      title: "Change sites",
      lead: `Where ${id} is. New sites catch up by themselves.`,
      verb: "Change",
      fields: [sites.element, h("label", { class: "toolbar" }, copies, "Sites that it leaves delete their copy")],
      wish: () => {
        const chosen = sites.chosen();
        if (!chosen.length) return { lacks: "It must stay at one site at least." };
        const isSame = chosen.length === before.length && chosen.every((site) => before.includes(site));
        return isSame ? { lacks: "Choose other sites than now." } : { sites: scopeOf(chosen), delete_copy: copies.checked };
      },
      preview: (wish, signal) => post(path`/resources/${id}/dry-run`, { type: "sites", kind: "sites", sites: wish.sites }, signal),
      run: async (wish) => outcome(await put(`${path`/resources/${id}/sites`}?wait=first&timeout=20`, wish)),
    },
    onClose,
  );
}
