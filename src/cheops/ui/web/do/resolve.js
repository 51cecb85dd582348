// The operator's word on an operation of which nobody knows whether it ran at a site.

import { at as path, post } from "../api.js";
import { h } from "../dom.js";
import { group, notice } from "../parts.js";
import { openForm } from "./dialog.js";

const SAID = {
  happened: "It counts as run there, and what waits behind it goes on.",
  "not-happened": "It is run there now, and then what waits behind it.",
};

export function resolveDialog(id, operation, site) {
  const choice = (value, text) => h("label", { class: "toolbar" }, h("input", { type: "radio", name: "resolution", value, required: true }), text);
  const choices = h("div", { class: "form", vars: { gap: "4px" } }, choice("happened", "It took effect"), choice("not-happened", "It did not"));
  openForm({
    title: "Say what happened",
    lead: `${operation} may have run at ${site} or not. Look at the application there, and say what is the case.`,
    verb: "Resolve",
    fields: [group("What is the case", choices)],
    wish: () => {
      const resolution = choices.querySelector(":checked")?.value;
      return resolution ? { resolution, operation, site } : { lacks: "Say what is the case." };
    },
    preview: async (wish) => notice("info", SAID[wish.resolution]),
    run: async (wish) => {
      const done = await post(path`/resources/${id}/resolve`, wish);
      return `${done.operation} at ${done.site}: ${done.resolution === "happened" ? "it happened" : "it did not happen"}`;
    },
  });
}
