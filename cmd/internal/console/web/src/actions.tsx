// Commands: each is shown before it is sent, is sent under an id that is made here, and ends
// with an outcome in words. A lost answer is asked for again under the same id, which the
// coordinator carries out once at most.
import { useEffect, useRef, useState } from "preact/hooks";
import { newOperationID, post } from "./api";
import { belief } from "./belief";
import { Icon } from "./icons";
import { live, useLive } from "./live";
import { Alien, Id } from "./parts/basic";
import { clip, inert, sentence } from "./text";
import { indeterminate, outcomes, type Word } from "./words";

/** What a command acts on. */
export type Subject = "signal" | "run" | "objective";

interface Deed {
  label: string;
  /** The question of the dialog. */
  ask: string;
  /** What it does, all of it. */
  does: string;
  danger?: boolean;
  note?: boolean;
}

const deeds: Record<string, Deed> = {
  "signal acknowledge": { label: "Acknowledge", ask: "Acknowledge this signal?", does: "It is recorded that somebody has seen it and takes care. It leaves the open list, for everybody.", note: true },
  "signal suppress": { label: "Suppress", ask: "Suppress this signal?", does: "It is recorded that nothing needs to be done about it. It leaves the open list, for everybody.", note: true },
  "run cancel": { label: "Cancel run", ask: "Cancel this run?", does: "Its process is asked to end (SIGTERM) and killed when its grace is over. A run that has no process yet never gets one. This cannot be undone.", danger: true },
  "run pause": { label: "Pause", ask: "Mark this run as paused?", does: "The record says Paused until it is resumed. Nothing is sent to its process, which goes on." },
  "run resume": { label: "Resume", ask: "Resume this run?", does: "The record says Running again." },
  "objective complete": { label: "Complete", ask: "Complete this objective?", does: "No further run can be started for it." },
  "objective cancel": { label: "Cancel objective", ask: "Cancel this objective?", does: "No further run can be started for it. This cannot be undone.", danger: true },
  "objective archive": { label: "Archive", ask: "Archive this objective for good?", does: "The objective, all its runs, their signals and their evidence are removed from the records. This cannot be undone.", danger: true },
};

export function deedOf(s: { kind: Subject; action: string }): Deed {
  return deeds[s.kind + " " + s.action] ?? { label: sentence(s.action), ask: sentence(s.action) + " this " + s.kind + "?", does: "" };
}

/** The server's word for a command, where it is not the row's. */
const wire: Record<string, string> = { "objective complete": "complete-objective", "objective cancel": "cancel-objective" };

export interface Outcome {
  operation_id: string;
  outcome: string;
  text?: string;
  code?: string;
  message?: string;
  next?: string;
  /** same: the same operation may be asked for again. new: only another one makes sense. */
  retry?: "same" | "new" | "none";
}

/** One command of this page, from the question to its end. */
export interface Sent {
  kind: Subject;
  action: string;
  id: string;
  subject: string;
  revision?: string;
  note?: string;
  operation: string;
  step: "asked" | "sending" | "answered";
  outcome?: Outcome;
  at: number;
}

/** What was sent from this page since it was loaded, newest first. */
export const sent: Sent[] = [];
let current: Sent | undefined;
const watchers = new Set<() => void>();
function tell() {
  for (const f of [...watchers]) f();
}

export function useSent(): { current: Sent | undefined; sent: Sent[] } {
  const [, set] = useState(0);
  useEffect(() => {
    const f = () => set((n) => n + 1);
    watchers.add(f);
    f(); // it may have changed between the drawing and this
    return () => void watchers.delete(f);
  }, []);
  return { current, sent };
}

export function ask(kind: Subject, action: string, id: string, subject: string, revision?: string) {
  current = { kind, action, id, subject, revision, operation: newOperationID(), step: "asked", at: Date.now() };
  tell();
}

/** showAgain opens the dialog of a command that was sent before. */
export function showAgain(s: Sent) {
  current = s;
  tell();
}

function close() {
  current = undefined;
  tell();
}

async function send(s: Sent) {
  if (!sent.includes(s)) {
    sent.unshift(s);
    sent.length = Math.min(sent.length, 100);
  }
  s.step = "sending";
  tell();
  const body: Record<string, unknown> = { action: wire[s.kind + " " + s.action] ?? s.action, id: s.id, operation_id: s.operation };
  if (s.revision) body.revision = s.revision;
  if (s.note) body.note = s.note;
  const r = await post<Outcome>("/api/action", body);
  s.step = "answered";
  if (r.ok) s.outcome = r.value;
  else {
    const { status, code, message, next } = r.problem;
    // Without an answer, or with one of a server in trouble, nobody here can tell.
    const unknown = status === 0 || status >= 500;
    s.outcome = { operation_id: s.operation, outcome: unknown ? "INDETERMINATE" : "REFUSED", code, message, next, retry: unknown ? "same" : "none" };
  }
  tell();
}

/** The outcome of a command as it stands now: what was pending may have ended since. */
export function outcomeNow(s: Sent): Outcome | undefined {
  const o = s.outcome;
  const row = live.tables.operations.get(s.operation);
  if (!o || !row || (o.outcome !== "PENDING" && o.outcome !== "INDETERMINATE")) return o;
  const ended: Record<string, string> = { SUCCEEDED: "COMMITTED", REJECTED: "REJECTED", INDETERMINATE: "INDETERMINATE", PENDING: "PENDING" };
  const now = ended[row.state];
  return now && now !== o.outcome ? { ...o, outcome: now, code: undefined, message: undefined, text: row.text, retry: now === "INDETERMINATE" ? "same" : "none" } : o;
}

export function outcomeWord(o: Outcome): Word & { says: string } {
  return outcomes[o.outcome] ?? { word: inert(o.outcome), sign: "doubt", tone: "doubt", says: "" };
}

/** Buttons for what can be done now with the console's key, as the row says. */
export function Deeds({ kind, actions, id, subject, revision, small }: { kind: Subject; actions: string[] | undefined; id: string; subject: string; revision?: string; small?: boolean }) {
  if (!actions?.length) return null;
  return (
    <span class="buttons above">
      {actions.map((a) => {
        const d = deedOf({ kind, action: a });
        return (
          <button key={a} type="button" class={"button" + (small ? " small" : "") + (d.danger ? " danger" : "")} data-action={a}
            aria-label={small ? d.label + ": " + clip(subject, 80) : undefined} onClick={() => ask(kind, a, id, subject, revision)}>
            {d.label}
          </button>
        );
      })}
    </span>
  );
}

export function ActionDialog() {
  const { current: s } = useSent();
  return s ? <Ask key={s.operation} s={s} /> : null;
}

function Ask({ s }: { s: Sent }) {
  const box = useRef<HTMLDialogElement>(null);
  const first = useRef<HTMLButtonElement>(null);
  const l = useLive();
  useEffect(() => {
    const back = document.activeElement as HTMLElement | null;
    box.current?.showModal();
    return () => {
      box.current?.close();
      back?.focus?.();
    };
  }, []);
  useEffect(() => first.current?.focus(), [s.step]);
  const d = deedOf(s);
  const o = outcomeNow(s);
  const b = belief(l);
  return (
    <dialog ref={box} aria-labelledby="ask-title" onCancel={(e) => { e.preventDefault(); if (s.step !== "sending") close(); }}>
      <header><h2 id="ask-title">{d.ask}</h2></header>
      <div class="pad">
        <p><strong><Alien text={s.subject} max={300} /></strong></p>
        {s.step === "asked" && (
          <>
            <p>{d.does}</p>
            {d.note && (
              <label>
                Note, for whoever reads the record (optional)
                <input type="text" maxLength={500} autocomplete="off" onInput={(e) => (s.note = e.currentTarget.value)} />
              </label>
            )}
            {b.answer !== "yes" && (
              <p class="outcome warn"><span class="state warn"><Icon sign="alert" />This screen may be out of date.</span><span class="text">The coordinator checks the command against its own records before it acts.</span></p>
            )}
          </>
        )}
        <dl class="facts">
          <dt>On</dt><dd><Id id={s.id} whole what="id" /></dd>
          <dt>OperationId</dt><dd data-operation={s.operation}><Id id={s.operation} whole what="OperationId" /></dd>
        </dl>
        <div role="status">
          {s.step === "sending" && <p class="outcome run"><span class="state run"><Icon sign="clock" />Sent; waiting for the answer</span></p>}
          {s.step === "answered" && o && <OutcomeBox o={o} />}
        </div>
      </div>
      <footer>
        {s.step === "asked" && (
          <>
            <button ref={first} type="button" class="button" onClick={close}>Leave it</button>
            <button type="button" class={"button primary" + (d.danger ? " danger-fill" : "")} data-confirm disabled={l.link !== "open"} onClick={() => void send(s)}>{d.label}</button>
          </>
        )}
        {s.step === "sending" && <button ref={first} type="button" class="button" onClick={close}>Close; the outcome stays under Operations</button>}
        {s.step === "answered" && (
          <>
            {o && mayAskAgain(o) && <button type="button" class="button" data-again onClick={() => void send(s)}>Ask again, same operation</button>}
            <button ref={first} type="button" class="button primary" data-close onClick={close}>Close</button>
          </>
        )}
      </footer>
    </dialog>
  );
}

export function mayAskAgain(o: Outcome): boolean {
  return o.retry === "same";
}

export function OutcomeBox({ o }: { o: Outcome }) {
  const w = outcomeWord(o);
  const why = o.code ? indeterminate[o.code] : undefined;
  return (
    <div class={"outcome " + w.tone} data-outcome={inert(o.outcome)}>
      <span class={"state " + w.tone}><Icon sign={w.sign} />{w.word}{o.code && o.outcome !== "COMMITTED" ? <span class="mono"> {inert(o.code)}</span> : null}</span>
      {w.says && <span class="text">{w.says}</span>}
      {why && <span class="text">{why}</span>}
      {o.message && <span class="text"><bdi>{clip(o.message, 600)}</bdi></span>}
      {o.next && <span class="text"><bdi>{clip(o.next, 600)}</bdi></span>}
      {o.retry === "new" && <span class="text">Once the cause is gone, begin anew: the same operation would give the same answer.</span>}
    </div>
  );
}
