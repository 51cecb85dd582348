// The real state of the application at every site, from the type's read command, and the differences.

import { at as path, post } from "../api.js";
import { fill, h } from "../dom.js";
import { moment } from "../format.js";
import { blank, button, loaded, notice } from "../components.js";

export function stateTab(card, id, signal) {
  const body = h("div", { class: "card-body" });
  const when = h("span", { class: "muted small" });
  const load = () => loaded(body, () => post(path`/resources/${id}/verify`, undefined, signal), draw, load);

  function draw(found) {
    fill(when, `read at ${moment(Date.now())}`);
    const silent = found.states.filter((one) => one.status !== "OK");
    fill(
      body,
      found.same && notice("ok", h("b", {}, "Equal everywhere"), `All ${found.states.length} sites have the same state.`),
      !found.same && Object.keys(found.diff).length > 0 && notice("", h("b", {}, "The sites differ"), `Compared with ${found.states.find((one) => one.status === "OK")?.site}.`),
      silent.length > 0 && notice("warn", h("b", {}, "Some sites could not be read"), silent.map((one) => one.site).join(", ")),
      found.states.length === 0 && blank("No sites", "The resource is at no site."),
      h("div", { class: "columns" }, found.states.map(state)),
      Object.entries(found.diff).map(([site, lines]) => h("div", {}, h("h3", {}, `Differences of ${site}`), diff(lines))),
    );
  }

  fill(card, h("div", { class: "card-head" }, h("h2", {}, "State of the applications"), h("div", { class: "toolbar" }, when, button("Read again", load, "small"))), body);
  load();
}

const SILENT = { TIMEOUT: "No reply", UNREACHABLE: "Unreachable" };

function state(one) {
  const kind = one.status === "OK" ? "ok" : SILENT[one.status] ? "warn" : "bad";
  const word = { OK: "OK", KO: "Failed", ...SILENT }[one.status] ?? one.status;
  return h(
    "div",
    { class: "form", vars: { gap: "6px" }, "data-state-of": one.site },
    h("div", { class: "toolbar" }, h("b", {}, h("bdi", {}, one.site)), h("span", { class: `badge ${kind}` }, word)),
    h("pre", {}, one.output === "" ? "(empty)" : one.output),
  );
}

function diff(lines) {
  const kind = (line) => (/^(---|\+\+\+|@@)/.test(line) ? "at" : line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : "");
  return h("div", { class: "diff" }, lines.map((line) => h("span", { class: kind(line) }, line || " ")));
}
