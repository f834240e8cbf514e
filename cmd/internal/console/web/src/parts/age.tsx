// How long ago something was, kept up to date without drawing anything around it again.
import { useEffect, useState } from "preact/hooks";
import { live } from "../live";
import { dateTime, span } from "../text";

function ageOf(since: string): string {
  const at = Date.parse(since);
  return isNaN(at) ? "\u2013" : coarse(live.now() - at);
}

/** coarse leaves tenths out, which nobody reads in a list. */
function coarse(ms: number): string {
  return ms < 10_000 ? Math.max(0, Math.floor(ms / 1000)) + "\u00a0s" : span(ms);
}

export function Age({ since, atLeast }: { since: string | undefined; atLeast?: boolean }) {
  const [text, set] = useState(() => (since ? ageOf(since) : "\u2013"));
  useEffect(() => {
    if (!since) return;
    const look = () => set(ageOf(since));
    look();
    return live.subscribe(look);
  }, [since]);
  return (
    <time dateTime={since} title={(atLeast ? "at least since " : "since ") + dateTime(since)}>
      {atLeast ? "\u2265\u00a0" : ""}{text}
    </time>
  );
}
