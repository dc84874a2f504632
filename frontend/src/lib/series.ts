// Figures as lines: per minute, with gaps where nothing was counted.
import type { Figures } from "../api.ts";

export const SPANS = ["15m", "1h", "6h", "24h", "7d"] as const;
export type Span = (typeof SPANS)[number];
const SECONDS: Record<Span, number> = { "15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800 };
/** A step that has hardly begun says nothing about a pace. */
const LEAST_SECONDS = 15;

/** The finest span that still reaches back to a moment. */
export const reaching = (from: number, now: number): Span => SPANS.find((span) => now - from <= SECONDS[span] - 60) ?? "7d";

export type Lines = { readonly times: readonly number[]; readonly line: (values: readonly number[]) => readonly (number | null)[]; readonly pick: <T>(values: readonly T[]) => readonly T[] };

/** The steps of figures within a window (unix seconds; noughts: all of it), and how to read their values. */
export function lines(figures: Figures, from = 0, to = 0): Lines {
  const first = Date.parse(figures.first_at) / 1000, step = figures.step_seconds, at = Date.parse(figures.at) / 1000;
  const since = figures.counted_since == null ? at : Date.parse(figures.counted_since) / 1000;
  const shown = figures.series.arrived.map((_, n) => n).filter((n) => {
    const begin = first + n * step;
    return (from === 0 || begin >= from - 2 * step) && (to === 0 || begin <= to) && at - begin >= LEAST_SECONDS;
  });
  const perMinute = (count: number, n: number): number | null => {
    const begin = first + n * step;
    const seconds = Math.min(step, at - begin);
    return begin + step < since ? null : Math.round((count / seconds) * 600) / 10;
  };
  return {
    times: shown.map((n) => Math.min(first + (n + 1) * step, at)), // a pace is known when its step is over
    line: (values) => shown.map((n) => perMinute(values[n] ?? 0, n)),
    pick: (values) => shown.map((n) => values[n] as (typeof values)[number]),
  };
}
