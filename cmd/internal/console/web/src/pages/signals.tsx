// All signals, the open ones first.
import { useMemo, useState } from "preact/hooks";
import { useLive } from "../live";
import { Choice, Empty, Loading, Panel, Search } from "../parts/basic";
import { SignalRows } from "../parts/lists";
import { matches, signals, titleOf, wordsOf } from "../select";
import { count } from "../text";
import type { SignalRow } from "../wire";

type Which = "Open" | "Acknowledged" | "Suppressed" | "Resolved" | "all";

const says = (s: SignalRow) => ({ text: [s.kind.replaceAll("_", " "), s.kind, s.message, s.severity, titleOf(s.run_id, s.objective_id)], ids: [s.id, s.run_id, s.objective_id, s.work_session_id] });

export function Signals() {
  const l = useLive("signals", "objectives");
  const [which, setWhich] = useState<Which>("Open");
  const [search, setSearch] = useState("");
  const all = signals();
  const shown = useMemo(() => {
    const words = wordsOf(search);
    return all.filter((s) => (which === "all" || s.state === which) && matches(s, words, says));
  }, [l.version.signals, which, search]);
  const n = (state: string) => all.filter((s) => s.state === state).length;
  return (
    <>
      <h1 class="page">Signals</h1>
      <p class="lede">A signal is raised when a process waits, fails, or leaves a hole in its evidence. It stays on record; open ones ask for somebody.</p>
      <Panel id="all-signals" title="All signals" note={count(shown.length) + " of " + count(all.length)}
        tools={<>
          <Choice label="Which signals" value={which} set={setWhich} options={[
            { value: "Open", label: "Open", n: n("Open") }, { value: "Acknowledged", label: "Acknowledged", n: n("Acknowledged") },
            { value: "Suppressed", label: "Suppressed", n: n("Suppressed") }, { value: "Resolved", label: "Resolved", n: n("Resolved") },
            { value: "all", label: "All", n: all.length }]} />
          <Search value={search} set={setSearch} label="Search signals" hint="Message, kind, id" />
        </>}>
        {!l.loaded ? <Loading what="signals" /> : shown.length ? <SignalRows label="Signals" items={shown} /> : all.length && (search || which !== "Open") ? (
          <Empty sign="search" title="No signal matches">Change the search, or show all.</Empty>
        ) : (
          <Empty sign="check" title="No open signal">Nothing asks for attention.</Empty>
        )}
      </Panel>
    </>
  );
}
