// Requests to the console's own process, each bounded in time. None throws.
import type { Problem } from "./wire";

export type Answer<T> = { ok: true; value: T } | { ok: false; problem: Problem };

/** How long an answer may take; a command is given its time by the server. */
const patience = 35_000;

async function ask<T>(path: string, init: RequestInit): Promise<Answer<T>> {
  let r: Response;
  try {
    r = await fetch(path, { ...init, signal: AbortSignal.timeout(patience), cache: "no-store", redirect: "error" });
  } catch (e) {
    const timedOut = e instanceof DOMException && e.name === "TimeoutError";
    return {
      ok: false,
      problem: {
        status: 0,
        code: timedOut ? "NO_ANSWER" : "NO_CONNECTION",
        message: timedOut ? "the console did not answer in time" : "the console's process does not answer",
        next: "see whether coordctl console still runs in its terminal",
      },
    };
  }
  let body: unknown;
  try {
    body = await r.json();
  } catch {
    return { ok: false, problem: { status: r.status, code: "NO_JSON", message: "the answer (HTTP " + r.status + ") cannot be read", next: "load the page again" } };
  }
  if (r.ok) return { ok: true, value: body as T };
  const e = (body as { error?: Partial<Problem> }).error ?? {};
  return { ok: false, problem: { status: r.status, code: e.code ?? "HTTP " + r.status, message: e.message ?? "the request failed", next: e.next ?? "" } };
}

export function get<T>(path: string): Promise<Answer<T>> {
  return ask<T>(path, { method: "GET" });
}

export function post<T>(path: string, body: unknown): Promise<Answer<T>> {
  return ask<T>(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

/** newOperationID makes the id under which a command can be asked for again. */
export function newOperationID(): string {
  const b = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(b, (n) => n.toString(16).padStart(2, "0")).join("");
}
