// What the states of the protocol are called, and the sign and tone that each is shown in.
import type { Sign } from "./icons";
import { sentence } from "./text";

export type Tone = "run" | "ok" | "bad" | "warn" | "doubt" | "idle";

export interface Word {
  word: string;
  sign: Sign;
  tone: Tone;
}

const runs: Record<string, Word> = {
  Running: { word: "Running", sign: "play", tone: "run" },
  Paused: { word: "Paused", sign: "pause", tone: "warn" },
  Planned: { word: "Planned", sign: "ring", tone: "idle" },
  Completed: { word: "Completed", sign: "check", tone: "ok" },
  Cancelled: { word: "Cancelled", sign: "slash", tone: "idle" },
  Failed: { word: "Failed", sign: "cross", tone: "bad" },
};

const objectives: Record<string, Word> = {
  Active: { word: "Active", sign: "live", tone: "run" },
  Completed: { word: "Completed", sign: "check", tone: "ok" },
  Cancelled: { word: "Cancelled", sign: "slash", tone: "idle" },
};

const signals: Record<string, Word> = {
  Open: { word: "Open", sign: "bell", tone: "warn" },
  Acknowledged: { word: "Acknowledged", sign: "hand", tone: "idle" },
  Suppressed: { word: "Suppressed", sign: "mute", tone: "idle" },
  Resolved: { word: "Resolved", sign: "check", tone: "ok" },
};

const operations: Record<string, Word> = {
  PENDING: { word: "Pending", sign: "clock", tone: "run" },
  INDETERMINATE: { word: "Outcome unknown", sign: "doubt", tone: "doubt" },
  SUCCEEDED: { word: "Succeeded", sign: "check", tone: "ok" },
  REJECTED: { word: "Rejected", sign: "cross", tone: "bad" },
  TOMBSTONED: { word: "Result expired", sign: "slash", tone: "idle" },
  UNKNOWN: { word: "Not known", sign: "doubt", tone: "doubt" },
};

const others: Record<string, Word> = {
  Ended: { word: "Ended", sign: "check", tone: "idle" },
  Active: { word: "Active", sign: "play", tone: "run" },
};

export type Kind = "run" | "objective" | "signal" | "operation" | "other";

const tables: Record<Kind, Record<string, Word>> = { run: runs, objective: objectives, signal: signals, operation: operations, other: others };

/** wordOf is how a state is shown; one that this page does not know is shown as it is. */
export function wordOf(kind: Kind, state: string): Word {
  return tables[kind][state] ?? { word: state || "Unknown", sign: "doubt", tone: "doubt" };
}


/** What each kind of signal says, and what there is to do. */
export const signalKinds: Record<string, { says: string; then: string }> = {
  EXECUTION_BLOCKED: { says: "A process waits for something, or nobody knows whether it was started.", then: "Look at its output and help it along, or cancel the run." },
  EXECUTION_FAILED: { says: "A process failed: it ended with another status than 0, or said so itself.", then: "Look at its output. Acknowledge once somebody takes care of it." },
  EVIDENCE_GAP: { says: "What the owner stated about a process has a hole, so there is no sealed evidence.", then: "Do not rely on the outcome of this run alone; start another if it matters." },
  POLICY: { says: "A rule was touched.", then: "Read the message." },
};

/** Why the outcome of an operation is not known. */
export const indeterminate: Record<string, string> = {
  TARGET_OUTCOME_UNKNOWN: "It was sent to the owner, and nobody can tell any more whether it took effect.",
  TARGET_DEDUPE_UNAVAILABLE: "The owner knows another effect under this id, so it was not sent again.",
  RECOVERY_STATE_INVALID: "After a restart the records contradicted each other; nothing was sent again.",
};

/** What became of a command, by its outcome. */
export const outcomes: Record<string, Word & { says: string }> = {
  COMMITTED: { word: "Done", sign: "check", tone: "ok", says: "The coordinator committed it. It is durable." },
  PENDING: { word: "Accepted, under way", sign: "clock", tone: "run", says: "The coordinator committed the command; its effect at the owner is under way." },
  REFUSED: { word: "Refused", sign: "cross", tone: "bad", says: "Nothing was changed." },
  REJECTED: { word: "Rejected", sign: "cross", tone: "bad", says: "The command was admitted and then could not be carried out." },
  INDETERMINATE: { word: "Outcome unknown", sign: "doubt", tone: "doubt", says: "The command may or may not have been carried out. Asking again sends the same operation, which is never carried out twice." },
  NOT_SENT: { word: "Not sent", sign: "cut", tone: "warn", says: "The coordinator was not reached, so nothing was changed." },
};

/** How soon somebody should look at a signal. */
export const severities: Record<string, { word: string; tone: Tone; sign: Sign }> = {
  critical: { word: "Critical", tone: "bad", sign: "alert" },
  failure: { word: "Failure", tone: "bad", sign: "cross" },
  warning: { word: "Warning", tone: "warn", sign: "alert" },
  note: { word: "Note", tone: "idle", sign: "bell" },
};

/** Why a run or an operation does not go on by itself, in a word or two. */
export const stuckWords: Record<string, string> = {
  START_UNKNOWN: "Start unknown",
  BLOCKED: "Blocked",
  FAILING: "Failing",
  OWNER_SILENT: "Owner silent",
  PAUSED: "Paused",
  INDETERMINATE: "Outcome unknown",
};

const eventWords: Record<string, string> = {
  OBJECTIVE_CHANGED: "Objective",
  RUN_CHANGED: "Run",
  WORK_SESSION_CHANGED: "Work session",
  BINDING_OPENED: "Process bound",
  ARTIFACT_REVISION_ADDED: "Artifact",
  OPERATION_CHANGED: "Operation",
  SOURCE_FACT_ADMITTED: "Fact",
  SOURCE_GAP: "Gap in the facts",
  OBJECT_REMOVED: "Removed",
};

/** What an event is called. */
export function eventWord(kind: string): string {
  return eventWords[kind] ?? sentence(kind);
}
