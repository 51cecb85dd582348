// Replicants: resources of HTTP services, under one meta-id for clients and a local id at each site.

import { at as path, get } from "../api.js";
import { cut, fill, h, resourcePath } from "../dom.js";
import { onEvent, refresher } from "../events.js";
import { blank, button, loaded, syncBadge } from "../components.js";
import { setQuery } from "../router.js";

const PAGE = 25;

export function replicantsView(place, { query, signal }) {
  const list = h("div", {});
  const foot = h("div", { class: "foot" });
  const local = new Map(); // the id at each site, as far as known
  let cursors = (query.get("after") ?? "").split(" ").filter(Boolean);

  const load = refresher(() => loaded(list, () => get("/replicants", { cursor: cursors.at(-1) ?? "", limit: PAGE, fresh: 0.3 }, signal), draw, load), signal);

  function turn(next) {
    cursors = next;
    setQuery({ after: cursors.join(" ") });
    load();
  }

  async function draw(found) {
    const sites = [...new Set(found.replicants.flatMap((one) => one.sites))].sort();
    fill(list, found.replicants.length ? table(found.replicants, sites, local) : blank("No replicants", "A request to a service with a scope such as “{image: site1 & site2}” creates one."));
    fill(foot, h("span", {}), h("div", { class: "toolbar" }, button("Previous", () => turn(cursors.slice(0, -1)), "small", { disabled: !cursors.length }), button("Next", () => turn([...cursors, found.next]), "small", { disabled: !found.next })));
    await Promise.all(found.replicants.map(askEverywhere));
  }

  /** A site knows only its own local id: the other sites are queried one by one, and the cells fill in. */
  async function askEverywhere(one) {
    const known = await get(path`/replicants/${one.id}`, { fresh: 0 }, signal).catch(() => null);
    if (!known) return;
    local.set(one.id, known.local_ids);
    for (const cell of list.querySelectorAll(`tr[data-id="${CSS.escape(one.id)}"] td[data-site]`)) fill(cell, localId(one, cell.dataset.site, local));
  }

  fill(place, h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "Replicants"), h("p", { class: "lead" }, "HTTP resources at several sites. Clients use the meta-id; each site's service has its own id."))), h("section", { class: "card" }, list, foot));
  load();
  onEvent((event) => (event.resource_type?.includes("http") || event.kind === "reset" || event.resource ? load() : undefined), signal);
}

function table(replicants, sites, local) {
  const heads = ["Meta-id", "Service", "Sync", ...sites.map((site) => `Id at ${site}`), "Waiting for"];
  return h(
    "div",
    { class: "table-wrap" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))),
      h(
        "tbody",
        {},
        replicants.map((one) =>
          h(
            "tr",
            { "data-id": one.id },
            h("td", {}, h("a", { href: resourcePath(one.id), class: "mono" }, cut(one.id)), one.path && h("span", { class: "muted small" }, cut(one.path.replace(one.id, "…")))),
            h("td", {}, cut(one.service)),
            h("td", {}, syncBadge(one.overall, one.deleted, one.void)),
            sites.map((site) => h("td", { "data-site": site }, localId(one, site, local))),
            h("td", {}, one.waits ? cut(one.waits) : h("span", { class: "muted" }, "–")),
          ),
        ),
      ),
    ),
  );
}

function localId(one, site, local) {
  if (!one.sites.includes(site) || one.void || one.deleted) return h("span", { class: "muted" }, "–");
  const known = local.get(one.id);
  if (!known) return h("span", { class: "muted" }, "…");
  return known[site] === null || known[site] === undefined ? h("span", { class: "muted" }, "unknown") : h("code", { class: "short" }, cut(known[site]));
}
