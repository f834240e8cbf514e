// The one connection that keeps every page up to date, and what is known through it. The
// tables are maps from id to row; a row that changes is another object, so that what shows one
// can tell at a glance whether to draw it again.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Activity, AuthorityDetail, Problem, Row, Session, State, TableName, Tables } from "./wire";
import { get } from "./api";

/** How this page stands to the console's own process. */
export type Link = "connecting" | "open" | "lost" | "refused" | "resting";

/** What a component may wait for a change of. */
export type Part = TableName | "activity" | "state" | "authority";

export const tableNames: TableName[] = ["signals", "objectives", "runs", "operations"];

/** The most that is kept of the events. */
const maxActivity = 1000;

/** How often the certificate is asked for, while the page is seen. */
const certificateEvery = 3000;

/** How long the console may be silent before the page says so: it speaks each second. */
const silence = 3500;

/** How long a page that nobody sees stays connected: a browser has few connections to one
 * server, and its pages share them. */
const restAfter = 5 * 60_000;

export class Live {
  link: Link = "connecting";
  problem: Problem | undefined;
  session: Session | undefined;
  state: State | undefined;
  /** When the last message came, by this page's own steady clock. */
  heard = 0;
  /** The console's clock less this computer's; they are the same unless a port is forwarded. */
  skew = 0;
  lostAt = 0;
  tables: Tables = { signals: new Map(), objectives: new Map(), runs: new Map(), operations: new Map() };
  /** Rises with every change of a table. */
  version: Record<Part, number> = { signals: 0, objectives: 0, runs: 0, operations: 0, activity: 0, state: 0, authority: 0 };
  /** Newest last. */
  activity: Activity[] = [];
  /** The authority as last asked for, and when its certificate ends by this page's clock. */
  authority: AuthorityDetail | undefined;
  leaseEnd: number | undefined;
  leaseWhole = 1000;
  loaded = false;

  private source: EventSource | undefined;
  private listeners = new Set<() => void>();
  private due = false;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private asked = -Infinity;
  private resting: ReturnType<typeof setTimeout> | undefined;

  start() {
    void this.identify();
    this.connect();
    setInterval(() => this.tick(), 500);
    document.addEventListener("visibilitychange", () => this.seen());
    addEventListener("pagehide", () => this.rest());
    addEventListener("pageshow", (e) => e.persisted && this.seen());
  }

  /** now is the console's clock. */
  now(): number {
    return Date.now() + this.skew;
  }

  /** silent reports whether what is shown may be old because nothing was heard. */
  silent(): boolean {
    return this.link !== "open" || performance.now() - this.heard > silence;
  }

  subscribe(f: () => void): () => void {
    this.listeners.add(f);
    return () => this.listeners.delete(f);
  }

  private async identify() {
    const r = await get<Session>("/api/session");
    if (r.ok) this.session = r.value;
    else if (r.problem.status === 401 || r.problem.status === 403) this.refuse(r.problem);
    this.changed();
  }

  private connect() {
    const s = new EventSource("/api/live");
    this.source = s;
    s.addEventListener("reset", (e) => this.take(e, (m) => this.reset(m as Reset)));
    s.addEventListener("rows", (e) => this.take(e, (m) => this.rows(m as Rows)));
    s.addEventListener("state", (e) => this.take(e, (m) => this.takeState(m as State)));
    s.addEventListener("activity", (e) => this.take(e, (m) => this.takeActivity((m as { events: Activity[] }).events)));
    s.onerror = () => void this.failed(s);
  }

  /** seen begins again where a page that was not seen has rested. */
  private seen() {
    clearTimeout(this.resting);
    if (document.visibilityState === "hidden") this.resting = setTimeout(() => this.rest(), restAfter);
    else if (this.link === "resting") {
      this.link = "connecting";
      this.connect();
    }
    this.changed();
  }

  private rest() {
    if (this.link === "refused") return;
    clearTimeout(this.retry);
    this.source?.close();
    this.source = undefined;
    this.link = "resting";
  }

  /** failed learns why, which an EventSource is not told, and tries again unless it cannot help. */
  private async failed(s: EventSource) {
    if (s !== this.source) return;
    s.close();
    this.source = undefined;
    if (this.link !== "lost") this.lostAt = Date.now();
    this.link = "lost";
    this.changed();
    const r = await get<Session>("/api/session");
    if (this.source || (this.link as Link) === "resting") return; // it has begun again meanwhile
    if (!r.ok && (r.problem.status === 401 || r.problem.status === 403)) {
      this.refuse(r.problem);
      return;
    }
    this.problem = r.ok ? undefined : r.problem;
    this.changed();
    this.retry = setTimeout(() => this.connect(), r.ok ? 250 : 1500);
  }

  /** again tries at once. */
  again() {
    clearTimeout(this.retry);
    this.source?.close();
    this.link = "lost";
    this.connect();
    void this.identify();
  }

  private refuse(p: Problem) {
    this.source?.close();
    this.source = undefined;
    this.link = "refused";
    this.problem = p;
    this.changed();
  }

  private take(e: Event, apply: (m: unknown) => void) {
    apply(JSON.parse((e as MessageEvent<string>).data));
    this.heard = performance.now();
    this.link = "open";
    this.problem = undefined;
    this.changed();
  }

  private reset(m: Reset) {
    for (const name of tableNames) {
      this.tables[name] = new Map(((m[name] ?? []) as Row[]).map((r) => [r.id, r])) as never;
      this.version[name]++;
    }
    this.activity = m.activity ?? [];
    this.version.activity++;
    this.loaded = true;
    this.takeState(m.state);
  }

  private rows(m: Rows) {
    for (const name of tableNames) {
      const rows = m[name] as Row[] | undefined;
      if (!rows?.length) continue;
      const t = this.tables[name] as Map<string, Row>;
      for (const r of rows) t.set(r.id, r);
      this.version[name]++;
    }
    for (const g of m.gone ?? []) {
      if (this.tables[g.table]?.delete(g.id)) this.version[g.table]++;
    }
    if (m.state) this.takeState(m.state);
  }

  private takeState(s: State) {
    this.state = s;
    this.version.state++;
    const at = Date.parse(s.server_time);
    if (!isNaN(at)) this.skew = at - Date.now();
  }

  /** certify asks under which certificate the coordinator acts. */
  private async certify() {
    this.asked = performance.now();
    const r = await get<AuthorityDetail>("/api/authority");
    if (!r.ok) return;
    this.authority = r.value;
    const c = r.value.certificate;
    this.leaseEnd = c ? performance.now() + c.remaining_ms : undefined;
    // A renewal is seen soon after it was made, so the most ever seen is about the whole.
    if (c) this.leaseWhole = Math.max(this.leaseWhole, c.remaining_ms);
    this.version.authority++;
    this.changed();
  }

  /** renewed reports whether the certificate should have been renewed by now: so it is, each
   * time that a third of it is over. */
  private renewed(): boolean {
    return this.leaseEnd !== undefined && this.leaseEnd - performance.now() < 0.66 * this.leaseWhole;
  }

  private takeActivity(events: Activity[]) {
    this.activity = this.activity.concat(events).slice(-maxActivity);
    this.version.activity++;
  }

  /** tick lets the clocks go on, and notices silence. */
  private tick() {
    if (document.visibilityState !== "visible") return;
    if (this.link === "open" && performance.now() - this.asked > (this.renewed() ? 1000 : certificateEvery)) void this.certify();
    this.changed();
  }

  private changed() {
    if (this.due) return;
    this.due = true;
    const draw = () => {
      this.due = false;
      for (const f of [...this.listeners]) f();
    };
    // A hidden page has no frames, but its title is still seen.
    if (document.visibilityState === "visible") requestAnimationFrame(draw);
    else setTimeout(draw, 1000);
  }
}

type Lists = { [T in TableName]?: Row[] };
type Reset = Lists & { state: State; activity?: Activity[] };
type Rows = Lists & { state?: State; gone?: { table: TableName; id: string }[] };

export const live = new Live();

/** useLive draws a component again when what it reads has changed: the given parts, by their
 * versions, or everything, the passing of time included. */
export function useLive(...parts: Part[]): Live {
  const [, set] = useState(0);
  const key = () => (parts.length ? parts.map((p) => live.version[p]).join() + live.loaded : "");
  const drawn = key();
  const last = useRef(drawn);
  last.current = drawn;
  useEffect(() => {
    const look = () => {
      if (!parts.length || key() !== last.current) set((n) => n + 1);
    };
    if (parts.length) look(); // it may have changed between the drawing and this
    return live.subscribe(look);
  }, [parts.join()]);
  return live;
}
