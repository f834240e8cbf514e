// Events a second over the last minutes, drawn by uPlot on a canvas. What it shows is also said
// in words beside it.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

const dark = matchMedia("(prefers-color-scheme: dark)");

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const tall = 190;

function options(width: number): uPlot.Options {
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
  return {
    width,
    height: tall,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { x: { time: true }, y: { range: (_, __, max) => [0, Math.max(5, max * 1.15)] } },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString(undefined, { hour12: false })), space: 90 },
      { ...axis, size: 46, values: (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? String(t) : "")) },
    ],
    series: [{}, { label: "events/s", stroke: colour("--bar-run"), width: 1.6, fill: colour("--run-ground"), points: { show: false } }],
  };
}

/** data: seconds, and events in each. */
export function RateChart({ data }: { data: [number[], number[]] }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const el = box.current!;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(el.clientWidth || 600), latest.current, el);
    };
    draw();
    const sizes = new ResizeObserver(() => {
      if (plot.current && el.clientWidth && el.clientWidth !== plot.current.width) plot.current.setSize({ width: el.clientWidth, height: tall });
    });
    sizes.observe(el);
    dark.addEventListener("change", draw);
    return () => {
      sizes.disconnect();
      dark.removeEventListener("change", draw);
      plot.current?.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(data), [data]);
  return <div class="chart" ref={box} aria-hidden="true" />;
}
