// The signs beside every state, so that none is told by its colour alone. Each is drawn in a
// box of 16 by 16 in the colour of its text, and is hidden from readers, who get the word.
import type { JSX } from "preact";

const line = { fill: "none", stroke: "currentColor", "stroke-width": 1.6, "stroke-linecap": "round", "stroke-linejoin": "round" } as const;

const signs = {
  play: <path d="M5 3.2v9.6l7.6-4.8z" fill="currentColor" />,
  pause: <path d="M4.6 3.2h2.4v9.6H4.6zM9 3.2h2.4v9.6H9z" fill="currentColor" />,
  ring: <circle cx="8" cy="8" r="4.6" {...line} stroke-dasharray="2.4 2.4" />,
  check: <path d="M3.2 8.6l3.2 3.2 6.4-7.4" {...line} stroke-width={2} />,
  cross: <path d="M4 4l8 8M12 4l-8 8" {...line} stroke-width={2} />,
  slash: <g {...line}><circle cx="8" cy="8" r="5.2" /><path d="M4.4 11.6l7.2-7.2" /></g>,
  alert: <g {...line}><path d="M8 2.4l6.2 11H1.8z" /><path d="M8 6.6v3M8 11.6v.01" stroke-width={1.8} /></g>,
  doubt: <g {...line}><circle cx="8" cy="8" r="6" /><path d="M6.2 6.4a1.9 1.9 0 1 1 2.7 1.7c-.6.3-.9.7-.9 1.3M8 11.6v.01" stroke-width={1.5} /></g>,
  clock: <g {...line}><circle cx="8" cy="8" r="5.8" /><path d="M8 4.8V8l2.2 1.6" /></g>,
  bell: <g {...line}><path d="M4.4 10.8V7.2a3.6 3.6 0 0 1 7.2 0v3.6l1 1.2H3.4z" /><path d="M6.8 13.6h2.4" /></g>,
  mute: <g {...line}><path d="M4.4 10.8V7.2a3.6 3.6 0 0 1 7.2 0v3.6l1 1.2H3.4z" /><path d="M2.4 2.4l11.2 11.2" /></g>,
  hand: <path d="M2.6 8.6l2.6 2.6 4.6-5.6M7.6 10.6l.6.6 5.2-6" {...line} />,
  gap: <g {...line}><path d="M1.8 8h3.6M10.6 8h3.6M6.4 4.6l1 6.8M8.8 4.6l1 6.8" /></g>,
  cut: <g {...line}><path d="M6.2 9.8l-1.6 1.6a2.3 2.3 0 0 1-3.2-3.2L3 6.6M9.8 6.2l1.6-1.6a2.3 2.3 0 0 1 3.2 3.2L13 9.4M5 3.4l.8 1.8M11 12.6l-.8-1.8" /></g>,
  live: <g {...line}><circle cx="8" cy="8" r="2.2" fill="currentColor" stroke="none" /><path d="M4.2 11.8a5.4 5.4 0 0 1 0-7.6M11.8 4.2a5.4 5.4 0 0 1 0 7.6" /></g>,
  seal: <g {...line}><path d="M8 1.8l5 2v3.6c0 3.4-2.2 5.6-5 6.8-2.8-1.2-5-3.4-5-6.8V3.8z" /><path d="M5.8 8l1.6 1.6 2.8-3.2" /></g>,
  list: <path d="M5.8 4h8M5.8 8h8M5.8 12h8M2.4 4h.01M2.4 8h.01M2.4 12h.01" {...line} stroke-width={1.8} />,
  home: <path d="M2.2 7.4L8 2.6l5.8 4.8M3.8 6.4v7h8.4v-7" {...line} />,
  pulse: <path d="M1.6 8.4h3l1.8-5 3 9 1.8-4h3.2" {...line} />,
  key: <g {...line}><circle cx="5.4" cy="8" r="3" /><path d="M8.4 8h6M12 8v2.6" /></g>,
  swap: <path d="M2.4 5.4h10M9.8 2.8l2.6 2.6-2.6 2.6M13.6 10.6h-10M6.2 8l-2.6 2.6 2.6 2.6" {...line} />,
  search: <g {...line}><circle cx="7" cy="7" r="4.4" /><path d="M10.4 10.4l3.4 3.4" /></g>,
  chevron: <path d="M6 3.4L10.6 8 6 12.6" {...line} />,
  copy: <g {...line}><rect x="5.6" y="5.6" width="7.6" height="7.6" rx="1.4" /><path d="M3.4 10.4h-.6V3.6c0-.5.3-.8.8-.8h6.8v.6" /></g>,
} satisfies Record<string, JSX.Element>;

export type Sign = keyof typeof signs;

export function Icon({ sign }: { sign: Sign }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      {signs[sign]}
    </svg>
  );
}
