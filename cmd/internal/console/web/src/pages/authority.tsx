// Who may act now, until when, and how much is happening under it.
import { useMemo } from "preact/hooks";
import { belief } from "../belief";
import { useDetail } from "../detail";
import { Icon } from "../icons";
import { useLive } from "../live";
import { Empty, Fact, Id, Loading, Panel, Trouble } from "../parts/basic";
import { RateChart } from "../parts/chart";
import { Lease } from "../parts/frame";
import { clip, count, dateTime, inert, plural, sentence, span } from "../text";
import type { AuthorityDetail, Daemon, Latency } from "../wire";

export function Authority() {
  const l = useLive("authority");
  const a = l.authority;
  return (
    <>
      <h1 class="page">Authority</h1>
      <p class="lede">One coordinator at a time may act, under a certificate of at most 60 seconds that the witness signs and it renews. Each start is a higher epoch.</p>
      <div class="columns">
        <div class="stack">
          <Panel id="certificate" title="Certificate">{a ? <Certificate a={a} /> : <Loading what="the certificate" />}</Panel>
          <Panel id="rate" title="Event rate" note="events applied a second, last 10 minutes">{a ? <Rate a={a} /> : <Loading what="the event rate" />}</Panel>
          <DaemonPanels />
        </div>
        <div class="stack">
          <Panel id="epochs" title="Epochs" note="met since the console began, newest first">{a ? <Epochs a={a} /> : <Loading what="epochs" />}</Panel>
          <Panel id="pins" title="Pins" note="how this coordinator is known">{a ? <Pins a={a} /> : <Loading what="pins" />}</Panel>
          <Panel id="key" title="This console's key">{a ? <Grant a={a} /> : <Loading what="the grant" />}</Panel>
        </div>
      </div>
    </>
  );
}

function Certificate({ a }: { a: AuthorityDetail }) {
  const l = useLive();
  const b = belief(l);
  const left = l.leaseEnd === undefined ? undefined : Math.max(0, l.leaseEnd - performance.now());
  return (
    <div class="pad certificate">
      <p class={"countdown-big" + (left === undefined || left <= 0 ? " bad" : "")} aria-hidden="true">{left === undefined ? "\u2013" : left <= 0 ? "run out" : (left / 1000).toFixed(1)}{left ? <small> s left</small> : null}</p>
      <div class="lease-wide"><Lease /></div>
      <dl class="facts">
        <Fact name="Epoch"><strong>{count(a.certificate?.epoch ?? a.authority?.epoch)}</strong></Fact>
        <Fact name="Activation">{count(a.certificate?.activation ?? a.authority?.activation)}</Fact>
        {a.authority && <Fact name="Incarnation"><Id id={a.authority.incarnation_id} what="incarnation" /></Fact>}
        <Fact name="Expires">{a.certificate ? dateTime(a.certificate.expires_at) + ", unless it is renewed" : <>not known: no connection. {b.headline}</>}</Fact>
      </dl>
    </div>
  );
}

function Rate({ a }: { a: AuthorityDetail }) {
  const data = useMemo<[number[], number[]]>(() => {
    const points = a.event_rate.map((p) => [Date.parse(p.at) / 1000, p.events] as const).filter(([t]) => !isNaN(t));
    return [points.map(([t]) => t), points.map(([, n]) => n)];
  }, [a]);
  const sum = data[1].reduce((s, n) => s + n, 0);
  const most = data[1].reduce((m, n) => Math.max(m, n), 0);
  if (data[0].length < 2) return <Empty sign="pulse" title="Not enough has been seen yet">The chart begins with the console.</Empty>;
  return (
    <div class="pad">
      <RateChart data={data} />
      <p class="quiet">{plural(sum, "event")} in {span((data[0][data[0].length - 1]! - data[0][0]!) * 1000)}; at most {count(most)} in a second.</p>
    </div>
  );
}

function Epochs({ a }: { a: AuthorityDetail }) {
  return (
    <ol class="epochs pad">
      {a.epochs.map((e, i) => (
        <li key={e.epoch + "/" + e.activation}>
          <span class={"state " + (i === 0 ? "run" : "idle")}><Icon sign={i === 0 ? "live" : "slash"} />Epoch {count(e.epoch)}</span>
          <span class="quiet">activation {count(e.activation)}, seen {dateTime(e.seen_at)}</span>
          <span class="quiet">incarnation <Id id={e.incarnation_id} what="incarnation" /></span>
        </li>
      ))}
    </ol>
  );
}

function Pins({ a }: { a: AuthorityDetail }) {
  const p = a.pins;
  return (
    <div class="pad">
      <dl class="facts">
        <Fact name="Address"><span class="mono">{inert(p.address)}</span></Fact>
        <Fact name="Coordinator"><Id id={p.coordinator_id} what="coordinator id" /></Fact>
        <Fact name="Authority key"><Id id={p.authority} what="authority fingerprint" /></Fact>
        <Fact name="Witness"><Id id={p.witness_id} what="witness id" /></Fact>
        <Fact name="Witness key"><Id id={p.witness_public_key} what="witness key" /></Fact>
      </dl>
    </div>
  );
}

function Grant({ a }: { a: AuthorityDetail }) {
  return (
    <div class="pad">
      <dl class="facts">
        <Fact name="Key"><Id id={a.key_id} what="key id" /></Fact>
        {a.grant && <Fact name="May">{a.grant.scope.length ? a.grant.scope.map((s) => <code key={s} class="tag">{inert(s)}</code>) : "nothing"}</Fact>}
        {a.grant && <Fact name="Until">{dateTime(a.grant.expires_at)}</Fact>}
        {!a.grant && <Fact name="May">not known: no connection</Fact>}
      </dl>
    </div>
  );
}

function DaemonPanels() {
  const l = useLive("authority");
  const detail = useDetail<Daemon>("/api/daemon", l.version.authority, 5000);
  const d = detail.value;
  if (!d) return <Panel id="daemon" title="Quotas and latency">{detail.problem ? <Trouble problem={detail.problem} again={detail.again} /> : <Loading what="the daemon's metrics" />}</Panel>;
  if (!d.available) {
    return (
      <Panel id="daemon" title="Quotas and latency">
        <Empty sign="cut" title="Not available"><span class="break">{clip(d.why, 400)}</span>{d.next && <> {clip(d.next, 400)}</>}</Empty>
      </Panel>
    );
  }
  return (
    <>
      <Panel id="latency" title="Commit latency" note="over the life of the daemon">
        <table class="plain">
          <thead><tr><th scope="col">What</th><th scope="col" class="num">Median</th><th scope="col" class="num">p99</th><th scope="col" class="num">Mean</th><th scope="col" class="num">Count</th></tr></thead>
          <tbody>
            <LatencyRow name="Commit, from admission to publication" l={d.commit} />
            <LatencyRow name="Flush to disk" l={d.flush} />
          </tbody>
        </table>
      </Panel>
      <Panel id="quotas" title="Quotas" note="use of each, and the principal that uses most">
        <table class="plain">
          <thead><tr><th scope="col">Resource</th><th scope="col" class="num">Used</th><th scope="col">Of the server's limit</th><th scope="col" class="num">Limit</th><th scope="col" class="num">Most by one key</th></tr></thead>
          <tbody>
            {d.quotas.map((q) => {
              const share = q.server_limit > 0 ? Math.min(1, q.used / q.server_limit) : 0;
              return (
                <tr key={q.resource}>
                  <th scope="row">{sentence(q.resource)}</th>
                  <td class="num">{count(q.used)}</td>
                  <td><span class={"meter" + (share > 0.8 ? " high" : "")}><span style={{ transform: `scaleX(${share})` }} /></span> <span class="quiet">{(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%</span></td>
                  <td class="num quiet">{count(q.server_limit)}</td>
                  <td class="num">{count(q.principal_most)} <span class="quiet">of {count(q.principal_limit)}</span></td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Panel>
    </>
  );
}

function millis(s: number): string {
  return s < 0.0995 ? (s * 1000).toFixed(s < 0.00995 ? 2 : 1) + "\u00a0ms" : s < 10 ? s.toFixed(2) + "\u00a0s" : span(s * 1000);
}

function LatencyRow({ name, l }: { name: string; l: Latency | undefined }) {
  if (!l || l.count === 0) return <tr><th scope="row">{name}</th><td colSpan={4} class="quiet">none yet</td></tr>;
  return (
    <tr>
      <th scope="row">{name}</th>
      <td class="num">{millis(l.p50_seconds)}</td>
      <td class="num">{millis(l.p99_seconds)}</td>
      <td class="num">{millis(l.mean_seconds)}</td>
      <td class="num quiet">{count(l.count)}</td>
    </tr>
  );
}
