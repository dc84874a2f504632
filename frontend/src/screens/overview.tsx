// The landing page: is anything late, is anybody at work, does anything fail, and what cures it.
import type { JSX } from "preact";
import type { Attention, FailuresAnswer, Overview as OverviewAnswer, QueueStanding } from "../api.ts";
import { api, name } from "../lib/http.ts";
import { said } from "../lib/json.ts";
import { act, useGet } from "../lib/query.ts";
import { Link, navigate } from "../lib/router.tsx";
import { calm, compact, duration, number, percent, plural } from "../lib/words.ts";
import { confirm } from "../ui/confirm.tsx";
import { Icon, type IconName } from "../ui/icons.tsx";
import { Button, Card, EmptyState, ErrorState, Page, Skeleton } from "../ui/parts.tsx";
import { Table } from "../ui/table.tsx";
import { Traffic } from "../ui/traffic.tsx";
import { Copy, Sparkline, Stat } from "../ui/values.tsx";
import { FailureLine } from "./failures.tsx";
import { Mark } from "./marking.tsx";
import { Redriving, redrive } from "./redriving.tsx";
import { COLUMNS_OF_STANDING } from "./standing.tsx";

export function Overview(): JSX.Element {
  const seen = useGet<OverviewAnswer>("/v1/overview", {}, { live: (event) => event.kind === "job" || event.kind === "queue", every: 5 });
  const { data } = seen;
  return (
    <Page title="Overview" actions={data && data.queues.length > 0 && <Mark />}>
      <ErrorState query={seen} />
      {seen.isFirst ? <Skeleton lines={12} /> : data && (data.queues.length === 0 ? <Welcome /> : <Board data={data} />)}
      <Redriving />
    </Page>
  );
}

function Board({ data }: { data: OverviewAnswer }): JSX.Element {
  return (
    <>
      <Health data={data} />
      <Figures data={data} />
      <div class="board landing">
        <Traffic height={236} />
        <Needs attention={data.attention} />
        <Queues queues={data.queues} />
        <TopFailures />
      </div>
    </>
  );
}

const LEVELS: Record<OverviewAnswer["level"], readonly [tone: string, icon: IconName]> = { ok: ["good", "check"], warning: ["warn", "failures"], problem: ["bad", "failures"] };

function Health({ data }: { data: OverviewAnswer }): JSX.Element {
  const [tone, icon] = LEVELS[data.level];
  return <div class={`health tone-${tone}`} role="status"><span class="health-mark"><Icon name={icon} size={18} /></span><p class="health-sentence">{data.sentence}</p></div>;
}

/** Six figures, each a way to what it counts. */
function Figures({ data }: { data: OverviewAnswer }): JSX.Element {
  const late = data.queues.filter((queue) => queue.is_late).length;
  const waiting = data.queues.filter((queue) => (queue.counts["queued"] ?? 0) > 0).length;
  // Measured by what each queue promises: 20 s are late in one, and early in another.
  const oldest = [...data.queues].sort((a, b) => b.oldest_seconds / b.target_seconds - a.oldest_seconds / a.target_seconds)[0];
  const share = data.failed_share;
  return (
    <div class="cards six">
      <Link to="/jobs" query={{ state: "queued" }} class="stat-link"><Stat label="Queued" hint={waiting === 0 ? "nothing waits" : `in ${plural(waiting, "queue")}`}>{compact(data.counts["queued"] ?? 0)}</Stat></Link>
      <Link to="/jobs" query={{ state: "running" }} class="stat-link"><Stat label="Running" hint={data.slots > 0 ? `${number(data.busy)} of ${plural(data.slots, "slot")} busy` : "no slots"}>{compact(data.counts["running"] ?? 0)}</Stat></Link>
      <Link to={oldest && oldest.oldest_seconds > 0 ? `/queues/${name(oldest.name)}` : "/queues"} class="stat-link"><Stat label="Oldest due" tone={late > 0 ? "bad" : "plain"} hint={oldest && oldest.oldest_seconds > 0 ? `in ${oldest.name}, target ${duration(oldest.target_seconds)}` : "nothing is due"}>{duration(Math.floor(oldest?.oldest_seconds ?? 0))}</Stat></Link>
      <Link to="/queues" query={{ sort: "-out" }} class="stat-link"><Stat label="Done a minute" hint="over the last 5 minutes">{compact(Math.round(data.ended_per_minute * 10) / 10)}</Stat></Link>
      <Link to="/failures" class="stat-link"><Stat label="Failing" tone={share === null || share < 0.01 ? "plain" : share < 0.1 ? "warn" : "bad"} hint="of attempts, last hour">{share === null ? "–" : percent(share)}</Stat></Link>
      <Link to="/workers" class="stat-link"><Stat label="Workers" tone={data.workers === 0 ? "warn" : "plain"} hint={data.workers === 0 ? "nobody is at work" : `${percent(data.slots ? data.busy / data.slots : 0)} busy`}>{number(data.workers)}</Stat></Link>
    </div>
  );
}

// ── What needs a person ─────────────────────────────────────────────────────────────────────────────

const SIGNS: Record<string, IconName> = { late: "clock", unserved: "workers", rising: "failures", paused: "pause", missed: "schedules", full: "queues" };

function Needs({ attention }: { attention: readonly Attention[] }): JSX.Element {
  return (
    <Card title={<>Needs attention{attention.length > 0 && <span class="page-count num">{attention.length}</span>}</>} flush>
      {attention.length === 0 ? <div class="calm"><Icon name="check" size={20} /><p>Nothing needs you.</p><p class="faint">Late queues, rising failures, queues without workers, long pauses and missed schedules turn up here.</p></div> : (
        <ul class="needs">{attention.map((one) => (
          <li key={`${one.kind} ${one.subject}`} class={one.level === "problem" ? "need tone-bad" : "need tone-warn"}>
            <Icon name={SIGNS[one.kind] ?? "failures"} />
            <div class="grow"><p class="strong">{one.title}</p><p class="need-detail">{said(one.detail)}</p><div class="row"><Cure one={one} /></div></div>
          </li>
        ))}</ul>
      )}
    </Card>
  );
}

/** What cures it, or the page where that is done. */
function Cure({ one }: { one: Attention }): JSX.Element {
  const { kind, subject } = one;
  if (kind === "rising") {
    return <><Button size="small" icon="redrive" needs="operate" onClick={() => redrive(subject, one.title.replace(/ is rising$/, ""))}>Redrive</Button><Link to={`/failures/${name(subject)}`} class="button small quiet">Look</Link></>;
  }
  if (kind === "missed") return <Link to={`/schedules/${name(subject)}`} class="button small">Open schedule</Link>;
  return (
    <>
      {kind === "paused" && <Button size="small" icon="play" needs="operate" onClick={() => resume(subject)}>Resume</Button>}
      <Link to={`/queues/${name(subject)}`} class={kind === "paused" ? "button small quiet" : "button small"}>Open queue</Link>
      {kind === "unserved" && <Link to="/workers" class="button small quiet">Workers</Link>}
    </>
  );
}

async function resume(queue: string): Promise<void> {
  const answer = await confirm({ title: `Resume ${queue}`, action: "Resume", asksReason: true, what: <p>Jobs of <strong>{queue}</strong> start again at once.</p> });
  if (answer) await act(() => api.post(`/v1/queues/${name(queue)}/resume`, { reason: answer.reason || null }), `Resumed ${queue}`, ["/v1/overview", "/v1/queues"]);
}

function TopFailures(): JSX.Element {
  const failures = useGet<FailuresAnswer>("/v1/failures", { limit: 5 }, { every: 10, live: (event) => event.kind === "job" && event.error != null });
  const groups = failures.data?.failures ?? [];
  return (
    <Card title="Top failures, last day" flush actions={groups.length > 0 && <Link to="/failures" class="button small quiet">All failures</Link>}>
      <ErrorState query={failures} />
      {failures.isFirst ? <Skeleton lines={3} /> : groups.length === 0 ? <div class="calm"><Icon name="check" size={20} /><p>{failures.data ? `${calm(failures.data.at, failures.data.counted_since)}.` : ""}</p></div> : <ul class="needs">{groups.map((one) => <FailureLine key={one.group.fingerprint} one={one} />)}</ul>}
    </Card>
  );
}

function Queues({ queues }: { queues: readonly QueueStanding[] }): JSX.Element {
  const first = [...queues].sort((a, b) => Number(b.is_late) - Number(a.is_late) || b.oldest_seconds / b.target_seconds - a.oldest_seconds / a.target_seconds || (b.ended_per_minute - a.ended_per_minute));
  return (
    <Card title={<>Queues<span class="page-count num">{queues.length}</span></>} flush actions={<Link to="/queues" class="button small quiet">All queues</Link>}>
      <Table label="Queues" rows={first.slice(0, 8)} id={(queue) => queue.name} columns={[
        ...COLUMNS_OF_STANDING.filter((column) => column.id !== "failing"),
        { id: "spark", title: "Last hour", align: "end", minor: true, cell: (queue) => <Sparkline values={queue.ended_by_step.slice(0, -1)} label={`${number(queue.ended_by_step.reduce((sum, one) => sum + one, 0))} ended in the last hour`} width={88} /> },
      ]} />
    </Card>
  );
}

// ── Before there is anything ────────────────────────────────────────────────────────────────────────

const FIRST: readonly (readonly [title: string, command: string])[] = [
  ["Start a worker that runs your handlers", "penstock worker app:app"],
  ["Enqueue a job", `penstock enqueue hello '{"name": "Ada"}'`],
  ["Or let a schedule do it", `penstock schedules put nightly --cron '0 2 * * *' --type report.daily`],
];

function Welcome(): JSX.Element {
  return (
    <Card>
      <EmptyState icon="overview" title="Nothing has been enqueued yet">This page shows how the queues do, as soon as there is one.</EmptyState>
      <ol class="welcome">{FIRST.map(([title, command]) => <li key={title}><p class="strong">{title}</p><div class="command"><code class="grow" tabIndex={0}>{command}</code><Copy text={command} label="Copy the command" /></div></li>)}</ol>
      <div class="row welcome-foot"><Button kind="primary" onClick={() => navigate("/jobs")}>Look at jobs</Button></div>
    </Card>
  );
}
