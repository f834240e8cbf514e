// The output of a process: bytes from its owner, each held against the digests that the
// coordinator admitted before it is called good.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post } from "../api";
import { Icon, type Sign } from "../icons";
import { bytes, count, plural, terminalText } from "../text";
import type { Output, Problem, RunDetail, Stream, Verdict, Verified } from "../wire";
import type { Tone } from "../words";
import { Choice, Empty, Loading, Panel, Trouble } from "./basic";
import { Findings } from "./findings";

/** How much is asked for at once, and kept on the page. */
const piece = 64 << 10;
const kept = 16;

/** How long the end of a live output is left alone. */
const pause = 700;

interface Piece {
  offset: number;
  next: number;
  text: string;
  digest: Verdict;
  detail: string;
}

interface View {
  pieces: Piece[];
  from: number;
  next: number;
  end: boolean;
  live: boolean;
  problem?: Problem;
  busy: boolean;
}

const nothing: View = { pieces: [], from: 0, next: 0, end: false, live: false, busy: false };

function decode(base64: string): Uint8Array {
  const s = atob(base64);
  const out = new Uint8Array(s.length);
  for (let i = 0; i < s.length; i++) out[i] = s.charCodeAt(i);
  return out;
}

/** reader reads one output from an offset on. What it has is told; it is stopped by stop. */
class Reader {
  view: View;
  private decoder = new TextDecoder("utf-8");
  private stopped = false;
  private timer = 0;

  constructor(private path: string, from: number, private tell: (v: View) => void) {
    this.view = { ...nothing, from, next: from };
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
  }

  async more(): Promise<void> {
    if (this.stopped || this.view.busy) return;
    this.set({ busy: true, problem: undefined });
    const r = await get<Output>(`${this.path}?offset=${this.view.next}&limit=${piece}`);
    if (this.stopped) return;
    if (!r.ok) {
      this.set({ busy: false, problem: r.problem });
      return;
    }
    const o = r.value;
    const raw = decode(o.bytes);
    const pieces = this.view.pieces.slice();
    if (raw.length) {
      pieces.push({ offset: Number(o.offset), next: Number(o.next_offset), text: terminalText(this.decoder.decode(raw, { stream: true })), digest: o.digest, detail: o.detail ?? "" });
      if (pieces.length > kept) pieces.splice(0, pieces.length - kept);
    }
    this.set({ busy: false, pieces, next: Number(o.next_offset), end: o.end, live: o.live });
    if (o.end && o.live) this.timer = window.setTimeout(() => void this.more(), pause);
  }

  private set(v: Partial<View>) {
    this.view = { ...this.view, ...v };
    this.tell(this.view);
  }
}

const digests: Record<Verdict, { tone: Tone; sign: Sign; word: string }> = {
  agrees: { tone: "ok", sign: "check", word: "agrees with the admitted digests" },
  DIFFERS: { tone: "bad", sign: "alert", word: "differs from what was admitted: do not rely on it" },
  "not checked": { tone: "idle", sign: "ring", word: "not covered by an admitted digest yet" },
};

function worst(pieces: Piece[]): Verdict {
  if (pieces.some((p) => p.digest === "DIFFERS")) return "DIFFERS";
  return pieces.length && pieces.every((p) => p.digest === "agrees") ? "agrees" : "not checked";
}

export function OutputPanel({ run, outputs, streams, loading }: { run: string; outputs: RunDetail["outputs"] | undefined; streams: Stream[] | undefined; loading: boolean }) {
  const [which, setWhich] = useState("");
  const stream = outputs?.find((o) => o.stream === which)?.stream ?? outputs?.[outputs.length - 1]?.stream;
  return (
    <Panel id="output" title="Output" note="from the owner, checked against the coordinator's digests"
      tools={outputs && outputs.length > 1 && stream ? (
        <Choice label="Which binding" value={stream} set={setWhich} options={outputs.map((o, i) => ({ value: o.stream, label: "Binding " + (i + 1) }))} />
      ) : undefined}>
      {!outputs ? loading && <Loading what="the output" /> : !stream ? <Empty title="No output">No process of this run has been bound yet.</Empty> : (
        <StreamOutput key={stream} path={`/api/run/${run}/output/${stream}`} total={Number(streams?.find((s) => s.stream === stream)?.output_bytes ?? 0)} />
      )}
    </Panel>
  );
}

function StreamOutput({ path, total }: { path: string; total: number }) {
  const [view, set] = useState<View>(nothing);
  const reader = useRef<Reader | undefined>(undefined);
  const box = useRef<HTMLPreElement>(null);
  const stick = useRef(true);
  const [check, setCheck] = useState<{ busy?: boolean; done?: Verified; problem?: Problem }>({});
  const begin = (from: number) => {
    reader.current?.stop();
    reader.current = new Reader(path, from, set);
    void reader.current.more();
  };
  useEffect(() => {
    begin(0);
    return () => reader.current?.stop();
  }, [path]);
  useEffect(() => {
    const el = box.current;
    if (el && stick.current && view.live) el.scrollTop = el.scrollHeight;
  }, [view.pieces]);
  const verify = async () => {
    setCheck({ busy: true });
    const r = await post<Verified>(path + "/verify", {});
    setCheck(r.ok ? { done: r.value } : { problem: r.problem });
  };
  const first = view.pieces[0]?.offset ?? view.from;
  const digest = digests[worst(view.pieces)];
  const size = Math.max(total, view.next);
  return (
    <>
      <div class="pad output-tools">
        {view.pieces.length > 0 && <span class={"state " + digest.tone} data-digest={worst(view.pieces)}><Icon sign={digest.sign} />{digest.word}</span>}
        <span class="grow" />
        <span class="buttons">
          {first > 0 && <button type="button" class="button small" onClick={() => begin(0)}>From the start</button>}
          {size - view.next > piece && <button type="button" class="button small" onClick={() => begin(Math.max(0, size - piece))}>The end</button>}
          <button type="button" class="button small" data-verify disabled={check.busy} onClick={() => void verify()}><Icon sign="seal" />{check.busy ? "Reading all of it" : "Verify all of it"}</button>
        </span>
      </div>
      {first > 0 && view.pieces.length > 0 && <p class="cutline">bytes before {count(first)} are not shown</p>}
      {view.pieces.length > 0 ? (
        <pre class="terminal" ref={box} dir="ltr" tabIndex={0} role="region" aria-label="Output of the process"
          onScroll={(e) => (stick.current = e.currentTarget.scrollHeight - e.currentTarget.scrollTop - e.currentTarget.clientHeight < 40)}>
          {view.pieces.map((p) => <span key={p.offset} class={p.digest === "DIFFERS" ? "differs" : ""}>{p.text}</span>)}
        </pre>
      ) : view.problem ? null : view.end ? <Empty title="Nothing was written">{view.live ? "The process has written nothing yet." : "The process ended without a byte of output."}</Empty> : <Loading what="the output" />}
      {view.problem && <Trouble problem={view.problem} again={() => void reader.current?.more()} />}
      {view.pieces.some((p) => p.digest === "DIFFERS") && <p class="callout bad"><Icon sign="alert" /><span>{view.pieces.find((p) => p.digest === "DIFFERS")!.detail}</span></p>}
      <p class="cutline">
        {view.pieces.length > 0 && <>bytes {count(first)} to {count(view.next)}{size > view.next ? " of " + count(size) : ""}{view.live && view.end ? "; more appears as it is written" : ""}</>}
        {!view.end && view.pieces.length > 0 && !view.problem && <button type="button" class="button small" disabled={view.busy} onClick={() => void reader.current?.more()}>{view.busy ? "Reading" : "Read on"}</button>}
      </p>
      <div role="status">
        {check.done && <VerifiedBox v={check.done} />}
        {check.problem && <Trouble problem={check.problem} />}
      </div>
    </>
  );
}

function VerifiedBox({ v }: { v: Verified }) {
  return (
    <div class="pad">
      <div class={"outcome " + (v.verified ? "ok" : v.differ.length ? "bad" : "warn")} data-verified={String(v.verified)}>
        <span class={"state " + (v.verified ? "ok" : v.differ.length ? "bad" : "warn")}><Icon sign={v.verified ? "check" : "alert"} />{v.verified ? "Verified" : v.differ.length ? "It differs" : "Not verified"}</span>
        <span class="text">{bytes(v.agreed_bytes)} of {bytes(v.bytes)} agree with {plural(v.agreed_digests, "admitted digest")}.{v.differ.length > 0 && " " + plural(v.differ.length, "range") + " differ, the first at byte " + count(v.differ[0]!.offset) + "."}</span>
        {v.findings.length > 0 && <Findings items={v.findings} />}
      </div>
    </div>
  );
}
