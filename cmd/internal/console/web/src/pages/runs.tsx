// All runs: the stuck ones first, then those that run, then those that have ended.
import { useMemo, useState } from "preact/hooks";
import { useLive } from "../live";
import { Choice, Empty, Loading, Panel, Search } from "../parts/basic";
import { RunRows } from "../parts/lists";
import { matches, runs, wordsOf, type TitledRun } from "../select";
import { count } from "../text";

type Which = "all" | "live" | "stuck" | "Failed" | "ended";

const saysRun = ({ run: r, title }: TitledRun) => ({ text: [title, r.state, r.stuck?.replaceAll("_", " "), r.exit && "exit " + r.exit, r.owner, "attempt " + r.attempt], ids: [r.id, r.objective_id, r.binding_id, r.work_session_id] });

const ended = (s: string) => s === "Completed" || s === "Cancelled" || s === "Failed";

const is: Record<Which, (r: TitledRun) => boolean> = {
  all: () => true,
  live: (r) => !ended(r.run.state),
  stuck: (r) => !!r.run.stuck,
  Failed: (r) => r.run.state === "Failed",
  ended: (r) => ended(r.run.state),
};

/** A list of runs with its search and choice, of all runs or those of one objective. */
export function RunsPanel({ all, id, title, attempts }: { all: readonly TitledRun[]; id: string; title: string; attempts?: boolean }) {
  const [which, setWhich] = useState<Which>("all");
  const [search, setSearch] = useState("");
  const shown = useMemo(() => {
    const words = wordsOf(search);
    return all.filter((r) => is[which](r) && matches(r, words, saysRun));
  }, [all, which, search]);
  const n = useMemo(() => {
    const c = { live: 0, stuck: 0, Failed: 0, ended: 0 };
    for (const r of all) for (const k of Object.keys(c) as (keyof typeof c)[]) if (is[k](r)) c[k]++;
    return c;
  }, [all]);
  return (
    <Panel id={id} title={title} note={count(shown.length) + " of " + count(all.length)}
      tools={<>
        <Choice label="Which runs" value={which} set={setWhich} options={[
          { value: "all", label: "All", n: all.length }, { value: "stuck", label: "Stuck", n: n.stuck }, { value: "live", label: "Under way", n: n.live },
          { value: "Failed", label: "Failed", n: n.Failed }, { value: "ended", label: "Ended", n: n.ended }]} />
        <Search value={search} set={setSearch} label="Search runs" hint="Title, state, id, exit" />
      </>}>
      {shown.length ? <RunRows label={title} items={shown} attempts={attempts} /> : all.length ? (
        <Empty sign="search" title="No run matches">Change the search, or show all.</Empty>
      ) : (
        <Empty sign="list" title="No run yet">A run is one real process under a process owner. Start one: <code>coordctl run --title "First run" -- uname -a</code></Empty>
      )}
    </Panel>
  );
}

export function Runs() {
  const l = useLive("runs", "objectives");
  return (
    <>
      <h1 class="page">Runs</h1>
      <p class="lede">A run is one real process under a process owner. It outlives the coordinator, and is never started twice. The stuck ones come first.</p>
      {l.loaded ? <RunsPanel all={runs()} id="runs" title="All runs" /> : <div class="panel"><Loading what="runs" /></div>}
    </>
  );
}
