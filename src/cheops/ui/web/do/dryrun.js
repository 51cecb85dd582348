// A dry run in words: where it would run, what would lose its effect, and what would be run again.

import { h } from "../dom.js";
import { words } from "../format.js";
import { notice } from "../parts.js";

export function dryRun(found) {
  if (found.refused) return notice("warn", h("b", {}, "It would not be taken here"), found.refused, found.sites.length > 0 && `Sites: ${found.sites.join(", ")}`);
  const again = Object.entries(found.replayed).filter(([, ops]) => ops.length);
  return h(
    "div",
    { class: "form", vars: { gap: "8px" }, "data-dry-run": "" },
    h("dl", { class: "facts" }, [
      row("Runs first at", found.first_at ?? "nowhere now"),
      row("Then at", others(found)),
      row("Command", found.command ? h("code", { class: "wrap" }, found.command) : "nothing is run"),
      row("Supersedes", found.would_supersede.length ? superseded(found.would_supersede) : "nothing"),
      again.length > 0 && row("Runs again", again.map(([site, ops]) => h("div", {}, `${site}: ${ops.join(", ")}`))),
    ]),
    found.superseded_by && notice("warn", h("b", {}, "It would have no effect"), `${found.superseded_by.operation}: ${found.superseded_by.sentence} (rule ${found.superseded_by.rule})`),
    found.unreachable.length > 0 && notice("warn", `${words(found.unreachable)} cannot be reached now, and would get it later.`),
    found.order_not_enforced && notice("warn", "It would run in an order that nothing can enforce."),
    found.notes.map((text) => h("p", { class: "muted small" }, text)),
  );
}

const row = (name, value) => [h("dt", {}, name), h("dd", {}, value)];

function others(found) {
  const rest = found.sites.filter((site) => site !== found.first_at);
  return rest.length ? rest.join(", ") : "no other site";
}

function superseded(list) {
  const shown = list.slice(0, 20);
  const more = list.length - shown.length;
  return [shown.map((one) => h("div", {}, h("b", {}, one.operation), ` rule ${one.rule}: ${one.sentence}`)), more > 0 && h("div", { class: "muted" }, `and ${more} more`)];
}
