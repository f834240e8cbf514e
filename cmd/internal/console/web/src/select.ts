// Lists made from the tables: put in order once per change, and searched by what a row says.
import { live } from "./live";
import type { ObjectiveRow, OperationRow, Row, RunRow, SignalRow, TableName } from "./wire";

const kept = new Map<string, { version: number; list: unknown }>();

function once<T>(name: TableName, make: () => T): T {
  const k = kept.get(name);
  if (k && k.version === live.version[name]) return k.list as T;
  const list = make();
  kept.set(name, { version: live.version[name], list });
  return list;
}

/** The order is the console's; a plain comparison of strings, as there. */
const bySort = (a: Row, b: Row) => (a.sort < b.sort ? -1 : a.sort > b.sort ? 1 : 0);

function sorted<T extends Row>(name: TableName): T[] {
  return once(name, () => ([...live.tables[name].values()] as unknown as T[]).sort(bySort));
}

export const signals = () => sorted<SignalRow>("signals");
export const objectives = () => sorted<ObjectiveRow>("objectives");
export const operations = () => sorted<OperationRow>("operations");

/** A run with the title of its objective, which is all the name that a run has. */
export interface TitledRun {
  id: string;
  run: RunRow;
  title: string;
}

const titles = new WeakMap<RunRow, TitledRun>();

export function titled(run: RunRow): TitledRun {
  const title = live.tables.objectives.get(run.objective_id)?.title ?? "";
  const before = titles.get(run);
  if (before?.title === title) return before;
  const t = { id: run.id, run, title };
  titles.set(run, t);
  return t;
}

let named: { key: string; list: TitledRun[] } | undefined;

export function runs(): TitledRun[] {
  const key = live.version.runs + " " + live.version.objectives;
  if (named?.key !== key) named = { key, list: sorted<RunRow>("runs").map(titled) };
  return named.list;
}

/** The title of what an id of a run or an objective stands for. */
export function titleOf(run: string | undefined, objective: string | undefined): string {
  const o = objective ?? (run ? live.tables.runs.get(run)?.objective_id : undefined);
  return (o && live.tables.objectives.get(o)?.title) || "";
}

/** What a row is found by: what it says, and the beginnings of its ids. */
export interface Says {
  text: (string | undefined)[];
  ids: (string | undefined)[];
}

const hay = new WeakMap<object, string>();

/** Fewer letters are the beginning of some id by chance. */
const idWord = 4;

/** matches reports whether every word of a search is in a row. */
export function matches<T extends object>(row: T, words: string[], says: (row: T) => Says): boolean {
  if (!words.length) return true;
  let h = hay.get(row);
  if (h === undefined) {
    const s = says(row);
    h = (s.text.filter(Boolean).join(" ").replaceAll("\n", " ") + "\n" + s.ids.filter(Boolean).join("\n")).toLowerCase();
    hay.set(row, h);
  }
  const text = h.indexOf("\n");
  return words.every((w) => {
    const at = h.indexOf(w);
    return at >= 0 && (at < text || (w.length >= idWord && h.includes("\n" + w)));
  });
}

export function wordsOf(search: string): string[] {
  return search.toLowerCase().split(/\s+/).filter(Boolean);
}
