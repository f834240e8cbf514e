// What was held against what, and whether it agrees.
import { Icon, type Sign } from "../icons";
import { inert } from "../text";
import type { Finding } from "../wire";
import type { Tone } from "../words";
import { Alien } from "./basic";

const verdicts: Record<string, { tone: Tone; sign: Sign; word: string }> = {
  agrees: { tone: "ok", sign: "check", word: "agrees" },
  DIFFERS: { tone: "bad", sign: "cross", word: "differs" },
  "not checked": { tone: "idle", sign: "ring", word: "not checked" },
};

export function Findings({ items }: { items: Finding[] }) {
  return (
    <ul class="findings">
      {items.map((f) => {
        const v = verdicts[f.verdict] ?? verdicts["not checked"]!;
        return (
          <li key={f.what}>
            <span class={"state " + v.tone}><Icon sign={v.sign} />{v.word}</span>
            <span class="what">{inert(f.what)}</span>
            <span class="quiet break"><Alien text={f.detail} max={300} /></span>
          </li>
        );
      })}
    </ul>
  );
}
