// <Traffic/>: what arrived, ended and failed, per minute, over a span that is in the address; drag over it to look closer.
// Deploys, pauses and operations on many jobs are lines in it, and are told in words below.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Figures, Marker as MarkerAnswer, MarkersAnswer } from "../api.ts";
import { now, zone } from "../lib/prefs.ts";
import { useGet } from "../lib/query.ts";
import { choice, integer, useParams } from "../lib/router.tsx";
import { lines, reaching, SPANS } from "../lib/series.ts";
import { absolute } from "../lib/words.ts";
import { Chart, type ChartTone } from "./chart.tsx";
import { Icon, type IconName } from "./icons.tsx";
import { Button, Card, ErrorState, Skeleton } from "./parts.tsx";
import { Time } from "./values.tsx";

const TONES: Record<string, ChartTone> = { deploy: "violet", pause: "warn", resume: "good", configure: "ink-3", bulk: "accent" };
const ICONS: Record<string, IconName> = { deploy: "flows", pause: "pause", resume: "play", configure: "system", bulk: "bulk" };
const MOST_TOLD = 4;

/** The span and window in the address, and the figures they ask for. */
export function useFigures(queue?: string) {
  const params = useParams({ span: choice(SPANS, "1h"), from: integer(0), to: integer(0) });
  const isZoomed = params.from > 0 && params.to > params.from;
  const span = isZoomed ? reaching(params.from, now.peek() / 1000) : params.span;
  const figures = useGet<Figures>("/v1/figures", { span, queue }, { every: 5 });
  return { params, isZoomed, span, figures };
}

export function Traffic({ queue, height = 220 }: { queue?: string; height?: number }): JSX.Element {
  const { params, isZoomed, figures } = useFigures(queue);
  const told = useGet<MarkersAnswer>("/v1/markers", {}, { every: 30, live: (event) => event.kind !== "job" });
  const { data } = figures;
  const drawn = useMemo(() => {
    if (data === undefined) return null;
    const { times, line } = lines(data, isZoomed ? params.from : 0, isZoomed ? params.to : 0);
    const ended = data.series.succeeded.map((one, n) => one + (data.series.failed[n] ?? 0));
    return { times, series: [
      { label: "in", values: line(data.series.arrived), tone: "accent" as const, fills: true },
      { label: "out", values: line(ended), tone: "good" as const },
      { label: "failed", values: line(data.series.failed), tone: "bad" as const },
    ] };
  }, [data, isZoomed, params.from, params.to]);
  const markers = useMemo(() => within(told.data?.markers ?? [], drawn?.times ?? [], queue), [told.data, drawn, queue]);
  return (
    <Card title="In, out and failed, per minute" actions={<>
      {isZoomed && <Button size="small" icon="search" onClick={() => params.set({ from: 0, to: 0 })}>{clock(params.from)} – {clock(params.to)}<Icon name="cross" size={12} /></Button>}
      <div class="segments" role="group" aria-label="Span">
        {SPANS.map((one) => <button key={one} type="button" aria-pressed={!isZoomed && params.span === one} onClick={() => params.set({ span: one, from: 0, to: 0 })}>{one}</button>)}
      </div>
    </>}>
      <ErrorState query={figures} />
      {drawn === null ? <Skeleton lines={6} /> : (
        <Chart label="Jobs per minute" times={drawn.times} series={drawn.series} height={height} markers={markers.map((one) => ({ at: Date.parse(one.at) / 1000, label: one.text, tone: TONES[one.kind] ?? "violet" }))}
          onZoom={(from, to) => params.set({ from: Math.floor(from), to: Math.ceil(to) })} />
      )}
      {data?.counted_since === null && <p class="faint">Nothing has been counted yet: figures begin with the first job.</p>}
      {markers.length > 0 && <ul class="marks" aria-label="Markers">{markers.slice(0, MOST_TOLD).map((one) => <li key={one.at + one.text} class={`mark mark-${one.kind}`}><Icon name={ICONS[one.kind] ?? "flows"} size={12} /><span class="clip" title={`${one.text} (${one.actor})`}>{one.text}</span><span class="faint"><Time at={one.at} /></span></li>)}
        {markers.length > MOST_TOLD && <li class="faint">and {markers.length - MOST_TOLD} more</li>}</ul>}
    </Card>
  );
}

const clock = (seconds: number): string => absolute(seconds * 1000, zone.value).slice(11, 16);

/** The markers that fall into what is shown; of one queue's chart, those of other queues are not. */
function within(markers: readonly MarkerAnswer[], times: readonly number[], queue: string | undefined): readonly MarkerAnswer[] {
  const first = times[0] ?? 0, last = (times.at(-1) ?? 0) + 3600;
  return markers.filter((one) => {
    const at = Date.parse(one.at) / 1000;
    const isOther = queue !== undefined && ["pause", "resume", "configure"].includes(one.kind) && !one.text.startsWith(`${queue} `);
    return at >= first && at <= last && !isOther;
  });
}
