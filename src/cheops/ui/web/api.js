// The agent's API. Errors carry the agent's own text. If a request needs a sign-in, the user is asked and it is retried.

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

/** Sends files along, each under the name that the command uses. */
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
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  throw new ApiError(answer.status, content.detail || `the agent responded ${answer.status}`, content.definite !== false);
}

async function sent(method, path, body, signal) {
  const headers = {};
  if (method !== "GET") headers["Cheops-Session"] = "1"; // a page of another origin cannot send this header
  const isForm = body instanceof FormData; // the browser itself sets the content type with the boundary
  if (body !== undefined && !isForm) headers["Content-Type"] = "application/json";
  const content = body === undefined || body === null ? undefined : isForm ? body : JSON.stringify(body);
  try {
    // No extra options, so that the browser uses the preloaded response (ui/server.py) for this request.
    return await fetch(BASE + path, { method, headers, body: content, signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The agent does not respond. It may be stopped, or the network is down.", false);
  }
}

/** If the request was forbidden, asks for another token; true if it is worth a retry. */
export async function mayTryAgain(error) {
  return error instanceof ApiError && error.status === 403 && (await askToSignIn(error.message));
}

export const signIn = (token) => ask("POST", "/session", { token });
export const signOut = () => ask("DELETE", "/session");
export const isAbort = (error) => error?.name === "AbortError";
