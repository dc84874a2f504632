// Who is at work: slots, what each runs and for how long. Tell one to take nothing new, to go on, or to stop.
import type { JSX } from "preact";
import type { Presence, WorkersAnswer } from "../api.ts";
import { api } from "../lib/http.ts";
import { now } from "../lib/prefs.ts";
import { act, useGet } from "../lib/query.ts";
import { Link, text, useParams } from "../lib/router.tsx";
import { toast } from "../lib/toasts.ts";
import { plural } from "../lib/words.ts";
import { confirm } from "../ui/confirm.tsx";
import { EmptyState, ErrorState, Menu, type MenuItem, Page, Skeleton } from "../ui/parts.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { Age, Badge, Bytes, Progress, Stat } from "../ui/values.tsx";

type Order = "work" | "quiet" | "stop";
const LATE_SECONDS = 45;

const tell = (worker: Presence, order: Order, reason: string | null, done: string): Promise<unknown> =>
  act(() => api.post(`/v1/workers/${worker.id}/order`, { order, reason }), done, ["/v1/workers"]);

async function quiet(worker: Presence): Promise<void> {
  await tell(worker, "quiet", null, `${worker.worker} takes nothing new`);
  toast("What it has begun it finishes", "plain", { label: "Go on", run: () => void tell(worker, "work", "undone", `${worker.worker} goes on`) });
}

async function stop(worker: Presence): Promise<void> {
  const answer = await confirm({
    title: "Stop this worker", action: "Stop it", isDanger: true, asksReason: true,
    what: <p><strong>{worker.worker}</strong> takes nothing new, finishes the {plural(worker.running, "job")} it runs within its grace period, and ends. Whoever started it may start it again.</p>,
  });
  if (answer !== null) await tell(worker, "stop", answer.reason || null, `${worker.worker} was told to stop`);
}

const orders = (worker: Presence): readonly MenuItem[] => [
  worker.quiet
    ? { label: "Go on", icon: "play", needs: "operate", run: () => void tell(worker, "work", null, `${worker.worker} goes on`) }
    : { label: "Take nothing new", icon: "pause", needs: "operate", run: () => void quiet(worker) },
  { label: "Stop", icon: "out", needs: "operate", isDanger: true, run: () => void stop(worker) },
];

function Standing({ worker }: { worker: Presence }): JSX.Element {
  const silent = worker.seen_at ? (now.value - Date.parse(worker.seen_at)) / 1000 : 0;
  if (worker.stopping) return <Badge tone="warn" icon="out">stopping</Badge>;
  if (worker.quiet) return <Badge tone="warn" icon="pause">quiet</Badge>;
  if (silent > LATE_SECONDS) return <Badge tone="bad" icon="failures" title="It has not shown itself lately, and may be gone">silent</Badge>;
  return <Badge tone="good" icon="check">at work</Badge>;
}

const COLUMNS: readonly Column<Presence>[] = [
  { id: "worker", title: "Worker", sort: (worker) => worker.worker, cell: (worker) => <><span class="strong">{worker.worker}</span><span class="clip faint">{worker.host} · pid {worker.pid} · {worker.version}</span></> },
  { id: "standing", title: "", cell: (worker) => <Standing worker={worker} /> },
  {
    id: "slots", title: "Slots", align: "end", sort: (worker) => worker.running / Math.max(worker.slots, 1),
    cell: (worker) => <span class="slots"><Progress value={worker.running} of={worker.slots} label={`${worker.running} of ${worker.slots} slots in use`} /><span class="num nowrap">{worker.running} / {worker.slots}</span></span>,
  },
  {
    id: "jobs", title: "Runs now", grows: true, cell: (worker) => worker.jobs?.length ? (
      <ul class="plain-list">{worker.jobs.slice(0, 3).map((job) => <li key={job.id}><Link to={`/jobs/${job.id}`}>{job.type}</Link> <span class="faint">for <Age since={job.started_at} /></span></li>)}
        {worker.jobs.length > 3 && <li class="faint">and {worker.running - 3} more</li>}</ul>
    ) : <span class="faint">nothing</span>,
  },
  { id: "queues", title: "Queues", minor: true, cell: (worker) => <span class="clip">{Object.keys(worker.queues).join(", ")}</span> },
  { id: "memory", title: "Memory", align: "end", minor: true, sort: (worker) => worker.memory_bytes ?? 0, cell: (worker) => <Bytes size={worker.memory_bytes} /> },
  { id: "up", title: "Up", align: "end", minor: true, sort: (worker) => -Date.parse(worker.started_at), cell: (worker) => <Age since={worker.started_at} /> },
  { id: "seen", title: "Seen", align: "end", sort: (worker) => -Date.parse(worker.seen_at ?? ""), cell: (worker) => <span class="nowrap"><Age since={worker.seen_at} /> ago</span> },
  { id: "orders", title: "", align: "end", cell: (worker) => <Menu label={`What ${worker.worker} should do`} items={orders(worker)} /> },
];

export function Workers(): JSX.Element {
  const params = useParams({ sort: text("worker") });
  const workers = useGet<WorkersAnswer>("/v1/workers", {}, { live: (event) => event.kind === "order", every: 5 });
  const rows = workers.data?.workers ?? [];
  const sum = (of: (worker: Presence) => number): number => rows.reduce((total, worker) => total + of(worker), 0);
  return (
    <Page title="Workers" count={workers.data && rows.length}>
      <ErrorState query={workers} />
      {workers.isFirst ? <Skeleton /> : rows.length === 0 && workers.error === null ? (
        <EmptyState icon="workers" title="No worker has shown itself within the last minute" command="penstock worker myapp:app">Jobs wait until one does.</EmptyState>
      ) : <>
        <div class="cards">
          <Stat label="Workers">{rows.length}</Stat>
          <Stat label="Slots in use" hint={`of ${sum((worker) => worker.slots)}`}>{sum((worker) => worker.running)}</Stat>
          <Stat label="In reserve" hint="leased, not begun">{sum((worker) => worker.reserved)}</Stat>
          <Stat label="Memory"><Bytes size={sum((worker) => worker.memory_bytes ?? 0)} /></Stat>
        </div>
        <Table label="Workers" rows={rows} id={(worker) => worker.id} name={(worker) => worker.worker} columns={COLUMNS} sort={params.sort} onSort={(sort) => params.replace({ sort })} />
      </>}
    </Page>
  );
}
