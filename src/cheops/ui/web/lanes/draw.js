// The lanes on the page. Only the visible rows are drawn, and the links that cross them: five thousand operations
// cost as much as fifty.

import { fill, h, s } from "../dom.js";
import { asOf, clock, full, moment, number, plural, ruleName, ruleSentence } from "../format.js";
import { mark } from "./marks.js";
import { spoken } from "./model.js";

const ROW = 30;
const BEYOND = 8; // rows above and below the visible ones
const TRACKS = 6;

/** `onSelect(id)`: a row was chosen. Gives {element, show(answer, drawn, selected)}. */
export function lanesBoard(onSelect) {
  const head = h("div", { class: "lanes-head" });
  const svg = s("svg", { "aria-hidden": "true" });
  const list = h("div", { class: "lanes-body", role: "group", "aria-label": "Operations, the newest first" });
  const view = h("div", { class: "lanes-view", onscroll: () => soon(), tabindex: -1 }, list);
  const element = h("div", { class: "lanes-scroll" }, head, view);
  let shown = null;
  let asked = 0;

  function soon() {
    if (!asked) asked = requestAnimationFrame(() => ((asked = 0), shown && draw()));
  }

  function show(answer, drawn, selected) {
    const width = Math.round(Math.min(112, Math.max(64, 640 / Math.max(1, answer.lanes.length))));
    const sites = answer.lanes.map((lane) => lane.site);
    shown = { answer, drawn, selected, width, sites, tracks: tracksOf(answer) };
    fill(head, heads(answer, width));
    list.style.height = `${drawn.rows.length * ROW + 8}px`;
    draw();
  }

  function draw() {
    const { drawn, width } = shown;
    const first = Math.max(0, Math.floor(view.scrollTop / ROW) - BEYOND);
    const last = Math.min(drawn.rows.length, Math.ceil((view.scrollTop + (view.clientHeight || 720)) / ROW) + BEYOND);
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.op : null;
    svg.setAttribute("width", shown.sites.length * width);
    svg.setAttribute("height", (last - first) * ROW);
    svg.style.top = `${first * ROW}px`;
    const rows = drawn.rows.slice(first, last);
    fill(svg, s("g", { transform: `translate(0 ${-first * ROW})` }, rails(first, last), holes(rows, first), links(first, last), marks(rows, first)));
    fill(list, rows.map((row, n) => item(row, first + n)), svg);
    if (focused !== null) list.querySelector(`[data-op="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  const x = (lane) => lane * shown.width + 20;
  const y = (row) => row * ROW + ROW / 2;

  const rails = (first, last) => shown.sites.map((_, lane) => s("line", { class: "rail", x1: x(lane), x2: x(lane), y1: first * ROW, y2: last * ROW }));

  function holes(rows, first) {
    return rows.flatMap((row, n) =>
      row.states.map((state, lane) => (state === "missing" || state === "failed") && s("rect", { class: "hole", x: lane * shown.width + 2, y: (first + n) * ROW + 2, width: shown.width - 4, height: ROW - 4, rx: 4 })),
    );
  }

  function links(first, last) {
    return shown.drawn.links
      .filter((one) => one.child < last && one.parent >= first)
      .map((one) => s("path", { class: "link", stroke: `var(--track-${track(one.from)})`, d: path(one) }));
  }

  /** Down the child's own lane, then over to the parent's. */
  function path({ child, parent, from, to }) {
    const [x1, y1, x2, y2] = [x(from), y(child), x(to), y(parent)];
    if (from === to) return `M${x1} ${y1}V${y2}`;
    const turn = Math.max(y1, y2 - 1.6 * ROW);
    return `M${x1} ${y1}V${turn}C${x1} ${turn + (y2 - turn) * 0.7} ${x2} ${turn + (y2 - turn) * 0.3} ${x2} ${y2}`;
  }

  function marks(rows, first) {
    return rows.flatMap((row, n) =>
      row.states.map((state, lane) => mark(x(lane), y(first + n), state, { isOrigin: shown.sites[lane] === row.op.origin, track: track(shown.tracks.get(row.op.origin)), word: shown.width > 80 })),
    );
  }

  function item(row, n) {
    const { op } = row;
    const fate = op.beaten_by ? [`by ${op.beaten_by}`, ruleName(op.rule)].filter(Boolean).join(", ") : op.effect === "effective" ? "" : op.effect;
    const whole = op.beaten_by ? `superseded by ${op.beaten_by}: ${ruleSentence(op)}` : op.sentence;
    return h(
      "button",
      { type: "button", class: `op${row.isGone ? " gone" : ""}`, vars: { top: `${n * ROW}px` }, "data-op": op.id, "data-row": n, "data-states": row.states.join(" "), "aria-pressed": String(op.id === shown.selected), "aria-label": spoken(row, shown.sites), onclick: () => onSelect(op.id), onkeydown: (event) => step(event, n) },
      h("span", { class: "time", title: full(op.made_ms) }, clock(op.made_ms).slice(0, 8)),
      h("span", { class: "space", vars: { width: `${shown.sites.length * shown.width}px` } }),
      h("span", { class: "what" }, h("bdi", { class: "name" }, op.id), h("bdi", { class: "type" }, op.kind === "normal" ? op.type : op.kind), h("bdi", { class: "command", title: op.command }, op.command), row.isGone && h("span", { class: "fate", title: whole }, fate)),
    );
  }

  function step(event, n) {
    const to = { ArrowDown: n + 1, ArrowUp: n - 1, Home: 0, End: shown.drawn.rows.length - 1, PageDown: n + 15, PageUp: n - 15 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const row = Math.max(0, Math.min(shown.drawn.rows.length - 1, to));
    const [top, bottom] = [row * ROW, (row + 1) * ROW];
    if (top < view.scrollTop) view.scrollTop = top;
    if (bottom > view.scrollTop + view.clientHeight) view.scrollTop = bottom - view.clientHeight;
    draw();
    list.querySelector(`[data-row="${row}"]`)?.focus({ preventScroll: true });
  }

  return { element, show };
}

const track = (lane) => ((lane ?? 0) % TRACKS) + 1;

function tracksOf(answer) {
  const found = new Map(answer.lanes.map((lane, n) => [lane.site, n]));
  for (const op of answer.operations) if (!found.has(op.origin)) found.set(op.origin, found.size); // a site that left
  return found;
}

function laneWords({ failed, unknown, pending }) {
  const lacking = pending === null ? "not known" : pending && `${number(pending)} missing`;
  const parts = [failed && `${number(failed)} failed`, unknown && `${number(unknown)} unknown`, lacking];
  return parts.filter(Boolean).join(", ") || "up to date";
}

function heads(answer, width) {
  const names = answer.lanes.map((lane) => {
    const report = lane.as_of_s === null ? "no report" : asOf(lane.as_of_s);
    const label = lane.here ? "this site" : lane.reachable ? report : `unreachable, ${report}`;
    return h(
      "div",
      { class: `lane-name${lane.reachable ? "" : " off"}`, vars: { width: `${width}px` }, title: `${lane.site}: ${label}`, "data-lane": lane.site },
      h("b", {}, h("bdi", {}, lane.site)),
      h("span", {}, lane.here ? "this site" : lane.reachable ? "reachable" : "unreachable"),
      h("span", { class: lane.failed || lane.unknown ? "bad" : "" }, laneWords(lane)),
    );
  });
  const count = answer.operations.filter((op) => op.kind !== "seal").length;
  const last = answer.operations.at(-1);
  const about = `${plural(count, "operation")}${last ? `, the newest at ${moment(last.made_ms)}` : ""}${answer.forgotten ? `; ${number(answer.forgotten)} older ones without effect are deleted` : ""}`;
  return [h("div", { class: "time" }, "Created"), ...names, h("div", { class: "what" }, about)];
}
