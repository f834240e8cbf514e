// One run: how it stands, what its process wrote, what happened, and what proves it.
import { useMemo } from "preact/hooks";
import { Deeds } from "../actions";
import { useDetail, type Detail } from "../detail";
import { Icon, type Sign } from "../icons";
import { useLive } from "../live";
import { Age } from "../parts/age";
import { Alien, Empty, Fact, Id, Loading, Panel, Status, Trouble } from "../parts/basic";
import { Findings } from "../parts/findings";
import { OutputPanel } from "../parts/output";
import { Rows, type Column } from "../parts/rows";
import { to } from "../router";
import { titleOf } from "../select";
import { bytes, count, inert, plural, sentence } from "../text";
import type { Activity, OperationRow, RunDetail, RunRow, SignalRow, Stream, Timeline } from "../wire";
import { eventWord, stuckWords, type Tone } from "../words";

export function Run({ id }: { id: string }) {
  const l = useLive("runs", "signals", "operations", "objectives");
  const row = l.tables.runs.get(id);
  const version = (row?.revision ?? "") + " " + (row?.state ?? "") + " " + (row?.last_fact ?? "") + " " + (row?.open_signals ?? "") + " " + (row?.evidence_sealed ?? "");
  const detail = useDetail<RunDetail>("/api/run/" + id, version);
  const timeline = useDetail<Timeline>("/api/run/" + id + "/timeline", version, 3000);
  const d = detail.value;
  const title = row ? titleOf(id, row.objective_id) : (d?.run.objective_title ?? "");
  if (l.loaded && !row && !d) {
    return (
      <>
        <h1>Run <span class="id">{id}</span></h1>
        <div class="panel">{detail.problem ? <Trouble problem={detail.problem} again={detail.again} /> : <Loading what="the run" />}</div>
      </>
    );
  }
  const objective = row?.objective_id ?? d?.run.objective_id;
  const signals = [...l.tables.signals.values()].filter((s) => s.run_id === id).sort((a, b) => (a.sort < b.sort ? -1 : 1));
  return (
    <>
      <Heading id={id} title={title} objective={objective} row={row} detail={d} />
      {row?.stuck && <Stuck row={row} />}
      <div class="columns">
        <div class="stack">
          <OutputPanel run={id} outputs={d?.outputs} streams={timeline.value?.streams} loading={detail.loading} />
          <TimelinePanel timeline={timeline} />
        </div>
        <div class="stack">
          {signals.length > 0 && <Panel id="run-signals" title="Signals"><ShortSignals items={signals} /></Panel>}
          <EvidencePanel detail={d} timeline={timeline} ended={!!row && ["Completed", "Failed", "Cancelled"].includes(row.state)} />
          <ProcessPanel detail={detail} row={row} />
          {d && d.operations.length > 0 && <Panel id="run-operations" title="Operations"><ShortOperations items={d.operations} /></Panel>}
        </div>
      </div>
    </>
  );
}

function Heading({ id, title, objective, row, detail }: { id: string; title: string; objective: string | undefined; row: RunRow | undefined; detail: RunDetail | undefined }) {
  const state = row?.state ?? detail?.run.state ?? "";
  const exit = row?.exit || detail?.run.exit?.text;
  return (
    <header class="page-head">
      <p class="crumbs">{objective && <a href={to("objective", objective)}>Objective</a>}<Icon sign="chevron" /><span>Run</span></p>
      <div class="head-row">
        <h1><Alien text={title} none={"Run " + id.slice(0, 8)} max={400} /></h1>
        <Deeds kind="run" actions={row?.actions} id={id} subject={"Run " + id.slice(0, 8) + (title ? ": " + title : "")} revision={row?.revision} />
      </div>
      <ul class="glance">
        <li><Status kind="run" state={state} chip /></li>
        {row && <li class="quiet">for <Age since={row.since} atLeast={row.since_at_least} /></li>}
        {exit && <li>exit status <strong>{inert(exit)}</strong></li>}
        <li class="quiet">attempt {count(row?.attempt ?? detail?.run.attempt)}</li>
        {row?.last_fact && <li class="quiet">last fact <Age since={row.last_fact} /> ago</li>}
        <li><Id id={id} what="run id" /></li>
      </ul>
    </header>
  );
}

function Stuck({ row }: { row: RunRow }) {
  return (
    <div class={"callout " + (row.stuck === "PAUSED" ? "warn" : "bad")}>
      <Icon sign="alert" />
      <p><strong>{stuckWords[row.stuck!] ?? sentence(row.stuck!)}:</strong> {row.stuck_text}.</p>
    </div>
  );
}

function ShortSignals({ items }: { items: SignalRow[] }) {
  return (
    <ul class="short">
      {items.map((s) => (
        <li key={s.id}>
          <div class="short-row">
            <a href={to("signal", s.id)}>{sentence(s.kind)}</a>
            <Status kind="signal" state={s.state} />
          </div>
          <p class="break"><Alien text={s.message} max={300} /></p>
          <Deeds small kind="signal" actions={s.actions} id={s.id} subject={sentence(s.kind) + ": " + s.message} revision={s.revision} />
        </li>
      ))}
    </ul>
  );
}

export function ShortOperations({ items }: { items: OperationRow[] }) {
  return (
    <ul class="short">
      {items.map((o) => (
        <li key={o.id}>
          <div class="short-row"><a class="id" href={to("operation", o.id)}>{o.id.slice(0, 8)}</a><Status kind="operation" state={o.state} /></div>
          {(o.stuck_text || o.text !== o.state) && <p class="quiet break"><Alien text={o.stuck_text || o.text} max={300} /></p>}
        </li>
      ))}
    </ul>
  );
}

/** One line of the timeline: an event, or a row of output facts that say the same thing. */
interface Step {
  key: string;
  from: string;
  sign: Sign;
  tone: Tone;
  what: string;
  text: string;
}

const signOf: [RegExp, Sign, Tone][] = [
  [/^SOURCE_GAP/, "gap", "warn"], [/^SIGNAL_RAISED/, "bell", "warn"], [/^SIGNAL/, "hand", "idle"], [/^EVIDENCE/, "seal", "ok"],
  [/^BINDING_OPENED/, "play", "run"], [/^BINDING_ENDED/, "slash", "idle"], [/^SOURCE_FACT/, "pulse", "idle"], [/^OPERATION/, "swap", "idle"],
  [/^ARTIFACT/, "list", "idle"], [/^RUN/, "live", "run"],
];

const outputFact = /^fact \d+ OUTPUT_RANGE: bytes (\d+) to (\d+)/;

function stepsOf(events: Activity[]): Step[] {
  const out: Step[] = [];
  let group: { first: string; last: string; n: number; step: Step } | undefined;
  events.forEach((e, i) => {
    const range = e.kind === "SOURCE_FACT_ADMITTED" ? outputFact.exec(e.text) : null;
    if (range) {
      if (group) {
        group.n++;
        group.last = range[2]!;
        group.step.text = plural(group.n, "range") + ", bytes " + count(group.first) + " to " + count(group.last);
        group.step.from = group.step.key + "\u2013" + e.event_sequence;
        return;
      }
      const step: Step = { key: e.event_sequence, from: e.event_sequence, sign: "pulse", tone: "idle", what: "Output", text: "bytes " + count(range[1]) + " to " + count(range[2]) };
      group = { first: range[1]!, last: range[2]!, n: 1, step };
      out.push(step);
      return;
    }
    group = undefined;
    const [, sign, tone] = signOf.find(([re]) => re.test(e.kind)) ?? [null, "live" as Sign, "idle" as Tone];
    out.push({ key: e.event_sequence + "/" + i, from: e.event_sequence, sign, tone, what: eventWord(e.kind), text: e.text });
  });
  return out;
}

const stepColumns: Column[] = [
  { title: "Event", width: "78px", end: true },
  { title: "Kind", width: "minmax(150px, 190px)" },
  { title: "What happened", width: "minmax(0, 1fr)" },
];

function stepRow(s: Step) {
  return (
    <>
      <span role="cell" class="num quiet clip">{s.from}</span>
      <span role="cell" class="clip lead"><span class={"state " + s.tone}><Icon sign={s.sign} /></span> {s.what}</span>
      <span role="cell" class="clip second"><Alien text={s.text} max={400} /></span>
    </>
  );
}

function TimelinePanel({ timeline }: { timeline: Detail<Timeline> }) {
  const t = timeline.value;
  const steps = useMemo(() => stepsOf(t?.events ?? []), [t]);
  const removed = Number(t?.removed_events_through ?? 0);
  return (
    <Panel id="timeline" title="Timeline" note={t ? plural(t.events.length, "event") + ", in the order of the log" : undefined}>
      {removed > 0 && <p class="callout warn"><Icon sign="gap" /><span>Retention has removed the events up to {count(removed)}; the beginning may be missing.</span></p>}
      {t && t.omitted > 0 && <p class="callout warn"><Icon sign="gap" /><span>{plural(t.omitted, "earlier event")} left out; coordctl describe run has all of them.</span></p>}
      {timeline.problem && <Trouble problem={timeline.problem} again={timeline.again} />}
      {t ? steps.length ? <Rows label="Timeline" columns={stepColumns} items={steps} keyOf={(s) => s.key} row={stepRow} kind="step-rows" /> : <Empty title="No event of this run is kept" /> : !timeline.problem && <Loading what="the event log" />}
    </Panel>
  );
}

function EvidencePanel({ detail, timeline, ended }: { detail: RunDetail | undefined; timeline: Detail<Timeline>; ended: boolean }) {
  const streams = timeline.value?.streams;
  return (
    <Panel id="evidence" title="Evidence" note="what proves how it ended">
      {!streams ? timeline.problem ? <Trouble problem={timeline.problem} again={timeline.again} /> : <Loading what="the evidence" /> : streams.length === 0 ? (
        <Empty title="No process yet">Evidence begins with the first fact of an owner.</Empty>
      ) : (
        streams.map((s) => <StreamEvidence key={s.stream} s={s} seal={detail?.evidence.find((e) => e.binding_id === s.stream)?.seal_sha256} ended={ended} />)
      )}
    </Panel>
  );
}

function StreamEvidence({ s, seal, ended }: { s: Stream; seal: string | undefined; ended: boolean }) {
  const differs = s.findings.some((f) => f.verdict === "DIFFERS");
  const state: [Tone, Sign, string] = differs ? ["bad", "cross", "Something differs"]
    : s.gaps > 0 ? ["warn", "gap", plural(s.gaps, "gap") + ": no seal"]
    : s.sealed ? ["ok", "seal", "Sealed"]
    : ended ? ["warn", "alert", "Ended without a seal"]
    : ["idle", "ring", "Open: sealed at its end"];
  return (
    <div class="pad stream">
      <p class={"state " + state[0]}><Icon sign={state[1]} />{state[2]}</p>
      <dl class="facts">
        <Fact name="Facts">{count(s.facts)}{s.first_fact && <span class="quiet">, number {count(s.first_fact)} to {count(s.last_fact)}</span>}</Fact>
        <Fact name="Gaps">{s.gaps ? <strong class="warn">{count(s.gaps)}</strong> : "none"}</Fact>
        <Fact name="Output">{bytes(s.output_bytes)} <span class="quiet">in {plural(s.output_ranges, "range")}</span></Fact>
        <Fact name="Process end">{s.closed ? "stated by the owner" : "not stated"}</Fact>
        {seal && <Fact name="Seal"><Id id={seal} what="seal" /></Fact>}
      </dl>
      {s.findings.length > 0 && <Findings items={s.findings} />}
    </div>
  );
}

function ProcessPanel({ detail, row }: { detail: Detail<RunDetail>; row: RunRow | undefined }) {
  const d = detail.value;
  return (
    <Panel id="process" title="Process" note="who started it, and where">
      {!d ? detail.problem ? <Trouble problem={detail.problem} again={detail.again} /> : <Loading what="the records" /> : (
        <div class="pad stack">
          {d.bindings.length === 0 && <p class="quiet">{row?.state === "Planned" ? "No process is bound yet." : "No process was ever bound."}</p>}
          {d.bindings.map((b) => (
            <dl class="facts" key={b.id}>
              <Fact name="Binding"><Id id={b.id} what="binding id" /> <Status kind="other" state={b.state} /></Fact>
              {b.end_reason && <Fact name="Ended as">{sentence(b.end_reason)}</Fact>}
              <Fact name="Owner">{b.owner_name && <><Alien text={b.owner_name} max={60} /> </>}<Id id={b.owner} what="owner fingerprint" /></Fact>
              <Fact name="Incarnation"><Id id={b.owner_incarnation} what="incarnation" /></Fact>
              <Fact name="Resource">{inert(b.resource_id)}{b.resource_host && <> on <Alien text={b.resource_host} max={80} /></>}</Fact>
            </dl>
          ))}
          {d.sessions.map((s) => (
            <dl class="facts" key={s.id}>
              <Fact name="Work session"><Id id={s.id} what="session id" /> <Status kind="other" state={s.state} /></Fact>
            </dl>
          ))}
          {d.artifacts.length > 0 && (
            <dl class="facts">
              {d.artifacts.map((a) => <Fact key={a.id} name="Artifact"><Id id={a.id} what="artifact id" /> <span class="quiet">revision {count(a.latest_revision)}{a.manifest && <>, {bytes(a.manifest.bytes)}</>}</span></Fact>)}
            </dl>
          )}
        </div>
      )}
    </Panel>
  );
}
