// Schedules: what they say in words, when they fire next, how their last jobs ended. Run now, pause, edit, make.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { CronAnswer, EnqueuedAnswer, JobsAnswer, ScheduleAnswer, SchedulesAnswer } from "../api.ts";
import { api, Failure, name } from "../lib/http.ts";
import { act, hold, invalidate, useGet } from "../lib/query.ts";
import { Link, navigate, text, useParams } from "../lib/router.tsx";
import { toast } from "../lib/toasts.ts";
import { confirm } from "../ui/confirm.tsx";
import { Json } from "../ui/json.tsx";
import { Button, Card, Dialog, EmptyState, ErrorState, Field, Menu, type MenuItem, Page, Skeleton } from "../ui/parts.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { Badge, StatePill, Time } from "../ui/values.tsx";

const CHANGED = ["/v1/schedules", "/v1/jobs"];
const at = (schedule: string): string => `/v1/schedules/${name(schedule)}`;

async function run(schedule: ScheduleAnswer): Promise<void> {
  const made = await act(() => api.post<EnqueuedAnswer>(`${at(schedule.name)}/run`), "Its job was enqueued", CHANGED);
  if (made) toast(`Job ${made.id.slice(0, 8)}… is on its way`, "plain", { label: "Look at it", run: () => navigate(`/jobs/${made.id}`) });
}

async function setPaused(schedule: ScheduleAnswer, isPaused: boolean): Promise<void> {
  await act(() => api.post(`${at(schedule.name)}/${isPaused ? "pause" : "resume"}`), `${schedule.name} ${isPaused ? "fires no more" : "fires again"}`, CHANGED);
}

async function drop(schedule: ScheduleAnswer): Promise<void> {
  const answer = await confirm({
    title: `Drop ${schedule.name}`, action: "Drop it", isDanger: true, typed: schedule.name,
    what: <p>It fires no more, and its jobs stay.{schedule.declared_by && <> It is declared in the code of <strong>{schedule.declared_by}</strong>, which makes it again when it next starts.</>}</p>,
  });
  if (answer === null) return;
  hold(at(schedule.name));
  const isGone = await act(async () => { await api.delete(at(schedule.name)); return true; }, `${schedule.name} was dropped`, []);
  if (isGone) navigate("/schedules");
  else hold(at(schedule.name), false);
  setTimeout(() => invalidate(CHANGED));
}

/** The form for a new schedule, or for one that is there. */
function Edit({ schedule, onClose }: { schedule: ScheduleAnswer | null; onClose: () => void }): JSX.Element {
  const [title, setTitle] = useState(schedule?.name ?? "");
  const [cron, setCron] = useState(schedule?.cron ?? "0 9 * * 1-5");
  const [tz, setTz] = useState(schedule?.tz ?? Intl.DateTimeFormat().resolvedOptions().timeZone);
  const [type, setType] = useState(schedule?.type ?? "");
  const [queue, setQueue] = useState(schedule?.queue ?? "default");
  const [payload, setPayload] = useState(schedule?.payload.text ?? "{}");
  const [missed, setMissed] = useState<string>(schedule?.missed ?? "one");
  const [error, setError] = useState<string | null>(null);
  const meaning = useGet<CronAnswer>(cron.trim() ? "/v1/cron" : null, { cron: cron.trim(), tz });
  const save = async (): Promise<void> => {
    try {
      // The payload goes as it was typed, so that its numbers stay what they are.
      const body = `{"cron":${JSON.stringify(cron.trim())},"tz":${JSON.stringify(tz)},"missed":${JSON.stringify(missed)},"paused":${schedule?.paused ?? false},"job":{"type":${JSON.stringify(type)},"queue":${JSON.stringify(queue)},"payload":${payload.trim() || "null"}}}`;
      await api.put(at(title), body);
      toast(`${title} was saved`, "good");
      invalidate(CHANGED);
      onClose();
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      setError(failure.detail);
    }
  };
  return (
    <Dialog title={schedule ? `Edit ${schedule.name}` : "New schedule"} onClose={onClose} wide footer={<>
      <Button onClick={onClose}>Leave it</Button>
      <Button kind="primary" isDisabled={!title || !type} onClick={save}>Save</Button>
    </>}>
      {schedule?.declared_by && <div class="notice tone-warn">It is declared in the code of {schedule.declared_by}. What you change here stays until that declaration changes.</div>}
      {!schedule && <Field label="Name">{(id) => <input id={id} class="input" value={title} placeholder="nightly-report" onInput={(event) => setTitle(event.currentTarget.value)} />}</Field>}
      <div class="columns">
        <Field label="Cron" error={meaning.error?.detail ?? null} hint={meaning.data && <>{meaning.data.words}{meaning.data.next[0] && <>; next <Time at={meaning.data.next[0]} style="absolute" /></>}</>}>{(id) => <input id={id} class="input mono" value={cron} onInput={(event) => setCron(event.currentTarget.value)} />}</Field>
        <Field label="Time zone">{(id) => <input id={id} class="input" value={tz} onInput={(event) => setTz(event.currentTarget.value)} />}</Field>
      </div>
      <div class="columns">
        <Field label="Job type">{(id) => <input id={id} class="input" value={type} placeholder="report.daily" onInput={(event) => setType(event.currentTarget.value)} />}</Field>
        <Field label="Queue">{(id) => <input id={id} class="input" value={queue} onInput={(event) => setQueue(event.currentTarget.value)} />}</Field>
      </div>
      <Field label="Payload" hint="JSON">{(id) => <textarea id={id} class="input mono" rows={3} value={payload} onInput={(event) => setPayload(event.currentTarget.value)} />}</Field>
      <Field label="Fire times that were missed">{(id) => (
        <select id={id} class="select" value={missed} onChange={(event) => setMissed(event.currentTarget.value)}>
          <option value="one">are made up for once</option><option value="all">are all made up for</option><option value="skip">are left out</option>
        </select>
      )}</Field>
      {error && <p class="field-error" role="alert">{error}</p>}
    </Dialog>
  );
}

/** How its last jobs ended, the latest on the right. */
function Outcomes({ schedule }: { schedule: string }): JSX.Element {
  const jobs = useGet<JobsAnswer>("/v1/jobs", { schedule, limit: 12 }, { live: (event) => event.kind === "job", every: 30 });
  const all = jobs.data?.jobs ?? [];
  if (jobs.data && all.length === 0) return <span class="faint">has not fired yet</span>;
  return (
    <span class="outcomes">
      {[...all].reverse().map((job) => <Link key={job.id} to={`/jobs/${job.id}`} class={`outcome tone-fill-${job.status}`} title={`${job.status}, ${job.created_at}`}><span class="offscreen">{job.status}</span></Link>)}
    </span>
  );
}

const actions = (schedule: ScheduleAnswer, edit: (schedule: ScheduleAnswer) => void): readonly MenuItem[] => [
  { label: "Run now", icon: "play", needs: "operate", run: () => void run(schedule) },
  schedule.paused ? { label: "Resume", icon: "play", needs: "operate", run: () => void setPaused(schedule, false) } : { label: "Pause", icon: "pause", needs: "operate", run: () => void setPaused(schedule, true) },
  { label: "Edit", icon: "schedules", needs: "operate", run: () => edit(schedule) },
  { label: "Drop", icon: "ban", needs: "operate", isDanger: true, run: () => void drop(schedule) },
];

const LIVE = (event: { readonly kind: string }): boolean => event.kind === "schedule";

export function Schedules(): JSX.Element {
  const params = useParams({ sort: text("name") });
  const schedules = useGet<SchedulesAnswer>("/v1/schedules", {}, { live: LIVE, every: 15 });
  const [edited, setEdited] = useState<ScheduleAnswer | "new" | null>(null);
  const rows = schedules.data?.schedules ?? [];
  const columns: readonly Column<ScheduleAnswer>[] = [
    {
      id: "name", title: "Schedule", sort: (schedule) => schedule.name, cell: (schedule) => <>
        <span class="row tight"><Link to={`/schedules/${name(schedule.name)}`} class="strong">{schedule.name}</Link>{schedule.paused && <Badge tone="warn" icon="pause">paused</Badge>}</span>
        <span class="clip faint">{schedule.type}</span></>,
    },
    { id: "words", title: "Fires", grows: true, cell: (schedule) => <><span class="clip" title={schedule.words}>{schedule.words}</span><span class="clip faint"><code>{schedule.cron}</code> {schedule.tz}</span></> },
    { id: "next", title: "Next", sort: (schedule) => schedule.next_fire_at ?? "9", cell: (schedule) => schedule.paused ? <span class="faint">–</span> : <Time at={schedule.next_fire_at} /> },
    { id: "last", title: "Last", minor: true, sort: (schedule) => schedule.last_fire_at ?? "", cell: (schedule) => <Time at={schedule.last_fire_at} /> },
    { id: "outcomes", title: "Its last jobs", minor: true, cell: (schedule) => <Outcomes schedule={schedule.name} /> },
    { id: "queue", title: "Queue", minor: true, sort: (schedule) => schedule.queue, cell: (schedule) => <Link to={`/queues/${name(schedule.queue)}`}>{schedule.queue}</Link> },
    { id: "actions", title: "", align: "end", cell: (schedule) => <Menu label={`What to do with ${schedule.name}`} items={actions(schedule, setEdited)} /> },
  ];
  return (
    <Page title="Schedules" count={schedules.data && rows.length} actions={<Button kind="primary" icon="plus" needs="operate" onClick={() => setEdited("new")}>New schedule</Button>}>
      <ErrorState query={schedules} />
      {schedules.isFirst ? <Skeleton /> : rows.length === 0 && schedules.error === null ? (
        <EmptyState icon="schedules" title="There is no schedule yet" command='penstock schedules put nightly "0 3 * * *" report.daily'>Declare them in code with app.cron, or make one here.</EmptyState>
      ) : <Table label="Schedules" rows={rows} id={(schedule) => schedule.name} columns={columns} sort={params.sort} onSort={(sort) => params.replace({ sort })} />}
      {edited && <Edit schedule={edited === "new" ? null : edited} onClose={() => setEdited(null)} />}
    </Page>
  );
}

export function Schedule({ name: which = "" }: { readonly [part: string]: string }): JSX.Element {
  const schedule = useGet<ScheduleAnswer>(at(which), {}, { live: LIVE, every: 15 });
  const jobs = useGet<JobsAnswer>("/v1/jobs", { schedule: which, limit: 20 }, { live: (event) => event.kind === "job", every: 15 });
  const [isEdited, setEdited] = useState(false);
  const one = schedule.data;
  return (
    <Page title={<span class="row tight">{which}{one?.paused && <Badge tone="warn" icon="pause">paused</Badge>}</span>} actions={one && <>
      <Button icon="play" needs="operate" onClick={() => run(one)}>Run now</Button>
      <Button icon={one.paused ? "play" : "pause"} needs="operate" onClick={() => setPaused(one, !one.paused)}>{one.paused ? "Resume" : "Pause"}</Button>
      <Button needs="operate" onClick={() => setEdited(true)}>Edit</Button>
      <Menu label="More" items={[{ label: "Drop", icon: "ban", needs: "operate", isDanger: true, run: () => void drop(one) }]} />
    </>}>
      <ErrorState query={schedule} />
      {schedule.isFirst && <Skeleton />}
      {one && <>
        <div class="columns wide-first">
          <Card title={one.words}>
            <dl class="facts">
              <dt>Cron</dt><dd><code>{one.cron}</code> in {one.tz}</dd>
              <dt>Job</dt><dd>{one.type} in <Link to={`/queues/${name(one.queue)}`}>{one.queue}</Link></dd>
              <dt>Missed fires</dt><dd>{{ one: "made up for once", all: "all made up for", skip: "left out" }[one.missed as string] ?? one.missed}</dd>
              <dt>Last fired</dt><dd><Time at={one.last_fire_at} /></dd>
              <dt>Declared by</dt><dd>{one.declared_by ?? <span class="faint">no program; it was made by hand</span>}</dd>
            </dl>
            <Json value={one.payload} label="payload" />
          </Card>
          <Card title="Next fire times">
            {one.next.length === 0 ? <p class="faint">None{one.paused && " while it is paused"}.</p> : <ol class="plain-list">{one.next.map((fire) => <li key={fire} class="row"><Time at={fire} style="absolute" /><span class="faint"><Time at={fire} /></span></li>)}</ol>}
          </Card>
        </div>
        <Card title="Its last jobs" flush actions={<Link to="/jobs" query={{ q: `schedule:${which}` }}>All of them</Link>}>
          {jobs.data && jobs.data.jobs.length === 0 ? <p class="card-note faint">It has not fired yet.</p> : (
            <Table label="Its last jobs" rows={jobs.data?.jobs ?? []} id={(job) => job.id} columns={[
              { id: "id", title: "Job", cell: (job) => <Link to={`/jobs/${job.id}`}><code>{job.id}</code></Link> },
              { id: "status", title: "State", cell: (job) => <StatePill status={job.status} /> },
              { id: "created", title: "Made", cell: (job) => <Time at={job.created_at} /> },
              { id: "attempts", title: "Attempts", align: "end", cell: (job) => job.attempts },
              { id: "error", title: "", grows: true, cell: (job) => <span class="clip bad">{job.error?.split("\n")[0]}</span> },
            ]} />
          )}
        </Card>
      </>}
      {isEdited && one && <Edit schedule={one} onClose={() => setEdited(false)} />}
    </Page>
  );
}
