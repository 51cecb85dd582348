// The slider: replays the lanes event by event, from the times at which sites created and ran operations.

import { fill, h } from "../dom.js";
import { clock, plural } from "../format.js";

const STEP_MS = 700;

/** `onMove(at)`: show the state at this time; null means now. Returns {element, show(moments, at)}. */
export function replaySlider(onMove, signal) {
  let stops = [];
  let timer = 0;
  const range = h("input", { type: "range", min: 0, step: 1, "aria-label": "Time", oninput: () => (stop(), move(Number(range.value))) });
  const output = h("output", {});
  const play = h("button", { type: "button", class: "button small", onclick: () => (timer ? stop() : start()) });
  const now = h("button", { type: "button", class: "button quiet small", onclick: () => (stop(), move(stops.length)) }, "Now");
  const element = h("div", { class: "replay" }, play, range, output, now);
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
    const text = n >= stops.length ? `Now (${plural(stops.length, "event")})` : `${clock(stops[n])} · event ${n + 1} of ${stops.length}`;
    fill(output, text);
    range.setAttribute("aria-valuetext", text);
  }

  /** Takes new events; the slider stays at its time. */
  function show(moments, at) {
    stops = moments;
    range.max = stops.length;
    const n = at === null ? stops.length : stops.findLastIndex((one) => one <= at);
    range.value = Math.max(0, n);
    label();
  }

  return { element, show };
}
