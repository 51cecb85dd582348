// Create a resource: its id, type, sites and first operation.

import { at as path, get, post } from "../api.js";
import { changeForm, outcome } from "../actions/dialog.js";
import { allowed, commandInput, fileInput, scopeOf, sitePicker, submitted, typePicker } from "../actions/inputs.js";
import { fill, h, resourcePath } from "../dom.js";
import { blank, field, loaded, select } from "../components.js";
import { go } from "../router.js";

export function newResourceView(place, { query, signal }) {
  const body = h("div", { class: "card-body" });
  const load = () => loaded(body, () => get("/types", {}, signal), (found) => fill(body, found.types.length ? form(found.types, query, signal) : none()), load);
  fill(place, h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "New resource"), h("p", { class: "lead" }, "An object of the application that Cheops keeps in sync at several sites."))), h("section", { class: "card" }, body));
  load();
}

const none = () => blank("This site has no resource types", "Add one under “types” in its configuration, with its allowed commands. HTTP resources are created by requests to their service.");

function form(types, query, signal) {
  const byName = new Map(types.map((one) => [one.name, one]));
  let type = byName.get(query.get("type")) ?? types[0];
  const id = h("input", { class: "input", name: "id", required: true, maxlength: 256, autocomplete: "off", spellcheck: "false", value: query.get("id") ?? "" });
  const operation = typePicker(type.operations);
  const command = commandInput(allowed(type));
  const sites = sitePicker([], signal);
  const files = fileInput();
  const kind = select("Resource type", types.map((one) => [one.name, one.name]), type.name, (name) => {
    type = byName.get(name);
    operation.offer(type.operations);
    command.hint(allowed(type));
  });
  return changeForm({
    title: "",
    verb: "Create",
    fields: [h("div", { class: "two" }, field("Id", id, "Any name; it is the same at every site."), field("Resource type", kind)), sites.element, h("div", { class: "two" }, operation.element, command.element), files.element],
    request: () => {
      if (!id.value.trim()) return { missing: "Enter an id." };
      if (!sites.chosen().length) return { missing: "Choose at least one site." };
      if (!operation.value() || !command.value()) return { missing: "Enter the first operation: its type and command." };
      return { id: id.value.trim(), type: operation.value(), command: command.value(), resource_type: type.name, sites: scopeOf(sites.chosen()), files: files.names() };
    },
    preview: ({ id: name, files: _names, ...request }, leaving) => post(path`/resources/${name}/dry-run`, request, leaving),
    run: async ({ id: name, ...request }) => {
      const said = outcome(await submitted(name, request, files.files()));
      go(resourcePath(name));
      return said;
    },
    onDone: () => {},
  });
}
