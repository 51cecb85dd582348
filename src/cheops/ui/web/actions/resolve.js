// Resolve an operation of which it is unknown whether it ran at a site.

import { at as path, post } from "../api.js";
import { h } from "../dom.js";
import { group, notice } from "../components.js";
import { openForm } from "./dialog.js";

const SAID = {
  happened: "It counts as run there, and the operations after it continue.",
  "not-happened": "It runs there now, then the operations after it.",
};

export function resolveDialog(id, operation, site) {
  const choice = (value, text) => h("label", { class: "toolbar" }, h("input", { type: "radio", name: "resolution", value, required: true }), text);
  const choices = h("div", { class: "form", vars: { gap: "4px" } }, choice("happened", "It took effect"), choice("not-happened", "It did not take effect"));
  openForm({
    title: "Resolve an operation",
    lead: `${operation} may or may not have run at ${site}. Check the application there, then choose.`,
    verb: "Resolve",
    fields: [group("Outcome", choices)],
    request: () => {
      const resolution = choices.querySelector(":checked")?.value;
      return resolution ? { resolution, operation, site } : { missing: "Choose the outcome." };
    },
    preview: async (request) => notice("info", SAID[request.resolution]),
    run: async (request) => {
      const done = await post(path`/resources/${id}/resolve`, request);
      return `${done.operation} at ${done.site}: ${done.resolution === "happened" ? "took effect" : "did not take effect"}`;
    },
  });
}
