// The form of a change, with a dry run that follows the input, and the request itself.

import { ApiError, isAbort, mayTryAgain } from "../api.js";
import { fill, h } from "../dom.js";
import { debounced, notice, toast } from "../components.js";
import { dryRun } from "./dry_run.js";

const WAIT_MS = 250;

/**
 * fields: the elements of the form.
 * request(): the body of the request, or {missing: "what the user must still enter"}.
 * preview(request, signal): the dry run, or an element to show instead.
 * run(request): sends it; returns the text to show.
 */
export function changeForm({ title, lead, verb, kind = "primary", fields, request, preview, run, onDone, onCancel }) {
  const status = h("div", { "aria-live": "polite", class: "form", vars: { gap: "8px" } });
  const send = h("button", { class: `button ${kind}`, disabled: true }, verb);
  let asked = 0;
  let good = "";
  let leaving = new AbortController();

  async function look() {
    const wanted = request();
    const mine = (asked += 1);
    good = "";
    send.disabled = true;
    leaving.abort();
    leaving = new AbortController();
    if (wanted.missing) {
      fill(status, h("p", { class: "muted" }, wanted.missing));
      return;
    }
    try {
      const found = await preview(wanted, leaving.signal);
      if (mine !== asked) return;
      const isElement = found instanceof Node;
      fill(status, isElement ? found : dryRun(found));
      good = isElement || !found.refused ? JSON.stringify(wanted) : "";
      send.disabled = !good;
    } catch (error) {
      if (isAbort(error) || mine !== asked) return;
      if (!(error instanceof ApiError)) throw error;
      fill(status, notice("", h("b", {}, "It would be refused"), error.message));
    }
  }

  async function submit(event) {
    event.preventDefault();
    const wanted = request();
    if (send.disabled || JSON.stringify(wanted) !== good) return;
    send.disabled = true;
    fill(send, "Working…");
    try {
      const text = await run(wanted);
      toast(text);
      onDone();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (await mayTryAgain(error)) {
        fill(send, verb);
        send.disabled = false;
        return submit(event);
      }
      fill(status, h("div", { class: "problem", role: "alert" }, h("b", {}, "Not done"), h("span", {}, error.message)));
    }
    fill(send, verb);
  }

  const form = h(
    "form",
    { onsubmit: submit, "aria-label": title, class: "form" },
    title && h("div", { class: "form", vars: { gap: "4px" } }, h("h1", {}, title), lead && h("p", { class: "lead" }, lead)),
    fields,
    h("div", { class: "form", vars: { gap: "6px" } }, h("h3", {}, "What it would do"), status),
    h("div", { class: "buttons" }, onCancel && h("button", { type: "button", class: "button", onclick: onCancel }, "Cancel"), send),
  );
  form.addEventListener("input", debounced(look, WAIT_MS));
  form.addEventListener("changed", look);
  queueMicrotask(look);
  return form;
}

export function openForm(options, onClose = () => {}) {
  const close = () => dialog.close();
  const form = changeForm({ ...options, onDone: close, onCancel: close });
  const dialog = h("dialog", { onclose: () => (dialog.remove(), onClose()) }, form);
  document.body.append(dialog);
  dialog.showModal();
  addEventListener("popstate", close, { once: true });
}

/** The outcome of an operation as text; throws if it failed at its origin. */
export function outcome(accepted) {
  const first = accepted.answers[0];
  if (accepted.verdict === "VOID") throw new ApiError(0, `${accepted.operation} failed at ${first?.site ?? "its origin"}, so it is void: ${first?.detail || first?.output || "no reason given"}`);
  const rest = accepted.waiting_for.length ? `; pending at ${accepted.waiting_for.join(", ")}` : "";
  return `${accepted.operation}: ${accepted.answers.map((one) => `${one.site} ${one.status}`).join(", ") || "accepted"}${rest}`;
}
