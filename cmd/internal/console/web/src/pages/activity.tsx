// What happens, as it happens.
import { useMemo, useState } from "preact/hooks";
import { Icon, type Sign } from "../icons";
import { useLive } from "../live";
import { Alien, Choice, Empty, Loading, Panel, Search } from "../parts/basic";
import { Rows, type Column } from "../parts/rows";
import { to } from "../router";
import { matches, wordsOf } from "../select";
import { clockTime, count, sentence } from "../text";
import type { Activity } from "../wire";
import { eventWord, type Tone } from "../words";

type Which = "all" | "work" | "facts" | "signals" | "view";

/** The lines that are about the view itself. */
const views: Record<string, { sign: Sign; tone: Tone }> = {
  GAP: { sign: "gap", tone: "warn" },
  HEALED: { sign: "check", tone: "ok" },
  SNAPSHOT: { sign: "list", tone: "idle" },
  BEHIND: { sign: "gap", tone: "warn" },
  HISTORY_LOST: { sign: "gap", tone: "doubt" },
};

const aboutView = (e: Activity) => e.event_sequence === "0";

function groupOf(e: Activity): Which {
  if (aboutView(e)) return "view";
  if (e.kind.startsWith("SOURCE_") || e.kind.startsWith("EVIDENCE") || e.kind.startsWith("ARTIFACT")) return "facts";
  return e.kind.startsWith("SIGNAL") ? "signals" : "work";
}

const says = (e: Activity) => ({ text: [e.event_sequence, e.kind, e.kind.replaceAll("_", " "), e.text], ids: [e.object?.id] });

/** The page of an object, where it has one. */
function pageOf(e: Activity): string | undefined {
  const k = e.object?.kind;
  if (k === "RUN" || k === "OBJECTIVE" || k === "SIGNAL" || k === "OPERATION") return to(k.toLowerCase(), e.object!.id);
  return undefined;
}

const columns: Column[] = [
  { title: "Event", width: "84px", end: true },
  { title: "Heard", width: "76px" },
  { title: "Kind", width: "minmax(150px, 200px)" },
  { title: "What happened", width: "minmax(0, 1fr)" },
  { title: "Object", width: "minmax(0, 190px)" },
];

export function ActivityPage() {
  const l = useLive("activity");
  const [which, setWhich] = useState<Which>("all");
  const [search, setSearch] = useState("");
  const [held, setHeld] = useState<Activity[] | undefined>();
  const all = held ?? l.activity;
  const shown = useMemo(() => {
    const words = wordsOf(search);
    return all.filter((e) => (which === "all" || groupOf(e) === which) && matches(e, words, says)).reverse();
  }, [all, which, search]);
  const waiting = held ? l.activity.length - l.activity.indexOf(held[held.length - 1]!) - 1 : 0;
  return (
    <>
      <h1 class="page">Activity</h1>
      <p class="lede">What the console has been told since it began, newest first, the last 1{"\u2009"}000 lines. Events bear no time of day; the time is when the console heard of them.</p>
      <Panel id="events" title="Events" note={held ? "held; " + count(waiting) + " newer" : count(shown.length) + (shown.length === all.length ? "" : " of " + count(all.length))}
        tools={<>
          <button type="button" class="button small" aria-pressed={held !== undefined} onClick={() => setHeld(held ? undefined : l.activity)}>
            <Icon sign={held ? "play" : "pause"} />{held ? "Go on" : "Hold"}
          </button>
          <Choice label="Which events" value={which} set={setWhich} options={[
            { value: "all", label: "All" }, { value: "work", label: "Work" }, { value: "facts", label: "Facts" }, { value: "signals", label: "Signals" }, { value: "view", label: "Gaps" }]} />
          <Search value={search} set={setSearch} label="Search events" hint="Text, kind, id, number" />
        </>}>
        {!l.loaded ? <Loading what="events" /> : shown.length ? <Rows label="Events" columns={columns} items={shown} keyOf={keyOf} row={eventRow} kind="event-rows" /> : (
          <Empty sign="pulse" title={all.length ? "No event matches" : "Nothing has happened yet"}>{all.length ? "Change the search, or show all." : "Lines appear here as soon as anything changes."}</Empty>
        )}
      </Panel>
    </>
  );
}

let numbered = 0;
const numbers = new WeakMap<Activity, string>();

/** A key for each line, also those that bear no event's number. */
function keyOf(e: Activity): string {
  let k = numbers.get(e);
  if (!k) numbers.set(e, (k = String(++numbered)));
  return k;
}

export function eventRow(e: Activity) {
  const v = !aboutView(e) ? undefined : views[e.kind] ?? { sign: "alert" as const, tone: "warn" as const };
  const page = pageOf(e);
  return (
    <>
      <span role="cell" class="num quiet">{aboutView(e) ? "\u2013" : count(e.event_sequence)}</span>
      <span role="cell" class="quiet narrow-hide">{clockTime(e.received_at)}</span>
      <span role="cell" class="clip lead">{v ? <span class={"state " + v.tone}><Icon sign={v.sign} />{eventWord(e.kind)}</span> : page ? <a class="title" href={page}>{eventWord(e.kind)}</a> : eventWord(e.kind)}</span>
      <span role="cell" class="clip second"><Alien text={e.text} max={300} /></span>
      <span role="cell" class="clip sub narrow-hide">{e.object ? <>{sentence(e.object.kind)} <span class="id">{e.object.id.slice(0, 8)}</span></> : null}</span>
    </>
  );
}
