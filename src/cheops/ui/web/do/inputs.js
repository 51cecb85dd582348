// Inputs that several forms have: sites chosen by clicking, a type from the matrix, a command.

import { at as path, get, post, postWithFiles } from "../api.js";
import { fill, h } from "../dom.js";
import { field, group } from "../parts.js";

/** Sites as buttons that are in or out. `chosen()` gives their names. */
export function sitePicker(initial, signal) {
  const chosen = new Set(initial);
  const box = h("div", { class: "choices", role: "group", "aria-label": "Sites" }, h("span", { class: "muted" }, "Looking who is there…"));
  get("/sites", {}, signal).then(
    (found) => {
      const known = found.sites.filter((site) => site.state !== "forgotten").map((site) => site.name);
      const states = new Map(found.sites.map((site) => [site.name, site.state]));
      if (!chosen.size) chosen.add(found.here);
      fill(box, [...new Set([...known, ...chosen])].map((name) => choice(name, states.get(name) ?? "unknown")));
      box.dispatchEvent(new Event("changed", { bubbles: true }));
    },
    (error) => fill(box, h("span", { class: "problem" }, error.message)),
  );

  function choice(name, state) {
    const made = h("button", { type: "button", class: "choice", "aria-pressed": String(chosen.has(name)), title: `${name} is ${state}`, onclick: () => toggle(name, made) }, h("i", { class: `state ${state}`, "aria-hidden": "true" }), h("bdi", {}, name));
    return made;
  }

  function toggle(name, made) {
    if (chosen.has(name)) chosen.delete(name);
    else chosen.add(name);
    made.setAttribute("aria-pressed", String(chosen.has(name)));
    made.dispatchEvent(new Event("changed", { bubbles: true }));
  }

  return { element: group("Sites", box), chosen: () => [...chosen] };
}

/** Names as scope-lang takes them, whatever they hold. */
export const scopeOf = (names) => names.map((name) => `"${name.replace(/["\\]/g, "\\$&")}"`).join(" & ");

/** A type of operation: those that the matrix names as buttons, any other by typing. */
export function typePicker(names) {
  const input = h("input", { class: "input", name: "type", maxlength: 100, required: true, spellcheck: "false", autocomplete: "off", value: names[0] ?? "" });
  const box = h("div", { class: "choices", role: "group", "aria-label": "Types of the matrix" });
  const press = () => {
    for (const made of box.children) made.setAttribute("aria-pressed", String(made.dataset.type === input.value));
  };
  function offer(next) {
    fill(box, next.map((name) => h("button", { type: "button", class: "choice", "data-type": name, onclick: () => choose(name) }, h("bdi", {}, name))));
    if (!next.includes(input.value)) input.value = next[0] ?? input.value;
    press();
  }
  function choose(name) {
    input.value = name;
    press();
    input.dispatchEvent(new Event("changed", { bubbles: true }));
  }
  input.addEventListener("input", press);
  offer(names);
  return { element: h("div", { class: "form", vars: { gap: "6px" } }, field("Type of operation", input, "As the matrix names it."), box), value: () => input.value.trim(), offer };
}

export function commandInput(hint, required = true) {
  const input = h("textarea", { class: "input", name: "command", rows: 2, required, spellcheck: "false", autocomplete: "off", autocapitalize: "off" });
  const told = h("span", {}, hint);
  return { element: field("Command", input, told), value: () => input.value.trim(), hint: (text) => fill(told, text) };
}

/** Files that a command names as {name}. */
export function fileInput() {
  const input = h("input", { class: "input", type: "file", name: "files", multiple: true });
  const element = h("details", {}, h("summary", {}, "With files"), field("Files", input, "A command names each as {its name}."));
  return { element, files: () => [...input.files], names: () => [...input.files].map((file) => file.name) };
}

/** Has an operation carried out, with files or without. */
export function submitted(id, { files: _names, ...wish }, files) {
  const where = `${path`/resources/${id}/operations`}?wait=first&timeout=20`;
  return files.length ? postWithFiles(where, wish, files) : post(where, wish);
}

export function allowed(type) {
  if (!type) return "What is run at each site.";
  if (!type.allow.length) return "This type allows no command.";
  return `Allowed: ${type.allow.slice(0, 8).join("   ·   ")}${type.allow.length > 8 ? " …" : ""}`;
}
