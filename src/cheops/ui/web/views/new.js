// A new resource: its name, its type, where, and the first operation.

import { at as path, get, post } from "../api.js";
import { changeForm, outcome } from "../do/dialog.js";
import { allowed, commandInput, fileInput, scopeOf, sitePicker, submitted, typePicker } from "../do/inputs.js";
import { fill, h, resourcePath } from "../dom.js";
import { blank, field, loaded, select } from "../parts.js";
import { go } from "../router.js";

export function newView(place, { query, signal }) {
  const body = h("div", { class: "card-body" });
  const load = () => loaded(body, () => get("/types", {}, signal), (found) => fill(body, found.types.length ? form(found.types, query, signal) : none()), load);
  fill(place, h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "New resource"), h("p", { class: "lead" }, "Something that the application manages, from now on at several sites."))), h("section", { class: "card" }, body));
  load();
}

const none = () => blank("This site has no resource types", "Its configuration must name one under “types”, with the commands that it allows. What HTTP services replicate is made by requests to them.");

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
    fields: [h("div", { class: "two" }, field("Id", id, "Any name; every site knows it by this one."), field("Resource type", kind)), sites.element, h("div", { class: "two" }, operation.element, command.element), files.element],
    wish: () => {
      if (!id.value.trim()) return { lacks: "Give it a name." };
      if (!sites.chosen().length) return { lacks: "Choose one site at least." };
      if (!operation.value() || !command.value()) return { lacks: "Say which command makes it: the first operation." };
      return { id: id.value.trim(), type: operation.value(), command: command.value(), resource_type: type.name, sites: scopeOf(sites.chosen()), files: files.names() };
    },
    preview: ({ id: name, files: _names, ...wish }, leaving) => post(path`/resources/${name}/dry-run`, wish, leaving),
    run: async ({ id: name, ...wish }) => {
      const said = outcome(await submitted(name, wish, files.files()));
      go(resourcePath(name));
      return said;
    },
    onDone: () => {},
  });
}
