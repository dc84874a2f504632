// Line icons on a 16 px grid, in the colour of the text beside them.
import type { JSX } from "preact";

const PATHS = {
  overview: "M2 9h4l2-6 2.5 10L12 9h2",
  jobs: "M2.5 4h11M2.5 8h11M2.5 12h7",
  failures: "M8 2 1.8 13.2h12.4L8 2Zm0 4.5v3M8 11.3v.1",
  queues: "M2 3.5h12v3H2zM2 9.5h12v3H2z",
  workers: "M4 4h8v8H4zM6.5 1.5V4m3-2.5V4m-3 8v2.5m3-2.5v2.5M1.5 6.5H4m-2.5 3H4m8-3h2.5m-2.5 3h2.5",
  schedules: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12Zm0-9.5V8l2.5 1.5",
  flows: "M2 2.5h4v4H2zM10 9.5h4v4h-4zM4 6.5V11.5h6M6 4.5h6v5",
  bulk: "M3 5.5 5 7.5 9 3M3 12l2 2 4-4.5M11 5h3M11 12h3",
  insights: "M2 13.5h12M4 11V8m3 3V4m3 7V6.5m3 4.5V3",
  tokens: "M10 9a3.5 3.5 0 1 0-3.2-2L2 11.5V14h2.5l.5-1.5h1.5L7 11h1l.8-2.2c.4.1.8.2 1.2.2Zm.8-4v.1",
  audit: "M4 1.8h5.5L13 5.3v8.9H4V1.8Zm2.5 6h4m-4 3h4",
  system: "M8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4Zm0-8.5v2m0 9v2M1.5 8h2m9 0h2M3.4 3.4l1.4 1.4m6.4 6.4 1.4 1.4m0-9.2-1.4 1.4M4.8 11.2l-1.4 1.4",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9Zm3.5-1L14 14",
  check: "M3 8.5 6.5 12 13 4.5",
  cross: "m4 4 8 8m0-8-8 8",
  play: "M4.5 2.8v10.4L13 8 4.5 2.8Z",
  pause: "M5 3v10M11 3v10",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12Zm0-9.5V8l2.5 1.5",
  hold: "M5.5 7.5V3.8m2.5 3V2.6m2.5 4.2V3.8m-5 5V6M13 6v4c0 2.5-1.8 4-4.5 4S4.7 12.6 3 9.5",
  ban: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM3.8 3.8l8.4 8.4",
  link: "M6.5 9.5a3 3 0 0 0 4.3 0l2-2a3 3 0 0 0-4.3-4.3l-.8.8m1.8 2.5a3 3 0 0 0-4.3 0l-2 2a3 3 0 0 0 4.3 4.3l.8-.8",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  more: "M3 8h.1M8 8h.1M13 8h.1",
  menu: "M2 4h12M2 8h12M2 12h12",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6Zm0-9.5v1m0 11v1M1.5 8h1m11 0h1M3.4 3.4l.7.7m7.8 7.8.7.7m0-9.2-.7.7M4.1 11.9l-.7.7",
  moon: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7Z",
  auto: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 2v12m2-11.5v11m2-9v7",
  left: "M10 3 5 8l5 5",
  right: "m6 3 5 5-5 5",
  down: "m3 6 5 5 5-5",
  up: "m3 10 5-5 5 5",
  redrive: "M13.5 3v3.5H10M13.2 6.3A5.5 5.5 0 1 0 13.4 9.5",
  user: "M8 8a2.8 2.8 0 1 0 0-5.5A2.8 2.8 0 0 0 8 8Zm-5.5 5.8a5.5 5.5 0 0 1 11 0",
  out: "M6 2.5H2.5v11H6M10 4.5 13.5 8 10 11.5M13 8H6",
  plus: "M8 3v10M3 8h10",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }): JSX.Element {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
