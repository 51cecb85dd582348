// Inputs of several forms: sites, the type of operation, a command, files.

import { at as path, get, post, postWithFiles } from "../api.js";
import { fill, h } from "../dom.js";
import { field, group } from "../components.js";

/** Sites as toggle buttons. `chosen()` returns their names. */
export function sitePicker(initial, signal) {
  const chosen = new Set(initial);
  const box = h("div", { class: "choices", role: "group", "aria-label": "Sites" }, h("span", { class: "muted" }, "Loading sites…"));
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

/** A scope of these names, quoted as scope-lang needs them. */
export const scopeOf = (names) => names.map((name) => `"${name.replace(/["\\]/g, "\\$&")}"`).join(" & ");

/** The type of an operation: the types of the matrix as buttons, any other as text. */
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
  return { element: h("div", { class: "form", vars: { gap: "6px" } }, field("Type of operation", input, "As in the matrix."), box), value: () => input.value.trim(), offer };
}

export function commandInput(hint, required = true) {
  const input = h("textarea", { class: "input", name: "command", rows: 2, required, spellcheck: "false", autocomplete: "off", autocapitalize: "off" });
  const hintText = h("span", {}, hint);
  return { element: field("Command", input, hintText), value: () => input.value.trim(), hint: (text) => fill(hintText, text) };
}

/** Files that the command refers to as {name}. */
export function fileInput() {
  const input = h("input", { class: "input", type: "file", name: "files", multiple: true });
  const element = h("details", {}, h("summary", {}, "Attach files"), field("Files", input, "The command refers to each as {name}."));
  return { element, files: () => [...input.files], names: () => [...input.files].map((file) => file.name) };
}

/** Submits an operation, with or without files. */
export function submitted(id, { files: _names, ...request }, files) {
  const where = `${path`/resources/${id}/operations`}?wait=first&timeout=20`;
  return files.length ? postWithFiles(where, request, files) : post(where, request);
}

export function allowed(type) {
  if (!type) return "The command to run at each site.";
  if (!type.allow.length) return "This type allows no commands.";
  return `Allowed: ${type.allow.slice(0, 8).join("   ·   ")}${type.allow.length > 8 ? " …" : ""}`;
}
