// The frame of every page: the names, the strip, the banners and the way to the pages.
import { useEffect, useRef, useState } from "preact/hooks";
import { asOf, belief } from "../belief";
import { Icon, type Sign } from "../icons";
import { live, useLive } from "../live";
import { to } from "../router";
import { clip, count, dateTime, inert, plural, span } from "../text";

export const pages: { page: string; title: string; short?: string; sign: Sign }[] = [
  { page: "overview", title: "Overview", sign: "home" },
  { page: "runs", title: "Runs", sign: "list" },
  { page: "signals", title: "Signals", sign: "bell" },
  { page: "operations", title: "Operations", short: "Ops", sign: "swap" },
  { page: "activity", title: "Activity", sign: "pulse" },
  { page: "authority", title: "Authority", sign: "key" },
];

/** Detail pages belong to a list. */
const parents: Record<string, string> = { run: "runs", objective: "overview", signal: "signals", operation: "operations" };

export function Top({ page }: { page: string }) {
  const l = useLive();
  const counts = openCounts();
  const at = parents[page] ?? page;
  const badge = (p: string) => {
    if (p === "signals" && counts.signals) return <span class="badge" aria-label={", " + counts.signals + " open"}>{count(counts.signals)}</span>;
    if (p === "operations" && counts.doubt) return <span class="badge doubt" aria-label={", " + counts.doubt + " of unknown outcome"}>{count(counts.doubt)}</span>;
    return null;
  };
  return (
    <header class="top">
      <div class="top-row">
        <a class="brand" href={to("overview")}>
          <svg class="mark" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" fill="#1d2a36" /><path d="M23.5 10.6a9.2 9.2 0 1 0 0 10.8" fill="none" stroke="#e8eef4" stroke-width="3.4" stroke-linecap="round" /><circle cx="16" cy="16" r="3.2" fill="#5aa9ff" /></svg>
          <span>Coordinator</span>
          {l.session?.name && <span class="of clip"><bdi>{clip(l.session.name, 40)}</bdi></span>}
        </a>
        <nav class="pages" aria-label="Pages">
          {pages.map((p) => (
            <a key={p.page} href={to(p.page)} aria-current={p.page === at ? "page" : undefined}>
              <Icon sign={p.sign} />
              <span>{p.title === "Operations" ? <><span class="long">Operations</span><span class="brief">Ops</span></> : p.title}</span>
              {badge(p.page)}
            </a>
          ))}
        </nav>
      </div>
      <Strip />
      <Banners />
    </header>
  );
}

export function openCounts(): { signals: number; doubt: number; pending: number } {
  let signals = 0, doubt = 0, pending = 0;
  for (const s of live.tables.signals.values()) if (s.open) signals++;
  for (const o of live.tables.operations.values()) {
    if (o.state === "INDETERMINATE") doubt++;
    else if (o.state === "PENDING") pending++;
  }
  return { signals, doubt, pending };
}

/** Freshness, authority and lease of all that is shown. */
function Strip() {
  const l = useLive();
  const b = belief(l);
  const s = l.state;
  return (
    <div class="strip" role="region" aria-label="Freshness and authority">
      <ul>
        <li>
          <span class={"fresh " + b.tone} data-belief={b.answer}><Icon sign={b.sign} />{b.word}</span>
        </li>
        <li><span class="key wide">as of</span><span class="value">{asOf(l)}</span></li>
        <li class="wide">
          <span class="key">heard</span>
          <span class="value">{heard(l)} ago</span>
        </li>
        <li>
          <span class="key">epoch</span><span class="value">{count(s?.authority?.epoch)}</span>
          <span class="key wide">activation</span><span class="value wide">{count(s?.authority?.activation)}</span>
        </li>
        <li><Lease /></li>
        <li class="end wide"><span class="key">{s ? plural(s.counts.objectives, "objective") + ", " + plural(s.counts.runs, "run") : ""}</span></li>
      </ul>
    </div>
  );
}

function heard(l: typeof live): string {
  const at = Date.parse(l.state?.last_contact ?? "");
  return isNaN(at) ? "\u2013" : span(l.now() - at);
}

/** What is left of the certificate under which the coordinator acts. */
export function Lease() {
  const l = useLive();
  if (l.leaseEnd === undefined || l.link !== "open") return <><span class="key">lease</span><span class="value">{"\u2013"}</span></>;
  const left = Math.max(0, l.leaseEnd - performance.now());
  const share = Math.min(1, left / l.leaseWhole);
  const low = left <= 0 ? " out" : share < 0.34 ? " low" : "";
  return (
    <>
      <span class="key">lease</span>
      <span class={"lease" + low} aria-hidden="true"><span style={{ transform: `scaleX(${share})` }} /></span>
      <span class="value countdown">{left <= 0 ? "run out" : span(left)}</span>
    </>
  );
}

/** How long it is said that a gap has healed. */
const healedFor = 10_000;

function Banners() {
  const l = useLive();
  const b = belief(l);
  const was = useRef<{ answer: string; since: number; from: string }>({ answer: "wait", since: 0, from: "" });
  const [healed, setHealed] = useState<{ at: number; text: string } | undefined>();
  useEffect(() => {
    const w = was.current;
    if (b.answer === "yes" && w.answer === "no") setHealed({ at: performance.now(), text: healedText(w.from) });
    if (b.answer !== w.answer) was.current = { answer: b.answer, since: performance.now(), from: b.answer === "no" ? asOf(l) : w.from };
    if (b.answer !== "yes" && healed) setHealed(undefined);
    else if (healed && performance.now() - healed.at > healedFor) setHealed(undefined);
  });
  const s = l.state;
  const since = s?.stale && l.link === "open" ? Date.parse(s.since) : NaN;
  return (
    <>
      <div role="alert">
        {(b.answer === "no" || b.answer === "lost") && (
          <div class={"banner " + (b.tone === "bad" ? "bad" : "warn")} data-banner={b.answer}>
            <div>
              <Icon sign={b.sign} />
              <div class="grow">
                <p><strong>{b.headline}.</strong> {b.meaning}</p>
                <p class="detail">
                  {l.state ? <>Shown as of {asOf(l)}, epoch {count(s?.as_of?.epoch)}. </> : null}
                  {b.detail && <bdi>{clip(b.detail, 400)}</bdi>}
                </p>
              </div>
              {!isNaN(since) && <span class="nowrap" aria-hidden="true">{span(l.now() - since)}</span>}
              {l.link === "lost" && <button type="button" class="button small" onClick={() => l.again()}>Try now</button>}
            </div>
          </div>
        )}
      </div>
      <div role="status">
        {b.answer === "yes" && healed && (
          <div class="banner ok" data-banner="healed"><div><Icon sign="check" /><p><strong>Current again.</strong> {healed.text}</p></div></div>
        )}
        {s?.lost_history && b.answer === "yes" && (
          <div class="banner warn" data-banner="history"><div><Icon sign="gap" /><p><strong>History was lost earlier.</strong> <bdi>{clip(s.lost_history, 400)}</bdi></p></div></div>
        )}
      </div>
    </>
  );
}

/** What the activity says of how the last gap ended. */
function healedText(from: string): string {
  const now = " Now at " + asOf(live) + ", epoch " + count(live.state?.authority?.epoch) + ".";
  for (let i = live.activity.length - 1; i >= 0; i--) {
    const e = live.activity[i]!;
    if (e.kind === "HEALED") return "After " + from + " nothing is missing: " + inert(e.text) + "." + now;
    if (e.kind === "GAP" || e.kind === "SNAPSHOT") break;
  }
  return "What was shown as of " + from + " has been replaced by all there is." + now;
}

export function Foot() {
  const l = useLive();
  const s = l.session;
  return (
    <footer class="foot">
      {s && <span class="break">{inert(s.address)}</span>}
      {s && <span>coordinator <span class="id">{inert(s.coordinator_id)}</span></span>}
      {s && <span>coordctl {inert(s.version)}</span>}
      {l.state && <span>console clock {dateTime(l.now())}</span>}
      <span class="wide">Press <kbd>?</kbd> for keys</span>
    </footer>
  );
}
