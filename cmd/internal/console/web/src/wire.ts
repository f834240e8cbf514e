// What the console's process sends; its doc.go is the contract. Numbers that may pass 2^53 are
// strings of digits. A member that says nothing is left out.

export type Digits = string;
export type Time = string;

export type TableName = "signals" | "objectives" | "runs" | "operations";

export interface Ref {
  kind: string;
  id: string;
}

export interface Problem {
  status: number;
  code: string;
  message: string;
  next: string;
}

export interface Session {
  name: string;
  address: string;
  coordinator_id: string;
  key_id: string;
  version: string;
}

export interface Gap {
  reason: string;
  message: string;
  last_event?: Digits;
  observed_event?: Digits;
  attempt?: number;
}

export interface State {
  phase: string;
  stale: boolean;
  stale_reason?: string;
  final?: boolean;
  summary: string;
  since: Time;
  last_contact?: Time;
  gap?: Gap;
  lost_history?: string;
  authority?: Standing;
  as_of?: { event_sequence: Digits; epoch: Digits };
  counts: {
    signals: number;
    open_signals: number;
    objectives: number;
    runs: number;
    live_runs: number;
    stuck_runs: number;
    operations: number;
    pending_operations: number;
    indeterminate_operations: number;
  };
  server_time: Time;
  scope?: string[];
}

/** Whose word it is. */
export interface Standing {
  coordinator_id: string;
  epoch: Digits;
  activation: Digits;
  incarnation_id: string;
}

/** What every row has. Rows are in order of sort, as plain strings. */
export interface Row {
  id: string;
  sort: string;
  revision: Digits;
  state: string;
  /** When it was seen to enter its state, or at least since when it was in it. */
  since: Time;
  since_at_least?: boolean;
  actions?: string[];
}

export interface SignalRow extends Row {
  kind: string;
  severity: "critical" | "failure" | "warning" | "note";
  open: boolean;
  overdue?: boolean;
  message: string;
  work_session_id: string;
  run_id?: string;
  objective_id?: string;
}

export interface RunCounts {
  planned: number;
  running: number;
  paused: number;
  completed: number;
  cancelled: number;
  failed: number;
}

export interface ObjectiveRow extends Row {
  title: string;
  runs: RunCounts;
  stuck: number;
  open_signals: number;
}

export interface RunRow extends Row {
  objective_id: string;
  attempt: number;
  stuck?: string;
  stuck_text?: string;
  exit?: string;
  exit_status?: number;
  work_session_id?: string;
  binding_id?: string;
  bound: boolean;
  end_reason?: string;
  owner?: string;
  owner_authority_fingerprint?: string;
  evidence_sealed?: boolean;
  open_signals: number;
  last_fact?: Time;
}

export interface OperationRow extends Row {
  principal_key_id: string;
  text: string;
  stuck?: string;
  stuck_text?: string;
  event_sequence?: Digits;
  object?: Ref;
}

export interface Tables {
  signals: Map<string, SignalRow>;
  objectives: Map<string, ObjectiveRow>;
  runs: Map<string, RunRow>;
  operations: Map<string, OperationRow>;
}

/** One thing that happened; one whose event_sequence is "0" is about the view itself. */
export interface Activity {
  event_sequence: Digits;
  kind: string;
  object?: Ref;
  revision?: Digits;
  text: string;
  received_at?: Time;
}

export type Verdict = "agrees" | "DIFFERS" | "not checked";

export interface Finding {
  what: string;
  verdict: Verdict;
  detail: string;
}

export interface Exit {
  known: boolean;
  status?: number;
  signal?: number;
  text: string;
}

interface Document {
  document_schema?: number;
  document?: unknown;
  document_base64?: string;
}

export interface ObjectiveDetail {
  objective: { id: string; revision: Digits; state: string; title: string } & Document;
  runs: RunRow[];
  operations: OperationRow[];
}

export interface Binding {
  id: string;
  revision: Digits;
  work_session_id: string;
  state: string;
  end_reason?: string;
  owner: string;
  owner_name?: string;
  owner_incarnation: string;
  resource_id: string;
  resource_host?: string;
}

export interface RunDetail {
  run: { id: string; revision: Digits; objective_id: string; objective_title: string; attempt: number; state: string; exit?: Exit };
  sessions: { id: string; revision: Digits; state: string; active_binding?: string }[];
  bindings: Binding[];
  artifacts: { id: string; revision: Digits; work_session_id: string; latest_revision: Digits; manifest?: { revision: Digits; schema: number; bytes: Digits } & Document }[];
  evidence: { binding_id: string; revision: Digits; work_session_id: string; artifact_id: string; seal_sha256: string }[];
  outputs: { stream: string; live: boolean }[];
  signals: SignalRow[];
  operations: OperationRow[];
}

export interface Stream {
  stream: string;
  facts: Digits;
  first_fact?: Digits;
  last_fact?: Digits;
  gaps: number;
  output_bytes: Digits;
  output_ranges: number;
  closed: boolean;
  sealed: boolean;
  findings: Finding[];
}

export interface Timeline {
  events: Activity[];
  omitted: number;
  removed_events_through: Digits;
  streams: Stream[];
}

export interface Output {
  offset: Digits;
  bytes: string;
  next_offset: Digits;
  end: boolean;
  live: boolean;
  digest: Verdict;
  detail?: string;
  ranges: { offset: Digits; length: Digits; verdict: Verdict }[];
}

export interface Verified {
  verified: boolean;
  bytes: Digits;
  agreed_bytes: Digits;
  agreed_digests: number;
  differ: { offset: Digits; length: Digits }[];
  findings: Finding[];
}

export interface SignalDetail {
  signal: { id: string; revision: Digits; kind: string; state: string; message: string; work_session_id: string; run_id?: string; objective_id?: string };
}

export interface OperationDetail {
  operation: {
    id: string;
    state: string;
    text: string;
    principal_key_id?: string;
    object?: Ref;
    run_id?: string;
    code?: string;
    message?: string;
    reason?: string;
    completed_event_sequence?: Digits;
    unresolved?: boolean;
  };
}

export interface AuthorityDetail {
  authority?: Standing;
  certificate?: { epoch: Digits; activation: Digits; expires_at: Time; remaining_ms: number };
  grant?: { expires_at: Time; scope: string[] };
  pins: { coordinator_id: string; authority: string; witness_id: string; witness_public_key: string; address: string };
  key_id: string;
  epochs: { epoch: Digits; activation: Digits; incarnation_id: string; seen_at: Time }[];
  event_rate: { at: Time; events: number }[];
}

export interface Latency {
  count: number;
  mean_seconds: number;
  p50_seconds: number;
  p99_seconds: number;
  buckets: { le: number | null; count: number }[];
}

export type Daemon =
  | { available: false; why: string; next?: string }
  | {
      available: true;
      at: Time;
      ready: boolean;
      lease_remaining_seconds?: number;
      quotas: { resource: string; used: number; principal_most: number; principal_limit: number; server_limit: number }[];
      commit?: Latency;
      flush?: Latency;
      gauges?: Record<string, number>;
    };
