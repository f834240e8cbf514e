// One objective: what is wanted, how its runs stand, and what it came from.
import { useMemo } from "preact/hooks";
import { Deeds } from "../actions";
import { useDetail } from "../detail";
import { Icon } from "../icons";
import { useLive } from "../live";
import { Age } from "../parts/age";
import { Alien, Empty, Id, Loading, Panel, Status, Trouble } from "../parts/basic";
import { SignalRows } from "../parts/lists";
import { Bar, Tally } from "../parts/tally";
import { to } from "../router";
import { runs, signals } from "../select";
import { count, terminalText } from "../text";
import type { ObjectiveDetail } from "../wire";
import { ShortOperations } from "./run";
import { RunsPanel } from "./runs";

export function Objective({ id }: { id: string }) {
  const l = useLive("objectives", "runs", "signals");
  const row = l.tables.objectives.get(id);
  const detail = useDetail<ObjectiveDetail>("/api/objective/" + id, row?.revision ?? "");
  const d = detail.value;
  const mine = useMemo(() => runs().filter((r) => r.run.objective_id === id), [l.version.runs, l.version.objectives, id]);
  const open = signals().filter((s) => s.objective_id === id && s.open);
  const title = row?.title || d?.objective.title || "";
  if (l.loaded && !row && !d) {
    return (
      <>
        <h1>Objective <span class="id">{id}</span></h1>
        <div class="panel">{detail.problem ? <Trouble problem={detail.problem} again={detail.again} /> : <Loading what="the objective" />}</div>
      </>
    );
  }
  return (
    <>
      <header class="page-head">
        <p class="crumbs"><a href={to("overview")}>Overview</a><Icon sign="chevron" /><span>Objective</span></p>
        <div class="head-row">
          <h1><Alien text={title} none={"Objective " + id.slice(0, 8)} max={400} /></h1>
          <Deeds kind="objective" actions={row?.actions} id={id} subject={title || "Objective " + id.slice(0, 8)} revision={row?.revision} />
        </div>
        <ul class="glance">
          <li><Status kind="objective" state={row?.state ?? d?.objective.state ?? ""} chip /></li>
          {row && <li class="quiet">for <Age since={row.since} atLeast={row.since_at_least} /></li>}
          {row && <li><Tally counts={row.runs} /></li>}
          {row && row.stuck > 0 && <li><span class="state bad"><Icon sign="alert" />{count(row.stuck)} stuck</span></li>}
          <li class="quiet">revision {count(row?.revision ?? d?.objective.revision)}</li>
          <li><Id id={id} what="objective id" /></li>
        </ul>
        {row && <Bar counts={row.runs} />}
      </header>
      <div class="stack">
        {open.length > 0 && <Panel id="objective-signals" title="Open signals"><SignalRows label="Open signals" items={open} /></Panel>}
        <RunsPanel all={mine} id="objective-runs" title="Runs" attempts />
        <Panel id="document" title="Document" note={d ? "schema " + count(d.objective.document_schema) : undefined}>
          {d ? <Document d={d} /> : detail.problem ? <Trouble problem={detail.problem} again={detail.again} /> : <Loading what="the document" />}
        </Panel>
        {d && d.operations.length > 0 && <Panel id="objective-operations" title="Operations"><ShortOperations items={d.operations} /></Panel>}
      </div>
    </>
  );
}

function Document({ d }: { d: ObjectiveDetail }) {
  const o = d.objective;
  if (o.document === undefined && !o.document_base64) return <Empty title="The document is empty" />;
  const text = o.document !== undefined ? JSON.stringify(o.document, null, 2) : o.document_base64!;
  return (
    <>
      {o.document === undefined && <p class="cutline">not JSON; shown as base64</p>}
      <pre class="terminal" dir="ltr" tabIndex={0} role="region" aria-label="Document of the objective">{terminalText(text)}</pre>
    </>
  );
}
