// The frame around all views: the navigation bar, the routes, and the session.

import { get, onSignIn, signOut } from "./api.js";
import { fill, h, link } from "./dom.js";
import { follow, onState } from "./events.js";
import { blank, button } from "./components.js";
import { route, start } from "./router.js";
import { askForToken } from "./signin.js";
import { themeSwitch } from "./theme.js";

const NAV = [
  ["/ui/", "Sites"],
  ["/ui/resources", "Resources"],
  ["/ui/new", "New resource"],
  ["/ui/scope", "Scope"],
  ["/ui/replicants", "Replicants"],
  ["/ui/requests", "Requests"],
];
const main = document.getElementById("main");
const who = h("span", { class: "muted small" });
const at = h("span", { class: "at" });
let isFirst = true;

// A view is loaded when it is first opened; the agent lists its scripts in the page, so that they are preloaded.
route(/^\/ui$/, "Sites", async () => (await import("./views/sites.js")).sitesView);
route(/^\/ui\/resources$/, "Resources", async () => (await import("./views/resources.js")).resourcesView);
route(/^\/ui\/sites\/([^/]+)$/, (name) => name, async () => (await import("./views/resources.js")).resourcesView);
route(/^\/ui\/resources\/([^/]+)$/, (id) => id, async () => (await import("./views/resource.js")).resourceView);
route(/^\/ui\/new$/, "New resource", async () => (await import("./views/new_resource.js")).newResourceView);
route(/^\/ui\/scope$/, "Scope", async () => (await import("./views/scope.js")).scopeView);
route(/^\/ui\/replicants$/, "Replicants", async () => (await import("./views/replicants.js")).replicantsView);
route(/^\/ui\/requests$/, "Requests", async () => (await import("./views/requests.js")).requestsView);

async function show(load, context, title) {
  document.title = `${title} · Cheops`;
  for (const item of document.querySelectorAll("nav a")) {
    const own = item.getAttribute("href").replace(/\/$/, "");
    const path = location.pathname.replace(/\/$/, "");
    const section = path.startsWith("/ui/sites/") ? "/ui" : path.startsWith("/ui/resources/") ? "/ui/resources" : path;
    if (own === section) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  const place = document.createElement("div");
  place.style.display = "contents";
  fill(main, place);
  if (!isFirst) main.focus({ preventScroll: true });
  isFirst = false;
  if (!load) {
    fill(place, blank("Page not found", context.parts[0], link("/ui/", "All sites")));
    return;
  }
  try {
    const view = await load();
    if (!context.signal.aborted) view(place, context);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // import() fails with a TypeError
    fill(place, blank("The agent does not respond", "The page could not be loaded from it.", button("Try again", () => location.reload())));
  }
}

function bar() {
  const live = h("span", { class: "live", role: "status" });
  onState((state) => {
    live.dataset.state = state;
    fill(live, { live: "Live", lost: "No connection", out: "Signed out", connecting: "Connecting" }[state]);
  });
  fill(
    document.getElementById("bar"),
    h("a", { class: "brand", href: "/ui/" }, h("img", { src: "/ui/static/icon.svg", alt: "", width: 18, height: 18 }), "Cheops", at),
    h("nav", { "aria-label": "Views" }, NAV.map(([path, name]) => link(path, name))),
    h("div", { class: "bar-end" }, live, who, themeSwitch()),
  );
}

async function introduce() {
  try {
    const [session, health] = await Promise.all([get("/session"), get("/healthz")]);
    fill(at, health.site ?? "");
    const isToken = session.kind === "token";
    const out = h("button", { type: "button", class: "button quiet small", onclick: () => signOut().finally(() => location.reload()) }, "Sign out");
    fill(who, isToken ? h("span", { title: `role ${session.role}` }, `${session.name} (${session.role}) `) : "", isToken && out);
  } catch {
    fill(who, h("button", { type: "button", class: "button small", onclick: () => askForToken("").then((ok) => ok && location.reload()) }, "Sign in"));
  }
}

onSignIn(askForToken);
addEventListener("signed-in", introduce);
bar();
start(show);
introduce();
follow();
