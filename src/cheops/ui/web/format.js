// Numbers, times and ages for humans.

const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });
const NUMBER = new Intl.NumberFormat("en");

export const number = (value) => NUMBER.format(value);

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** "rule 4", or nothing: from 8 on the numbers are codes of reasons that are not rules (log/rules.py). */
export const ruleName = (rule) => (rule && rule < 8 ? `rule ${rule}` : "");

export function ruleSentence({ rule, sentence }) {
  return ruleName(rule) ? `${sentence} (${ruleName(rule)})` : sentence;
}

/** "4 s", "3 min": in a unit that keeps the number small. */
export function span(seconds) {
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 1 : 0)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function asOf(seconds) {
  if (seconds === null || seconds === undefined) return "never seen";
  return seconds < 1 ? "as of now" : `as of ${span(seconds)} ago`;
}

/** When a site was last heard of. */
export function lastSeen(seconds) {
  if (seconds === null || seconds === undefined) return "never seen";
  return seconds < 1 ? "seen just now" : `last seen ${span(seconds)} ago`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${value === 0 ? 0 : value.toFixed(1)} ms`;
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

/** A time; without the date if it is today. */
export function moment(at) {
  if (at === null || at === undefined) return "–";
  const date = new Date(at);
  const today = date.toDateString() === new Date().toDateString();
  return today ? TIME.format(date) : `${DAY.format(date)} ${TIME.format(date)}`;
}

export function clock(ms) {
  return `${TIME.format(new Date(ms))}.${String(ms % 1000).padStart(3, "0")}`;
}

export function full(at) {
  return at ? new Date(at).toISOString() : "";
}

export function offset(ms) {
  if (ms === null || ms === undefined) return "–";
  const rounded = Math.round(ms);
  return `${rounded > 0 ? "+" : rounded < 0 ? "−" : ""}${Math.abs(rounded)} ms`;
}

export function words(names) {
  if (names.length < 2) return names.join("");
  return `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}
