// What a page asks for by itself: once, and again when the rows that it belongs to change.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api";
import type { Problem } from "./wire";

export interface Detail<T> {
  value: T | undefined;
  problem: Problem | undefined;
  loading: boolean;
  again: () => void;
}

/** useDetail asks for path, and again when version changes; what is there stays until the
 * next answer. No more than one question is under way, and one is asked every rest ms. */
export function useDetail<T>(path: string, version: string | number, rest = 1000): Detail<T> {
  const [got, set] = useState<{ path: string; value?: T; problem?: Problem; loading: boolean }>({ path, loading: true });
  const state = useRef({ path: "", busy: false, due: false, last: 0, timer: 0, gone: false });
  const look = useCallback(async () => {
    const s = state.current;
    if (s.busy) {
      s.due = true;
      return;
    }
    clearTimeout(s.timer);
    s.timer = 0;
    s.busy = true;
    const asked = s.path;
    const r = await get<T>(asked);
    s.busy = false;
    s.last = performance.now();
    if (s.gone) return;
    if (asked === s.path) set((g) => (r.ok ? { path: asked, value: r.value, loading: false } : { path: asked, value: g.path === asked ? g.value : undefined, problem: r.problem, loading: false }));
    if (s.due || asked !== s.path) {
      s.due = false;
      s.timer = window.setTimeout(look, asked === s.path ? rest : 0);
    }
  }, []);
  useEffect(() => {
    const s = state.current;
    const moved = s.path !== path;
    s.path = path;
    if (moved) set({ path, loading: true });
    if (moved) {
      clearTimeout(s.timer);
      s.timer = 0;
    }
    const wait = moved ? 0 : Math.max(0, s.last + rest - performance.now());
    if (!s.timer) s.timer = window.setTimeout(look, wait);
  }, [path, version]);
  useEffect(() => () => {
    state.current.gone = true;
    clearTimeout(state.current.timer);
  }, []);
  const mine = got.path === path;
  return { value: mine ? got.value : undefined, problem: mine ? got.problem : undefined, loading: !mine || got.loading, again: look };
}
