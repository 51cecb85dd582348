// One operation: its command, its effect and why, and its outcome at each site.

import { ApiError, at as path, get, isAbort } from "../api.js";
import { resolveDialog } from "../actions/resolve.js";
import { fill, h } from "../dom.js";
import { full, moment, plural, ruleName } from "../format.js";
import { button, healthBadge, notice, problem, skeleton } from "../components.js";

export function operationPanel(id, signal, { onClose, onSelect }) {
  const body = h("div", { class: "card-body" });
  const title = h("h2", { class: "wrap" });
  const element = h(
    "aside",
    { class: "card panel", "aria-label": "Operation" },
    h("div", { class: "card-head" }, title, button("Close", onClose, "quiet small", { "aria-label": "Close the operation" })),
    body,
  );
  let shown = null;
  let shownText = "";

  async function show(op) {
    if (op !== shown) fill(body, skeleton());
    shown = op;
    try {
      const found = await get(path`/resources/${id}/operations/${op}`, {}, signal);
      if (op !== shown || JSON.stringify(found) === shownText) return;
      shownText = JSON.stringify(found);
      fill(title, found.id);
      fill(body, draw(found, { id, onSelect }));
    } catch (error) {
      if (isAbort(error) || op !== shown) return;
      if (!(error instanceof ApiError)) throw error;
      shownText = "";
      fill(title, op);
      fill(body, problem(error));
    }
  }

  return {
    element,
    show: (op) => {
      if (op !== shown) shownText = "";
      return show(op);
    },
  };
}

function draw(op, { id, onSelect }) {
  return [
    fate(op, onSelect),
    h("h3", {}, "Command"),
    h("pre", { "data-command": "" }, op.command || "none"),
    h("dl", { class: "facts" }, facts(op)),
    h("h3", {}, "At each site"),
    h("div", { class: "replies" }, op.replies.map((reply) => replyOf(reply, op, id))),
  ];
}

function fate(op, onSelect) {
  if (op.effect === "effective") return notice("ok", h("b", {}, "In effect"), "It is part of the state.");
  if (op.effect === "draft") return notice("info", h("b", {}, "Waiting for its first run"), "It was not sent to other sites yet.");
  if (op.effect === "silent") return notice("info", h("b", {}, op.kind === "sites" ? "Changes the site list" : "Does not touch the application"), op.sites ? op.sites.join(", ") : "");
  const name = op.effect[0].toUpperCase() + op.effect.slice(1);
  const by = op.beaten_by && h("button", { type: "button", class: "button quiet small", onclick: () => onSelect(op.beaten_by) }, `by ${op.beaten_by}`);
  return notice(op.effect === "void" ? "" : "warn", h("b", {}, name, " ", by), `${ruleName(op.rule) ? `Rule ${op.rule}: ` : ""}${op.sentence}`, op.why && h("span", { class: "small" }, op.why));
}

function facts(op) {
  const knew = Object.entries(op.knows).map(([site, n]) => `${site}:${n}`).join(", ");
  const pairs = [
    ["Type", op.kind === "normal" ? op.type : `${op.type} (${op.kind})`],
    ["Origin", op.origin],
    ["Created", h("span", { title: full(op.made_at) }, moment(op.made_at))],
    ["Knew of", knew || "no earlier operations"],
    op.sites && ["New sites", op.sites.join(", ")],
    Object.keys(op.files).length > 0 && ["Files", Object.keys(op.files).join(", ")],
    ["Matrix", h("code", {}, op.matrix.slice(0, 12))],
  ];
  return pairs.filter(Boolean).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
}

function replyOf(reply, op, id) {
  const when = reply.at ? `${moment(reply.at)}${reply.took_ms === null ? "" : `, took ${reply.took_ms} ms`}` : "";
  return h(
    "div",
    { class: "reply", "data-reply": reply.site },
    h("div", { class: "row" }, h("b", {}, h("bdi", {}, reply.site)), healthBadge(reply.status), h("span", { class: "muted small", title: full(reply.at) }, when, reply.replayed && " (in a replay)")),
    reply.detail && h("div", { class: "small wrap" }, reply.detail),
    reply.output && h("pre", { "aria-label": plural(reply.output.length, "character") }, reply.output),
    reply.output_missing && h("p", {}, `Output not here: ${reply.output_missing}`),
    reply.status === "UNKNOWN" && h("div", {}, button("Resolve", () => resolveDialog(id, op.id, reply.site), "small")),
  );
}
