// The lanes as data: rows and the links between them, now or at an earlier time. Pure.

/** The rows and links to draw from a response of …/lanes, newest first. `at`: null means now. */
export function lanesAt(answer, at) {
  const all = withoutSeals(answer.operations);
  const made = at === null ? all : all.filter((one) => one.op.made_ms <= at);
  const rows = made.map((one) => row(answer, one, at)).reverse();
  const place = new Map(rows.map((one, n) => [one.op.id, n]));
  const lane = new Map(answer.lanes.map((one, n) => [one.site, n]));
  const links = rows.flatMap((one, child) =>
    one.after.filter((id) => place.has(id)).map((id) => ({ child, parent: place.get(id), from: lane.get(one.op.origin), to: lane.get(rows[place.get(id)].op.origin) })),
  );
  return { rows, links: links.filter((one) => one.from !== undefined && one.to !== undefined) }; // a site that left has no lane
}

/** Seals are not shown: an operation after a seal is linked to what the seal follows. */
function withoutSeals(operations) {
  const seals = new Map(operations.filter((op) => op.kind === "seal").map((op) => [op.id, op]));
  const through = (ids) => ids.flatMap((id) => (seals.has(id) ? through(seals.get(id).after) : [id]));
  return operations.map((op, index) => ({ op, index, after: [...new Set(through(op.after))] })).filter(({ op }) => op.kind !== "seal");
}

function row(answer, { op, index, after }, at) {
  const now = answer.lanes.map((lane) => lane.states[index]);
  if (at === null) return { op, after, states: now, isGone: !isEffective(op) };
  const by = indexOf(answer, op.beaten_by);
  const states = answer.lanes.map((lane) => stateAt(answer, lane, index, by, at));
  return { op, after, states, isGone: op.effect === "void" || states.every((state) => state === "superseded" || state === "missing" || state === "skipped") };
}

const indices = new WeakMap(); // per response: there may be thousands of operations, and the slider looks up each

function indexOf(answer, id) {
  if (!indices.has(answer)) indices.set(answer, new Map(answer.operations.map((op, n) => [op.id, n])));
  return indices.get(answer).get(id) ?? -1;
}

const isEffective = (op) => op.effect === "effective" || op.effect === "silent" || op.effect === "draft";

function stateAt(answer, lane, index, by, at) {
  const state = lane.states[index];
  const arrived = arrivedAt(answer, lane, index);
  if (state === "void") return lane.site === answer.operations[index].origin ? state : "missing";
  if (arrived === null && (state === "skipped" || state === "superseded")) return knowsWinner(answer, lane, index, by, at) ? "skipped" : "missing";
  if (arrived === null) return state;
  if (arrived > at) return "missing";
  if (state === "superseded" || state === "skipped") return isThere(answer, lane, by, at) ? state : "ok";
  return state;
}

/** An operation that a site never ran leaves no time there. The site knew what superseded it at the latest when the
 * operation's origin knew: links are open in both directions or in none. */
function knowsWinner(answer, lane, index, by, at) {
  const origin = answer.lanes.find((one) => one.site === answer.operations[index].origin);
  return isThere(answer, lane, by, at) && (!origin || isThere(answer, origin, by, at));
}

function isThere(answer, lane, index, at) {
  const arrived = index < 0 ? null : arrivedAt(answer, lane, index);
  return arrived !== null && arrived <= at;
}

/** When a site first had an operation, as far as known: when it created or ran it. */
function arrivedAt(answer, lane, index) {
  const op = answer.operations[index];
  return op.origin === lane.site ? op.made_ms : lane.ran_ms[index];
}

/** The times at which something happened, in order: the stops of the slider. */
export function moments(answer) {
  const found = new Set();
  answer.operations.forEach((op, index) => {
    if (op.kind === "seal") return;
    found.add(op.made_ms);
    for (const lane of answer.lanes) if (lane.ran_ms[index] !== null) found.add(lane.ran_ms[index]);
  });
  return [...found].sort((a, b) => a - b);
}

/** The text of a row for screen readers. */
export function spoken(row, sites) {
  const where = sites.map((site, n) => `${row.states[n]} at ${site}`).join(", ");
  const fate = row.op.beaten_by ? `, superseded by ${row.op.beaten_by}` : "";
  return `${row.op.id}, ${row.op.type}: ${where}${fate}`;
}
