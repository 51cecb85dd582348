// Light or dark theme: the system setting, or the switch, which the browser stores.

import { fill, h } from "./dom.js";

const KEY = "cheops-theme";
const NAMES = { "": "Auto", light: "Light", dark: "Dark" };
const NEXT = { "": "light", light: "dark", dark: "" };

function stored() {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // storage is disabled
  }
}

function apply(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

export function themeSwitch() {
  let theme = NAMES[stored()] ? stored() : "";
  apply(theme);
  const made = h("button", { type: "button", class: "button quiet small", title: "Light, dark, or the system setting" });
  const label = () => fill(made, `Theme: ${NAMES[theme]}`);
  made.addEventListener("click", () => {
    theme = NEXT[theme];
    apply(theme);
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // then the choice lasts as long as the page
    }
    label();
  });
  label();
  return made;
}
