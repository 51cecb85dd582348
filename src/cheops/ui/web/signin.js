// Sign-in: the token is sent to the agent once; then a cookie that scripts cannot read stands for it.

import { ApiError, signIn } from "./api.js";
import { fill, h } from "./dom.js";
import { field } from "./components.js";

let asking = null;

/** Asks for a token; true when the user signed in. Concurrent calls share one dialog. */
export function askForToken(why) {
  asking ??= ask(why).finally(() => {
    asking = null;
  });
  return asking;
}

function ask(why) {
  return new Promise((done) => {
    const said = h("div", {});
    const token = h("input", { class: "input mono", type: "password", autocomplete: "current-password", name: "token", required: true, spellcheck: "false" });
    const send = h("button", { class: "button primary" }, "Sign in");
    const form = h(
      "form",
      { method: "dialog", "aria-label": "Sign in" },
      h("h1", {}, "Sign in"),
      h("p", { class: "lead" }, why || "Sign in with an access token for this site."),
      field("Token", token, "Create one on the site's machine: cheops token create NAME --role operator"),
      said,
      h("div", { class: "buttons" }, h("button", { class: "button", type: "button", onclick: () => dialog.close() }, "Cancel"), send),
    );
    const dialog = h("dialog", { class: "narrow", onclose: () => (dialog.remove(), done(dialog.returnValue === "in")) }, form);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      send.disabled = true;
      try {
        await signIn(token.value.trim());
        token.value = "";
        dialog.close("in");
        dispatchEvent(new Event("signed-in"));
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        fill(said, h("div", { class: "problem", role: "alert" }, error.message));
        send.disabled = false;
        token.select();
      }
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
