// The smallest parts of a page.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Icon, type Sign } from "../icons";
import { clip, inert, shortID } from "../text";
import type { Problem } from "../wire";
import { wordOf, type Kind } from "../words";

/** A state of something: sign and word. */
export function Status({ kind, state, chip }: { kind: Kind; state: string; chip?: boolean }) {
  const w = wordOf(kind, state);
  return (
    <span class={"state " + w.tone + (chip ? " chip" : "")}>
      <Icon sign={w.sign} />
      {inert(w.word)}
    </span>
  );
}

/** Text that somebody else chose: every character is seen, and none touches its neighbours. */
export function Alien({ text, max = 400, none = "\u2013" }: { text: string | undefined; max?: number; none?: string }) {
  if (!text) return <span class="quiet">{none}</span>;
  return <bdi>{clip(text, max)}</bdi>;
}

/** An id, whole or its beginning, to be read and taken along. */
export function Id({ id, whole, what = "id" }: { id: string; whole?: boolean; what?: string }) {
  return (
    <span class="nowrap">
      <span class="id" title={inert(id)}>{inert(whole ? id : shortID(id))}</span>
      <Copy text={id} what={what} />
    </span>
  );
}

export function Copy({ text, what }: { text: string; what: string }) {
  const [done, set] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      set("copied");
    } catch {
      set("not copied: the browser does not allow it");
    }
    setTimeout(() => set(""), 1600);
  };
  return (
    <>
      <button type="button" class="copy above" onClick={copy} title={done || "Copy " + what} aria-label={"Copy " + what + " " + shortID(text)}>
        <Icon sign={done === "copied" ? "check" : "copy"} />
      </button>
      <span class="for-readers" role="status">{done}</span>
    </>
  );
}

export function Panel({ title, note, tools, id, level = 2, children }: { title: string; note?: ComponentChildren; tools?: ComponentChildren; id: string; level?: 2 | 3; children: ComponentChildren }) {
  const H = level === 2 ? "h2" : "h3";
  return (
    <section class="panel" aria-labelledby={id}>
      <header>
        <H id={id}>{title}</H>
        {note !== undefined && <span class={"note" + (typeof note === "string" && /^\d/.test(note) ? " tally-note" : "")}>{note}</span>}
        <span class="grow" />
        {tools}
      </header>
      {children}
    </section>
  );
}

export function Empty({ sign, title, children }: { sign?: Sign; title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      {sign && <Icon sign={sign} />}
      <p><strong>{title}</strong></p>
      {children && <p>{children}</p>}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <div class="loading" role="status">
      <span /><span /><span />
      <p class="for-readers">Reading {what}</p>
    </div>
  );
}

export function Trouble({ problem, again }: { problem: Problem; again?: () => void }) {
  return (
    <div class="trouble" role="alert">
      <Icon sign="alert" />
      <div>
        <p><strong>{inert(problem.code)}</strong> <bdi>{clip(problem.message, 600)}</bdi></p>
        {problem.next && <p class="next"><bdi>{clip(problem.next, 600)}</bdi></p>}
        {again && <p><button type="button" class="button small" onClick={again}>Try again</button></p>}
      </div>
    </div>
  );
}

/** A pair of name and value. */
export function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}

export function Search({ value, set, label, hint }: { value: string; set: (s: string) => void; label: string; hint: string }) {
  return (
    <div class="field">
      <Icon sign="search" />
      <input type="search" data-search value={value} placeholder={hint} aria-label={label} autocomplete="off" spellcheck={false} maxLength={200}
        onInput={(e) => set(e.currentTarget.value)} />
    </div>
  );
}

export interface Option<T extends string> {
  value: T;
  label: string;
  n?: number;
}

/** A choice of one among a few, as buttons. */
export function Choice<T extends string>({ value, set, options, label }: { value: T; set: (v: T) => void; options: Option<T>[]; label: string }) {
  return (
    <div class="choice" role="group" aria-label={label}>
      {options.map((o) => (
        <button key={o.value} type="button" aria-pressed={o.value === value} onClick={() => set(o.value)}>
          {o.label}
          {o.n !== undefined && <span class="n">{o.n}</span>}
        </button>
      ))}
    </div>
  );
}
