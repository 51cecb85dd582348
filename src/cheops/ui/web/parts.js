// Small parts that many views use: badges, blanks, problems, toasts, and a load that shows how it goes.

import { ApiError, isAbort } from "./api.js";
import { fill, h } from "./dom.js";

const SYNC = {
  CONVERGED: ["ok", "Converged", "Every site has applied the same"],
  CONVERGING: ["info", "Converging", "Something is on its way"],
  DIVERGED: ["bad", "Diverged", "Replicas differ until somebody deals with it"],
  UNREACHABLE: ["warn", "Unreachable", "Not every site can be asked now"],
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

export function syncBadge(overall, deleted = false) {
  if (deleted && overall === "CONVERGED") return h("span", { class: "badge", title: "Deleted at every site" }, "Deleted");
  const [kind, text, title] = SYNC[overall] ?? ["", overall, ""];
  return h("span", { class: `badge ${kind}`, title, "data-sync": overall }, text);
}

export function healthBadge(status) {
  const [kind, text] = HEALTH[status] ?? ["", status];
  return h("span", { class: `badge ${kind}`, title: "What became of the newest operation", "data-health": status }, text);
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
  const title = error.status === 404 ? "It is not known here" : error.status === 0 ? "No answer" : "That did not work";
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

/** Fills a place with what a load gives. What is there stays until then: only the first time it is blank. */
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

/** Calls at most once in so many milliseconds, with the last word. */
export function debounced(call, waitMs) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...given), waitMs);
  };
}

let fields = 0;

/** An input under its name, and below it what helps; which is told as that, and is no part of the name. */
export function field(name, input, hint) {
  const id = `field-${(fields += 1)}`;
  const help = hint && h("span", { class: "hint", id: `${id}-hint` }, hint);
  input.id = id;
  if (help) input.setAttribute("aria-describedby", help.id);
  return h("div", { class: "field" }, h("label", { class: "name", for: id }, name), input, help);
}

/** A group of inputs under one name. */
export function group(name, content, hint) {
  return h("fieldset", { class: "field choices" }, h("legend", { class: "name" }, name), content, hint && h("span", { class: "hint" }, hint));
}
