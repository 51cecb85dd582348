// DOM elements from data. Text is always a text node: nothing that comes from a site is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** h("a", {href: "/ui/", class: "brand", onclick: f}, "text", element, [more]) */
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function s(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else if (name === "vars") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replaces the content of an element. A link or button in it that has the focus keeps it: views are drawn again every few
 * seconds, and a user of the keyboard would lose the place each time. */
export function fill(element, ...children) {
  const focused = focusedIn(element);
  element.replaceChildren();
  append(element, children);
  if (focused) alike(element, focused.before)[focused.n]?.focus({ preventScroll: true });
  return element;
}

function focusedIn(element) {
  const before = document.activeElement;
  if (before === element || !element.contains(before) || !before.matches("a, button, summary")) return null;
  return { before, n: alike(element, before).indexOf(before) };
}

/** The elements that are the same to a user as this one. Text and title may differ: they often have numbers in them. */
function alike(element, one) {
  const name = (other) => ["href", "aria-label"].map((key) => other.getAttribute(key)).join("\n").trim() || other.textContent;
  return [...element.querySelectorAll(one.localName)].filter((other) => name(other) === name(one));
}

/** A foreign name: truncated if long, complete in its title, and isolated from the direction of the text around it. */
export function cut(text, props) {
  return h("bdi", { class: "cut", title: text, ...props }, text);
}

/** Links are followed within the page: see router.js. */
export function link(path, ...children) {
  return h("a", { href: path }, ...children);
}

export const resourcePath = (id) => `/ui/resources/${encodeURIComponent(id)}`;
export const sitePath = (name) => `/ui/sites/${encodeURIComponent(name)}`;
