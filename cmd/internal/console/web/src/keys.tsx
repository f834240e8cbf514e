// Keys, for those who do not want to reach for the mouse. ? shows them.
import { useEffect, useRef, useState } from "preact/hooks";
import { to } from "./router";

const pageKeys: Record<string, string> = { o: "overview", r: "runs", s: "signals", p: "operations", a: "activity", u: "authority" };

function typing(t: EventTarget | null): boolean {
  return t instanceof HTMLElement && (t.matches("input, textarea, select") || t.isContentEditable);
}

export function Keys() {
  const [shown, show] = useState(false);
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    let go = 0;
    const key = (e: KeyboardEvent) => {
      if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
      if (typing(e.target)) {
        if (e.key === "Escape") (e.target as HTMLElement).blur();
        return;
      }
      const now = performance.now();
      if (e.key === "?") show(true);
      else if (e.key === "g") go = now;
      else if (e.key === "/") {
        const field = document.querySelector<HTMLInputElement>("[data-search]");
        if (!field) return;
        e.preventDefault();
        field.focus();
        field.select();
      } else if (now - go < 1200 && pageKeys[e.key]) {
        go = 0;
        location.hash = to(pageKeys[e.key]!).slice(1);
      } else if (e.key === "j" || e.key === "k") {
        const rows = [...document.querySelectorAll<HTMLElement>("main .rows a.title")];
        const at = rows.indexOf(document.activeElement as HTMLElement);
        rows[at < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, at + (e.key === "j" ? 1 : -1)))]?.focus();
      }
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  useEffect(() => {
    if (shown) box.current?.showModal();
    else box.current?.close();
  }, [shown]);
  return (
    <dialog ref={box} aria-labelledby="keys-title" onClose={() => show(false)}>
      <header><h2 id="keys-title">Keys</h2></header>
      <div class="pad">
        <dl class="facts keys">
          <dt><kbd>g</kbd> then <kbd>o</kbd> <kbd>r</kbd> <kbd>s</kbd> <kbd>p</kbd> <kbd>a</kbd> <kbd>u</kbd></dt>
          <dd>overview, runs, signals, operations, activity, authority</dd>
          <dt><kbd>/</kbd></dt><dd>search on this page; <kbd>Esc</kbd> leaves it</dd>
          <dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>next and previous row; so do the arrow keys, <kbd>Home</kbd>, <kbd>End</kbd>, <kbd>Page Up</kbd> and <kbd>Page Down</kbd> within a list</dd>
          <dt><kbd>Enter</kbd></dt><dd>opens the row</dd>
          <dt><kbd>?</kbd></dt><dd>this</dd>
        </dl>
      </div>
      <footer><button type="button" class="button primary" onClick={() => show(false)}>Close</button></footer>
    </dialog>
  );
}
