// A job's life, drawn: how long it was what, and what came next.
import type { JSX } from "preact";
import type { HistoryAnswer, JobAnswer } from "../api.ts";
import { now, zone } from "../lib/prefs.ts";
import { type Step, steps } from "../lib/timeline.ts";
import { absolute, duration, relative } from "../lib/words.ts";
import { Icon } from "../ui/icons.tsx";
import { Card, Skeleton } from "../ui/parts.tsx";

const FIRST = 2, LAST = 9;
/** The bar is drawn in so many parts; what took no time is still seen. */
const WIDE = 1000, LEAST = 4;

export function Timeline({ job, history, since }: { job: JobAnswer; history: HistoryAnswer | undefined; since: number | null }): JSX.Element {
  if (history === undefined) return <Card title="What became of it"><Skeleton lines={2} /></Card>;
  const all = steps(job, history.attempts, history.changes, since);
  const isLong = all.length > FIRST + LAST + 1;
  const shown = isLong ? [...all.slice(0, FIRST), null, ...all.slice(-LAST)] : all;
  return (
    <Card title="What became of it">
      <Bar all={all} />
      <ol class="steps">
        {shown.map((step, n) => (step === null ? <li key="more" class="step step-more">… {all.length - FIRST - LAST} more steps</li> : <One key={n} step={step} />))}
      </ol>
    </Card>
  );
}

const lasted = (step: Step): number => ((step.to ?? Math.max(now.value, step.from)) - step.from) / 1000;

function One({ step }: { step: Step }): JSX.Element {
  const isEnd = step.to !== null && step.to === step.from && !step.isWait;
  const isAhead = step.label === "Not due yet" && step.to !== null && step.to > now.value;
  return (
    <li class={`step line-${step.label === "Not due yet" ? "plain" : step.state}`} title={`from ${absolute(step.from, zone.value)}${step.to === null || isEnd ? "" : ` to ${absolute(step.to, zone.value)}`}`}>
      <span class="step-label">{step.label}</span>
      <span class="step-time num">{isEnd ? relative(step.from, now.value) : isAhead ? `due ${relative(step.to as number, now.value)}` : duration(step.to === null ? Math.floor(lasted(step)) : lasted(step))}{step.to === null && <Icon name="more" size={12} />}</span>
      {step.note && <span class="step-note" title={step.note}>{step.note}</span>}
    </li>
  );
}

/** Where the time went, to scale. */
function Bar({ all }: { all: readonly Step[] }): JSX.Element | null {
  const parts = all.filter((step) => step.to === null || step.to > step.from);
  const whole = parts.reduce((sum, step) => sum + lasted(step), 0);
  if (whole <= 0 || parts.length < 2) return null;
  const ran = parts.filter((step) => step.state === "running").reduce((sum, step) => sum + lasted(step), 0);
  let x = 0;
  return (
    <svg class="bar" viewBox={`0 0 ${WIDE} 10`} preserveAspectRatio="none" role="img" aria-label={`${duration(ran)} of ${duration(whole)} it ran`}>
      {parts.map((step, n) => {
        const wide = Math.max((lasted(step) / whole) * (WIDE - LEAST * parts.length) + LEAST, LEAST);
        const at = x;
        x += wide;
        return <rect key={n} class={step.state === "running" ? "tone-fill-running" : step.state === "waiting" ? "tone-fill-waiting" : step.state === "dead" ? "bar-dead" : "bar-wait"} x={at} y={0} width={Math.max(wide - 2, 2)} height={10}><title>{`${step.label}: ${duration(lasted(step))}`}</title></rect>;
      })}
    </svg>
  );
}
