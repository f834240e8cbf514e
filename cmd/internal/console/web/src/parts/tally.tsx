// How many runs are in which state: as a bar for the eye and as words for everybody.
import { Icon } from "../icons";
import { count } from "../text";
import type { RunCounts } from "../wire";
import { wordOf } from "../words";

/** In the order of what wants to be seen: [member, state, shade of the bar]. */
const states = [
  ["running", "Running", "run"], ["paused", "Paused", "warn"], ["planned", "Planned", "idle"],
  ["failed", "Failed", "bad"], ["completed", "Completed", "ok"], ["cancelled", "Cancelled", "off"],
] as const;

export function total(c: RunCounts): number {
  return c.planned + c.running + c.paused + c.completed + c.cancelled + c.failed;
}

export function Bar({ counts }: { counts: RunCounts }) {
  return (
    <div class="bar" aria-hidden="true">
      {states.map(([member, , shade]) => (counts[member] ? <span key={member} class={shade} style={{ flexGrow: counts[member] }} /> : null))}
    </div>
  );
}

export function Tally({ counts, none = "no runs" }: { counts: RunCounts; none?: string }) {
  if (total(counts) === 0) return <span class="quiet">{none}</span>;
  return (
    <span class="tally">
      {states.map(([member, state]) => {
        if (!counts[member]) return null;
        const w = wordOf("run", state);
        return (
          <span key={member} class={"state " + w.tone} title={w.word}>
            <Icon sign={w.sign} />
            {count(counts[member])}
            <span class="for-readers"> {w.word.toLowerCase()}</span>
          </span>
        );
      })}
    </span>
  );
}
