// The page of coordctl console. It shows what the console's own process tells it, and sends
// commands when a person asks; it decides nothing and keeps nothing.
import "./style/base.css";
import "./style/frame.css";
import "./style/parts.css";
import "./style/pages.css";
import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { ActionDialog } from "./actions";
import { belief } from "./belief";
import { Keys } from "./keys";
import { live, useLive } from "./live";
import { Empty } from "./parts/basic";
import { Foot, openCounts, pages, Top } from "./parts/frame";
import { ActivityPage } from "./pages/activity";
import { Authority } from "./pages/authority";
import { Objective } from "./pages/objective";
import { Operation, Operations } from "./pages/operations";
import { Overview } from "./pages/overview";
import { Run } from "./pages/run";
import { Runs } from "./pages/runs";
import { Signal } from "./pages/signal";
import { Signals } from "./pages/signals";
import { to, usePlace, type Place } from "./router";

function Page({ page, id }: Place) {
  switch (page) {
    case "overview": return <Overview />;
    case "runs": return <Runs />;
    case "signals": return <Signals />;
    case "operations": return <Operations />;
    case "activity": return <ActivityPage />;
    case "authority": return <Authority />;
  }
  if (id) {
    switch (page) {
      case "run": return <Run key={id} id={id} />;
      case "objective": return <Objective key={id} id={id} />;
      case "signal": return <Signal key={id} id={id} />;
      case "operation": return <Operation key={id} id={id} />;
    }
  }
  return <div class="panel"><h1 class="for-readers">No such page</h1><Empty title="There is no such page"><a href={to("overview")}>Overview</a></Empty></div>;
}

const names: Record<string, string> = { run: "Run", objective: "Objective", signal: "Signal", operation: "Operation" };

function App() {
  const place = usePlace();
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  const name = pages.find((p) => p.page === place.page)?.title ?? names[place.page] ?? "Console";
  // A new page begins at its top, and readers begin with it.
  useEffect(() => {
    if (first.current) {
      first.current = false;
      return;
    }
    scrollTo(0, 0);
    main.current?.focus({ preventScroll: true });
  }, [place.page, place.id]);
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); main.current?.focus(); }}>Skip to the page</a>
      <Doubt name={name} />
      <Top page={place.page} />
      <main id="main" ref={main} tabIndex={-1}><Page {...place} /></main>
      <Foot />
      <ActionDialog />
      <Keys />
    </>
  );
}

/** The window's title says what the strip says, for whoever sees only that. */
function Doubt({ name }: { name: string }) {
  const l = useLive();
  const b = belief(l);
  const { signals } = openCounts();
  const title = (b.answer === "yes" ? (signals ? "(" + signals + ") " : "") : b.word.toUpperCase() + " \u2013 ") + name + " \u2013 coordinator" + (l.session?.name ? " " + l.session.name.slice(0, 40) : "");
  useEffect(() => {
    document.title = title;
  }, [title]);
  useEffect(() => {
    const c = document.documentElement.classList;
    c.toggle("doubtful", b.answer === "no" || b.answer === "lost");
    c.toggle("lost", b.tone === "bad");
  }, [b.answer, b.tone]);
  return null;
}

live.start();
render(<App />, document.getElementById("app")!);
