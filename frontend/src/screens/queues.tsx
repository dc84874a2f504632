// Every queue: what waits, for how long, and what holds it back. Pause and resume, one or several.
import type { JSX } from "preact";
import type { QueueAnswer, QueuesAnswer, Status } from "../api.ts";
import { api, name } from "../lib/http.ts";
import { now } from "../lib/prefs.ts";
import { act, useGet } from "../lib/query.ts";
import { Link, text, useParams } from "../lib/router.tsx";
import { toast } from "../lib/toasts.ts";
import { oneOf, plural } from "../lib/words.ts";
import { confirm } from "../ui/confirm.tsx";
import { Button, EmptyState, ErrorState, Page, Skeleton } from "../ui/parts.tsx";
import { type Column, Table, useSelection } from "../ui/table.tsx";
import { Age, Badge, Num } from "../ui/values.tsx";

const counted = (queue: QueueAnswer, status: Status): number => queue.counts[status] ?? 0;
const isDue = (queue: QueueAnswer): boolean => queue.oldest_run_at != null && Date.parse(queue.oldest_run_at) <= now.value;
const waited = (queue: QueueAnswer): number => (isDue(queue) ? now.value - Date.parse(queue.oldest_run_at ?? "") : -1);

function limits(queue: QueueAnswer): string {
  const { max_concurrency, max_concurrency_per_key, rate, max_depth, fair } = queue.settings;
  return [
    max_concurrency != null ? `${max_concurrency} at once` : null,
    max_concurrency_per_key != null ? `${max_concurrency_per_key} per key` : null,
    rate != null ? `${rate.limit} per ${rate.per} s` : null,
    max_depth != null ? `depth ${max_depth}` : null,
    fair ? "fair" : null,
  ].filter((part) => part !== null).join(", ");
}

/** A link to the jobs that a figure counts: the same predicate. */
function Jobs({ queue, status }: { queue: QueueAnswer; status: Status }): JSX.Element {
  return <Link to="/jobs" query={{ state: status, q: `queue:${queue.name}` }} class="figure"><Num value={counted(queue, status)} short /></Link>;
}

const figure = (status: Status, title: string, minor = false): Column<QueueAnswer> => ({
  id: status, title, align: "end", minor, sort: (queue) => counted(queue, status), cell: (queue) => <Jobs queue={queue} status={status} />,
});

const COLUMNS: readonly Column<QueueAnswer>[] = [
  {
    id: "name", title: "Queue", sort: (queue) => queue.name,
    cell: (queue) => (
      <span class="row tight">
        <Link to={`/queues/${name(queue.name)}`} class="strong">{queue.name}</Link>
        {queue.settings.paused && <Badge tone="warn" icon="pause">paused</Badge>}
      </span>
    ),
  },
  figure("queued", "Queued"),
  { id: "oldest", title: "Oldest due", align: "end", sort: waited, cell: (queue) => (isDue(queue) ? <Age since={queue.oldest_run_at} /> : <span class="faint">–</span>) },
  figure("running", "Running"),
  figure("waiting", "Waiting", true),
  figure("dead", "Dead"),
  figure("held", "Held", true),
  figure("succeeded", "Succeeded", true),
  { id: "limits", title: "Limits", minor: true, cell: (queue) => limits(queue) || <span class="faint">none</span> },
];

async function set(queues: readonly string[], verb: "pause" | "resume", reason: string | null): Promise<void> {
  await act(
    () => Promise.all(queues.map((queue) => api.post(`/v1/queues/${name(queue)}/${verb}`, { reason }))),
    `${verb === "pause" ? "Paused" : "Resumed"} ${oneOf(queues).replace(" or ", " and ")}`, ["/v1/queues", "/v1/stats"],
  );
}

async function pause(queues: readonly string[]): Promise<void> {
  const answer = await confirm({
    title: `Pause ${plural(queues.length, "queue")}`, action: "Pause", asksReason: true,
    what: <p>No more jobs of <strong>{oneOf(queues).replace(" or ", " and ")}</strong> will start. Those that run finish; new ones are taken in and wait.</p>,
  });
  if (answer === null) return;
  await set(queues, "pause", answer.reason || null);
  toast("Nothing new starts there now", "plain", { label: "Resume", run: () => void set(queues, "resume", "undone") });
}

export function Queues(): JSX.Element {
  const params = useParams({ sort: text("name") });
  const queues = useGet<QueuesAnswer>("/v1/queues", {}, { live: (event) => event.kind === "job" || event.kind === "queue", every: 10 });
  const chosen = useSelection();
  const rows = queues.data?.queues ?? [];
  const names = rows.map((queue) => queue.name).filter((one) => chosen.ids.value.has(one));
  const isPaused = (one: string): boolean => rows.find((queue) => queue.name === one)?.settings.paused === true;
  const toPause = names.filter((one) => !isPaused(one));
  const toResume = names.filter(isPaused);
  return (
    <Page title="Queues" count={queues.data && rows.length} actions={<>
      <Button icon="pause" needs="operate" isDisabled={toPause.length === 0} title="Select queues first" onClick={() => pause(toPause)}>Pause</Button>
      <Button icon="play" needs="operate" isDisabled={toResume.length === 0} title="Select paused queues first" onClick={() => set(toResume, "resume", null)}>Resume</Button>
    </>}>
      <ErrorState query={queues} />
      {queues.isFirst ? <Skeleton /> : rows.length === 0 && queues.error === null ? (
        <EmptyState icon="queues" title="There is no queue yet" command="penstock enqueue hello --queue default">A queue is there as soon as a job is.</EmptyState>
      ) : (
        <Table label="Queues" rows={rows} id={(queue) => queue.name} columns={COLUMNS} selection={chosen} sort={params.sort} onSort={(sort) => params.replace({ sort })} />
      )}
    </Page>
  );
}
