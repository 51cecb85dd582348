// One resource: its status, its operations at each site, and the actions on it.

import { at as path, get } from "../api.js";
import { deleteDialog } from "../actions/delete.js";
import { forceDialog } from "../actions/force.js";
import { changeSitesDialog } from "../actions/change_sites.js";
import { sendDialog } from "../actions/send.js";
import { fill, h, link, resourcePath } from "../dom.js";
import { moments, lanesAt } from "../lanes/model.js";
import { lanesBoard } from "../lanes/draw.js";
import { legend } from "../lanes/marks.js";
import { replaySlider } from "../lanes/replay.js";
import { onEvent, refresher } from "../events.js";
import { blank, button, loaded, notice, syncBadge } from "../components.js";
import { setQuery } from "../router.js";
import { matrixTab } from "./matrix.js";
import { operationPanel } from "./operation.js";
import { stateTab } from "./state.js";
import { explanationTab } from "./explanation.js";

const TABS = [["", "Lanes"], ["state", "Real state"], ["matrix", "Matrix"], ["why", "Why"]];
const DIALOGS = { send: sendDialog, delete: deleteDialog, sites: changeSitesDialog, force: forceDialog };
const EVERY_MS = 3000; // ages and reachability change without an event

export function resourceView(place, { parts, query, signal }) {
  const [id] = parts;
  const tab = query.get("tab") ?? "";
  const head = h("div", { class: "head" });
  const body = h("div", { vars: { display: "contents" } });
  const lanes = tab === "" ? lanesTab(id, query, signal) : null;
  let answer = null;

  const load = refresher(async () => {
    const known = await loaded(answer ? body : head, () => get(path`/resources/${id}/lanes`, { fresh: 0.3 }, signal), draw, load);
    if (!known && !answer && !signal.aborted) fill(body);
  }, signal, 100);

  function draw(found) {
    const isFirst = answer === null;
    answer = found;
    drawHead(head, answer, openDialog);
    if (isFirst) begin();
    lanes?.show(answer);
  }

  function begin() {
    const tabs = TABS.map(([key, text]) => h("a", { href: `${resourcePath(id)}${key ? `?tab=${key}` : ""}`, role: "tab", "aria-selected": String(key === tab) }, text));
    const content = lanes?.element ?? h("section", { class: "card" });
    fill(body, h("div", { class: "tabs", role: "tablist" }, tabs), content);
    if (tab === "state") stateTab(content, id, signal);
    if (tab === "matrix") matrixTab(content, id, signal);
    if (tab === "why") explanationTab(content, id, signal);
    if (DIALOGS[query.get("do")]) openDialog(query.get("do"));
  }

  function openDialog(which) {
    setQuery({ do: which });
    DIALOGS[which](answer, () => {
      setQuery({ do: "" });
      load();
    });
  }

  fill(place, head, body);
  load();
  onEvent((event) => (event.resource === id || event.kind.startsWith("site-") || event.kind === "reset" ? load() : undefined), signal);
  const timer = setInterval(() => document.hidden || load(), EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

function drawHead(head, answer, openDialog) {
  const { resource, overall, deleted, type } = answer;
  fill(
    head,
    h(
      "div",
      { class: "title" },
      h("div", { class: "crumb" }, link("/ui/resources", "Resources"), ` / ${type || "no type"}`),
      h("div", { class: "row" }, h("h1", {}, h("bdi", {}, resource)), syncBadge(overall, deleted)),
      h("p", { class: "lead", "data-sentence": "" }, answer.sentence),
      answer.order_not_enforced && notice("warn", "Operations ran here out of order. “Force a state” sets a new base."),
    ),
    h(
      "div",
      { class: "actions" },
      button("Send operation", () => openDialog("send"), "primary"),
      button("Change sites", () => openDialog("sites")),
      button("Force a state", () => openDialog("force")),
      button("Delete", () => openDialog("delete"), "danger"),
    ),
  );
}

/** The lanes with their slider, and beside them the selected operation. */
function lanesTab(id, query, signal) {
  let selected = query.get("op");
  let at = query.get("t") ? Number(query.get("t")) : null;
  let answer = null;
  const board = lanesBoard(select);
  const slider = replaySlider(move, signal);
  const side = h("div", { vars: { display: "contents" } });
  const empty = h("div", {});
  const element = h("div", { class: "resource" }, h("section", { class: "card" }, board.element, empty, slider.element, legend()), side);
  const panel = operationPanel(id, signal, { onClose: () => select(null), onSelect: select });

  function select(op) {
    selected = op === selected ? null : op;
    setQuery({ op: selected });
    draw();
    choose();
  }

  function move(moment) {
    at = moment;
    setQuery({ t: at });
    draw();
  }

  function choose() {
    element.classList.toggle("with-panel", Boolean(selected));
    fill(side, selected && panel.element);
    if (selected) panel.show(selected);
  }

  function draw() {
    const drawn = lanesAt(answer, at);
    fill(empty, drawn.rows.length === 0 && blank(at === null ? "No operations" : "Nothing yet", at === null ? "A checkpoint contains the state, or the first operation has not run yet." : "No operation existed at this time."));
    board.show(answer, drawn, selected);
  }

  function show(found) {
    answer = found;
    slider.show(moments(answer), at);
    draw();
    choose();
  }

  return { element, show };
}
