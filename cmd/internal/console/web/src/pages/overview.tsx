// The first page: whether to believe it, what is stuck, and what is running.
import { useMemo, useState } from "preact/hooks";
import { asOf, belief } from "../belief";
import { Icon, type Sign } from "../icons";
import { useLive } from "../live";
import { Alien, Choice, Empty, Loading, Panel, Search, Status } from "../parts/basic";
import { idOf, OperationRows, RunRows, SignalRows } from "../parts/lists";
import { Rows, type Column } from "../parts/rows";
import { Bar, Tally } from "../parts/tally";
import { to } from "../router";
import { matches, objectives, operations, runs, signals, wordsOf } from "../select";
import { count, plural } from "../text";
import type { ObjectiveRow } from "../wire";

/** How many rows a part of this page shows before it points to the page that has all. */
const someSignals = 8;
const someStuck = 5;

export function Overview() {
  const l = useLive("signals", "objectives", "runs", "operations");
  if (!l.loaded) return <><h1 class="for-readers">Overview</h1><div class="panel"><Loading what="the records" /></div></>;
  const open = signals().filter((s) => s.open);
  const unresolved = operations().filter((o) => o.state === "INDETERMINATE" || o.state === "PENDING");
  const stuck = runs().filter((r) => r.run.stuck);
  return (
    <>
      <h1 class="for-readers">Overview</h1>
      <Verdicts />
      <div class="stack">
        <Panel id="open-signals" title="Open signals" note={open.length ? "what asks for somebody, the most urgent first" : undefined} tools={<a href={to("signals")}>All signals</a>}>
          {open.length ? <SignalRows label="Open signals" items={open.slice(0, someSignals)} /> : <Empty sign="check" title="No open signal">Nothing asks for attention.</Empty>}
          {open.length > someSignals && <p class="more"><a href={to("signals")}>{plural(open.length - someSignals, "more open signal")}</a></p>}
        </Panel>
        {stuck.length > 0 && (
          <Panel id="stuck-runs" title="Stuck runs" note="they do not go on by themselves" tools={<a href={to("runs")}>All runs</a>}>
            <RunRows label="Stuck runs" items={stuck.slice(0, someStuck)} />
            {stuck.length > someStuck && <p class="more"><a href={to("runs")}>{plural(stuck.length - someStuck, "more stuck run")}</a></p>}
          </Panel>
        )}
        {unresolved.length > 0 && (
          <Panel id="unresolved" title="Unresolved operations" note="commands without an outcome yet, or whose outcome nobody knows" tools={<a href={to("operations")}>All operations</a>}>
            <OperationRows label="Unresolved operations" items={unresolved.slice(0, someStuck)} />
            {unresolved.length > someStuck && <p class="more"><a href={to("operations")}>{plural(unresolved.length - someStuck, "more unresolved operation")}</a></p>}
          </Panel>
        )}
        <ObjectivesPanel />
      </div>
    </>
  );
}

function Verdict({ id, tone, question, sign, answer, href, children }: { id: string; tone: string; question: string; sign: Sign; answer: string; href: string; children: preact.ComponentChildren }) {
  return (
    <section class={"verdict " + tone} aria-labelledby={id}>
      <h2 id={id}>{question}</h2>
      <p class="answer"><a href={href}><Icon sign={sign} />{answer}</a></p>
      <p class="because">{children}</p>
    </section>
  );
}

/** Three questions and their answers. */
function Verdicts() {
  const l = useLive();
  const b = belief(l);
  const sum = useMemo(() => {
    const c = { running: 0, paused: 0, planned: 0, ended: 0, stuck: 0, in: new Set<string>() };
    for (const { run: r } of runs()) {
      if (r.state === "Running") {
        c.running++;
        c.in.add(r.objective_id);
      } else if (r.state === "Paused") c.paused++;
      else if (r.state === "Planned") c.planned++;
      else c.ended++;
      if (r.stuck) c.stuck++;
    }
    return c;
  }, [l.version.runs]);
  const open = signals().filter((s) => s.open);
  const ops = operations();
  const doubt = ops.filter((o) => o.state === "INDETERMINATE").length;
  const slow = ops.filter((o) => o.state === "PENDING" && o.stuck).length;
  const pending = ops.filter((o) => o.state === "PENDING").length;
  const urgent = open.filter((s) => s.severity === "critical" || s.severity === "failure").length;
  const was = b.answer === "no" || b.answer === "lost";
  const nothing = open.length + doubt + slow + sum.stuck === 0;
  const stuckAnswer = sum.stuck ? plural(sum.stuck, "run") : doubt ? plural(doubt, "operation") : open.length ? plural(open.length, "signal") : slow ? plural(slow, "operation") : "Nothing";
  const more = [
    sum.stuck > 0 && (doubt > 0 || slow > 0) && plural(doubt + slow, "unresolved operation"),
    sum.stuck === 0 && doubt > 0 && "outcome unknown",
    open.length > 0 ? plural(open.length, "open signal") + (urgent ? ", " + count(urgent) + " urgent" : "") : "no open signal",
  ].filter(Boolean).join("; ");
  return (
    <div class="verdicts">
      <Verdict id="v-believe" tone={b.tone} question="Can I believe this screen?" sign={b.sign} href={to("authority")} answer={b.answer === "yes" ? "Yes" : b.answer === "wait" ? "Not yet" : "No"}>
        {b.answer === "yes" ? <>It shows all there is as of {asOf(l)}, under the authority of epoch&nbsp;{count(l.state?.authority?.epoch)}.</> : <>{b.headline}. It shows what was known as of {asOf(l)}.</>}
      </Verdict>
      <Verdict id="v-stuck" tone={nothing ? "idle" : sum.stuck || urgent ? "bad" : doubt ? "doubt" : "warn"} question={was ? "What was stuck then?" : "What is stuck?"} sign={nothing ? "check" : "alert"} href={to(sum.stuck ? "runs" : doubt || slow ? "operations" : "signals")} answer={stuckAnswer}>
        {nothing ? "No open signal, no unresolved operation, no run that waits for somebody." : more.charAt(0).toUpperCase() + more.slice(1) + "."}
      </Verdict>
      <Verdict id="v-running" tone={sum.running ? "run" : "idle"} question={was ? "What was running then?" : "What is running?"} sign={sum.running ? "play" : "ring"} href={to("runs")} answer={sum.running ? plural(sum.running, "run") : "Nothing"}>
        {sum.running > 0 && <>In {plural(sum.in.size, "objective")}. </>}
        {sum.planned > 0 && <>{plural(sum.planned, "run")} planned. </>}
        {sum.paused > 0 && <>{plural(sum.paused, "run")} paused. </>}
        {pending > 0 && <>{plural(pending, "operation")} pending. </>}
        {plural(sum.ended, "run")} ended.
      </Verdict>
    </div>
  );
}

type Which = "active" | "trouble" | "all";

const trouble = (o: ObjectiveRow) => o.open_signals > 0 || o.stuck > 0;
const saysObjective = (o: ObjectiveRow) => ({ text: [o.title, o.state], ids: [o.id] });

function ObjectivesPanel() {
  const l = useLive("objectives");
  const [which, setWhich] = useState<Which>("active");
  const [search, setSearch] = useState("");
  const all = objectives();
  const shown = useMemo(() => {
    const words = wordsOf(search);
    return all.filter((o) => (which === "all" || (which === "active" ? o.state === "Active" : trouble(o))) && matches(o, words, saysObjective));
  }, [l.version.objectives, which, search]);
  return (
    <Panel id="objectives" title="Objectives" note={count(shown.length) + " of " + count(all.length)}
      tools={<>
        <Choice label="Which objectives" value={which} set={setWhich} options={[
          { value: "active", label: "Active", n: all.filter((o) => o.state === "Active").length },
          { value: "trouble", label: "With trouble", n: all.filter(trouble).length },
          { value: "all", label: "All", n: all.length }]} />
        <Search value={search} set={setSearch} label="Search objectives by title or id" hint="Title or id" />
      </>}>
      {shown.length ? (
        <Rows label="Objectives" columns={objectiveColumns} items={shown} keyOf={idOf} row={objectiveRow} kind="objective-rows" />
      ) : all.length ? (
        <Empty sign="search" title="No objective matches">Change the search, or show all.</Empty>
      ) : (
        <Empty sign="list" title="No objective yet">An objective is work that somebody wants done; runs belong to one. Make one: <code>coordctl create objective --title "First work"</code></Empty>
      )}
    </Panel>
  );
}

const objectiveColumns: Column[] = [
  { title: "Objective", width: "minmax(0, 1fr)" },
  { title: "State", width: "112px" },
  { title: "Runs", width: "minmax(110px, 170px)" },
  { title: "By state", width: "minmax(170px, 240px)" },
  { title: "Stuck", width: "48px", end: true },
  { title: "Signals", width: "56px", end: true },
];

function objectiveRow(o: ObjectiveRow) {
  return (
    <>
      <span role="cell" class="clip lead"><a class="title" href={to("objective", o.id)}><Alien text={o.title} max={160} none={"objective " + o.id.slice(0, 8)} /></a></span>
      <span role="cell" class="state-cell"><Status kind="objective" state={o.state} /></span>
      <span role="cell" class="narrow-hide"><Bar counts={o.runs} /></span>
      <span role="cell" class="clip second"><Tally counts={o.runs} /></span>
      <span role="cell" class="num narrow-hide">{o.stuck ? <span class="state bad"><Icon sign="alert" />{count(o.stuck)}</span> : <span class="quiet">0</span>}</span>
      <span role="cell" class="num age">{o.open_signals ? <span class="state warn"><Icon sign="bell" />{count(o.open_signals)}<span class="for-readers"> open signals</span></span> : <span class="quiet narrow-hide">0</span>}</span>
    </>
  );
}
