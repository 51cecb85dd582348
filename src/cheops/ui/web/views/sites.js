// All sites: a map, a table, a ping, and in the demo a pair of scissors.

import { at as path, get, isAbort, mayTryAgain, post, put, remove } from "../api.js";
import { cut, fill, h, link, sitePath } from "../dom.js";
import { asOf, milliseconds, number, offset, plural } from "../format.js";
import { onEvent, refresher } from "../live.js";
import { button, card, loaded, notice, siteBadge, toast } from "../parts.js";
import { MOST, sitesGraph } from "./sites_graph.js";

const EVERY_MS = 2000;

export function sitesView(place, { signal }) {
  const body = h("div", { vars: { display: "contents" } });
  const pings = new Map();
  let found = null;
  let wires = { on: false, cut: [] };

  const load = refresher(async () => {
    await loaded(
      body,
      async () => {
        [found, wires] = await Promise.all([get("/sites", {}, signal), get("/demo/wires", {}, signal)]);
      },
      draw,
      load,
    );
  }, signal);

  function draw() {
    fill(
      body,
      [...found.problems].map((text) => notice("warn", text)),
      wires.cut.length > 0 && notice("warn", h("b", {}, "The demo's network is cut"), cutWords(wires.cut)),
      h("div", { class: "split" }, card("Map", h("div", { class: "card-body" }, sitesGraph(found, wires), many())), card("All sites", table())),
    );
  }

  const many = () => found.sites.length > MOST && h("p", { class: "muted small" }, `The ${MOST} nearest of ${number(found.sites.length)} sites are drawn; the table has all.`);

  function table() {
    const heads = ["Site", "State", "Resources", "Pending", "Round trip", "Clock", "Services", "Version", ""];
    const numeric = new Set(["Resources", "Pending", "Round trip", "Clock"]);
    return h(
      "div",
      { class: "table-wrap dense" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, heads.map((text) => h("th", { class: numeric.has(text) ? "num" : "", scope: "col" }, text || h("span", { "aria-label": "Actions" }))))),
        h("tbody", {}, found.sites.map(row)),
      ),
    );
  }

  function row(site) {
    return h(
      "tr",
      { class: site.here ? "here" : "", "data-site": site.name },
      h("td", {}, h("a", { href: sitePath(site.name) }, cut(site.name)), site.problems.map((text) => h("div", { class: "small", title: text }, cut(text)))),
      h("td", { class: "nowrap" }, siteBadge(site.state), " ", h("span", { class: "muted small" }, site.here ? "this site" : asOf(site.as_of_s))),
      h("td", { class: "num", title: "Resources that are known here, with this site on their list" }, number(site.resources)),
      h("td", { class: "num" }, site.pending ? h("b", {}, number(site.pending)) : "0"),
      h("td", { class: "num" }, site.here ? "–" : h("span", { title: site.rtt_measured ? "measured" : "estimated" }, milliseconds(site.rtt_ms))),
      h("td", { class: "num nowrap" }, site.here ? "–" : offset(site.clock_offset_ms)),
      h("td", {}, site.services.length ? cut(site.services.join(", ")) : h("span", { class: "muted" }, "none")),
      h("td", {}, site.version || "–"),
      h("td", { class: "nowrap" }, actions(site)),
    );
  }

  function actions(site) {
    const told = pings.get(site.name);
    const isCut = wires.cut.some((pair) => pair.includes(site.name)) && wires.cut.filter((pair) => pair.includes(site.name)).length >= found.sites.length - 1;
    return h(
      "div",
      { class: "toolbar end" },
      told && h("span", { class: "small muted", title: told.detail }, told.busy ? "asking…" : told.ok ? milliseconds(told.took_ms) : "no answer"),
      !site.here && button("Ping", () => ping(site.name), "small", { "aria-label": `Ping ${site.name}` }),
      wires.on && !isCut && button("Cut off", () => wire(site.name, true), "small danger", { "aria-label": `Cut ${site.name} off` }),
      wires.on && isCut && button("Join", () => wire(site.name, false), "small", { "aria-label": `Join ${site.name} again` }),
    );
  }

  async function ping(name) {
    pings.set(name, { busy: true });
    draw();
    const told = await post(path`/sites/${name}/ping`, undefined, signal).catch((error) => ({ ok: false, detail: error.message }));
    pings.set(name, told);
    if (!told.ok) toast(`${name}: ${told.detail}`, "bad");
    draw();
  }

  const pingAll = () => Promise.all(found.sites.filter((site) => !site.here && site.state !== "forgotten").map((site) => ping(site.name)));

  async function wire(name, off) {
    try {
      wires = await (off ? remove(path`/demo/wires/${name}`) : put(path`/demo/wires/${name}`));
      toast(off ? `${name} is cut from the others` : `${name} reaches the others again`);
      draw();
      load();
    } catch (error) {
      if (isAbort(error)) return;
      if (await mayTryAgain(error)) wire(name, off);
      else toast(error.message, "bad");
    }
  }

  fill(
    place,
    h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "Sites"), h("p", { class: "lead" }, "As this site sees them.")), h("div", { class: "actions" }, button("Ping all", pingAll), link("/ui/new", h("span", { class: "button primary" }, "New resource")))),
    body,
  );
  load();
  onEvent((event) => (event.kind.startsWith("site-") || event.kind === "reset" ? load() : undefined), signal);
  const timer = setInterval(() => document.hidden || load(), EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

function cutWords(pairs) {
  return h("span", {}, `${plural(pairs.length, "pair")} without a way to each other: ${pairs.map((pair) => pair.join(" and ")).join("; ")}`);
}
