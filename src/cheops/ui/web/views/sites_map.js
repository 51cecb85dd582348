// The sites as a map: nodes with their state, lines with the round-trip time and the pending operations.

import { s, sitePath } from "../dom.js";
import { lastSeen, milliseconds, plural } from "../format.js";
import { placed } from "../layout.js";

const WIDTH = 330;
const HEIGHT = 280;
const MARGIN_X = 58;
const MARGIN_Y = 52;
const RADIUS = 15;
export const MOST = 40;
const SIGNS = { up: "✓", down: "✕", suspect: "!", unknown: "?", forgotten: "–" };

export function sitesMap(found, links) {
  const sites = shown(found);
  const places = placed(found.here, sites.filter((site) => !site.here));
  const at = new Map([...places].map(([name, place]) => [name, onPaper(place)]));
  const cut = new Set(links.cut.map((pair) => pair.join(" ")));
  const lines = [];
  const labels = [];
  sites.forEach((site, n) => {
    for (const other of sites.slice(n + 1)) draw(found, at, cut, site, other, lines, labels);
  });
  const title = `Sites as ${found.here} sees them`;
  return s(
    "svg",
    { class: "graph", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": title },
    lines,
    labels,
    sites.map((site) => node(site, at.get(site.name))),
  );
}

/** A map of very many sites is unreadable: then only the nearest are drawn, and the table has all. */
function shown(found) {
  const present = found.sites.filter((site) => site.state !== "forgotten");
  if (present.length <= MOST) return present;
  return [...present].sort((a, b) => (a.here ? -1 : b.here ? 1 : (a.rtt_ms ?? 1e9) - (b.rtt_ms ?? 1e9))).slice(0, MOST);
}

function rtts(found) {
  const known = new Map(found.distances.map((one) => [`${one.one}\n${one.other}`, one.rtt_ms]));
  for (const site of found.sites) if (!site.here && site.rtt_ms !== null) known.set(`${found.here}\n${site.name}`, site.rtt_ms);
  return (one, other) => known.get(`${one}\n${other}`) ?? known.get(`${other}\n${one}`) ?? null;
}

const onPaper = ([x, y]) => [WIDTH / 2 + (x * (WIDTH - 2 * MARGIN_X)) / 2, HEIGHT / 2 + (y * (HEIGHT - 2 * MARGIN_Y)) / 2];

function draw(found, at, cut, one, other, lines, labels) {
  const [[x1, y1], [x2, y2]] = [at.get(one.name), at.get(other.name)];
  const far = one.here ? other : other.here ? one : null;
  const isCut = cut.has([one.name, other.name].sort().join(" "));
  if (!far) {
    const rtt = rtts(found)(one.name, other.name);
    if (rtt === null && !isCut) return;
    lines.push(s("line", { class: `edge ${isCut ? "broken" : "far"}`, x1, y1, x2, y2 }));
    if (isCut) label(labels, (x1 + x2) / 2, (y1 + y2) / 2, ["cut"]);
    return;
  }
  const broken = isCut || far.state === "down";
  lines.push(s("line", { class: `edge ${broken ? "broken" : far.pending ? "busy" : ""}`, x1, y1, x2, y2 }));
  const texts = [isCut ? "cut" : broken ? "no reply" : `${far.rtt_measured ? "" : "≈ "}${milliseconds(far.rtt_ms)}`];
  if (far.pending === null) texts.push("pending: not known");
  else if (far.pending) texts.push(plural(far.pending, "operation") + " pending");
  label(labels, (x1 + x2) / 2, (y1 + y2) / 2, texts);
}

function label(labels, x, y, texts) {
  const width = Math.max(...texts.map((text) => text.length)) * 6.4 + 12;
  const height = texts.length * 15 + 4;
  labels.push(
    s("rect", { class: "plate", x: x - width / 2, y: y - height / 2, width, height, rx: 4 }),
    texts.map((text, n) => s("text", { class: "sub", x, y: y - height / 2 + 14 + n * 15, "text-anchor": "middle" }, text)),
  );
}

function node(site, [x, y]) {
  const name = site.name.length > 22 ? `${site.name.slice(0, 21)}…` : site.name;
  const about = site.here ? "this site" : site.state === "up" ? "" : `${site.state}, ${lastSeen(site.as_of_s)}`;
  const below = y > HEIGHT / 2;
  const base = below ? y + RADIUS + 17 : y - RADIUS - (about ? 24 : 9);
  return s(
    "a",
    { href: sitePath(site.name), class: `node ${site.state}`, "aria-label": `${site.name}: ${site.state}` },
    s("title", {}, `${site.name} · ${site.url}`),
    s("circle", { cx: x, cy: y, r: RADIUS }),
    s("text", { class: "sign", x, y }, SIGNS[site.state] ?? "?"),
    s("text", { x, y: base, "text-anchor": "middle", "font-weight": site.here ? 600 : 400 }, name),
    about && s("text", { class: "sub", x, y: base + 15, "text-anchor": "middle" }, about),
  );
}
