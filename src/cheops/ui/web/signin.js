// Signing in: the token is shown to the agent once; from then on a cookie stands for it that scripts cannot read.

import { ApiError, signIn } from "./api.js";
import { fill, h } from "./dom.js";
import { field } from "./parts.js";

let asking = null;

/** Asks for a token; true when somebody signed in. Several who ask at once share one dialog. */
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
      h("p", { class: "lead" }, why || "This agent wants to know who asks. Show a token of this site."),
      field("Token", token, "“cheops token create NAME --role operator” on the site's machine makes one."),
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
