// How strings and numbers of others appear: as inert text. What came over the wire may hold
// anything a person or a process could write, and none of it may move, hide or reorder what
// stands beside it.

// Characters without a glyph of their own, or that would change how others are drawn.
const unseen = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Emoji join with these two; alone they draw nothing and harm nothing. */
const joins = new Set(["\u200d", "\ufe0f"]);

function seen(c: string): string {
  const n = c.codePointAt(0)!;
  if (n < 0x20 || n === 0x7f) return "^" + String.fromCharCode(n ^ 0x40);
  if (joins.has(c)) return c;
  return "\u27e8U+" + n.toString(16).toUpperCase().padStart(4, "0") + "\u27e9";
}

/** inert makes every character of s visible, one line of text. */
export function inert(s: string): string {
  return s.replace(unseen, seen);
}

/** clip is inert, of at most n characters; the rest becomes an ellipsis. */
export function clip(s: string, n: number): string {
  if (s.length <= n) return inert(s);
  let end = n - 1;
  if (/[\ud800-\udbff]/.test(s[end - 1] ?? "")) end--;
  return inert(s.slice(0, end)) + "\u2026";
}

const sgr = /\u001b\[[0-9;:]*m/g;

/** terminalText makes the text of a terminal readable: colours are left out, line ends kept, and
 * every other control character is shown as what it is. */
export function terminalText(s: string): string {
  return s.replace(sgr, "").replace(/\r+\n/g, "\n").replace(unseen, (c) => (c === "\n" || c === "\t" ? c : seen(c)));
}

const groups = /\B(?=(\d{3})+(?!\d))/g;

/** count groups the digits of a whole number, which may be above 2^53 as a string. */
export function count(n: number | string | undefined | null): string {
  return n === undefined || n === null ? "\u2013" : String(n).replace(groups, "\u2009");
}

const units = ["B", "KiB", "MiB", "GiB", "TiB"];

/** bytes is a size for people. */
export function bytes(n: number | string): string {
  let v = Number(n);
  let i = 0;
  for (; v >= 1024 && i < units.length - 1; i++) v /= 1024;
  return (i === 0 ? String(v) : v.toFixed(v < 10 ? 1 : 0)) + "\u00a0" + units[i];
}

/** plural words a number of things. */
export function plural(n: number, one: string, many = one + "s"): string {
  return count(n) + "\u00a0" + (n === 1 ? one : many);
}

/** span is a length of time in the unit that suits it. */
export function span(ms: number): string {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return s.toFixed(1) + "\u00a0s";
  if (s < 120) return Math.round(s) + "\u00a0s";
  if (s < 7200) return Math.round(s / 60) + "\u00a0min";
  if (s < 172800) return Math.round(s / 3600) + "\u00a0h";
  return Math.round(s / 86400) + "\u00a0days";
}

/** clockTime is the time of day of a wire time, in the reader's zone. */
export function clockTime(t: string | number | undefined): string {
  if (!t) return "\u2013";
  const d = new Date(t);
  return isNaN(d.getTime()) ? inert(String(t)) : d.toLocaleTimeString(undefined, { hour12: false });
}

/** dateTime is a wire time with its day, in the reader's zone. */
export function dateTime(t: string | number | undefined): string {
  if (!t) return "\u2013";
  const d = new Date(t);
  if (isNaN(d.getTime())) return inert(String(t));
  const day = d.getFullYear() + "-" + String(d.getMonth() + 1).padStart(2, "0") + "-" + String(d.getDate()).padStart(2, "0");
  return day + " " + d.toLocaleTimeString(undefined, { hour12: false });
}

/** shortID is the beginning of an id, enough to be told apart and accepted by coordctl. */
export function shortID(id: string): string {
  const head = /^[a-z0-9]+:/.exec(id)?.[0] ?? "";
  return id.length > head.length + 8 ? id.slice(0, head.length + 8) : id;
}

/** sentence words a code such as EXECUTION_BLOCKED or OwnerLost for people. */
export function sentence(code: string): string {
  const s = code.replace(/([a-z])([A-Z])/g, "$1 $2").replaceAll("_", " ").toLowerCase();
  return s.charAt(0).toUpperCase() + s.slice(1);
}
