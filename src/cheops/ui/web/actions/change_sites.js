// Change the sites of a resource.

import { at as path, post, put } from "../api.js";
import { h } from "../dom.js";
import { openForm, outcome } from "./dialog.js";
import { scopeOf, sitePicker } from "./inputs.js";

export function changeSitesDialog(answer, onClose) {
  const id = answer.resource;
  const before = answer.lanes.map((lane) => lane.site);
  const sites = sitePicker(before);
  const copies = h("input", { type: "checkbox", name: "delete_copy" });
  openForm(
    {
      title: "Change sites",
      lead: `The sites of ${id}. New sites catch up automatically.`,
      verb: "Change",
      fields: [sites.element, h("label", { class: "toolbar" }, copies, "Delete the copies at removed sites")],
      request: () => {
        const chosen = sites.chosen();
        if (!chosen.length) return { missing: "Choose at least one site." };
        const isSame = chosen.length === before.length && chosen.every((site) => before.includes(site));
        return isSame ? { missing: "Choose a different set of sites." } : { sites: scopeOf(chosen), delete_copy: copies.checked };
      },
      preview: (request, signal) => post(path`/resources/${id}/dry-run`, { type: "sites", kind: "sites", sites: request.sites }, signal),
      run: async (request) => outcome(await put(`${path`/resources/${id}/sites`}?wait=first&timeout=20`, request)),
    },
    onClose,
  );
}
