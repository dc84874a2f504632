// Every queue: what waits, for how long, and what holds it back. Pause and resume, one or several.
import type { JSX } from "preact";
import type { Overview, QueueAnswer, QueuesAnswer, QueueStanding, Status } from "../api.ts";
import { api, name } from "../lib/http.ts";
import { act, useGet } from "../lib/query.ts";
import { text, useParams } from "../lib/router.tsx";
import { toast } from "../lib/toasts.ts";
import { number, oneOf, plural } from "../lib/words.ts";
import { confirm } from "../ui/confirm.tsx";
import { Button, EmptyState, ErrorState, Page, Skeleton } from "../ui/parts.tsx";
import { type Column, Table, useSelection } from "../ui/table.tsx";
import { Num, Sparkline } from "../ui/values.tsx";
import { Counted, drains, Named, Oldest, PerMinute } from "./standing.tsx";

const counted = (queue: Row, status: Status): number => queue.counts[status] ?? 0;
/** A queue with how it does; that comes from another answer, and may come later. */
type Row = QueueAnswer & { readonly standing?: QueueStanding };
const NOWHERE = { arrived_per_minute: 0, ended_per_minute: 0 } as const;

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

const figure = (status: Status, title: string, minor = false): Column<Row> => ({
  id: status, title, align: "end", minor, sort: (queue) => counted(queue, status), cell: (queue) => <Counted queue={queue.name} counts={queue.counts} status={status} />,
});
/** Without the minute that goes on: it would look like a fall. */
const ended = (queue: Row): readonly number[] => queue.standing?.ended_by_step.slice(0, -1) ?? [];

const COLUMNS: readonly Column<Row>[] = [
  { id: "name", title: "Queue", sort: (queue) => queue.name, cell: (queue) => <Named queue={{ name: queue.name, paused: queue.settings.paused ?? false, is_late: queue.standing?.is_late ?? false }} /> },
  figure("queued", "Queued"),
  { id: "oldest", title: "Oldest / target", align: "end", sort: (queue) => queue.standing?.oldest_seconds ?? -1, cell: (queue) => (queue.standing ? <Oldest queue={queue.standing} /> : <span class="faint">–</span>) },
  figure("running", "Running"),
  { id: "in", title: "In / min", align: "end", minor: true, sort: (queue) => (queue.standing ?? NOWHERE).arrived_per_minute, cell: (queue) => <PerMinute value={(queue.standing ?? NOWHERE).arrived_per_minute} /> },
  { id: "out", title: "Out / min", align: "end", minor: true, sort: (queue) => (queue.standing ?? NOWHERE).ended_per_minute, cell: (queue) => <PerMinute value={(queue.standing ?? NOWHERE).ended_per_minute} /> },
  { id: "spark", title: "Last hour", minor: true, cell: (queue) => <Sparkline values={ended(queue)} label={`${number(ended(queue).reduce((sum, one) => sum + one, 0))} ended in the last hour`} width={88} /> },
  { id: "drains", title: "Drained", align: "end", minor: true, sort: (queue) => queue.standing?.drains_in_seconds ?? Infinity, cell: (queue) => (queue.standing && drains(queue.standing)) || <span class="faint">–</span> },
  figure("dead", "Dead"),
  figure("held", "Held", true),
  { id: "workers", title: "Workers", align: "end", minor: true, sort: (queue) => queue.standing?.workers ?? 0, cell: (queue) => <Num value={queue.standing?.workers} /> },
  { id: "limits", title: "Limits", minor: true, cell: (queue) => limits(queue) || <span class="faint">none</span> },
];

async function set(queues: readonly string[], verb: "pause" | "resume", reason: string | null): Promise<void> {
  await act(
    () => Promise.all(queues.map((queue) => api.post(`/v1/queues/${name(queue)}/${verb}`, { reason }))),
    `${verb === "pause" ? "Paused" : "Resumed"} ${oneOf(queues).replace(" or ", " and ")}`, ["/v1/queues", "/v1/stats", "/v1/overview", "/v1/markers"],
  );
}

export async function pause(queues: readonly string[]): Promise<void> {
  const answer = await confirm({
    title: `Pause ${plural(queues.length, "queue")}`, action: "Pause", asksReason: true,
    what: <p>No more jobs of <strong>{oneOf(queues).replace(" or ", " and ")}</strong> will start. Those that run finish; new ones are taken in and wait.</p>,
  });
  if (answer === null) return;
  await set(queues, "pause", answer.reason || null);
  toast("Nothing new starts there now", "plain", { label: "Resume", run: () => void set(queues, "resume", "undone") });
}

export const resume = (queues: readonly string[]): Promise<void> => set(queues, "resume", null);

export function Queues(): JSX.Element {
  const params = useParams({ sort: text("name") });
  const queues = useGet<QueuesAnswer>("/v1/queues", {}, { live: (event) => event.kind === "job" || event.kind === "queue", every: 10 });
  const chosen = useSelection();
  const overview = useGet<Overview>("/v1/overview", {}, { live: (event) => event.kind === "job", every: 5 });
  const standings = new Map(overview.data?.queues.map((one) => [one.name, one]));
  const rows: readonly Row[] = (queues.data?.queues ?? []).map((queue) => ({ ...queue, standing: standings.get(queue.name) }));
  const names = rows.map((queue) => queue.name).filter((one) => chosen.ids.value.has(one));
  const isPaused = (one: string): boolean => rows.find((queue) => queue.name === one)?.settings.paused === true;
  const toPause = names.filter((one) => !isPaused(one));
  const toResume = names.filter(isPaused);
  return (
    <Page title="Queues" count={queues.data && rows.length} actions={<>
      <Button icon="pause" needs="operate" isDisabled={toPause.length === 0} title="Select queues first" onClick={() => pause(toPause)}>Pause</Button>
      <Button icon="play" needs="operate" isDisabled={toResume.length === 0} title="Select paused queues first" onClick={() => resume(toResume)}>Resume</Button>
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
