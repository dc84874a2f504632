// One queue: is it on time, what goes in and out, what holds it back, who serves it, and what was changed about it.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { AppliedPlan, ChangesAnswer, InsightAnswer, InsightOffers, Latency, Overview, Presence, QueueAnswer, QueueSettings, QueueStanding, Retry, WorkersAnswer } from "../api.ts";
import { api, type Failure, name } from "../lib/http.ts";
import { said } from "../lib/json.ts";
import { useKeys } from "../lib/keys.ts";
import { act, useGet } from "../lib/query.ts";
import { Link } from "../lib/router.tsx";
import { quoted } from "../lib/search.ts";
import { may } from "../lib/session.ts";
import { toast } from "../lib/toasts.ts";
import { compact, duration, number, percent, plural } from "../lib/words.ts";
import type { ScreenProps } from "../screens.ts";
import { confirm } from "../ui/confirm.tsx";
import { Icon } from "../ui/icons.tsx";
import { Button, Card, EmptyState, ErrorState, Menu, Page, Skeleton } from "../ui/parts.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { Traffic, useFigures } from "../ui/traffic.tsx";
import { Badge, Num, Stat, STATES, StatePill, Time } from "../ui/values.tsx";
import { toAll } from "./many.tsx";
import { pause, resume } from "./queues.tsx";
import { SettingsDialog } from "./settings.tsx";
import { drains } from "./standing.tsx";

export function Queue({ queue = "" }: ScreenProps): JSX.Element {
  const path = `/v1/queues/${name(queue)}`;
  const mine = (event: { kind: string; name: string; queue?: string | null }): boolean => (event.kind === "job" && event.queue === queue) || (event.kind === "queue" && event.name === queue);
  const seen = useGet<QueueAnswer>(path, {}, { live: mine, every: 10 });
  const overview = useGet<Overview>("/v1/overview", {}, { live: mine, every: 5 });
  const [isEditing, setEditing] = useState(false);
  const standing = overview.data?.queues.find((one) => one.name === queue);
  const settings = seen.data?.settings;
  const toggle = (): Promise<void> => (settings?.paused ? resume([queue]) : pause([queue]));
  useKeys(!may("operate") || !settings ? [] : [["p", settings.paused ? "Resume the queue" : "Pause the queue", () => void toggle()], ["e", "Edit its settings", () => setEditing(true)]]);
  if (seen.error?.status === 404) return <Page title={queue}><EmptyState icon="queues" title="There is no such queue" command={`penstock enqueue hello --queue ${queue}`}>A queue is there as soon as a job is, or somebody sets it.</EmptyState></Page>;
  return (
    <Page title={<span class="row">{queue}{settings?.paused && <Badge tone="warn" icon="pause">paused</Badge>}{standing?.is_late && <Badge tone="bad" icon="clock">late</Badge>}</span>} actions={seen.data && settings && <>
      <Link to="/jobs" query={{ q: `queue:${quoted(queue)}` }} class="button">Jobs</Link>
      <Button icon="system" needs="operate" onClick={() => setEditing(true)}>Settings</Button>
      <Button icon={settings.paused ? "play" : "pause"} kind={settings.paused ? "primary" : "plain"} needs="operate" onClick={toggle}>{settings.paused ? "Resume" : "Pause"}</Button>
      <Menu label="More" items={[
        { label: "Redrive all dead and held", icon: "redrive", needs: "operate", run: () => void toAll("redrive", { queue, status: ["dead", "held"] }, () => {}) },
        { label: "Cancel all that wait", icon: "ban", needs: "operate", isDanger: true, run: () => void toAll("cancel", { queue, status: ["waiting", "queued"] }, () => {}) },
      ]} />
    </>}>
      <p class="crumbs"><Link to="/queues" class="text-link">Queues</Link></p>
      <ErrorState query={seen} />
      {seen.isFirst ? <Skeleton lines={12} /> : seen.data && settings && (
        <>
          <Standing queue={seen.data} standing={standing} />
          <div class="board">
            <Traffic queue={queue} height={300} />
            <div class="stack"><States queue={seen.data} /><Latencies queue={queue} /></div>
          </div>
          <Plan queue={queue} />
          <div class="columns">
            <Limits settings={settings} onEdit={() => setEditing(true)} />
            <Serving queue={queue} />
          </div>
          <Changes path={path} />
        </>
      )}
      {isEditing && settings && <SettingsDialog queue={queue} settings={settings} onClose={() => setEditing(false)} />}
    </Page>
  );
}

function Standing({ queue, standing }: { queue: QueueAnswer; standing: QueueStanding | undefined }): JSX.Element {
  const { max_concurrency, max_depth } = queue.settings;
  const queued = queue.counts["queued"] ?? 0;
  if (standing === undefined) return <Skeleton lines={2} />;
  const share = standing.failed_share;
  return (
    <div class="cards six">
      <Stat label="Queued" tone={max_depth != null && queued >= max_depth ? "bad" : "plain"} hint={max_depth != null ? `of at most ${compact(max_depth)}` : "no limit of depth"}>{compact(queued)}</Stat>
      <Stat label="Oldest due" tone={standing.is_late ? "bad" : "plain"} hint={`target ${duration(standing.target_seconds)}`}>{standing.oldest_seconds > 0 ? duration(Math.floor(standing.oldest_seconds)) : "0 s"}</Stat>
      <Stat label="In and out a minute" hint="over the last 5 minutes">{compact(Math.round(standing.arrived_per_minute))} <span class="stat-arrow">→</span> {compact(Math.round(standing.ended_per_minute))}</Stat>
      <Stat label="Drained" tone={queued > 0 && standing.oldest_seconds > 0 && standing.drains_in_seconds === null && !standing.paused ? "warn" : "plain"} hint={queued === 0 ? "nothing waits" : "at the present pace"}>{queued === 0 ? "empty" : drains(standing).replace("not at this pace", "never") || "–"}</Stat>
      <Stat label="Running" hint={max_concurrency != null ? `of at most ${number(max_concurrency)}` : plural(standing.workers, "worker")}>{compact(queue.counts["running"] ?? 0)}</Stat>
      <Stat label="Failing" tone={share === null || share < 0.01 ? "plain" : share < 0.1 ? "warn" : "bad"} hint={<Link to="/failures" query={{ queue: queue.name }} class="text-link">its failures</Link>}>{share === null ? "–" : percent(share)}</Stat>
    </div>
  );
}

function States({ queue }: { queue: QueueAnswer }): JSX.Element {
  return (
    <Card title="Jobs by state">
      <ul class="states">{STATES.map((status) => <li key={status}><StatePill status={status} /><Link to="/jobs" query={{ state: status, q: `queue:${quoted(queue.name)}` }} class="figure"><Num value={queue.counts[status] ?? 0} /><span class="unseen"> {status}</span></Link></li>)}</ul>
    </Card>
  );
}

const ms = (value: number | null): string => (value === null ? "–" : duration(value / 1000));

function Latencies({ queue }: { queue: string }): JSX.Element {
  const { figures, span } = useFigures(queue);
  const total = figures.data?.queues.find((one) => one.queue === queue);
  const row = (title: string, about: string, one: Latency): JSX.Element => <tr><th scope="row" title={about}>{title}</th><td>{ms(one.p50_ms)}</td><td>{ms(one.p95_ms)}</td><td>{ms(one.p99_ms)}</td></tr>;
  return (
    <Card title={`Latency, last ${span}`}>
      {figures.isFirst ? <Skeleton lines={2} /> : total === undefined ? <p class="faint">Nothing ended in this time.</p> : (
        <table class="latencies num"><thead><tr><th><span class="unseen">Of</span></th><th scope="col">p50</th><th scope="col">p95</th><th scope="col">p99</th></tr></thead>
          <tbody>{row("Wait", "From when a job was due until its first attempt began", total.wait)}{row("Run", "Of one attempt", total.run)}</tbody></table>
      )}
    </Card>
  );
}

export const told = (retry: Retry | undefined): string => {
  if (retry === undefined) return "";
  const { kind, base, factor, cap } = retry;
  return kind === "fixed" ? `every ${duration(base)}` : kind === "linear" ? `after ${duration(base)}, then ${duration(base)} more each time` : `after ${duration(base)}, then ×${factor ?? 2} each time${cap ? `, at most ${duration(cap)}` : ""}`;
};
const rated = (rate: QueueSettings["rate"]): string => (rate == null ? "no limit" : `${number(rate.limit)} in ${duration(rate.per ?? 1)}${(rate.burst ?? 1) > 1 ? `, bursts of ${rate.burst}` : ""}`);
const most = (value: number | null | undefined): string => (value == null ? "no limit" : number(value));

function Limits({ settings: s, onEdit }: { settings: QueueSettings; onEdit: () => void }): JSX.Element {
  const rows: readonly (readonly [string, string])[] = [
    ["Target", `a job that is due waits at most ${duration(s.target_seconds ?? 60)}`], ["At once", most(s.max_concurrency)], ["At once per key", most(s.max_concurrency_per_key)],
    ["Rate", rated(s.rate)], ["Rate per key", rated(s.rate_per_key)], ["Keys", s.fair ? "take turns" : "in order of arrival"], ["Depth", most(s.max_depth)],
    ["Attempts", `${s.max_attempts}, then ${s.on_exhausted === "hold" ? "held" : "dead"}`], ["Retries", told(s.retry)], ["Lease", duration(s.lease_seconds ?? 30)], ["Kept", `${duration(s.retention_seconds ?? 0)} after success or cancel`],
  ];
  return <Card title="Settings" actions={<Button size="small" kind="quiet" needs="operate" onClick={onEdit}>Edit</Button>}><dl class="facts">{rows.map(([title, value]) => <><dt>{title}</dt><dd class={value === "no limit" ? "faint" : ""}>{value}</dd></>)}</dl></Card>;
}

/** Names of queues may be patterns: `mail*`, `*`. */
function serves(worker: Presence, queue: string): boolean {
  return Object.keys(worker.queues).some((one) => one === queue || (one.endsWith("*") && queue.startsWith(one.slice(0, -1))));
}

function Serving({ queue }: { queue: string }): JSX.Element {
  const workers = useGet<WorkersAnswer>("/v1/workers", {}, { every: 5 });
  const all = (workers.data?.workers ?? []).filter((one) => serves(one, queue));
  return (
    <Card title={<>Workers<span class="page-count num">{all.length}</span></>} actions={<Link to="/workers" class="button small quiet">All workers</Link>}>
      <ErrorState query={workers} />
      {workers.isFirst ? <Skeleton lines={2} /> : all.length === 0 ? <EmptyState icon="workers" title="No worker takes this queue" command={`penstock worker app:app --queues ${queue}`} /> : (
        <ul class="states">{all.slice(0, 12).map((one) => <li key={one.id}><span class="row tight"><Icon name="workers" size={14} />{one.worker}{one.stopping ? <Badge tone="warn">stopping</Badge> : one.quiet && <Badge>quiet</Badge>}</span><span class="num">{one.running} of {one.slots}<span class="faint"> busy</span></span></li>)}{all.length > 12 && <li class="faint">and {all.length - 12} more</li>}</ul>
      )}
    </Card>
  );
}

// ── What was changed ────────────────────────────────────────────────────────────────────────────────

type Changed = ChangesAnswer["changes"][number];
const CHANGES: readonly Column<Changed>[] = [
  { id: "at", title: "When", cell: (one) => <Time at={one.at} /> },
  { id: "who", title: "Who", minor: true, cell: (one) => one.actor },
  { id: "what", title: "What", grows: true, cell: (one) => <span class="mono clip" title={said(one.detail)}>{said(one.detail).replace(/[{}"]/g, "").replaceAll(":", ": ").replaceAll(",", ", ") || one.verb}</span> },
  { id: "why", title: "Reason", cell: (one) => one.reason ?? <span class="faint">–</span> },
];

function Changes({ path }: { path: string }): JSX.Element {
  const history = useGet<ChangesAnswer>(`${path}/history`, {}, { live: (event) => event.kind === "queue" });
  const changes = [...(history.data?.changes ?? [])].sort((a, b) => (a.at < b.at ? 1 : -1));
  return (
    <Card title="Changes" flush>
      <ErrorState query={history} />
      {history.isFirst ? <Skeleton lines={2} /> : changes.length === 0 ? <p class="calm">Nobody has changed its settings: all of them are the defaults.</p> : <Table label="Changes" rows={changes.slice(0, 20)} id={(one) => one.at + one.verb} columns={CHANGES} isKeyed={false} />}
    </Card>
  );
}

// ── The lake's plan ─────────────────────────────────────────────────────────────────────────────────

type Planned = { readonly concurrency: number; readonly lease_seconds: number; readonly expected_wait_ms: number | null; readonly utilisation: number | null; readonly why: string | null };

function Plan({ queue }: { queue: string }): JSX.Element | null {
  const offers = useGet<InsightOffers>("/v1/insights");
  const has = offers.data?.insights.some((one) => one.name === "capacity" && one.rows > 0) ?? false;
  const answer = useGet<InsightAnswer>(has ? "/v1/insights/capacity" : null, { queue });
  const plan = answer.data?.rows[0] as Planned | undefined;
  if (plan === undefined) return null;
  return (
    <Card title="Capacity plan" actions={<span class="faint">as of <Time at={answer.data?.as_of} /></span>}>
      <div class="row spread">
        <p class="grow">Run at most <strong>{plural(Math.ceil(plan.concurrency), "job")}</strong> at once with a lease of <strong>{duration(plan.lease_seconds)}</strong>{plan.expected_wait_ms != null && <>; they would wait {duration(plan.expected_wait_ms / 1000)}</>}{plan.utilisation != null && <> at {percent(plan.utilisation)} use</>}. <span class="muted">{plan.why}</span></p>
        <Button kind="primary" needs="operate" onClick={() => apply(queue)}>Apply</Button>
      </div>
    </Card>
  );
}

/** What it would set comes first, from the server; then it is set. */
async function apply(queue: string): Promise<void> {
  const path = `/v1/insights/capacity/${name(queue)}/apply`;
  const plan = await api.post<AppliedPlan>(path, { dry_run: true }).catch((refused: Failure) => void toast(refused.message, "bad"));
  if (!plan) return;
  const { before, after } = plan;
  const line = (title: string, from: string, to: string): JSX.Element => <tr><th scope="row">{title}</th><td>{from}</td><td>→</td><td class="strong">{to}</td></tr>;
  const answer = await confirm({
    title: `Apply the plan of ${queue}`, action: "Apply", asksReason: false,
    what: <table class="latencies num"><tbody>{line("At once", most(before.max_concurrency), most(after.max_concurrency))}{line("Lease", duration(before.lease_seconds), duration(after.lease_seconds))}</tbody></table>,
  });
  if (answer) await act(() => api.post(path, { dry_run: false }), "Applied", ["/v1/queues", "/v1/overview"]);
}
