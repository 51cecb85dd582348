// Try a scope: its tree, the sites it selects, and what each HTTP method would do.

import { get } from "../api.js";
import { cut, fill, h } from "../dom.js";
import { milliseconds, words } from "../format.js";
import { button, debounced, loaded, notice } from "../components.js";
import { setQuery } from "../router.js";

const OPERATORS = { replication: "& replicated at", cross: "% spanning", otherwise: "; the first that works of" };
const EXAMPLES = ["site1 & site2", "{image: site1 ; site2}", "{image: around(site1, 10ms)}", "{compute: site1, image: site2}", "{image: strong(site1 & site2 & site3)}", "{network: site1 % site2}"];

export function scopeView(place, { query, signal }) {
  const input = h("textarea", { class: "input", rows: 2, "aria-label": "Scope", spellcheck: "false", autocomplete: "off", maxlength: 8000, value: query.get("text") ?? "{image: site1 ; site2}" });
  const caret = h("div", { "aria-live": "polite" });
  const body = h("div", { vars: { display: "contents" } });
  let asked = 0;

  async function look() {
    const text = input.value;
    const mine = (asked += 1);
    setQuery({ text });
    if (!text.trim()) {
      fill(caret, h("p", { class: "muted" }, "Type a scope: where a request should run."));
      fill(body);
      return;
    }
    await loaded(body, () => get("/scope", { text }, signal), (found) => mine === asked && draw(found), look);
  }

  function draw(found) {
    const wrong = found.mistake;
    input.setAttribute("aria-invalid", String(Boolean(wrong)));
    fill(caret, wrong ? mistake(wrong) : h("p", { class: "muted" }, "Means ", h("code", { class: "wrap" }, found.canonical), `, seen from ${found.here}`));
    fill(body, found.services.map(service));
  }

  fill(
    place,
    h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "Scope"), h("p", { class: "lead" }, "Try a scope: it says where a request runs. Nothing is executed here."))),
    h("section", { class: "card" }, h("div", { class: "card-body" }, input, caret, h("div", { class: "choices" }, EXAMPLES.map((text) => button(text, () => ((input.value = text), look()), "small quiet mono"))))),
    body,
  );
  input.addEventListener("input", debounced(look, 120));
  look();
}

/** The text with the mistake marked, and carets under it. */
function mistake(wrong) {
  const has = wrong.start !== null;
  const end = has ? Math.max(wrong.end, wrong.start + 1) : 0;
  const middle = has ? wrong.text.slice(wrong.start, end) || " " : "";
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("b", {}, wrong.problem),
    has && h("div", { class: "caret" }, wrong.text.slice(0, wrong.start), h("mark", { "data-start": wrong.start }, middle), wrong.text.slice(end)),
    has && !wrong.text.includes("\n") && wrong.text.length < 90 && h("div", { class: "caret", "aria-hidden": "true" }, `${" ".repeat(wrong.start)}${"^".repeat(end - wrong.start)}`),
    wrong.hint && h("span", {}, wrong.hint),
  );
}

function service(one) {
  return h(
    "section",
    { class: "card", "data-service": one.service ?? "" },
    h("div", { class: "card-head" }, h("h2", {}, one.service ?? "Any service"), h("span", { class: "muted wrap" }, routeWords(one.route))),
    h(
      "div",
      { class: "card-body" },
      one.notes.map((text) => notice("warn", text)),
      h(
        "div",
        { class: "two" },
        h("div", { class: "form", vars: { gap: "6px" } }, h("h3", {}, "Tree"), h("ul", { class: "tree" }, tree(one.tree)), one.means !== one.location && h("p", { class: "muted small" }, "means ", h("code", { class: "wrap" }, one.means))),
        h("div", { class: "form", vars: { gap: "6px" } }, h("h3", {}, "Sites, in the order in which they are tried"), sites(one.sites)),
      ),
      h("div", { class: "table-wrap" }, methods(one.methods)),
    ),
  );
}

function tree(node) {
  if (node.kind === "site") return h("li", {}, h("bdi", { class: "leaf" }, node.site));
  if (node.kind === "duration") return h("li", {}, milliseconds(node.ms));
  if (node.kind === "nowhere") return h("li", {}, `nowhere: ${node.why}`);
  if (node.kind === "level") return h("li", {}, `${node.level}( )`, h("ul", {}, tree(node.location)));
  const name = node.kind === "call" ? `${node.function}( )` : OPERATORS[node.kind];
  return h("li", {}, name, h("ul", {}, (node.parts ?? node.arguments).map(tree)));
}

function routeWords(route) {
  if (route.kind === "one") return `one site: ${route.site}`;
  if (route.kind === "replicas") return `${route.sites.length} replicas, consistency ${route.consistency}: ${words(route.sites)}`;
  if (route.kind === "cross") return `${route.parts.length} parts, which are read as one`;
  return `the first that works of ${route.alternatives.length}`;
}

function sites(found) {
  const rows = found.slice(0, 100).map((one) => h("tr", {}, h("td", {}, cut(one.site)), h("td", {}, one.role), h("td", {}, h("span", { class: `badge ${one.up ? "ok" : "bad"}` }, one.up ? "Up" : "Down")), h("td", { class: "num" }, milliseconds(one.rtt_ms))));
  return h("div", { class: "table-wrap" }, h("table", {}, h("thead", {}, h("tr", {}, ["Site", "Role", "State"].map((text) => h("th", { scope: "col" }, text)), h("th", { scope: "col", class: "num" }, "Round trip"))), h("tbody", {}, rows)));
}

function methods(found) {
  const rows = found.map((one) => h("tr", {}, h("td", {}, one.method), h("td", { class: "num" }, one.sites.length ? milliseconds(one.latency_ms) : "–"), h("td", { class: "wrap" }, one.does)));
  return h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Method"), h("th", { scope: "col", class: "num" }, "Latency"), h("th", { scope: "col" }, "What it does"))), h("tbody", {}, rows));
}
