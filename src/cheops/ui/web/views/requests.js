// The latest requests with a scope that the gateway of this site served.

import { get } from "../api.js";
import { cut, fill, h } from "../dom.js";
import { full, milliseconds, moment } from "../format.js";
import { refresher } from "../events.js";
import { blank, button, debounced, loaded } from "../components.js";
import { setQuery } from "../router.js";

const PAGE = 50;
const EVERY_MS = 2000; // requests are not events: there are too many
const HEADS = ["At", "Service", "Request", "Scope", "Route", "Served by", "Status", "Took", "Tried before"];
const NUMERIC = new Set(["Status", "Took"]);

export function requestsView(place, { query, signal }) {
  const list = h("div", {});
  const foot = h("div", { class: "foot" });
  let service = query.get("service") ?? "";
  let cursors = (query.get("before") ?? "").split(" ").filter(Boolean);

  const load = refresher(() => loaded(list, () => get("/requests", { service, cursor: cursors.at(-1) ?? "", limit: PAGE }, signal), draw, load), signal);

  function turn(next) {
    cursors = next;
    setQuery({ service, before: cursors.join(" ") });
    load();
  }

  function draw(found) {
    fill(list, found.requests.length ? table(found.requests) : blank("No requests yet", "The gateway keeps the last 1,000 requests with a scope since the agent started."));
    fill(foot, h("span", {}), h("div", { class: "toolbar" }, button("Newer", () => turn(cursors.slice(0, -1)), "small", { disabled: !cursors.length }), button("Older", () => turn([...cursors, found.next]), "small", { disabled: !found.next })));
  }

  const input = h("input", { class: "input search", type: "search", placeholder: "Only this service", "aria-label": "Service", value: service, oninput: debounced((event) => ((service = event.target.value.trim()), turn([])), 200) });
  fill(place, h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "Requests"), h("p", { class: "lead" }, "Requests with a scope that this site's gateway served."))), h("section", { class: "card" }, h("div", { class: "card-head" }, h("div", { class: "toolbar", vars: { flex: "1" } }, input)), list, foot));
  load();
  const timer = setInterval(() => document.hidden || cursors.length || load(), EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

function table(requests) {
  return h(
    "div",
    { class: "table-wrap" },
    h("table", {}, h("thead", {}, h("tr", {}, HEADS.map((text) => h("th", { scope: "col", class: NUMERIC.has(text) ? "num" : "" }, text)))), h("tbody", {}, requests.map(row))),
  );
}

function row(one) {
  const kind = one.status === null ? "" : one.status < 400 ? "ok" : one.status < 500 ? "warn" : "bad";
  return h(
    "tr",
    {},
    h("td", { class: "nowrap", title: full(one.at) }, moment(one.at)),
    h("td", {}, cut(one.service)),
    h("td", {}, h("code", {}, cut(`${one.method} ${one.path}`))),
    h("td", {}, h("code", {}, cut(one.scope)), one.recovered && h("span", { class: "muted small" }, "recovered")),
    h("td", {}, one.route),
    h("td", {}, cut(one.site || "–")),
    h("td", { class: "num" }, h("span", { class: `badge plain ${kind}` }, one.status ?? "aborted")),
    h("td", { class: "num nowrap" }, milliseconds(one.took_ms)),
    h("td", {}, one.fallback ? cut(one.fallback) : h("span", { class: "muted" }, "–")),
  );
}
