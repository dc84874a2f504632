// Jobs: a search, its states, its pages, and what can be done to all of it. The address is the state; the list, its count and
// an action on all that match share one predicate.
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { FilterBody, JobAnswer, JobsAnswer, QueuesAnswer, SchedulesAnswer, StatsAnswer, TypesAnswer } from "../api.ts";
import { preview } from "../lib/json.ts";
import { useKeys } from "../lib/keys.ts";
import { useGet } from "../lib/query.ts";
import { choice, Link, navigate, text, useParams } from "../lib/router.tsx";
import { may } from "../lib/session.ts";
import { CAUSES, complete, QUALIFIERS, read, suggestions } from "../lib/search.ts";
import { trail } from "../lib/trail.ts";
import { compact, count as counted, plural } from "../lib/words.ts";
import { Icon } from "../ui/icons.tsx";
import { Button, EmptyState, ErrorState, Menu, Page, Skeleton, Tabs } from "../ui/parts.tsx";
import { type Column, type Selection, Table, useSelection } from "../ui/table.tsx";
import { STATES, StatePill, Time } from "../ui/values.tsx";
import { save } from "./exporting.ts";
import { APPLIES, applying, toAll, toSome, type Verb } from "./many.tsx";

const LIMIT = 50;
const TABS = ["all", ...STATES] as const;

const COLUMNS: readonly Column<JobAnswer>[] = [
  { id: "type", title: "Type", cell: (job) => <Link to={`/jobs/${job.id}`} class="strong mono">{job.type}</Link> },
  { id: "status", title: "State", cell: (job) => <StatePill status={job.status} /> },
  { id: "queue", title: "Queue", cell: (job) => <Link to="/jobs" query={{ q: `queue:${job.queue}` }} class="quiet">{job.queue}</Link> },
  {
    id: "about", title: "Payload or error", minor: true, grows: true,
    cell: (job) => (job.error ? <span class="bad clip" title={job.error}>{job.error.trim().split("\n").at(-1)}</span> : <span class="mono faint clip">{preview(job.payload, 120)}</span>),
  },
  { id: "attempts", title: "Attempts", align: "end", minor: true, cell: (job) => <span class="num">{job.attempts}{job.max_attempts != null && <span class="faint"> / {job.max_attempts}</span>}</span> },
  { id: "worker", title: "Worker", minor: true, cell: (job) => job.worker ?? <span class="faint">–</span> },
  { id: "at", title: "Created", align: "end", cell: (job) => <Time at={job.created_at} /> },
];

/** Columns that this browser does not want to see. */
const hidden = signal<readonly string[]>((localStorage.getItem("penstock.columns") ?? "").split(",").filter(Boolean));
function toggle(id: string): void {
  hidden.value = hidden.value.includes(id) ? hidden.value.filter((one) => one !== id) : [...hidden.value, id];
  localStorage.setItem("penstock.columns", hidden.value.join(","));
}

export function Jobs(): JSX.Element {
  const params = useParams({ state: choice(TABS, "all"), q: text(), after: text() });
  const found = useMemo(() => read(params.q, Date.now()), [params.q]);
  const filter: FilterBody = params.state === "all" ? found.filter : { ...found.filter, status: [params.state] };
  const conditions = Object.keys(found.filter);
  // The counters that the queues keep cover states and queues; anything narrower is counted, up to a limit.
  const isCounted = conditions.every((one) => one === "queue");
  const live = (event: { kind: string; queue?: string | null; type?: string | null }): boolean =>
    event.kind === "job" && (!found.filter.queue || event.queue === found.filter.queue) && (!found.filter.type || event.type === found.filter.type);
  const jobs = useGet<JobsAnswer>(found.errors.length ? null : "/v1/jobs", { ...filter, after: params.after, limit: LIMIT, count: !isCounted || undefined }, { live, every: 10 });
  const stats = useGet<StatsAnswer>("/v1/stats", {}, { live: (event) => event.kind === "job", every: 10 });
  const chosen = useSelection();
  const rows = jobs.data?.jobs ?? [];
  useLayoutEffect(() => { // with what is seen, not after: a job opened at once must know its neighbours
    if (jobs.data) trail.value = { ids: jobs.data.jobs.map((job) => job.id), query: { state: params.state === "all" ? "" : params.state, q: params.q, after: params.after } };
  }, [jobs.data]);

  const inQueue = found.filter.queue;
  const counts = inQueue ? (stats.data?.queues.find((queue) => queue.name === inQueue)?.counts ?? {}) : (stats.data?.counts ?? {});
  const tally = (tab: (typeof TABS)[number]): string | undefined => {
    if (stats.data === undefined) return undefined;
    if (isCounted) return compact(tab === "all" ? Object.values(counts).reduce((sum, one) => sum + one, 0) : (counts[tab] ?? 0));
    return tab === params.state && jobs.data?.count != null ? counted(jobs.data.count, jobs.data.count_is_exact) : undefined;
  };
  const choose = (state: (typeof TABS)[number]): void => (chosen.clear(), params.set({ state, after: "" }));
  const look = (q: string): void => {
    const id = read(q, Date.now()).id;
    if (id !== undefined) return navigate(`/jobs/${id}`);
    chosen.clear();
    params.set({ q: q.trim(), after: "" });
  };

  return (
    <Page title="Jobs" actions={<>
      <Menu label="Columns" icon="insights" items={COLUMNS.slice(2).map((column) => ({ label: String(column.title), isChosen: !hidden.value.includes(column.id), isToggle: true, run: () => toggle(column.id) }))}>Columns</Menu>
      <Menu label="Export" items={(["JSON", "CSV"] as const).map((kind) => ({ label: `This page as ${kind}`, run: () => save(kind, rows) }))}>Export</Menu>
    </>}>
      <SearchBox q={params.q} onSearch={look} />
      {found.errors.map((error) => <p key={error} class="notice tone-warn" role="alert"><Icon name="failures" />{error}</p>)}
      <Tabs label="State" tabs={TABS.map((tab) => ({ id: tab, label: tab, count: tally(tab) }))} chosen={params.state} onChoose={choose} />
      <Chosen selection={chosen} rows={rows} filter={filter} hasMore={jobs.data?.next != null || params.after !== ""} />
      <ErrorState query={jobs} />
      {jobs.isFirst ? <Skeleton lines={10} /> : rows.length === 0 ? (jobs.error === null && <Nothing isFiltered={conditions.length > 0 || params.state !== "all"} onClear={() => navigate("/jobs")} />) : (
        <Table label="Jobs" rows={rows} id={(job) => job.id} name={(job) => `${job.type} ${job.id}`} columns={COLUMNS.filter((column) => !hidden.value.includes(column.id))} selection={chosen} />
      )}
      <nav class="pager" aria-label="Pages">
        <Button size="small" icon="left" isDisabled={params.after === ""} onClick={() => params.set({ after: "" })}>Newest</Button>
        <Button size="small" isDisabled={jobs.data?.next == null} onClick={() => (chosen.clear(), params.set({ after: jobs.data?.next ?? "" }))}>Older<Icon name="right" size={14} /></Button>
      </nav>
    </Page>
  );
}

function Nothing({ isFiltered, onClear }: { isFiltered: boolean; onClear: () => void }): JSX.Element {
  return isFiltered ? (
    <div class="empty"><Icon name="search" size={24} /><p class="empty-title">No job matches</p><Button onClick={onClear}>Show all jobs</Button></div>
  ) : <EmptyState title="There are no jobs yet" command={`penstock enqueue hello '{"name": "Ada"}'`}>Enqueue one, and it is here at once.</EmptyState>;
}

// ── Searching ───────────────────────────────────────────────────────────────────────────────────────

function SearchBox({ q, onSearch }: { q: string; onSearch: (q: string) => void }): JSX.Element {
  const [typed, setTyped] = useState<string | null>(null);
  const [at, setAt] = useState(-1);
  const input = useRef<HTMLInputElement>(null);
  const isOpen = typed !== null;
  const queues = useGet<QueuesAnswer>(isOpen ? "/v1/queues" : null);
  const schedules = useGet<SchedulesAnswer>(isOpen ? "/v1/schedules" : null);
  const known = useGet<TypesAnswer>(isOpen ? "/v1/types" : null);
  const inQueue = read(typed ?? "", 0).filter.queue;
  const types = (known.data?.types ?? []).filter((one) => !inQueue || one.queues.includes(inQueue)).map((one) => one.type);
  const ago = ["15m", "1h", "24h", "7d"];
  const offered = !isOpen ? [] : suggestions(typed, {
    queue: queues.data?.queues.map((queue) => queue.name) ?? [], schedule: schedules.data?.schedules.map((one) => one.name) ?? [],
    type: types, cause: CAUSES, since: ago, before: ago,
  });
  useKeys([["/", "Search jobs", () => input.current?.focus()]]);
  const take = (suggestion: string): void => (setTyped(complete(typed ?? "", suggestion)), setAt(-1), input.current?.focus());
  const send = (): void => {
    onSearch(typed ?? q);
    setTyped(null);
    input.current?.blur();
  };
  const key = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setAt((at + (event.key === "ArrowDown" ? 1 : -1) + offered.length + 1) % (offered.length + 1) || (event.key === "ArrowDown" ? 0 : -1));
    } else if (event.key === "Tab" && offered.length > 0 && typed) (event.preventDefault(), take(offered[Math.max(at, 0)] ?? ""));
    else if (event.key === "Enter") (event.preventDefault(), offered[at] ? take(offered[at]) : send());
    else if (event.key === "Escape") (setTyped(null), input.current?.blur());
  };
  return (
    <div class="search">
      <Icon name="search" />
      <input ref={input} class="search-input mono" type="text" role="combobox" aria-label="Search jobs" aria-expanded={offered.length > 0} aria-controls="search-offers" aria-autocomplete="list"
        spellcheck={false} autoComplete="off" placeholder="queue:emails  type:send  since:2h  or a job's id" value={typed ?? q}
        onFocus={() => setTyped(q && `${q} `)} onBlur={() => setTimeout(() => setTyped(null), 150)} onInput={(event) => (setTyped(event.currentTarget.value), setAt(-1))} onKeyDown={key} />
      {q && !isOpen && <button type="button" class="button quiet icon-only" aria-label="Clear the search" onClick={() => onSearch("")}><Icon name="cross" size={14} /></button>}
      <div id="search-offers" class="offers" role="listbox" aria-label="Suggestions" hidden={offered.length === 0}>
        {offered.map((one, n) => (
          <div key={one} role="option" aria-selected={n === at} class="offer" onMouseDown={(event) => (event.preventDefault(), take(one))}>
            <code>{one}</code><span class="faint">{QUALIFIERS.find(([name]) => `${name}:` === one)?.[1]}</span>
          </div>
        ))}
      </div>
    </div>
  );
}

// ── Acting on many ──────────────────────────────────────────────────────────────────────────────────

/** What is selected, and what can be done to it: to the rows chosen, or to all that match. */
function Chosen({ selection, rows, filter, hasMore }: { selection: Selection; rows: readonly JobAnswer[]; filter: FilterBody; hasMore: boolean }): JSX.Element | null {
  const ids = rows.filter((job) => selection.ids.value.has(job.id));
  const isAll = selection.isAll.value;
  const canCancel = isAll ? applying("cancel", filter).length > 0 : ids.some((job) => APPLIES.cancel.includes(job.status));
  const canRedrive = isAll ? applying("redrive", filter).length > 0 : ids.some((job) => APPLIES.redrive.includes(job.status));
  const run = (verb: Verb): Promise<void> => (isAll ? toAll(verb, filter, selection.clear) : toSome(verb, ids, selection.clear));
  useKeys(ids.length === 0 || !may("operate") ? [] : [
    ["r", "Redrive what is selected", () => canRedrive && void run("redrive")],
    ["c", "Cancel what is selected", () => canCancel && void run("cancel")],
  ]);
  if (ids.length === 0) return null;
  return (
    <div class="chosen-bar" role="status">
      <span class="grow">
        {isAll ? <strong>All jobs that match are selected</strong> : <strong>{plural(ids.length, "job")} selected</strong>}
        {!isAll && hasMore && ids.length === rows.length && <button type="button" class="text-button" onClick={() => (selection.isAll.value = true)}>Select all that match</button>}
      </span>
      <Button size="small" icon="redrive" needs="operate" isDisabled={!canRedrive} title="Bring dead, held and cancelled jobs back" onClick={() => run("redrive")}>Redrive</Button>
      <Button size="small" icon="ban" kind="danger" needs="operate" isDisabled={!canCancel} title="Cancel jobs that have not ended" onClick={() => run("cancel")}>Cancel</Button>
      <Button size="small" kind="quiet" onClick={selection.clear}>Clear</Button>
    </div>
  );
}
