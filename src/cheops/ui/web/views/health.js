// The resources of this site by their state, and the worst of them. The numbers come from the store's counters.

import { cut, h, link, resourcePath } from "../dom.js";
import { number, plural } from "../format.js";
import { card, syncBadge } from "../components.js";

// State, kind of badge, text, the filter of the list that shows these resources, and what it means.
const STATES = [
  ["diverged", "bad", "diverged", "DIVERGED", "The sites differ until an operator resolves it"],
  ["order_not_enforced", "bad", "out of order", "DIVERGED", "Operations ran here out of order, and the order cannot be restored"],
  ["unknown", "warn", "not known", "CONVERGING", "Not compared with all their sites since the agent loaded them; nothing is known to be wrong"],
  ["converging", "info", "converging", "CONVERGING", "Operations are pending"],
  ["converged", "ok", "converged", "CONVERGED", "In sync when their sites last reported"],
];

export function healthCard(health) {
  const shown = STATES.filter(([state]) => health.states[state] || state === "converged" || state === "diverged");
  const badges = shown.map(([state, kind, text, overall, title]) =>
    h("a", { class: `badge ${health.states[state] ? kind : ""}`, href: `/ui/resources?overall=${overall}`, title, "data-count": state }, `${number(health.states[state])} ${text}`),
  );
  const wrong = health.worst.filter((one) => one.overall === "DIVERGED");
  return card(
    "Resources of this site",
    h(
      "div",
      { class: "card-body" },
      h("div", { class: "toolbar" }, h("span", {}, `${plural(health.resources, "resource")}:`), badges),
      wrong.length > 0 && h("ul", { class: "worst" }, wrong.map(line)),
    ),
    link("/ui/resources", "All resources"),
  );
}

function line(one) {
  return h("li", { "data-worst": one.id }, syncBadge(one.overall), " ", h("a", { href: resourcePath(one.id) }, cut(one.id)), " ", h("span", { class: "muted small" }, cut(one.sentence)));
}
