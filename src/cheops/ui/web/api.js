// The agent's API. Errors are told as it tells them; whoever must sign in first is asked to, and then it goes on.

const BASE = "/api/v1";
let askToSignIn = async () => false;

export function onSignIn(ask) {
  askToSignIn = ask;
}

export class ApiError extends Error {
  constructor(status, detail, definite = true) {
    super(detail);
    this.status = status;
    this.definite = definite;
  }
}

export const at = (strings, ...parts) =>
  strings.reduce((path, text, n) => path + encodeURIComponent(parts[n - 1]) + text);

export function get(path, params, signal) {
  const wanted = Object.entries(params ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(wanted).toString();
  return ask("GET", query ? `${path}?${query}` : path, undefined, signal);
}

/** With files, each under the name that the command uses. */
export function postWithFiles(path, body, files) {
  const form = new FormData();
  form.append("operation", JSON.stringify(body));
  for (const file of files) form.append(file.name, file);
  return ask("POST", path, form);
}

export const post = (path, body, signal) => ask("POST", path, body ?? null, signal);
export const put = (path, body, signal) => ask("PUT", path, body ?? null, signal);
export const remove = (path, signal) => ask("DELETE", path, undefined, signal);

async function ask(method, path, body, signal, again = false) {
  const answer = await sent(method, path, body, signal);
  if (answer.status === 401 && !again && path !== "/session" && (await askToSignIn(""))) {
    return ask(method, path, body, signal, true);
  }
  const told = await answer.json().catch(() => ({}));
  if (answer.ok) return told;
  throw new ApiError(answer.status, told.detail || `the agent answered ${answer.status}`, told.definite !== false);
}

async function sent(method, path, body, signal) {
  const headers = {};
  if (method !== "GET") headers["Cheops-Session"] = "1"; // no page from elsewhere can send it
  const isForm = body instanceof FormData; // of which the browser itself says where its parts begin
  if (body !== undefined && !isForm) headers["Content-Type"] = "application/json";
  const content = body === undefined || body === null ? undefined : isForm ? body : JSON.stringify(body);
  try {
    // Plain, so that what the page itself has announced (ui/preloading.py) counts as this very request.
    return await fetch(BASE + path, { method, headers, body: content, signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The agent does not answer. It may have been stopped, or the way to it is cut.", false);
  }
}

/** Whoever may not is asked for another token; true: it is worth another try. */
export async function mayTryAgain(error) {
  return error instanceof ApiError && error.status === 403 && (await askToSignIn(error.message));
}

export const signIn = (token) => ask("POST", "/session", { token });
export const signOut = () => ask("DELETE", "/session");
export const isAbort = (error) => error?.name === "AbortError";
