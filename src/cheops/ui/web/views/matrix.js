// The matrix in force: the result for each pair of types, coloured by class.

import { at as path, get } from "../api.js";
import { fill, h } from "../dom.js";
import { loaded, blank } from "../components.js";

const RESULTS = {
  "take-one": "take one",
  "take-both": "take both",
  "take-both-any-order": "take both",
  "take-both-keep-order": "keep order",
  "take-both-reverse-order": "reverse order",
};
const CLASSES = { 1: "commute", 2: "one replaces the other", 3: "order matters" };

export function matrixTab(card, id, signal) {
  const body = h("div", { class: "card-body" });
  const load = () => loaded(body, () => get(path`/resources/${id}/matrix`, {}, signal), draw, load);

  function draw(found) {
    if (!found.types.length) {
      fill(body, blank("No matrix", "All operations are ordered, and none replaces another."));
      return;
    }
    const replaces = Object.entries(found.replaces).filter(([, wiped]) => wiped.length);
    fill(
      body,
      h("div", { class: "table-wrap" }, matrixTable(found)),
      h("div", { class: "strip" }, Object.entries(CLASSES).map(([n, text]) => h("span", {}, h("b", {}, `Class ${n} `), text)), h("span", {}, h("i", {}, "italic"), " inferred, not an entry of the matrix")),
      h("dl", { class: "facts" }, replaces.flatMap(([type, wiped]) => [h("dt", {}, `${type} replaces`), h("dd", {}, wiped.join(", "))]), found.introduced_by && [h("dt", {}, "Introduced by"), h("dd", {}, found.introduced_by)], h("dt", {}, "Hash"), h("dd", {}, h("code", {}, found.hash))),
    );
  }

  fill(card, h("div", { class: "card-head" }, h("h2", {}, "How operations combine")), body);
  load();
}

function matrixTable(found) {
  const pairs = new Map(found.pairs.map((pair) => [`${pair.before}\n${pair.after}`, pair]));
  const cell = (before, after) => {
    const pair = pairs.get(`${before}\n${after}`);
    const both = pair.concurrent_both ? ", both stay when concurrent" : "";
    const text = pair.result ? RESULTS[pair.result] ?? pair.result : "in order";
    return h("td", { class: `c${pair.class}${pair.inferred ? " inferred" : ""}`, title: `${before}, then ${after}: ${text}; class ${pair.class}, ${CLASSES[pair.class]}${both}` }, text, h("small", {}, `class ${pair.class}${pair.concurrent_both ? " · both" : ""}`));
  };
  return h(
    "table",
    { class: "matrix" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "before ↓  after →"), found.types.map((type) => h("th", { scope: "col", title: type }, type)))),
    h("tbody", {}, found.types.map((before) => h("tr", {}, h("th", { scope: "row", title: before }, before), found.types.map((after) => cell(before, after))))),
  );
}
