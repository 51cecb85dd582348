// Routes. Every view has a URL; its `signal` is aborted when the user leaves the view.

const routes = [];
let current = null;
let show = () => {};

export function route(pattern, title, view) {
  routes.push({ pattern, title, view });
}

export function start(onShow) {
  show = onShow;
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest?.("a[href]");
    if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const href = anchor.getAttribute("href"); // also works for SVG links
    if (anchor.target || !href.startsWith("/ui/")) return;
    event.preventDefault();
    go(href);
  });
  addEventListener("popstate", render);
  render();
}

export function go(path) {
  if (path !== location.pathname + location.search) history.pushState(null, "", path);
  render();
}

/** Changes the query of the URL without leaving the view. */
export function setQuery(changes, { push = false } = {}) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined) query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  const path = location.pathname + (text ? `?${text}` : "");
  if (path !== location.pathname + location.search) history[push ? "pushState" : "replaceState"](null, "", path);
}

function render() {
  current?.abort();
  current = new AbortController();
  const path = location.pathname.replace(/\/$/, "") || "/ui";
  for (const { pattern, title, view } of routes) {
    const found = pattern.exec(path);
    if (!found) continue;
    const parts = found.slice(1).map(decoded);
    const context = { parts, query: new URLSearchParams(location.search), signal: current.signal };
    show(view, context, typeof title === "function" ? title(...parts) : title);
    return;
  }
  show(null, { parts: [path], query: new URLSearchParams(), signal: current.signal }, "Not found");
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
