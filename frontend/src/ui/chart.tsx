// Charts over time, by uPlot, which is fetched with the first of them.
//
//   <Chart label="Jobs per minute" times={[unix seconds]} series={[{ label: "in", values, tone: "accent" }]}
//     markers={[{ at, label: "deploy 1.2", tone: "warn" }]} onZoom={(from, to) => params.set({ … })}/>
//
// Drag to zoom: onZoom is told the seconds. A gap in `values` is null. Colours follow the theme.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type uPlot from "uplot";
import { isDark, zone } from "../lib/prefs.ts";
import { absolute, compact } from "../lib/words.ts";

export type ChartTone = "accent" | "good" | "warn" | "bad" | "violet" | "ink-3";
export type Series = { readonly label: string; readonly values: readonly (number | null)[]; readonly tone: ChartTone; readonly fills?: boolean };
export type Marker = { readonly at: number; readonly label: string; readonly tone?: ChartTone };
export type ChartProps = {
  readonly label: string;
  readonly times: readonly number[];
  readonly series: readonly Series[];
  readonly markers?: readonly Marker[];
  readonly height?: number;
  readonly onZoom?: (from: number, to: number) => void;
  readonly format?: (value: number) => string;
};

const colour = (tone: string): string => getComputedStyle(document.documentElement).getPropertyValue(`--${tone}`).trim();

/** 21:40, or 11-16 where a step is a day or more. */
function clock(at: number, step: number, utc: boolean): string {
  const told = absolute(at * 1000, utc ? "utc" : "local");
  return step >= 86_400 ? told.slice(5, 10) : told.slice(11, step < 60 ? 19 : 16);
}

export function Chart({ label, times, series, markers = [], height = 220, onZoom, format = compact }: ChartProps): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const dark = isDark.value;
  const utc = zone.value === "utc";
  const shape = JSON.stringify([series.map((one) => [one.label, one.tone, one.values.filter((value) => value !== null).length < 4]), markers, dark, utc, height]);
  const data = (): uPlot.AlignedData => [times as number[], ...series.map((one) => one.values as (number | null)[])];

  useEffect(() => {
    let isGone = false;
    let watching: ResizeObserver | null = null;
    void import("uplot").then(({ default: Plot }) => {
      const box = place.current;
      if (isGone || box === null) return;
      const axis = { stroke: colour("ink-3"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px sans-serif" };
      const drawMarkers = (u: uPlot): void => {
        const { ctx } = u;
        let free = 0; // where the last label ended: the next must not be written over it
        for (const marker of [...markers].sort((a, b) => a.at - b.at)) {
          const x = Math.round(u.valToPos(marker.at, "x", true));
          if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
          ctx.save();
          ctx.strokeStyle = ctx.fillStyle = colour(marker.tone ?? "violet");
          ctx.setLineDash([3, 3]);
          ctx.beginPath();
          ctx.moveTo(x, u.bbox.top);
          ctx.lineTo(x, u.bbox.top + u.bbox.height);
          ctx.stroke();
          ctx.font = `${11 * devicePixelRatio}px sans-serif`;
          ctx.textAlign = "left";
          const wide = ctx.measureText(marker.label).width;
          if (x > free && x + wide < u.bbox.left + u.bbox.width) {
            ctx.fillText(marker.label, x + 4, u.bbox.top + 12 * devicePixelRatio);
            free = x + wide + 8 * devicePixelRatio;
          }
          ctx.restore();
        }
      };
      plot.current = new Plot({
        width: box.clientWidth, height, padding: [12, 8, 0, 0],
        ...(utc ? { tzDate: (at: number) => Plot.tzDate(new Date(at * 1000), "UTC") } : {}),
        cursor: { drag: { x: true, y: false, setScale: onZoom === undefined }, points: { size: 6 } },
        legend: { live: true },
        axes: [{ ...axis, size: 28, values: (_, ats, __, ___, step) => ats.map((at) => clock(at, step, utc)) }, { ...axis, size: 52, values: (_, values) => values.map((value) => format(value)) }],
        scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high ?? 0) > 0 ? (high ?? 0) * 1.08 : 1] } },
        series: [{ value: (_, at) => (at === null ? "" : absolute(at * 1000, utc ? "utc" : "local").slice(0, 16)) }, ...series.map((one) => ({
          label: one.label, stroke: colour(one.tone), width: 1.5, points: { show: one.values.filter((value) => value !== null).length < 4, size: 5 },
          ...(one.fills ? { fill: `${colour(one.tone)}22` } : {}), value: (_: uPlot, value: number | null) => (value === null ? "–" : format(value)),
        }))],
        hooks: {
          draw: [drawMarkers],
          setSelect: [(u) => {
            if (onZoom && u.select.width > 4) onZoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          }],
        },
      }, data(), box);
      watching = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height }));
      watching.observe(box);
    });
    return () => {
      isGone = true;
      watching?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(data()), [times, series]);
  return <div class="chart" ref={place} role="img" aria-label={`${label}: ${series.map((one) => `${one.label} now ${one.values.at(-1) ?? "unknown"}`).join(", ")}`} />;
}
