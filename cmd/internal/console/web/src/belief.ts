// Whether to believe the screen: one answer, worked out once, that the strip, the banner, the
// overview and the title of the window all give.
import type { Live } from "./live";
import type { Sign } from "./icons";
import { clockTime, count, inert } from "./text";
import type { Tone } from "./words";

export interface Belief {
  /** yes: all of it is so now. wait: nothing is shown yet. no: it may be out of date. lost: and will stay so by itself. */
  answer: "yes" | "wait" | "no" | "lost";
  tone: Tone;
  sign: Sign;
  /** One or two words for the strip. */
  word: string;
  /** What is wrong, as a headline. */
  headline: string;
  /** What that means for the reader, and what happens next. */
  meaning: string;
  /** What the program itself says about it. */
  detail: string;
}

const finals: Record<string, [string, string]> = {
  Quarantined: ["Two servers claim one authority", "A person must decide which one is right. Act on neither until then; see the detail and docs/backup.md."],
  Revoked: ["This key is not accepted", "The coordinator refuses the console's key, or does so no longer. Nothing below is kept up to date."],
  Full: ["There is more than the console may hold", "What is shown is whole as of its event, and changes no more."],
  Failed: ["The console cannot follow the coordinator", "Nothing below is kept up to date. The detail says why; mend that and start coordctl console again."],
  Closed: ["The console has ended", "Nothing below is kept up to date. Start coordctl console again."],
};

const reasons: Record<string, [string, string]> = {
  gap: ["The coordinator declared a gap", "Events after the one shown were not delivered. They are being fetched; until then something here may be out of date."],
  disconnected: ["No connection to the coordinator", "It is tried again all the time. Runs go on without it; what is shown is as it was when the connection ended."],
  "another authority": ["Another authority has taken over", "Its records are being verified before anything of it is shown."],
  behind: ["Behind the coordinator", "Newer events wait to be applied. This should last a moment."],
};

export function asOf(live: Live): string {
  const s = live.state;
  return s?.as_of ? "event\u00a0" + count(s.as_of.event_sequence) : "no event yet";
}

export function belief(live: Live): Belief {
  const s = live.state;
  const b = (answer: Belief["answer"], tone: Tone, sign: Sign, word: string, headline: string, meaning: string, detail = ""): Belief => ({ answer, tone, sign, word, headline, meaning, detail });
  if (live.link === "refused") {
    return b("lost", "bad", "cut", "Not let in", "The console does not know this browser",
      inert(live.problem?.next || "Open the address that coordctl console printed."), inert(live.problem?.message ?? ""));
  }
  if (live.link === "lost") {
    return b("no", "bad", "cut", "Console gone", "The console does not answer since " + clockTime(live.lostAt),
      "Everything here is as it was then. This page tries again by itself; see whether coordctl console still runs in its terminal.", inert(live.problem?.message ?? ""));
  }
  if (live.link === "resting" || (live.link === "connecting" && s)) {
    return b("no", "warn", "clock", "Resting", "This page was not looked at, and rests", "It is connecting again. Everything here is as it was before.");
  }
  if (!s) return b("wait", "idle", "clock", "Connecting", "Connecting to the console", "Nothing is known yet.");
  if (live.silent()) {
    return b("no", "bad", "cut", "Silent", "The console is silent",
      "It speaks each second when all is well. Everything here is as it was when it last did.");
  }
  const final = finals[s.phase];
  if (final) return b("lost", "bad", "alert", final[0] === "The console has ended" ? "Ended" : s.phase, final[0], final[1], inert(s.summary));
  if (!s.stale) return b("yes", "ok", "live", "Current", "", "");
  const detail = inert(s.gap?.message || s.summary);
  if (s.phase === "Connecting") return b("wait", "warn", "clock", "Connecting", "Looking for the coordinator", "Nothing is known yet; it is tried again all the time.", detail);
  if (s.phase === "Syncing") return b("wait", "warn", "clock", "Reading", "Reading the first snapshot", "It is shown once all of it has been verified.", detail);
  if (s.phase === "LostHistory") return b("no", "doubt", "gap", "History lost", "The coordinator's history does not hold what is shown", "Most likely a backup was restored. A new snapshot replaces this picture.", inert(s.lost_history || detail));
  const [headline, meaning] = reasons[s.stale_reason ?? ""] ?? ["The picture may be out of date", "It is being healed."];
  return b("no", "warn", s.stale_reason === "gap" ? "gap" : "cut", "Stale", headline, meaning, detail);
}
