// How a queue does, as columns: the landing page and the list of queues say it alike.
import type { JSX } from "preact";
import type { QueueStanding, Status } from "../api.ts";
import { name } from "../lib/http.ts";
import { Link } from "../lib/router.tsx";
import { compact, duration, percent } from "../lib/words.ts";
import type { Column } from "../ui/table.tsx";
import { Badge, Num } from "../ui/values.tsx";

/** A link to the jobs that a figure counts: the same predicate. */
export function Counted({ queue, counts, status }: { queue: string; counts: { readonly [name: string]: number }; status: Status }): JSX.Element {
  return <Link to="/jobs" query={{ state: status, q: `queue:${queue}` }} class="figure"><Num value={counts[status] ?? 0} short /></Link>;
}

export function Named({ queue }: { queue: Pick<QueueStanding, "name" | "paused"> & { readonly is_late?: boolean } }): JSX.Element {
  return (
    <span class="row tight">
      <Link to={`/queues/${name(queue.name)}`} class="strong">{queue.name}</Link>
      {queue.paused && <Badge tone="warn" icon="pause">paused</Badge>}
      {queue.is_late && <Badge tone="bad" icon="clock">late</Badge>}
    </span>
  );
}

/** The oldest job's wait, beside what it may be. */
export function Oldest({ queue }: { queue: Pick<QueueStanding, "oldest_seconds" | "target_seconds" | "is_late"> }): JSX.Element {
  if (queue.oldest_seconds <= 0) return <span class="faint">–</span>;
  return <span class="num nowrap" title={`the target is ${duration(queue.target_seconds)}`}><span class={queue.is_late ? "bad strong" : ""}>{duration(Math.max(1, Math.floor(queue.oldest_seconds)))}</span><span class="faint"> / {duration(queue.target_seconds)}</span></span>;
}

export const drains = (queue: Pick<QueueStanding, "counts" | "drains_in_seconds" | "paused" | "oldest_seconds">): string =>
  (queue.counts["queued"] ?? 0) === 0 || (queue.oldest_seconds <= 0 && !queue.paused) ? "" : queue.paused ? "paused" : queue.drains_in_seconds === null ? "not at this pace" : `in ${duration(Math.max(1, Math.round(queue.drains_in_seconds)))}`;

/** 12.4, or a faint nought. */
export function PerMinute({ value }: { value: number }): JSX.Element {
  return <span class={value === 0 ? "num faint" : "num"}>{value === 0 ? "0" : value < 10 ? Number(value.toFixed(1)) : compact(Math.round(value))}</span>;
}

export const COLUMNS_OF_STANDING: readonly Column<QueueStanding>[] = [
  { id: "name", title: "Queue", sort: (queue) => queue.name, cell: (queue) => <Named queue={queue} /> },
  { id: "queued", title: "Queued", align: "end", sort: (queue) => queue.counts["queued"] ?? 0, cell: (queue) => <Counted queue={queue.name} counts={queue.counts} status="queued" /> },
  { id: "oldest", title: "Oldest / target", align: "end", sort: (queue) => queue.oldest_seconds, cell: (queue) => <Oldest queue={queue} /> },
  { id: "in", title: "In / min", align: "end", minor: true, sort: (queue) => queue.arrived_per_minute, cell: (queue) => <PerMinute value={queue.arrived_per_minute} /> },
  { id: "out", title: "Out / min", align: "end", sort: (queue) => queue.ended_per_minute, cell: (queue) => <PerMinute value={queue.ended_per_minute} /> },
  { id: "drains", title: "Drained", align: "end", minor: true, sort: (queue) => queue.drains_in_seconds ?? Infinity, cell: (queue) => drains(queue) || <span class="faint">–</span> },
  { id: "failing", title: "Failing", align: "end", minor: true, sort: (queue) => queue.failed_share ?? -1, cell: (queue) => (queue.failed_share === null ? <span class="faint">–</span> : <span class={queue.failed_share >= 0.1 ? "num bad" : queue.failed_share > 0 ? "num" : "num faint"}>{percent(queue.failed_share)}</span>) },
];
