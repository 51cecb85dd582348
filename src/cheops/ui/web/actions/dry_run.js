// A dry run as text: where the operation would run, what it would supersede, and what would run again.

import { h } from "../dom.js";
import { ruleSentence, words } from "../format.js";
import { notice } from "../components.js";

export function dryRun(found) {
  if (found.refused) return notice("warn", h("b", {}, "It would be refused here"), found.refused, found.sites.length > 0 && `Sites: ${found.sites.join(", ")}`);
  const again = Object.entries(found.replayed).filter(([, ops]) => ops.length);
  return h(
    "div",
    { class: "form", vars: { gap: "8px" }, "data-dry-run": "" },
    h("dl", { class: "facts" }, [
      row("Runs first at", found.first_at ?? "no site now"),
      row("Then at", others(found)),
      row("Command", found.command ? h("code", { class: "wrap" }, found.command) : "none"),
      row("Supersedes", found.would_supersede.length ? superseded(found.would_supersede) : "nothing"),
      again.length > 0 && row("Runs again", again.map(([site, ops]) => h("div", {}, `${site}: ${ops.join(", ")}`))),
    ]),
    found.superseded_by && notice("warn", h("b", {}, "It would have no effect"), `${found.superseded_by.operation}: ${ruleSentence(found.superseded_by)}`),
    found.unreachable.length > 0 && notice("warn", `${words(found.unreachable)} ${found.unreachable.length === 1 ? "is" : "are"} unreachable now, and would receive it later.`),
    found.order_not_enforced && notice("warn", "Its order relative to other operations cannot be enforced."),
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
