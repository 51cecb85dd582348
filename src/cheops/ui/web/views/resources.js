// The resources of a site. The agent searches, filters and pages, so that many resources are as fast as few.

import { at as path, get } from "../api.js";
import { cut, fill, h, link, resourcePath } from "../dom.js";
import { lastSeen, full, milliseconds, moment, number, offset } from "../format.js";
import { onEvent, refresher } from "../events.js";
import { blank, button, debounced, healthBadge, loaded, notice, select, siteBadge, syncBadge } from "../components.js";
import { setQuery } from "../router.js";

const PAGE = 50;
const SYNC = [["", "Any sync"], ["CONVERGED", "Converged"], ["CONVERGING", "Converging"], ["DIVERGED", "Diverged"], ["UNREACHABLE", "Unreachable"]];
const HEALTH = [["", "Any outcome"], ["OK", "OK"], ["KO", "Failed"], ["UNKNOWN", "Unknown"], ["VOID", "Void"], ["PENDING", "Pending"], ["RUNNING", "Running"]];
const HEADS = ["Resource", "Type", "Sync", "Health", "Sites", "Operations", "Last change"];

export function resourcesView(place, { parts, query, signal }) {
  const name = parts[0] ?? "";
  const request = Object.fromEntries(["search", "type", "overall", "outcome"].map((key) => [key, query.get(key) ?? ""]));
  let cursors = (query.get("after") ?? "").split("\n").filter(Boolean); // of this page and those before it
  let site = null;
  const head = h("div", { class: "head" });
  const list = h("div", {});
  const foot = h("div", { class: "foot" });
  const types = h("span", { vars: { display: "contents" } });

  const load = refresher(async () => {
    const params = { ...request, site: site && !site.here ? site.name : "", cursor: cursors.at(-1) ?? "", limit: PAGE, fresh: 0.3 };
    await loaded(list, () => get("/resources", params, signal), draw, load);
  }, signal);

  function ask(changes) {
    Object.assign(request, changes);
    turn([]);
  }

  function turn(next) {
    cursors = next;
    setQuery({ ...request, after: cursors.join("\n") });
    load();
  }

  function draw(found) {
    const isFiltered = Object.values(request).some(Boolean);
    const body = found.resources.length ? table(found.resources) : nothing(isFiltered, found.next);
    fill(list, body);
    const first = cursors.length ? `after “${cursors.at(-1).slice(0, 40)}”` : "from the first";
    fill(
      foot,
      h("span", {}, found.resources.length ? `${number(found.resources.length)} shown, ${first}` : ""),
      h("div", { class: "toolbar" }, button("Previous", () => turn(cursors.slice(0, -1)), "small", { disabled: !cursors.length }), button("Next", () => turn([...cursors, found.next]), "small", { disabled: !found.next })),
    );
  }

  function nothing(isFiltered, next) {
    if (isFiltered && next) return blank("No match in the first 1,000", "There are more: continue with “Next”.");
    if (isFiltered) return blank("No match", "No resource matches the filters.", button("Show all", () => showAll(), "small"));
    if (cursors.length) return blank("No more resources", "This is the last page.");
    return blank("No resources yet", "This site has no resources.", link("/ui/new", h("span", { class: "button primary" }, "Create the first one")));
  }

  function showAll() {
    for (const input of bar.querySelectorAll("input, select")) input.value = "";
    ask({ search: "", type: "", overall: "", outcome: "" });
  }

  const bar = h(
    "div",
    { class: "card-head", role: "search" },
    h(
      "div",
      { class: "toolbar", vars: { flex: "1" } },
      h("input", { class: "input search", type: "search", placeholder: "Search by id", "aria-label": "Search resources by id", value: request.search, maxlength: 256, oninput: debounced((event) => ask({ search: event.target.value.trim() }), 180) }),
      types,
      select("Sync", SYNC, request.overall, (overall) => ask({ overall })),
      select("Health", HEALTH, request.outcome, (outcome) => ask({ outcome })),
    ),
  );

  async function begin() {
    fill(place, head, h("section", { class: "card" }, bar, list, foot));
    const known = await loaded(list, async () => {
      site = name ? await get(path`/sites/${name}`, {}, signal) : null;
    }, () => {}, begin);
    if (!known) return;
    drawHead(head, site);
    load();
    const kinds = await get("/types", {}, signal).catch(() => ({ types: [] }));
    fill(types, select("Type", [["", "Any type"], ...kinds.types.map((one) => [one.name, one.name])], request.type, (type) => ask({ type })));
  }

  begin();
  onEvent((event) => (event.resource || event.kind === "reset" ? load() : undefined), signal);
}

function drawHead(head, site) {
  if (!site) {
    fill(head, h("div", { class: "title" }, h("h1", {}, "Resources"), h("p", { class: "lead" }, "All resources of this site.")), h("div", { class: "actions" }, link("/ui/new", h("span", { class: "button primary" }, "New resource"))));
    return;
  }
  const own = site.here ? "All resources of this site." : `Resources shared with ${site.name}. Open its UI for the rest.`;
  fill(
    head,
    h(
      "div",
      { class: "title" },
      h("div", { class: "crumb" }, link("/ui/", "Sites"), " / "),
      h("div", { class: "row" }, h("h1", {}, site.name), siteBadge(site.state), h("span", { class: "muted small" }, site.here ? "this site" : lastSeen(site.as_of_s))),
      h("p", { class: "lead" }, own),
      h("div", { class: "strip" }, fact("Agent", site.url), !site.here && fact("Round trip", milliseconds(site.rtt_ms)), !site.here && fact("Clock", offset(site.clock_offset_ms)), fact("Services", site.services.join(", ") || "none"), fact("Version", site.version || "–")),
      site.problems.map((text) => notice("warn", text)),
    ),
    h("div", { class: "actions" }, !site.here && h("a", { class: "button", href: `${site.url}/ui/`, target: "_blank", rel: "noopener" }, "Open its UI"), link("/ui/new", h("span", { class: "button primary" }, "New resource"))),
  );
}

const fact = (name, text) => h("span", {}, `${name} `, h("b", { class: "wrap" }, text));

function table(resources) {
  return h(
    "div",
    { class: "table-wrap" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, HEADS.map((text) => h("th", { scope: "col", class: text === "Operations" ? "num" : "" }, text)))),
      h("tbody", {}, resources.map(row)),
    ),
  );
}

function row(one) {
  const sites = one.sites.length > 4 ? `${number(one.sites.length)} sites` : one.sites.join(", ");
  return h(
    "tr",
    { "data-id": one.id },
    h("td", {}, h("a", { href: resourcePath(one.id) }, cut(one.id))),
    h("td", {}, cut(one.type)),
    h("td", {}, syncBadge(one.overall, one.deleted, one.void)),
    h("td", {}, healthBadge(one.last_outcome)),
    h("td", {}, cut(sites, { title: one.sites.join(", ") })),
    h("td", { class: "num" }, number(one.operations)),
    h("td", { class: "nowrap" }, h("span", { title: full(one.last_change) }, moment(one.last_change))),
  );
}

