// All sites: a map, a table, ping, and in the demo buttons that cut sites off.

import { at as path, get, isAbort, mayTryAgain, post, put, remove } from "../api.js";
import { cut, fill, h, link, sitePath } from "../dom.js";
import { lastSeen, milliseconds, number, offset, plural } from "../format.js";
import { onEvent, refresher } from "../events.js";
import { button, card, loaded, notice, siteBadge, toast } from "../components.js";
import { healthCard } from "./health.js";
import { MOST, sitesMap } from "./sites_map.js";

const EVERY_MS = 2000;
const NEWS = new Set(["reset", "diverged", "drifted"]); // besides those of sites: the rest can wait for the timer

// A token with limits may not see how many resources there are.
function siteHealth(signal) {
  return get("/status", {}, signal).catch((error) => {
    if (error.status === 403) return null;
    throw error;
  });
}

export function sitesView(place, { signal }) {
  const body = h("div", { vars: { display: "contents" } });
  const pings = new Map();
  let found = null;
  let links = { on: false, cut: [] };
  let health = null;

  const load = refresher(async () => {
    await loaded(
      body,
      async () => {
        [found, links, health] = await Promise.all([get("/sites", {}, signal), get("/demo/wires", {}, signal), siteHealth(signal)]);
      },
      draw,
      load,
    );
  }, signal);

  function draw() {
    fill(
      body,
      [...found.problems].map((text) => notice("warn", text)),
      links.cut.length > 0 && notice("warn", h("b", {}, "The demo's network is cut"), cutWords(links.cut)),
      health && healthCard(health),
      h("div", { class: "split" }, card("Map", h("div", { class: "card-body" }, sitesMap(found, links), many())), card("All sites", table())),
    );
  }

  const many = () => found.sites.length > MOST && h("p", { class: "muted small" }, `The ${MOST} nearest of ${number(found.sites.length)} sites are shown; the table has all.`);

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
      h("td", { class: "nowrap" }, siteBadge(site.state), " ", h("span", { class: "muted small" }, site.here ? "this site" : lastSeen(site.as_of_s))),
      h("td", { class: "num", title: "Resources known here that are at this site" }, number(site.resources)),
      h("td", { class: "num" }, site.pending === null ? h("span", { class: "muted" }, "not known") : site.pending ? h("b", {}, number(site.pending)) : "0"),
      h("td", { class: "num" }, site.here ? "–" : h("span", { title: site.rtt_measured ? "measured" : "estimated" }, milliseconds(site.rtt_ms))),
      h("td", { class: "num nowrap" }, site.here ? "–" : offset(site.clock_offset_ms)),
      h("td", {}, site.services.length ? cut(site.services.join(", ")) : h("span", { class: "muted" }, "none")),
      h("td", {}, site.version || "–"),
      h("td", { class: "nowrap" }, actions(site)),
    );
  }

  function actions(site) {
    const result = pings.get(site.name);
    const isCut = links.cut.some((pair) => pair.includes(site.name)) && links.cut.filter((pair) => pair.includes(site.name)).length >= found.sites.length - 1;
    return h(
      "div",
      { class: "toolbar end" },
      result && h("span", { class: "small muted", title: result.detail }, result.busy ? "pinging…" : result.ok ? milliseconds(result.took_ms) : "no reply"),
      !site.here && button("Ping", () => ping(site.name), "small", { "aria-label": `Ping ${site.name}` }),
      links.on && !isCut && button("Cut off", () => wire(site.name, true), "small danger", { "aria-label": `Cut ${site.name} off` }),
      links.on && isCut && button("Rejoin", () => wire(site.name, false), "small", { "aria-label": `Rejoin ${site.name}` }),
    );
  }

  async function ping(name) {
    pings.set(name, { busy: true });
    draw();
    const result = await post(path`/sites/${name}/ping`, undefined, signal).catch((error) => ({ ok: false, detail: error.message }));
    pings.set(name, result);
    if (!result.ok) toast(`${name}: ${result.detail}`, "bad");
    draw();
  }

  const pingAll = () => Promise.all(found.sites.filter((site) => !site.here && site.state !== "forgotten").map((site) => ping(site.name)));

  async function wire(name, off) {
    try {
      links = await (off ? remove(path`/demo/wires/${name}`) : put(path`/demo/wires/${name}`));
      toast(off ? `${name} is cut off` : `${name} is connected again`);
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
    h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "Sites"), h("p", { class: "lead" }, "All sites of the mesh, as this site sees them.")), h("div", { class: "actions" }, button("Ping all", pingAll), link("/ui/new", h("span", { class: "button primary" }, "New resource")))),
    body,
  );
  load();
  onEvent((event) => (event.kind.startsWith("site-") || NEWS.has(event.kind) ? load() : undefined), signal);
  const timer = setInterval(() => document.hidden || load(), EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

function cutWords(pairs) {
  return h("span", {}, `${plural(pairs.length, "pair of sites", "pairs of sites")} cannot reach each other: ${pairs.map((pair) => pair.join(" and ")).join("; ")}`);
}
