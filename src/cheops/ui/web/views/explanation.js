// Why the resource is in its state: the agent's explanation.

import { at as path, get } from "../api.js";
import { fill, h } from "../dom.js";
import { onEvent, refresher } from "../events.js";
import { loaded, notice } from "../components.js";

const KINDS = { CONVERGED: "ok", CONVERGING: "info", DIVERGED: "", UNREACHABLE: "warn" };
const MOST = 300; // the oldest steps matter least

export function explanationTab(card, id, signal) {
  const body = h("div", { class: "card-body" });
  const load = refresher(() => loaded(body, () => get(path`/resources/${id}/explain`, {}, signal), draw, load), signal);

  function draw(found) {
    const steps = found.steps.slice(-MOST);
    fill(
      body,
      notice(KINDS[found.overall] ?? "info", h("b", {}, found.conclusion)),
      steps.length < found.steps.length && h("p", { class: "muted" }, `The last ${MOST} of ${found.steps.length} steps; “cheops explain” shows all.`),
      h("ol", { class: "steps" }, steps.map((one) => h("li", {}, h("span", {}, one.text)))),
    );
  }

  fill(card, h("div", { class: "card-head" }, h("h2", {}, "Step by step")), body);
  load();
  onEvent((event) => (event.resource === id ? load() : undefined), signal);
}
