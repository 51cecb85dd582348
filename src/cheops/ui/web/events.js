// One stream of server-sent events for the page. After a lost connection it resumes where it stopped.

const RETRY_MS = [500, 1000, 2000, 5000];
const listeners = new Set();
const watchers = new Set();
let place = "";
let state = "connecting";

export function onEvent(listener, signal) {
  listeners.add(listener);
  signal?.addEventListener("abort", () => listeners.delete(listener));
}

export function onState(watcher) {
  watchers.add(watcher);
  watcher(state);
}

export async function follow() {
  for (let failures = 0; ; failures += 1) {
    try {
      const answer = await fetch("/api/v1/events", { headers: place ? { "Last-Event-ID": place } : {}, cache: "no-store" });
      if (answer.ok) {
        const wasLost = state !== "connecting";
        become("live");
        failures = 0;
        if (wasLost) notify({ kind: "reset" }); // events may have been missed: every view reloads
        await read(answer.body);
      }
      become(answer.status === 401 ? "out" : "lost");
    } catch {
      become("lost"); // the agent is gone, or the connection is
    }
    await pause(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
  }
}

/** Waits until the next attempt, or until the user signed in. */
function pause(ms) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    addEventListener("signed-in", () => (clearTimeout(timer), done()), { once: true });
  });
}

async function read(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const messages = (rest + value).split("\n\n");
    rest = messages.pop();
    messages.forEach(take);
  }
}

function take(message) {
  for (const line of message.split("\n")) {
    if (line.startsWith("id: ")) place = line.slice(4);
    else if (line.startsWith("data: ")) notify(JSON.parse(line.slice(6)));
  }
}

function notify(event) {
  for (const listener of [...listeners]) listener(event);
}

function become(next) {
  if (next === state) return;
  state = next;
  for (const watcher of watchers) watcher(state);
}

/** Runs `load` on request, one at a time, with a rest in between: the slower it is, the longer it rests. */
export function refresher(load, signal, restMs = 150) {
  let running = false;
  let wanted = false;
  async function run() {
    if (running) {
      wanted = true;
      return;
    }
    running = true;
    const begun = performance.now();
    await load();
    const rest = Math.max(restMs, 2 * (performance.now() - begun));
    setTimeout(() => {
      running = false;
      if (wanted && !signal.aborted) {
        wanted = false;
        run();
      }
    }, rest);
  }
  return run;
}
