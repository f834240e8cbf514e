// Commands and what became of them: those without an outcome first.
import { useMemo, useState } from "preact/hooks";
import { deedOf, mayAskAgain, outcomeNow, outcomeWord, showAgain, useSent, type Sent } from "../actions";
import { useDetail } from "../detail";
import { Icon } from "../icons";
import { useLive } from "../live";
import { Age } from "../parts/age";
import { Alien, Choice, Empty, Fact, Id, Loading, Panel, Search, Status, Trouble } from "../parts/basic";
import { OperationRows } from "../parts/lists";
import { to } from "../router";
import { matches, operations, wordsOf } from "../select";
import { clockTime, count, sentence } from "../text";
import type { OperationDetail, OperationRow } from "../wire";
import { indeterminate } from "../words";

type Which = "all" | "unresolved" | "REJECTED" | "SUCCEEDED";

const unresolved = (o: OperationRow) => o.state === "PENDING" || o.state === "INDETERMINATE";
const says = (o: OperationRow) => ({ text: [o.state, o.text, o.object?.kind, o.stuck?.replaceAll("_", " "), o.stuck_text], ids: [o.id, o.object?.id, o.principal_key_id] });

export function Operations() {
  const l = useLive("operations");
  const [which, setWhich] = useState<Which>("all");
  const [search, setSearch] = useState("");
  const all = operations();
  const shown = useMemo(() => {
    const words = wordsOf(search);
    return all.filter((o) => (which === "all" || (which === "unresolved" ? unresolved(o) : o.state === which)) && matches(o, words, says));
  }, [l.version.operations, which, search]);
  return (
    <>
      <h1 class="page">Operations</h1>
      <p class="lede">Every command has an OperationId and one outcome, which is kept with it. Sending the same operation again never carries it out twice.</p>
      <SentPanel />
      <Panel id="all-operations" title="All operations" note={count(shown.length) + " of " + count(all.length)}
        tools={<>
          <Choice label="Which operations" value={which} set={setWhich} options={[
            { value: "all", label: "All", n: all.length }, { value: "unresolved", label: "Unresolved", n: all.filter(unresolved).length },
            { value: "REJECTED", label: "Rejected", n: all.filter((o) => o.state === "REJECTED").length },
            { value: "SUCCEEDED", label: "Succeeded", n: all.filter((o) => o.state === "SUCCEEDED").length }]} />
          <Search value={search} set={setSearch} label="Search operations" hint="Id, outcome, object" />
        </>}>
        {!l.loaded ? <Loading what="operations" /> : shown.length ? <OperationRows label="Operations" items={shown} /> : all.length ? (
          <Empty sign="search" title="No operation matches">Change the search, or show all.</Empty>
        ) : (
          <Empty sign="swap" title="No operation yet">Operations of this key appear here; those of other keys need the scope admin.</Empty>
        )}
      </Panel>
    </>
  );
}

/** What was sent from this page, whose outcome the coordinator may not know of yet. */
function SentPanel() {
  const { sent } = useSent();
  useLive("operations");
  if (!sent.length) return null;
  return (
    <Panel id="sent" title="Sent from this page" note="since it was loaded">
      <ul class="short">
        {sent.map((s) => <SentLine key={s.operation} s={s} />)}
      </ul>
    </Panel>
  );
}

function SentLine({ s }: { s: Sent }) {
  const o = outcomeNow(s);
  const w = o && outcomeWord(o);
  return (
    <li>
      <div class="short-row">
        <span class="clip"><span class="quiet">{clockTime(s.at)}</span> <strong>{deedOf(s).label}</strong> <Alien text={s.subject} max={120} /></span>
        {w ? <span class={"state " + w.tone}><Icon sign={w.sign} />{w.word}</span> : <span class="state run"><Icon sign="clock" />Waiting for the answer</span>}
      </div>
      <p class="quiet">operation <Id id={s.operation} what="OperationId" /> {o && mayAskAgain(o) && <button type="button" class="button small" onClick={() => showAgain(s)}>Ask again</button>}</p>
    </li>
  );
}

export function Operation({ id }: { id: string }) {
  const l = useLive("operations");
  const row = l.tables.operations.get(id);
  const detail = useDetail<OperationDetail>("/api/operation/" + id, row?.revision ?? "");
  const d = detail.value?.operation;
  const state = row?.state ?? d?.state;
  const { sent } = useSent();
  const mine = sent.find((s) => s.operation === id);
  if (!state) {
    return (
      <>
        <h1>Operation <span class="id">{id}</span></h1>
        <div class="panel">{detail.problem ? <Trouble problem={detail.problem} again={detail.again} /> : <Loading what="the operation" />}</div>
      </>
    );
  }
  const reason = d?.reason ?? "";
  const object = row?.object ?? d?.object;
  return (
    <>
      <header class="page-head">
        <p class="crumbs"><a href={to("operations")}>Operations</a><Icon sign="chevron" /><span>Operation</span></p>
        <div class="head-row"><h1>Operation <span class="mono">{id.slice(0, 8)}</span></h1>
          {mine && mayAskAgain(outcomeNow(mine) ?? { operation_id: id, outcome: "" }) && <button type="button" class="button" onClick={() => showAgain(mine)}>Ask again, same operation</button>}
        </div>
        <ul class="glance">
          <li><Status kind="operation" state={state} chip /></li>
          {row && <li class="quiet">for <Age since={row.since} atLeast={row.since_at_least} /></li>}
        </ul>
      </header>
      {state === "INDETERMINATE" && (
        <div class="callout doubt"><Icon sign="doubt" /><p><strong>Nobody knows whether it took effect.</strong> {indeterminate[reason] ?? "It is never tried again by itself."} Look at what it was to act on before anything else is done.</p></div>
      )}
      <Panel id="operation" title="What is known">
        <div class="pad">
          <dl class="facts">
            <Fact name="OperationId"><Id id={id} whole what="OperationId" /></Fact>
            <Fact name="Result"><Alien text={row?.stuck_text || row?.text || d?.text} max={600} /></Fact>
            {d?.code && <Fact name="Code"><code>{d.code}</code></Fact>}
            {d?.reason && <Fact name="Reason">{sentence(d.reason)}</Fact>}
            {d?.message && <Fact name="Message"><Alien text={d.message} max={1000} /></Fact>}
            {object && <Fact name="Made or changed">{sentence(object.kind)} <ObjectLink kind={object.kind} id={object.id} /></Fact>}
            {d?.run_id && <Fact name="Run"><a class="id" href={to("run", d.run_id)}>{d.run_id.slice(0, 8)}</a></Fact>}
            {row?.event_sequence && <Fact name={state === "PENDING" ? "Admitted at event" : "Completed at event"}>{count(row.event_sequence)}</Fact>}
            <Fact name="Sent by key"><Id id={row?.principal_key_id ?? d?.principal_key_id ?? ""} what="key id" /></Fact>
          </dl>
          {detail.problem && !d && <Trouble problem={detail.problem} again={detail.again} />}
        </div>
      </Panel>
    </>
  );
}

function ObjectLink({ kind, id }: { kind: string; id: string }) {
  const k = kind.toLowerCase();
  return k === "run" || k === "objective" || k === "signal" ? <a class="id" href={to(k, id)}>{id.slice(0, 8)}</a> : <Id id={id} what="id" />;
}
