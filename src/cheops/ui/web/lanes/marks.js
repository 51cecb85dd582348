// The marks of an operation in the lane of a site. Each state has a shape of its own, not only a colour.

import { h, s } from "../dom.js";

const LEGEND = [
  ["origin", "ok", "created here"],
  ["", "ok", "ran here"],
  ["", "pending", "pending"],
  ["", "missing", "missing: not received yet"],
  ["", "not-known", "not known whether it has it"],
  ["", "failed", "failed"],
  ["", "unknown", "unknown whether it ran"],
  ["", "superseded", "ran, then superseded"],
  ["", "skipped", "superseded before it arrived"],
  ["", "void", "void: failed at its origin"],
];
const WORDS = new Map([...["missing", "failed", "unknown", "pending", "running"].map((state) => [state, state]), ["not-known", "not known"]]);

/** `track`: the colour of the operation's origin. */
export function mark(x, y, state, { isOrigin = false, track = 1, word = true } = {}) {
  const parts = shape(x, y, state, isOrigin, track);
  if (word && WORDS.has(state)) parts.push(s("text", { class: `word ${state}`, x: x + 11, y }, WORDS.get(state)));
  return parts;
}

function shape(x, y, state, isOrigin, track) {
  const r = isOrigin ? 6.5 : 5;
  const vars = { "--track": `var(--track-${track})` };
  switch (state) {
    case "failed":
      return [s("rect", { class: "mark failed", x: x - 5.5, y: y - 5.5, width: 11, height: 11 }), s("text", { class: "sign", x, y }, "✕")];
    case "unknown":
      return [s("path", { class: "mark unknown", d: `M${x} ${y - 8}L${x + 8} ${y}L${x} ${y + 8}L${x - 8} ${y}Z` }), s("text", { class: "sign dark", x, y }, "?")];
    case "void":
      return [s("path", { class: "mark void", d: cross(x, y, 4.5) })];
    case "skipped":
      return [s("path", { class: "mark skipped", d: `M${x - 5} ${y}H${x + 5}` })];
    case "superseded":
      return [s("circle", { class: "mark superseded", cx: x, cy: y, r }), s("path", { class: "mark superseded", d: `M${x - r - 2} ${y + r + 2}L${x + r + 2} ${y - r - 2}` })];
    case "not-known":
      return [s("circle", { class: "mark not-known", cx: x, cy: y, r })];
    case "missing":
      return [s("circle", { class: "mark missing", cx: x, cy: y, r })];
    case "pending":
    case "running":
      return [s("circle", { class: `mark ${state}`, cx: x, cy: y, r: 6 }), s("path", { class: `mark ${state} hand`, d: `M${x} ${y - 3}V${y}H${x + 2.5}` })];
    default:
      return [s("circle", { class: `mark ok${isOrigin ? "" : " copy"}`, cx: x, cy: y, r, vars })];
  }
}

const cross = (x, y, r) => `M${x - r} ${y - r}L${x + r} ${y + r}M${x + r} ${y - r}L${x - r} ${y + r}`;

export function legend() {
  const items = LEGEND.map(([kind, state, text]) => {
    const drawing = s("svg", { viewBox: "0 0 18 18", "aria-hidden": "true" }, mark(9, 9, state, { isOrigin: kind === "origin", word: false }));
    return h("span", {}, drawing, text);
  });
  return h("div", { class: "legend" }, items);
}
