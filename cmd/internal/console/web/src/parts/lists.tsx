// Lists of signals, operations and runs, as several pages show them.
import { Deeds } from "../actions";
import { Icon } from "../icons";
import { to } from "../router";
import { titleOf, type TitledRun } from "../select";
import { count, sentence } from "../text";
import type { OperationRow, RunRow, SignalRow } from "../wire";
import { severities, stuckWords } from "../words";
import { Age } from "./age";
import { Alien, Status } from "./basic";
import { Rows, type Column } from "./rows";

export const idOf = (r: { id: string }) => r.id;

/** How soon a signal wants to be seen, in its sign; the word is for readers. */
export function Severity({ s, word }: { s: SignalRow; word?: boolean }) {
  const v = severities[s.severity] ?? severities.note!;
  const tone = s.open ? v.tone : "idle";
  return (
    <span class={"state " + tone} title={v.word}>
      <Icon sign={v.sign} />
      {word ? v.word : <span class="for-readers">{v.word}</span>}
    </span>
  );
}

const signalColumns: Column[] = [
  { title: "Signal", width: "minmax(170px, 200px)" },
  { title: "Message", width: "minmax(0, 1.4fr)" },
  { title: "Of", width: "minmax(0, 1fr)" },
  { title: "State", width: "128px" },
  { title: "For", width: "64px", end: true },
  { title: "Actions", width: "204px", end: true },
];

export function SignalRows({ items, label }: { items: SignalRow[]; label: string }) {
  return <Rows label={label} columns={signalColumns} items={items} keyOf={idOf} row={signalRow} kind="signal-rows" narrow={96} />;
}

function signalRow(s: SignalRow) {
  const of = titleOf(s.run_id, s.objective_id);
  return (
    <>
      <span role="cell" class="clip lead"><Severity s={s} /> <a class="title" href={to("signal", s.id)}>{sentence(s.kind)}</a></span>
      <span role="cell" class="clip second"><Alien text={s.message} max={200} /></span>
      <span role="cell" class="clip sub narrow-hide"><Alien text={of || (s.run_id && "run " + s.run_id.slice(0, 8))} max={80} /></span>
      <span role="cell" class="narrow-hide"><Status kind="signal" state={s.state} /></span>
      <span role="cell" class={"num age " + (s.overdue ? "warn" : "sub")}><Age since={s.since} atLeast={s.since_at_least} />{s.overdue && <span class="for-readers"> overdue</span>}</span>
      <span role="cell" class="end"><Deeds small kind="signal" actions={s.actions} id={s.id} subject={sentence(s.kind) + ": " + s.message} revision={s.revision} /></span>
    </>
  );
}

const runColumns: Column[] = [
  { title: "Run", width: "minmax(0, 1fr)" },
  { title: "State", width: "112px" },
  { title: "What is known", width: "minmax(0, 0.9fr)" },
  { title: "For", width: "72px", end: true },
  { title: "Owner", width: "110px" },
  { title: "Id", width: "76px" },
];

/** Runs by their title, or by their attempt where they are all of one objective. */
export function RunRows({ items, label, attempts }: { items: readonly TitledRun[]; label: string; attempts?: boolean }) {
  return <Rows label={label} columns={runColumns} items={items} keyOf={idOf} row={attempts ? attemptRow : runRow} kind="run-rows" />;
}

function runRow({ run: r, title }: TitledRun) {
  return (
    <>
      <span role="cell" class="clip lead"><a class="title" href={to("run", r.id)}><Alien text={title} max={160} none={"run " + r.id.slice(0, 8)} />{r.attempt > 1 && <span class="sub"> attempt {count(r.attempt)}</span>}</a></span>
      <RunCells r={r} />
    </>
  );
}

function attemptRow({ run: r }: TitledRun) {
  return (
    <>
      <span role="cell" class="clip lead"><a class="title" href={to("run", r.id)}>Attempt {count(r.attempt)}</a></span>
      <RunCells r={r} />
    </>
  );
}

function RunCells({ r }: { r: RunRow }) {
  return (
    <>
      <span role="cell" class="state-cell"><Status kind="run" state={r.state} /></span>
      <span role="cell" class="clip sub second"><RunKnown r={r} /></span>
      <span role="cell" class="num sub age"><Age since={r.since} atLeast={r.since_at_least} /></span>
      <span role="cell" class="clip sub narrow-hide"><Alien text={r.owner || r.owner_authority_fingerprint?.slice(7, 15)} max={40} /></span>
      <span role="cell" class="id quiet narrow-hide">{r.id.slice(0, 8)}</span>
    </>
  );
}

/** Why a run is stuck, else how it ended. */
function RunKnown({ r }: { r: RunRow }) {
  if (r.stuck === "PAUSED") return <>{r.stuck_text}</>;
  if (r.stuck) return <><span class={"state bad"}><Icon sign={r.stuck === "START_UNKNOWN" ? "doubt" : "alert"} />{stuckWords[r.stuck] ?? sentence(r.stuck)}</span> {r.stuck_text}</>;
  return (
    <>
      {r.exit !== undefined && r.exit !== "" && <span class="exit">exit {r.exit}</span>}
      {r.exit === undefined && r.end_reason && <>{sentence(r.end_reason)}</>}
      {r.evidence_sealed && <span class="state idle"><Icon sign="seal" />sealed</span>}
      {r.open_signals > 0 && <span class="state warn"><Icon sign="bell" />{count(r.open_signals)}<span class="for-readers"> open signals</span></span>}
    </>
  );
}

const operationColumns: Column[] = [
  { title: "Operation", width: "88px" },
  { title: "Outcome", width: "170px" },
  { title: "What is known", width: "minmax(0, 1fr)" },
  { title: "For", width: "72px", end: true },
  { title: "Made or changed", width: "minmax(0, 190px)" },
];

export function OperationRows({ items, label }: { items: OperationRow[]; label: string }) {
  return <Rows label={label} columns={operationColumns} items={items} keyOf={idOf} row={operationRow} kind="operation-rows" />;
}

function operationRow(o: OperationRow) {
  return (
    <>
      <span role="cell" class="clip id"><a class="title" href={to("operation", o.id)}>{o.id.slice(0, 8)}</a></span>
      <span role="cell" class="state-cell"><Status kind="operation" state={o.state} /></span>
      <span role="cell" class="clip second">{o.stuck_text ? <span>{o.stuck_text}</span> : <span class="sub"><Alien text={o.text} max={200} /></span>}</span>
      <span role="cell" class="num sub age"><Age since={o.since} atLeast={o.since_at_least} /></span>
      <span role="cell" class="clip sub narrow-hide">{o.object ? <>{sentence(o.object.kind)} <span class="id">{o.object.id.slice(0, 8)}</span></> : null}</span>
    </>
  );
}
