// A long list of which only the rows in sight are in the document. It scrolls with the page,
// so that there is one scroll bar, one way to scroll on a phone, and "find" of the list's own.
import type { ComponentChildren } from "preact";
import { memo } from "./memo";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Column {
  title: string;
  width: string;
  end?: boolean;
}

interface Props<T> {
  label: string;
  columns: Column[];
  items: readonly T[];
  keyOf: (item: T) => string;
  row: (item: T) => ComponentChildren;
  /** The class of the table, which lays its cells out on a narrow screen. */
  kind: string;
  /** The height of a row on a narrow screen, which that class sets. */
  narrow?: number;
}

/** Rows beyond what is seen, on each side. */
const margin = 8;
/** Fewer rows than this are all drawn. */
const few = 60;

const isNarrow = matchMedia("(max-width: 760px)");

/** The height of a row on a wide screen, and on most narrow ones; the style sheet has the same. */
const wideRow = 38;
const narrowRow = 62;

interface Window {
  from: number;
  to: number;
  height: number;
}

export function Rows<T>({ label, columns, items, keyOf, row, kind, narrow = narrowRow }: Props<T>) {
  const rowHeight = () => (isNarrow.matches ? narrow : wideRow);
  const body = useRef<HTMLDivElement>(null);
  const [win, set] = useState<Window>({ from: 0, to: few, height: rowHeight() });
  const n = items.length;

  useLayoutEffect(() => {
    let due = 0;
    const measure = () => {
      due = 0;
      const el = body.current;
      if (!el) return;
      const height = rowHeight();
      const top = el.getBoundingClientRect().top;
      // In steps, so that a small movement draws nothing.
      const first = Math.floor(Math.max(0, -top) / height / 4) * 4;
      const from = Math.max(0, first - margin);
      const to = first + Math.ceil(innerHeight / height) + margin + 4;
      set((w) => (w.from === from && w.to === to && w.height === height ? w : { from, to, height }));
    };
    const soon = () => {
      if (!due) due = requestAnimationFrame(measure);
    };
    measure();
    addEventListener("scroll", soon, { passive: true });
    addEventListener("resize", soon);
    return () => {
      cancelAnimationFrame(due);
      removeEventListener("scroll", soon);
      removeEventListener("resize", soon);
    };
  }, [n > few]);

  const all = n <= few;
  const from = all ? 0 : Math.min(win.from, Math.max(0, n - 1));
  const to = all ? n : Math.min(n, Math.max(win.to, from + 1));

  // Up, Down, Home and End go from row to row, also to those that are not drawn yet.
  const keys = (e: KeyboardEvent) => {
    const at = (e.target as HTMLElement).closest<HTMLElement>("[data-index]");
    if (!at || e.ctrlKey || e.metaKey || e.altKey || e.target !== at.querySelector("a.title")) return;
    const now = Number(at.dataset.index);
    const next = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: n - 1, PageDown: now + 12, PageUp: now - 12 }[e.key];
    if (next === undefined) return;
    e.preventDefault();
    focusRow(Math.max(0, Math.min(n - 1, next)), win.height);
  };
  const focusRow = (index: number, height: number) => {
    const el = body.current!;
    const place = () => el.querySelector<HTMLElement>(`[data-index="${index}"] a.title`);
    const y = el.getBoundingClientRect().top + index * height;
    const head = document.querySelector(".top")?.getBoundingClientRect().bottom ?? 0;
    if (y < head + 4) scrollBy(0, y - head - height);
    else if (y + height > innerHeight - 70) scrollBy(0, y + height * 2 - innerHeight + 70);
    const there = place();
    if (there) return there.focus({ preventScroll: true });
    requestAnimationFrame(() => requestAnimationFrame(() => place()?.focus({ preventScroll: true })));
  };

  return (
    <div class={"rows " + kind} role="table" aria-label={label} aria-rowcount={n + 1} style={{ "--columns": columns.map((c) => c.width).join(" ") }}>
      <div role="rowgroup">
        <div class="row head" role="row" aria-rowindex={1}>
          {columns.map((c) => <span key={c.title} role="columnheader" class={c.end ? "num" : ""}>{c.title}</span>)}
        </div>
      </div>
      <div ref={body} role="rowgroup" onKeyDown={keys} style={all ? {} : { height: n * win.height + "px" }}>
        <div class="window" role="presentation" style={all ? {} : { transform: `translateY(${from * win.height}px)` }}>
          {items.slice(from, to).map((item, i) => <Line key={keyOf(item)} item={item} index={from + i} row={row as (item: unknown) => ComponentChildren} />)}
        </div>
      </div>
    </div>
  );
}

/** One row, drawn again only when it is another object. Rows must not read anything else. */
const Line = memo(function Line({ item, index, row }: { item: unknown; index: number; row: (item: unknown) => ComponentChildren }) {
  return (
    <div class="row" role="row" aria-rowindex={index + 2} data-index={index}>
      {row(item)}
    </div>
  );
});
