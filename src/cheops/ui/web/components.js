// Components that many views use: badges, empty states, errors, toasts, form fields, and a loader with a skeleton.

import { ApiError, isAbort } from "./api.js";
import { fill, h } from "./dom.js";

const SYNC = {
  CONVERGED: ["ok", "Converged", "All sites are in sync"],
  CONVERGING: ["info", "Converging", "Operations are pending"],
  DIVERGED: ["bad", "Diverged", "Replicas differ until an operator resolves it"],
  UNREACHABLE: ["warn", "Unreachable", "At least one site is unreachable"],
};
const HEALTH = {
  OK: ["ok", "OK"],
  KO: ["bad", "Failed"],
  VOID: ["bad", "Void"],
  UNKNOWN: ["warn", "Unknown"],
  PENDING: ["info", "Pending"],
  RUNNING: ["info", "Running"],
  SUPERSEDED: ["", "Superseded"],
};
const STATES = { up: "ok", suspect: "warn", down: "bad" };

export function syncBadge(overall, deleted = false, isVoid = false) {
  if (isVoid && overall === "CONVERGED") return h("span", { class: "badge", title: "Never created: its operations failed" }, "Void");
  if (deleted && overall === "CONVERGED") return h("span", { class: "badge", title: "Deleted at every site" }, "Deleted");
  const [kind, text, title] = SYNC[overall] ?? ["", overall, ""];
  return h("span", { class: `badge ${kind}`, title, "data-sync": overall }, text);
}

export function healthBadge(status) {
  const [kind, text] = HEALTH[status] ?? ["", status];
  return h("span", { class: `badge ${kind}`, title: "Outcome of the newest operation", "data-health": status }, text);
}

export function siteBadge(state) {
  return h("span", { class: `badge ${STATES[state] ?? ""}`, "data-state": state }, state[0].toUpperCase() + state.slice(1));
}

export function blank(title, text, ...more) {
  return h("div", { class: "blank" }, h("b", {}, title), text && h("p", {}, text), ...more);
}

export function skeleton(lines = 4) {
  const rows = Array.from({ length: lines }, (_, n) => h("i", { vars: { width: `${92 - ((n * 37) % 48)}%` } }));
  return h("div", { class: "skeleton", role: "status", "aria-label": "Loading" }, rows);
}

export function problem(error, retry) {
  const title = error.status === 404 ? "Not found" : error.status === 0 ? "No response" : "Request failed";
  return h(
    "div",
    { class: "card-body" },
    h("div", { class: "problem", role: "alert" }, h("b", {}, title), h("span", {}, error.message)),
    retry && h("div", {}, h("button", { class: "button", type: "button", onclick: retry }, "Try again")),
  );
}

export function notice(kind, ...children) {
  return h("div", { class: `problem ${kind}` }, ...children);
}

export function toast(text, kind = "") {
  const one = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(one);
  setTimeout(() => one.remove(), kind === "bad" ? 9000 : 5000);
}

/** Loads data and draws it. The old content stays until then; the first time a skeleton is shown. */
export async function loaded(place, load, draw, retry) {
  const waiting = place.childElementCount ? null : setTimeout(() => fill(place, skeleton()), 120);
  try {
    const found = await load();
    clearTimeout(waiting);
    draw(found);
    return true;
  } catch (error) {
    clearTimeout(waiting);
    if (isAbort(error)) return false;
    if (!(error instanceof ApiError)) throw error;
    fill(place, problem(error, retry));
    return false;
  }
}

export function card(title, body, ...extra) {
  return h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", {}, title), ...extra), body);
}

export function button(text, onclick, kind = "", props = {}) {
  return h("button", { type: "button", class: `button ${kind}`, onclick, ...props }, text);
}

export function select(label, options, value, onchange) {
  const made = options.map(([key, text]) => h("option", { value: key, selected: key === value }, text));
  return h("select", { class: "input", "aria-label": label, onchange: (event) => onchange(event.target.value) }, made);
}

/** Delays a call until there was no other for so many milliseconds. */
export function debounced(call, waitMs) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...given), waitMs);
  };
}

let fields = 0;

/** An input with its label, and below it a hint, which screen readers announce as a description. */
export function field(name, input, hint) {
  const id = `field-${(fields += 1)}`;
  const help = hint && h("span", { class: "hint", id: `${id}-hint` }, hint);
  input.id = id;
  if (help) input.setAttribute("aria-describedby", help.id);
  return h("div", { class: "field" }, h("label", { class: "name", for: id }, name), input, help);
}

/** A group of inputs with one label. */
export function group(name, content, hint) {
  return h("fieldset", { class: "field choices" }, h("legend", { class: "name" }, name), content, hint && h("span", { class: "hint" }, hint));
}
