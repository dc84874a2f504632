// Flows: jobs that wait for each other, as a graph and over time. Bring one back from where it failed.
import type { JSX } from "preact";
import type { FlowJob, FlowPage, FlowSummary, FlowView, Status } from "../api.ts";
import { api } from "../lib/http.ts";
import { act, useGet } from "../lib/query.ts";
import { choice, Link, navigate, text, useParams } from "../lib/router.tsx";
import { plural } from "../lib/words.ts";
import { confirm } from "../ui/confirm.tsx";
import { Gantt, Graph } from "../ui/drawings.tsx";
import { Button, Card, EmptyState, ErrorState, Page, Skeleton, Tabs } from "../ui/parts.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { Badge, Duration, STATES, StatePill, Time } from "../ui/values.tsx";

const LIVE = { live: (event: { readonly kind: string }): boolean => event.kind === "job", every: 10 };
const counted = (flow: FlowSummary, status: Status): number => flow.counts[status] ?? 0;
const total = (flow: FlowSummary): number => Object.values(flow.counts).reduce((sum, one) => sum + one, 0);

function Standing({ flow }: { flow: FlowSummary }): JSX.Element {
  if (counted(flow, "dead") + counted(flow, "held") > 0) return <Badge tone="bad" icon="cross">failed</Badge>;
  if (flow.ended_at === null) return <Badge tone="accent" icon="play">under way</Badge>;
  return counted(flow, "cancelled") > 0 ? <Badge icon="ban">cancelled</Badge> : <Badge tone="good" icon="check">succeeded</Badge>;
}

/** A bar of its jobs by state: also in words, for those who do not see colours. */
function Bar({ flow }: { flow: FlowSummary }): JSX.Element {
  const there = STATES.filter((status) => counted(flow, status) > 0);
  const told = there.map((status) => `${counted(flow, status)} ${status}`).join(", ");
  let x = 0;
  return (
    <span class="flow-bar" title={told}>
      <svg width="100%" height="6" role="img" aria-label={told} preserveAspectRatio="none" viewBox={`0 0 ${total(flow)} 6`}>
        {there.map((status) => {
          const from = x;
          x += counted(flow, status);
          return <rect key={status} class={`tone-fill-${status}`} x={from} width={counted(flow, status)} height={6} />;
        })}
      </svg>
      <span class="faint clip">{told}</span>
    </span>
  );
}

const COLUMNS: readonly Column<FlowSummary>[] = [
  { id: "type", title: "Begins with", cell: (flow) => <><Link to={`/flows/${flow.id}`} class="strong">{flow.type}</Link><span class="clip faint"><code>{flow.id}</code></span></> },
  { id: "standing", title: "", cell: (flow) => <Standing flow={flow} /> },
  { id: "jobs", title: "Jobs", align: "end", cell: (flow) => <span class="num">{total(flow)}{flow.is_complete ? "" : "+"}</span> },
  { id: "bar", title: "Which are", grows: true, cell: (flow) => <Bar flow={flow} /> },
  { id: "begun", title: "Begun", cell: (flow) => <Time at={flow.created_at} /> },
  { id: "took", title: "Took", align: "end", minor: true, cell: (flow) => flow.ended_at ? <Duration seconds={(Date.parse(flow.ended_at) - Date.parse(flow.created_at)) / 1000} /> : <span class="faint">–</span> },
];

export function Flows(): JSX.Element {
  const params = useParams({ after: text() });
  const flows = useGet<FlowPage>("/v1/flows", { after: params.after || null }, LIVE);
  const rows = flows.data?.flows ?? [];
  return (
    <Page title="Flows">
      <ErrorState query={flows} />
      {flows.isFirst ? <Skeleton /> : rows.length === 0 && flows.error === null ? (
        <EmptyState icon="flows" title="No job waits for another" command="python examples/flow.py">Jobs enqueued with parents are a flow; app.flow makes chains and fans.</EmptyState>
      ) : <>
        <Table label="Flows" rows={rows} id={(flow) => flow.id} columns={COLUMNS} />
        <div class="pager">
          <Button icon="left" isDisabled={!params.after} onClick={() => navigate("/flows")}>Newest</Button>
          <Button icon="right" isDisabled={!flows.data?.next} onClick={() => params.set({ after: flows.data?.next ?? "" })}>Older</Button>
        </div>
      </>}
    </Page>
  );
}

const FAILED: readonly Status[] = ["dead", "held"];

/** Failed jobs that no failed job stands before: from there all others follow. */
const firstFailed = (jobs: readonly FlowJob[]): readonly FlowJob[] => jobs.filter((job) => FAILED.includes(job.status));

async function retry(jobs: readonly FlowJob[]): Promise<void> {
  const failed = firstFailed(jobs);
  const answer = await confirm({
    title: "Bring the flow back", action: `Redrive ${plural(failed.length, "job")}`, asksReason: true,
    what: <><p>These come back, and with them what was cancelled because they failed:</p><ul>{failed.map((job) => <li key={job.id}>{job.type} <span class="faint">{job.error?.split("\n")[0]}</span></li>)}</ul></>,
  });
  if (answer === null) return;
  await act(() => Promise.all(failed.map((job) => api.post(`/v1/jobs/${job.id}/redrive`, { reason: answer.reason || null }))), "The flow goes on", ["/v1/jobs", "/v1/flows"]);
}

const ms = (at: string | null): number | null => (at === null ? null : Date.parse(at));

export function Flow({ id = "" }: { readonly [part: string]: string }): JSX.Element {
  const params = useParams({ as: choice(["graph", "time"] as const, "graph") });
  const flow = useGet<FlowView>(`/v1/jobs/${id}/flow`, {}, LIVE);
  const jobs = flow.data?.jobs ?? [];
  return (
    <Page title="Flow" count={flow.data && jobs.length} actions={<Button icon="redrive" needs="operate" kind="primary" isDisabled={firstFailed(jobs).length === 0} title="No job of it has failed" onClick={() => retry(jobs)}>Retry from where it failed</Button>}>
      <ErrorState query={flow} />
      {flow.isFirst && <Skeleton />}
      {flow.data && <>
        {!flow.data.is_complete && <div class="notice tone-warn">It has more jobs than are shown here.</div>}
        <Tabs label="How it is shown" tabs={[{ id: "graph", label: "Graph" }, { id: "time", label: "Timeline" }]} chosen={params.as} onChoose={(as) => params.set({ as })} />
        <Card>
          {params.as === "graph"
            ? <Graph label="Which job waits for which" nodes={jobs.map((job) => ({ id: job.id, label: job.type, status: job.status, parents: job.parents, href: `/jobs/${job.id}` }))} />
            : <Gantt label="When each job waited and ran" lines={jobs.map((job) => ({ id: job.id, label: job.type, status: job.status, waitsFrom: Date.parse(job.created_at), from: ms(job.started_at), to: ms(job.ended_at), href: `/jobs/${job.id}` }))} />}
        </Card>
        <Card flush title="Its jobs">
          <Table label="Its jobs" rows={jobs} id={(job) => job.id} columns={[
            { id: "type", title: "Type", cell: (job) => <Link to={`/jobs/${job.id}`}>{job.type}</Link> },
            { id: "status", title: "State", cell: (job) => <StatePill status={job.status} /> },
            { id: "queue", title: "Queue", minor: true, cell: (job) => job.queue },
            { id: "began", title: "Began", cell: (job) => <Time at={job.started_at} /> },
            { id: "ran", title: "Ran", align: "end", cell: (job) => job.started_at && job.ended_at ? <Duration seconds={(Date.parse(job.ended_at) - Date.parse(job.started_at)) / 1000} /> : <span class="faint">–</span> },
            { id: "error", title: "", grows: true, cell: (job) => <span class="clip bad">{job.error?.split("\n")[0]}</span> },
          ]} />
        </Card>
      </>}
    </Page>
  );
}
