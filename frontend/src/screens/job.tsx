// One job: what became of it and when, why it does not run, what its attempts said, and what can be done to it.
import type { JSX } from "preact";
import type { AttemptAnswer, BulkAnswer, Explanation, FlowView, HistoryAnswer, JobAnswer, Outcome } from "../api.ts";
import { address, api, name } from "../lib/http.ts";
import type { Raw } from "../lib/json.ts";
import { useKeys } from "../lib/keys.ts";
import { act, useGet } from "../lib/query.ts";
import { Link, navigate } from "../lib/router.tsx";
import { quoted } from "../lib/search.ts";
import { may } from "../lib/session.ts";
import { toast } from "../lib/toasts.ts";
import { neighbours, trail } from "../lib/trail.ts";
import { duration, plural } from "../lib/words.ts";
import type { ScreenProps } from "../screens.ts";
import { confirm } from "../ui/confirm.tsx";
import { Graph } from "../ui/drawings.tsx";
import { Icon } from "../ui/icons.tsx";
import { Json, Trace } from "../ui/json.tsx";
import { Button, Card, EmptyState, ErrorState, Menu, Page, Skeleton } from "../ui/parts.tsx";
import { Badge, type BadgeTone, Copy, copyText, Duration, Kbd, StatePill, Time } from "../ui/values.tsx";
import { History } from "./history.tsx";
import { Timeline } from "./timeline.tsx";

/** A job may come from the lake, long after the store has let go of it. */
type Seen = JobAnswer & { readonly source?: string };

const CANCELLABLE = ["waiting", "queued", "running", "held"];
const REDRIVABLE = ["dead", "held", "cancelled"];

export function Job({ id = "" }: ScreenProps): JSX.Element {
  const mine = (event: { kind: string; name: string }): boolean => event.kind === "job" && event.name === id;
  const seen = useGet<Seen>(`/v1/jobs/${name(id)}`, {}, { live: mine, every: 15 });
  const job = seen.data;
  const isKept = job !== undefined && job.source !== "lake";
  const history = useGet<HistoryAnswer>(job === undefined ? null : `/v1/jobs/${name(id)}/attempts`, {}, { live: mine, every: 15 });
  const explained = useGet<Explanation>(isKept && job.status !== "succeeded" ? `/v1/jobs/${name(id)}/explain` : null, {}, { live: mine, every: 10 });
  const flow = useGet<FlowView>(isKept ? `/v1/jobs/${name(id)}/flow` : null, {}, { every: 15 });
  const isFlow = (flow.data?.jobs.length ?? 0) > 1;
  const place = neighbours(id, trail.value.ids);
  const go = (to: string | null | undefined): void => void (to && navigate(`/jobs/${to}`));
  const canCancel = isKept && CANCELLABLE.includes(job.status) && !job.cancel_requested;
  const canRedrive = isKept && REDRIVABLE.includes(job.status);
  useKeys([
    ...(place ? [["j", "Next job of the list", () => go(place.after)] as const, ["k", "Job before in the list", () => go(place.before)] as const] : []),
    ["u", "Back to the list", () => navigate("/jobs", trail.value.query)],
    ...(canCancel && may("operate") ? [["c", "Cancel this job", () => void cancel(job)] as const] : []),
    ...(canRedrive && may("operate") ? [["r", "Redrive this job", () => void redrive(job, false)] as const] : []),
  ]);
  if (seen.error?.status === 404 || seen.error?.status === 422) return <Page title="Job"><EmptyState icon="jobs" title="There is no such job" command="penstock jobs list">Succeeded and cancelled jobs are kept for as long as their queue's settings say; then the lake has them, if there is one.</EmptyState></Page>;
  return (
    <Page title={<span class="row"><span class="mono job-type">{job?.type ?? "Job"}</span>{job && <StatePill status={job.status} />}{job?.cancel_requested && job.status === "running" && <Badge tone="warn">asked to stop</Badge>}</span>} actions={job && <>
      {canRedrive && <Button kind="primary" icon="redrive" needs="operate" onClick={() => redrive(job, false)}>Redrive</Button>}
      {canCancel && <Button kind="danger" icon="ban" needs="operate" onClick={() => cancel(job)}>Cancel</Button>}
      <Menu label="More" items={[
        { label: "Enqueue it again", icon: "plus", needs: "produce", run: () => void again(job) },
        ...(canRedrive && isFlow ? [{ label: "Redrive with all after it", icon: "redrive" as const, needs: "operate" as const, run: () => void redrive(job, true) }] : []),
        { label: "Copy as curl", icon: "copy", run: () => copied(asCurl(job)) },
        { label: "Copy as command", icon: "copy", run: () => copied(asCommand(job)) },
        { label: "Copy as Python", icon: "copy", run: () => copied(asPython(job)) },
      ]} />
    </>}>
      <div class="crumbs spread">
        <span class="row tight"><Link to="/jobs" query={trail.value.query} class="text-link">Jobs</Link><span class="faint mono clip">{id}</span><Copy text={id} label="Copy the id" /></span>
        {place && <span class="row tight faint"><Button size="small" kind="quiet" icon="left" isDisabled={place.before === null} title="The job before (k)" onClick={() => go(place.before)}>Before</Button><span class="num nowrap">{place.place} of {trail.value.ids.length}</span><Button size="small" kind="quiet" isDisabled={place.after === null} title="The next job (j)" onClick={() => go(place.after)}>Next<Icon name="right" size={14} /></Button><span class="wide-only"><Kbd keys="k j" /></span></span>}
      </div>
      <ErrorState query={seen} />
      {seen.isFirst ? <Skeleton lines={12} /> : job && (
        <>
          {job.source === "lake" && <p class="notice"><Icon name="insights" /><span>This job has left the store. What is shown is what the lake has kept of it.</span></p>}
          {explained.data && <Why explained={explained.data} job={job} />}
          <Timeline job={job} history={history.data} since={since(explained.data)} />
          <div class="board">
            <div class="stack">
              <Attempts job={job} history={history} />
              {isFlow && flow.data && <Card title={`Part of a flow of ${plural(flow.data.jobs.length, "job")}`} actions={<Link to={`/flows/${flow.data.id}`} class="button small quiet">Open flow</Link>}><Graph label="The flow" nodes={flow.data.jobs.slice(0, 40).map((one) => ({ id: one.id, label: one.id === id ? `▸ ${one.type}` : one.type, status: one.status, href: `/jobs/${one.id}`, parents: one.parents }))} /></Card>}
            </div>
            <div class="stack">
              <Card title="Payload"><Json value={job.payload} label="payload" /></Card>
              {job.result && <Card title="Result"><Json value={job.result} label="result" /></Card>}
              {job.progress && <Card title="Progress"><Json value={job.progress} label="progress" /></Card>}
              {job.headers && job.headers.text !== "{}" && <Card title="Headers"><Json value={job.headers} label="headers" /></Card>}
              <Facts job={job} />
              <History job={job} />
            </div>
          </div>
        </>
      )}
    </Page>
  );
}

/** Since when it runs: the explanation of a running job knows. */
function since(explained: Explanation | undefined): number | null {
  const at = explained?.reasons?.find((reason) => reason.code === "running")?.facts?.["since"];
  return typeof at === "string" ? Date.parse(at) : null;
}

function Why({ explained, job }: { explained: Explanation; job: Seen }): JSX.Element | null {
  const reasons = explained.reasons ?? [];
  if (job.status === "running" && !job.cancel_requested) return null;
  const tone = job.status === "dead" || job.status === "held" ? "tone-bad" : job.status === "cancelled" ? "" : "tone-warn";
  const title = ["queued", "waiting", "held"].includes(job.status) ? "Why is it not running?" : job.status === "running" ? "Why has it not stopped?" : `Why is it ${job.status}?`;
  return (
    <section class={`notice why ${tone}`} aria-label={title}>
      <Icon name={job.status === "queued" || job.status === "waiting" ? "clock" : "failures"} />
      <div class="grow">
        <p class="strong">{title}</p>
        <p>{explained.summary}</p>
        {reasons.length > 1 && <ul class="reasons">{reasons.slice(1).map((reason) => <li key={reason.code + reason.message}>{reason.message}</li>)}</ul>}
      </div>
    </section>
  );
}

// ── Attempts ────────────────────────────────────────────────────────────────────────────────────────

const TONES: Record<Outcome, BadgeTone> = { succeeded: "good", failed: "bad", lost: "bad", released: "plain", snoozed: "plain", cancelled: "warn" };

function Attempts({ job, history }: { job: Seen; history: ReturnType<typeof useGet<HistoryAnswer>> }): JSX.Element {
  const attempts = [...(history.data?.attempts ?? [])].reverse();
  const count = attempts.length + (job.status === "running" ? 1 : 0);
  return (
    <Card title={<>Attempts<span class="page-count num">{count}</span></>} flush actions={job.max_attempts != null && <span class="faint num" title="Redriving a job gives it all of them again">{job.attempts} of {job.max_attempts} used</span>}>
      <ErrorState query={history} />
      {history.isFirst ? <Skeleton lines={3} /> : attempts.length === 0 && job.status !== "running" ? <p class="calm">It has not been tried yet.</p> : (
        <ul class="needs">
          {job.status === "running" && <li class="attempt"><div class="row"><strong class="num">#{job.attempts}</strong><Badge tone="accent" icon="play">running</Badge>{job.worker && <span>on {job.worker}</span>}<span class="grow" /><span class="faint">lease ends <Time at={job.lease_expires_at} /></span></div></li>}
          {attempts.map((attempt, n) => <Tried key={`${attempt.number} ${attempt.started_at}`} attempt={attempt} isFirst={n === 0} />)}
        </ul>
      )}
    </Card>
  );
}

function Tried({ attempt, isFirst }: { attempt: AttemptAnswer; isFirst: boolean }): JSX.Element {
  const took = (Date.parse(attempt.ended_at) - Date.parse(attempt.started_at)) / 1000;
  const last = attempt.error?.trim().split("\n").at(-1);
  return (
    <li class="attempt">
      <div class="row"><strong class="num">#{attempt.number}</strong><Badge tone={TONES[attempt.outcome]}>{attempt.outcome}</Badge><span>on {attempt.worker}</span><span class="grow" /><span class="faint">took <Duration seconds={took} /></span><Time at={attempt.started_at} /></div>
      {attempt.error && <details open={isFirst}><summary class={attempt.outcome === "succeeded" ? "" : "bad"}><span class="clip">{last}</span></summary><Trace text={attempt.error} label={`Error of attempt ${attempt.number}`} /></details>}
      {attempt.logs && <details open={isFirst && !attempt.error}><summary>Logs</summary><Trace text={attempt.logs} label={`Logs of attempt ${attempt.number}`} /></details>}
      {attempt.result && <details><summary>Result</summary><Json value={attempt.result} label={`result of attempt ${attempt.number}`} /></details>}
    </li>
  );
}

function Facts({ job }: { job: Seen }): JSX.Element {
  const keys = [["Key", job.key], ["Ordering key", job.ordering_key], ["Unique key", job.unique_key], ["Idempotency key", job.idempotency_key]] as const;
  return (
    <Card title="About it">
      <dl class="facts">
        <dt>Queue</dt><dd><Link to={`/queues/${name(job.queue)}`} class="text-link">{job.queue}</Link></dd>
        <dt>Type</dt><dd><Link to="/jobs" query={{ q: `type:${quoted(job.type)}` }} class="text-link mono">{job.type}</Link></dd>
        {job.schedule && <><dt>Schedule</dt><dd><Link to={`/schedules/${name(job.schedule)}`} class="text-link">{job.schedule}</Link></dd></>}
        {(job.parents?.length ?? 0) > 0 && <><dt>Waits for</dt><dd class="stack tight">{job.parents?.map((parent) => <Link key={parent} to={`/jobs/${parent}`} class="text-link mono">{parent}</Link>)}</dd></>}
        <dt>Priority</dt><dd class="num">{job.priority}</dd>
        {keys.map(([label, value]) => value && <><dt>{label}</dt><dd class="mono">{label === "Key" ? <Link to="/jobs" query={{ q: `key:${quoted(value)}` }} class="text-link">{value}</Link> : value}</dd></>)}
        <dt>Created</dt><dd><Time at={job.created_at} style="absolute" /></dd>
        {!job.ended_at && <><dt>Due</dt><dd><Time at={job.run_at} style="absolute" /></dd></>}
        {job.ended_at && <><dt>Ended</dt><dd><Time at={job.ended_at} style="absolute" /></dd></>}
        {job.expires_at && <><dt>Expires</dt><dd><Time at={job.expires_at} style="absolute" /></dd></>}
        {job.cause && <><dt>Cause</dt><dd>{job.cause}</dd></>}
        {job.ended_at && <><dt>In all</dt><dd>{duration((Date.parse(job.ended_at) - Date.parse(job.created_at)) / 1000)}</dd></>}
      </dl>
    </Card>
  );
}

// ── What can be done ────────────────────────────────────────────────────────────────────────────────

const changed = (id: string): readonly string[] => [`/v1/jobs/${id}`, "/v1/jobs", "/v1/stats"];

async function cancel(job: Seen): Promise<void> {
  const answer = await confirm({
    title: "Cancel this job", action: "Cancel the job", isDanger: true, asksReason: true,
    what: <p>{job.status === "running" ? <>The worker is asked to stop <strong class="mono">{job.type}</strong>; it ends when its handler does.</> : <><strong class="mono">{job.type}</strong> will not run. It can be redriven later.</>}</p>,
  });
  if (answer) await act(() => api.post(`/v1/jobs/${job.id}/cancel`, { reason: answer.reason || null }), job.status === "running" ? "Asked to stop" : "Cancelled", changed(job.id));
}

async function redrive(job: Seen, descendants: boolean): Promise<void> {
  const answer = await confirm({
    title: "Redrive this job", action: descendants ? "Redrive them" : "Redrive", asksReason: true,
    what: <p><strong class="mono">{job.type}</strong>{descendants ? " and all jobs that were given up because of it come back." : " comes back and runs again."} It keeps its history.</p>,
  });
  if (answer) await act(() => api.post<BulkAnswer>(`/v1/jobs/${job.id}/redrive`, { reason: answer.reason || null, descendants }), "Redriven", changed(job.id));
}

async function again(job: Seen): Promise<void> {
  const answer = await confirm({ title: "Enqueue it again", action: "Enqueue", what: <p>A new job of type <strong class="mono">{job.type}</strong> with the same payload goes into <strong>{job.queue}</strong>.</p> });
  if (answer === null) return;
  const made = await act(() => api.post<{ readonly id: string }>("/v1/jobs", asJson(job)), "Enqueued", ["/v1/jobs", "/v1/stats"]);
  if (made) navigate(`/jobs/${made.id}`);
}

async function copied(words: string): Promise<void> {
  await copyText(words);
  toast("Copied", "good");
}

/** The payload goes in as the text it is, so that no digit is lost. */
function asJson(job: Seen): string {
  const payload = (job.payload as Raw | null)?.text ?? "null";
  const more = [["key", job.key], ["ordering_key", job.ordering_key]].filter(([, value]) => value).map(([field, value]) => `, ${JSON.stringify(field)}: ${JSON.stringify(value)}`).join("");
  return `{"type": ${JSON.stringify(job.type)}, "queue": ${JSON.stringify(job.queue)}, "priority": ${job.priority}, "payload": ${payload}${more}}`;
}

const shell = (words: string): string => `'${words.replaceAll("'", "'\\''")}'`;
const asCurl = (job: Seen): string => `curl ${address("/v1/jobs")} -H "Authorization: Bearer $PENSTOCK_TOKEN" -d ${shell(asJson(job))}`;
const asCommand = (job: Seen): string => `penstock enqueue ${shell(job.type)} ${shell((job.payload as Raw | null)?.text ?? "null")} --queue ${shell(job.queue)}`;
const asPython = (job: Seen): string => `await queue.enqueue(${JSON.stringify(job.type)}, json.loads(${JSON.stringify((job.payload as Raw | null)?.text ?? "null")}), queue=${JSON.stringify(job.queue)}, priority=${job.priority})`;

