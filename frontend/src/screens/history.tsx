// Jobs of the same type from around its time, as a strip: whether this one is the exception.
import type { JSX } from "preact";
import type { JobAnswer, JobsAnswer } from "../api.ts";
import { now } from "../lib/prefs.ts";
import { useGet } from "../lib/query.ts";
import { Link } from "../lib/router.tsx";
import { quoted } from "../lib/search.ts";
import { duration, percent } from "../lib/words.ts";
import { Card, Skeleton } from "../ui/parts.tsx";

const MOST = 32, HIGH = 36, DAY = 86_400_000;
/** A sign for those who cannot tell the colours. */
const SIGNS: { readonly [status: string]: string } = { dead: "×", held: "!", cancelled: "–", running: "▸" };

export function History({ job }: { job: JobAnswer }): JSX.Element {
  const around = (days: number): string => new Date(Date.parse(job.created_at) + days * DAY).toISOString();
  const found = useGet<JobsAnswer>("/v1/jobs", { type: job.type, created_from: around(-7), created_before: around(1), status: ["running", "succeeded", "dead", "held", "cancelled"], limit: MOST }, { every: 30 });
  const jobs = [...(found.data?.jobs ?? [])].reverse();
  const took = (one: JobAnswer): number => Math.max(((one.ended_at ? Date.parse(one.ended_at) : now.peek()) - Date.parse(one.created_at)) / 1000, 0.001);
  const longest = Math.max(...jobs.map(took), 0.01);
  const shortest = Math.min(...jobs.map(took), longest);
  const high = (one: JobAnswer): number => 6 + (HIGH - 6) * (longest === shortest ? 0.5 : Math.log(took(one) / shortest) / Math.log(longest / shortest));
  const ended = jobs.filter((one) => ["succeeded", "dead"].includes(one.status));
  const good = ended.filter((one) => one.status === "succeeded").length;
  return (
    <Card title="Others of this type" actions={<Link to="/jobs" query={{ q: `type:${quoted(job.type)}` }} class="button small quiet">Show all</Link>}>
      {found.isFirst ? <Skeleton lines={2} /> : jobs.length === 0 || (jobs.length === 1 && jobs[0]?.id === job.id) ? <p class="faint">No other began around then.</p> : (
        <>
          <ul class="strip" aria-label={`${jobs.length} jobs of this type from around then, oldest first`}>
            {jobs.map((one) => (
              <li key={one.id}>
                <Link to={`/jobs/${one.id}`} class={one.id === job.id ? "tick here" : "tick"} title={`${one.status}, ${duration(took(one))} from creation to end`}>
                  <svg width={8} height={HIGH + 12} aria-hidden="true"><rect class={`tone-fill-${one.status}`} x={1} y={HIGH - high(one)} width={6} height={high(one)} rx={1.5} /><text class="svg-text" x={4} y={HIGH + 11} text-anchor="middle">{SIGNS[one.status] ?? ""}</text></svg>
                  <span class="unseen">{one.status}, {duration(took(one))}</span>
                </Link>
              </li>
            ))}
          </ul>
          <p class="faint">{ended.length > 0 ? `${percent(good / ended.length)} of ${ended.length} that ended around then succeeded. ` : "None has ended yet. "}Taller took longer.</p>
        </>
      )}
    </Card>
  );
}
