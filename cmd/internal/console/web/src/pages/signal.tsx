// One signal: what it says, what it is about, and what can be done.
import { Deeds } from "../actions";
import { useDetail } from "../detail";
import { Icon } from "../icons";
import { useLive } from "../live";
import { Age } from "../parts/age";
import { Alien, Fact, Id, Loading, Panel, Status, Trouble } from "../parts/basic";
import { Severity } from "../parts/lists";
import { to } from "../router";
import { titleOf } from "../select";
import { count, sentence } from "../text";
import type { SignalDetail } from "../wire";
import { signalKinds } from "../words";

export function Signal({ id }: { id: string }) {
  const l = useLive("signals", "runs", "objectives");
  const row = l.tables.signals.get(id);
  const detail = useDetail<SignalDetail>("/api/signal/" + id, row?.revision ?? "");
  const s = row ?? detail.value?.signal;
  if (!s) {
    return (
      <>
        <h1>Signal <span class="id">{id}</span></h1>
        <div class="panel">{detail.problem ? <Trouble problem={detail.problem} again={detail.again} /> : <Loading what="the signal" />}</div>
      </>
    );
  }
  const kind = signalKinds[s.kind];
  const title = titleOf(s.run_id, s.objective_id);
  return (
    <>
      <header class="page-head">
        <p class="crumbs"><a href={to("signals")}>Signals</a><Icon sign="chevron" /><span>Signal</span></p>
        <div class="head-row">
          <h1>{sentence(s.kind)}</h1>
          <Deeds kind="signal" actions={row?.actions} id={id} subject={sentence(s.kind) + ": " + s.message} revision={row?.revision} />
        </div>
        <ul class="glance">
          <li><Status kind="signal" state={s.state} chip /></li>
          {row && <li><Severity s={row} word /></li>}
          {row && <li class="quiet">{s.state.toLowerCase()} for <Age since={row.since} atLeast={row.since_at_least} />{row.overdue && <span class="warn"> (overdue)</span>}</li>}
          <li class="quiet">revision {count(s.revision)}</li>
          <li><Id id={id} what="signal id" /></li>
        </ul>
      </header>
      <Panel id="message" title="Message">
        <p class="pad break message"><Alien text={s.message} max={2000} none="no message" /></p>
      </Panel>
      <Panel id="about" title="About">
        <div class="pad">
          <dl class="facts">
            {kind && <Fact name="Means">{kind.says}</Fact>}
            {kind && row?.open && <Fact name="What to do">{kind.then}</Fact>}
            {s.run_id && <Fact name="Run"><a href={to("run", s.run_id)}><Alien text={title} max={200} none={"run " + s.run_id.slice(0, 8)} /></a> <Id id={s.run_id} what="run id" /></Fact>}
            {s.objective_id && <Fact name="Objective"><a href={to("objective", s.objective_id)}><Alien text={title} max={200} none={"objective " + s.objective_id.slice(0, 8)} /></a></Fact>}
            <Fact name="Work session"><Id id={s.work_session_id} what="session id" /></Fact>
          </dl>
        </div>
      </Panel>
    </>
  );
}
