// What Spark found out, as of its last run: the week by the hour, percentiles, promises kept, plans to apply, what was odd.
import type { ComponentChildren, JSX } from "preact";
import type { AppliedPlan, InsightAnswer, InsightOffers } from "../api.ts";
import { api, name } from "../lib/http.ts";
import { now } from "../lib/prefs.ts";
import { act, useGet } from "../lib/query.ts";
import { choice, Link, text, useParams } from "../lib/router.tsx";
import { compact, duration, number, percent } from "../lib/words.ts";
import { Chart } from "../ui/chart.tsx";
import { confirm } from "../ui/confirm.tsx";
import { HeatMap } from "../ui/drawings.tsx";
import { Button, Card, EmptyState, ErrorState, Field, Page, Skeleton, Tabs } from "../ui/parts.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { Badge, Duration, Num, Time } from "../ui/values.tsx";

const TABS = ["load", "latency", "slo", "capacity", "anomalies", "schedules", "usage"] as const;
type TabName = (typeof TABS)[number];
const TITLES: Record<TabName, string> = { load: "Week", latency: "Latency", slo: "SLO", capacity: "Capacity", anomalies: "Anomalies", schedules: "Schedules", usage: "Usage" };
const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const HOURS = Array.from({ length: 24 }, (_, hour) => `${hour}`);
const ms = (value: number | null | undefined): ComponentChildren => (value == null ? <span class="faint">–</span> : <Duration seconds={value / 1000} />);

/** The rows of a table of the lake; nothing while it loads. */
function useInsights<Row>(table: string, queue: string, limit = 1000): { rows: readonly Row[]; state: ComponentChildren } {
  const answer = useGet<InsightAnswer>(`/v1/insights/${table}`, { limit, ...(queue ? { queue } : {}) });
  return { rows: (answer.data?.rows ?? []) as unknown as readonly Row[], state: answer.isFirst ? <Skeleton /> : <ErrorState query={answer} /> };
}

type Plan = { readonly queue: string; readonly concurrency: number; readonly lease_seconds: number; readonly heartbeat_seconds: number; readonly peak_hour_of_week: number; readonly expected_wait_ms: number | null; readonly utilisation: number; readonly why: string; readonly load: readonly number[] };

function Week({ queue }: { queue: string }): JSX.Element {
  const { rows, state } = useInsights<Plan>("capacity", queue);
  const loads = rows.map((row) => row.load);
  const value = (day: number, hour: number): number | null => loads.reduce((sum, load) => sum + (load[day * 24 + hour] ?? 0), 0) || null;
  return (
    <Card title="Work by hour of the week">
      {state}
      <p class="muted">How many workers’ worth of work came in each hour, in the busiest week that was measured{queue && <> in <strong>{queue}</strong></>}; UTC.</p>
      {rows.length > 0 && <HeatMap label="Work by hour of the week" rows={DAYS} columns={HOURS} value={value} told={(day, hour, load) => `${DAYS[day]} ${hour}:00: ${load.toFixed(2)} busy slots`} />}
    </Card>
  );
}

type Latency = { readonly queue: string; readonly hour: string; readonly attempts: number; readonly wait_p50_ms: number | null; readonly wait_p95_ms: number | null; readonly wait_p99_ms: number | null; readonly run_p50_ms: number | null; readonly run_p95_ms: number | null; readonly run_p99_ms: number | null };

function Latencies({ queue, queues, choose }: { queue: string; queues: readonly string[]; choose: (queue: string) => void }): JSX.Element {
  const shown = queue || queues[0] || "";
  const { rows, state } = useInsights<Latency>("latency", shown);
  const inOrder = [...rows].filter((row) => row.queue === shown).reverse();
  const times = inOrder.map((row) => Date.parse(row.hour) / 1000);
  const of = (read: (row: Latency) => number | null): readonly (number | null)[] => inOrder.map(read);
  const told = (value: number): string => duration(value / 1000);
  if (!queue && shown) queueMicrotask(() => choose(shown));
  return <>
    {state}
    {inOrder.length > 0 && <>
      <Card title={`Waits in ${shown}, by the hour`}><Chart label="Waits" times={times} format={told} series={[{ label: "p50", values: of((row) => row.wait_p50_ms), tone: "good" }, { label: "p95", values: of((row) => row.wait_p95_ms), tone: "accent" }, { label: "p99", values: of((row) => row.wait_p99_ms), tone: "bad" }]} /></Card>
      <Card title={`Runs in ${shown}, by the hour`}><Chart label="Runs" times={times} format={told} series={[{ label: "p50", values: of((row) => row.run_p50_ms), tone: "good" }, { label: "p95", values: of((row) => row.run_p95_ms), tone: "accent" }, { label: "p99", values: of((row) => row.run_p99_ms), tone: "bad" }]} /></Card>
    </>}
  </>;
}

type Slo = { readonly queue: string; readonly target_wait_ms: number; readonly objective: number; readonly window: string; readonly good: number; readonly total: number; readonly attainment: number | null; readonly burn_rate: number | null };
const WINDOWS = ["1h", "6h", "24h", "7d", "30d"];

function Slos({ queue }: { queue: string }): JSX.Element {
  const { rows, state } = useInsights<Slo>("slo", queue);
  const queues = [...new Set(rows.map((row) => row.queue))].sort();
  const find = (one: string, window: string): Slo | undefined => rows.find((row) => row.queue === one && row.window === window);
  const columns: readonly Column<string>[] = [
    { id: "queue", title: "Queue", cell: (one) => <Link to={`/queues/${name(one)}`} class="strong">{one}</Link> },
    { id: "promise", title: "Promise", cell: (one) => { const row = rows.find((slo) => slo.queue === one); return row && <span class="nowrap">{percent(row.objective)} begin within {duration(row.target_wait_ms / 1000)}</span>; } },
    ...WINDOWS.map((window): Column<string> => ({
      id: window, title: window, align: "end", cell: (one) => {
        const row = find(one, window);
        if (!row || row.attainment === null) return <span class="faint">–</span>;
        const burns = row.burn_rate ?? 0;
        return <span title={`${number(row.good)} of ${number(row.total)}; the error budget burns at ${burns.toFixed(2)} times its pace`}><span class={burns > 1 ? "bad num" : "num"}>{percent(row.attainment)}</span><span class="clip faint num">{burns.toFixed(1)}×</span></span>;
      },
    })),
  ];
  return <Card title="Promises kept" flush>{state}{queues.length > 0 && <Table label="Promises kept" rows={queues} id={(one) => one} columns={columns} />}<p class="card-note faint">Below each share: how fast the error budget burns. Over 1× it will not last.</p></Card>;
}

async function apply(plan: Plan): Promise<void> {
  const path = `/v1/insights/capacity/${name(plan.queue)}/apply`;
  const would = await api.post<AppliedPlan>(path, { dry_run: true });
  const answer = await confirm({
    title: `Set ${plan.queue} as planned`, action: "Set it",
    what: <><p>{would.why}</p><dl class="facts"><dt>At once</dt><dd>{would.before.max_concurrency ?? "no limit"} → <strong>{would.after.max_concurrency}</strong></dd><dt>Lease</dt><dd>{duration(would.before.lease_seconds)} → <strong>{duration(would.after.lease_seconds)}</strong></dd></dl></>,
  });
  if (answer !== null) await act(() => api.post(path, { dry_run: false }), `${plan.queue} is set as planned`, ["/v1/queues", "/v1/insights"]);
}

function Capacity({ queue }: { queue: string }): JSX.Element {
  const { rows, state } = useInsights<Plan>("capacity", queue);
  const hour = (week: number): string => `${DAYS[Math.floor(week / 24)]} ${week % 24}:00`;
  return (
    <Card title="What each queue needs" flush>
      {state}
      {rows.length > 0 && <Table label="Capacity plans" rows={rows} id={(plan) => plan.queue} columns={[
        { id: "queue", title: "Queue", cell: (plan) => <Link to={`/queues/${name(plan.queue)}`} class="strong">{plan.queue}</Link> },
        { id: "concurrency", title: "At once", align: "end", cell: (plan) => <Num value={plan.concurrency} /> },
        { id: "lease", title: "Lease", align: "end", cell: (plan) => <Duration seconds={plan.lease_seconds} /> },
        { id: "heartbeat", title: "Heartbeat", align: "end", minor: true, cell: (plan) => <Duration seconds={plan.heartbeat_seconds} /> },
        { id: "use", title: "Busy at peak", align: "end", cell: (plan) => percent(plan.utilisation) },
        { id: "peak", title: "Peak", minor: true, cell: (plan) => hour(plan.peak_hour_of_week) },
        { id: "wait", title: "Expected wait", align: "end", cell: (plan) => ms(plan.expected_wait_ms) },
        { id: "why", title: "Why", grows: true, cell: (plan) => <span class="clip" title={plan.why}>{plan.why}</span> },
        { id: "apply", title: "", align: "end", cell: (plan) => <Button size="small" needs="operate" onClick={() => apply(plan)}>Apply</Button> },
      ]} />}
    </Card>
  );
}

type Anomaly = { readonly queue: string; readonly hour: string; readonly metric: string; readonly value: number; readonly expected: number; readonly score: number; readonly direction: string };
const METRICS: { readonly [metric: string]: readonly [title: string, told: (value: number) => string] } = {
  arrivals: ["Jobs came", compact], failure_share: ["Failed", percent], wait_p95: ["Waited (p95)", (value) => duration(value / 1000)],
};

function Anomalies({ queue }: { queue: string }): JSX.Element {
  const { rows, state } = useInsights<Anomaly>("anomalies", queue, 200);
  const told = (row: Anomaly, value: number): string => (METRICS[row.metric]?.[1] ?? compact)(value);
  return (
    <Card title="Hours off their own weekly pattern" flush>
      {state}
      {rows.length === 0 ? <p class="card-note faint">Every hour was like the same hour of the weeks before.</p> : <Table label="Anomalies" rows={rows} id={(row) => `${row.queue} ${row.hour} ${row.metric}`} columns={[
        { id: "hour", title: "Hour", cell: (row) => <Time at={row.hour} style="absolute" /> },
        { id: "queue", title: "Queue", cell: (row) => <Link to={`/queues/${name(row.queue)}`}>{row.queue}</Link> },
        { id: "metric", title: "What", cell: (row) => METRICS[row.metric]?.[0] ?? row.metric },
        { id: "value", title: "Was", align: "end", cell: (row) => <span class="strong num">{told(row, row.value)}</span> },
        { id: "expected", title: "Usually", align: "end", cell: (row) => <span class="num muted">{told(row, row.expected)}</span> },
        { id: "score", title: "Off by", align: "end", cell: (row) => <Badge tone={Math.abs(row.score) > 6 ? "bad" : "warn"} icon={row.direction === "low" ? "down" : "up"} title="Times the usual deviation">{Math.abs(row.score).toFixed(1)}σ</Badge> },
      ]} />}
    </Card>
  );
}

type Punctuality = { readonly schedule: string; readonly day: string; readonly fires: number; readonly p50_ms: number | null; readonly p99_ms: number | null; readonly max_ms: number | null; readonly missed: number };

function Punctual(): JSX.Element {
  const { rows, state } = useInsights<Punctuality>("schedules", "", 500);
  return (
    <Card title="How punctual schedules were" flush>
      {state}
      {rows.length > 0 && <Table label="Punctuality" rows={rows} id={(row) => `${row.schedule} ${row.day}`} columns={[
        { id: "schedule", title: "Schedule", cell: (row) => <Link to={`/schedules/${name(row.schedule)}`}>{row.schedule}</Link> },
        { id: "day", title: "Day", cell: (row) => <span class="num nowrap">{row.day.slice(0, 10)}</span> },
        { id: "fires", title: "Fired", align: "end", cell: (row) => <Num value={row.fires} /> },
        { id: "p50", title: "Late by (p50)", align: "end", cell: (row) => ms(row.p50_ms) },
        { id: "p99", title: "p99", align: "end", cell: (row) => ms(row.p99_ms) },
        { id: "max", title: "Most", align: "end", minor: true, cell: (row) => ms(row.max_ms) },
        { id: "missed", title: "Missed", align: "end", cell: (row) => <span class={row.missed ? "bad num" : "num faint"}>{row.missed}</span> },
      ]} />}
    </Card>
  );
}

type Use = { readonly day: string; readonly queue: string; readonly type: string; readonly jobs: number; readonly attempts: number; readonly busy_ms: number };

function Usage({ queue }: { queue: string }): JSX.Element {
  const { rows, state } = useInsights<Use>("usage", queue);
  const days = [...new Set(rows.map((row) => row.day))].sort();
  const sum = (day: string, read: (row: Use) => number): number => rows.filter((row) => row.day === day).reduce((total, row) => total + read(row), 0);
  const byType = Object.values(rows.reduce<Record<string, Use>>((all, row) => {
    const there = all[row.type];
    return { ...all, [row.type]: there ? { ...there, jobs: there.jobs + row.jobs, attempts: there.attempts + row.attempts, busy_ms: there.busy_ms + row.busy_ms } : row };
  }, {})).sort((one, other) => other.busy_ms - one.busy_ms);
  return <>
    {state}
    {days.length > 0 && <Card title="Jobs and busy hours by day"><Chart label="Usage by day" times={days.map((day) => Date.parse(day) / 1000)} series={[{ label: "jobs", values: days.map((day) => sum(day, (row) => row.jobs)), tone: "accent", fills: true }]} /></Card>}
    {byType.length > 0 && <Card title="By type" flush><Table label="Usage by type" rows={byType} id={(row) => row.type} columns={[
      { id: "type", title: "Type", cell: (row) => row.type },
      { id: "jobs", title: "Jobs", align: "end", cell: (row) => <Num value={row.jobs} /> },
      { id: "attempts", title: "Attempts", align: "end", cell: (row) => <Num value={row.attempts} /> },
      { id: "busy", title: "Busy", align: "end", cell: (row) => ms(row.busy_ms) },
      { id: "each", title: "Each", align: "end", minor: true, cell: (row) => ms(row.attempts ? row.busy_ms / row.attempts : null) },
    ]} /></Card>}
  </>;
}

const OLD_MS = 36 * 3_600_000;

export function Insights(): JSX.Element {
  const params = useParams({ tab: choice(TABS, "load"), queue: text() });
  const offers = useGet<InsightOffers>("/v1/insights", {}, { every: 60 });
  const plans = useGet<InsightAnswer>(offers.data?.as_of ? "/v1/insights/capacity" : null, { limit: 1000 });
  const queues = ((plans.data?.rows ?? []) as unknown as readonly Plan[]).map((plan) => plan.queue).sort();
  const asOf = offers.data?.as_of ?? null;
  const queue = params.queue;
  return (
    <Page title="Insights" actions={asOf && <span class={now.value - Date.parse(asOf) > OLD_MS ? "warn" : "muted"}>as of <Time at={asOf} style="absolute" /> (<Time at={asOf} />)</span>}>
      <ErrorState query={offers} />
      {offers.isFirst ? <Skeleton /> : asOf === null && offers.error === null ? (
        <EmptyState icon="insights" title="The lake has published nothing yet" command="penstock lake run">A run of the pipeline turns the whole history into answers: percentiles, plans, promises, what was odd. It can run by itself every night.</EmptyState>
      ) : asOf !== null && <>
        <div class="row">
          <Tabs label="What to see" tabs={TABS.map((id) => ({ id, label: TITLES[id] }))} chosen={params.tab} onChoose={(tab) => params.set({ tab })} />
          <span class="grow" />
          {params.tab !== "schedules" && <Field label="Queue">{(id) => (
            <select id={id} class="select" value={queue} onChange={(event) => params.set({ queue: event.currentTarget.value })}>
              <option value="">{params.tab === "latency" ? "choose one" : "all queues"}</option>{queues.map((one) => <option key={one}>{one}</option>)}
            </select>
          )}</Field>}
        </div>
        {params.tab === "load" && <Week queue={queue} />}
        {params.tab === "latency" && <Latencies queue={queue} queues={queues} choose={(one) => params.replace({ queue: one })} />}
        {params.tab === "slo" && <Slos queue={queue} />}
        {params.tab === "capacity" && <Capacity queue={queue} />}
        {params.tab === "anomalies" && <Anomalies queue={queue} />}
        {params.tab === "schedules" && <Punctual />}
        {params.tab === "usage" && <Usage queue={queue} />}
      </>}
    </Page>
  );
}
