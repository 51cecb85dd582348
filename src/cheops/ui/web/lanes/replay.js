// The slider: how the lanes came about, moment by moment, from the times at which sites made and ran operations.

import { fill, h } from "../dom.js";
import { clock, plural } from "../format.js";

const STEP_MS = 700;

/** `onMove(at)`: show how it was at this time; null: now. Gives {element, show(moments, at)}. */
export function replaySlider(onMove, signal) {
  let stops = [];
  let timer = 0;
  const range = h("input", { type: "range", min: 0, step: 1, "aria-label": "Moment", oninput: () => (stop(), move(Number(range.value))) });
  const told = h("output", {});
  const play = h("button", { type: "button", class: "button small", onclick: () => (timer ? stop() : start()) });
  const now = h("button", { type: "button", class: "button quiet small", onclick: () => (stop(), move(stops.length)) }, "Now");
  const element = h("div", { class: "replay" }, play, range, told, now);
  signal.addEventListener("abort", stop);

  function start() {
    if (Number(range.value) >= stops.length) move(0);
    timer = setInterval(() => {
      const next = Number(range.value) + 1;
      move(next);
      if (next >= stops.length) stop();
    }, STEP_MS);
    label();
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    label();
  }

  function move(n) {
    range.value = n;
    label();
    onMove(n >= stops.length ? null : stops[n]);
  }

  function label() {
    const n = Number(range.value);
    fill(play, timer ? "Pause" : "Replay");
    const text = n >= stops.length ? `Now, after ${plural(stops.length, "moment")}` : `${clock(stops[n])} · moment ${n + 1} of ${stops.length}`;
    fill(told, text);
    range.setAttribute("aria-valuetext", text);
  }

  /** New moments may have come; the slider stays at its own. */
  function show(moments, at) {
    stops = moments;
    range.max = stops.length;
    const n = at === null ? stops.length : stops.findLastIndex((one) => one <= at);
    range.value = Math.max(0, n);
    label();
  }

  return { element, show };
}
