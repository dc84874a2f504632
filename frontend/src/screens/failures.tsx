// Failures by what they have in common: how often, since when, where, and all of their jobs back with one click.
import type { JSX } from "preact";
import type { FailureAnswer, FailuresAnswer, InsightAnswer, InsightOffers } from "../api.ts";
import { name } from "../lib/http.ts";
import { useGet } from "../lib/query.ts";
import { choice, flag, Link, text, useParams } from "../lib/router.tsx";
import { quoted } from "../lib/search.ts";
import { calm, number, plural } from "../lib/words.ts";
import { Chart } from "../ui/chart.tsx";
import { Icon } from "../ui/icons.tsx";
import { Trace } from "../ui/json.tsx";
import { Button, Card, EmptyState, ErrorState, Page, Skeleton, Tabs } from "../ui/parts.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { Badge, Num, Sparkline, Stat, Time } from "../ui/values.tsx";
import type { ScreenProps } from "../screens.ts";
import { Redriving, redrive } from "./redriving.tsx";

type Told = { readonly fingerprint: string; readonly error_type: string; readonly top_frame: string; readonly text: string; readonly first_seen: string; readonly last_seen: string; readonly count: number; readonly count_24h: number; readonly is_new: boolean; readonly queues: readonly string[]; readonly types: readonly string[]; readonly sample_jobs: readonly string[] };

export const titled = (group: { readonly error_type: string; readonly text: string }): string => group.error_type || group.text.slice(0, 80) || "An error without words";
/** What the error said, without what the title says already. */
const saying = (group: { readonly error_type: string; readonly text: string }): string => {
  const rest = group.error_type ? group.text.replace(`${group.error_type}: `, "") : group.text.length > 80 ? group.text : "";
  return rest === titled(group) ? "" : rest;
};
const Badges = ({ one }: { one: { readonly is_new: boolean; readonly is_rising?: boolean } }): JSX.Element => <>{one.is_rising && <Badge tone="bad" icon="up" title="Seen far more often in the last hour than in the day before">rising</Badge>}{one.is_new && <Badge tone="warn" title="First seen within the last day">new</Badge>}</>;
const Trend = ({ one }: { one: FailureAnswer }): JSX.Element => <Sparkline values={one.by_hour} tone="bad" label={`by hour over the last day, ${number(one.last_hour)} in the last one`} width={112} />;

/** A failure in two lines, for lists of few. */
export function FailureLine({ one }: { one: FailureAnswer }): JSX.Element {
  const { group } = one;
  return (
    <li class="need">
      <div class="grow">
        <p class="row tight"><Link to={`/failures/${name(group.fingerprint)}`} class="strong clip">{titled(group)}</Link><Badges one={one} /></p>
        <p class="need-detail clip" title={group.text}>{saying(group)}</p>
        <p class="faint">{plural(one.last_day, "time")} today, last <Time at={group.last_seen} /></p>
      </div>
      <Button size="small" icon="redrive" needs="operate" title="Bring its dead and held jobs back" onClick={() => redrive(group.fingerprint, titled(group))}>Redrive</Button>
    </li>
  );
}

function What({ group, to, children }: { group: { readonly error_type: string; readonly text: string; readonly top_frame: string }; to: string; children?: JSX.Element }): JSX.Element {
  return (
    <div class="two-lines">
      <span class="row tight"><Link to={to.split("?")[0] as string} {...(to.includes("?") ? { query: { lake: "1" } } : {})} class="strong">{titled(group)}</Link>{children}</span>
      <span class="clip faint" title={`${group.text}\n${group.top_frame}`}>{saying(group) || group.top_frame}</span>
    </div>
  );
}

const COLUMNS: readonly Column<FailureAnswer>[] = [
  { id: "what", title: "Failure", grows: true, sort: (one) => titled(one.group), cell: (one) => <What group={one.group} to={`/failures/${name(one.group.fingerprint)}`}><Badges one={one} /></What> },
  { id: "trend", title: "Last 24 hours", minor: true, cell: (one) => <Trend one={one} /> },
  { id: "hour", title: "Hour", align: "end", minor: true, sort: (one) => one.last_hour, cell: (one) => <Num value={one.last_hour} short /> },
  { id: "day", title: "Day", align: "end", sort: (one) => one.last_day, cell: (one) => <Num value={one.last_day} short /> },
  { id: "dead", title: "Left dead", align: "end", minor: true, sort: (one) => one.group.dead ?? 0, cell: (one) => <Num value={one.group.dead ?? 0} short /> },
  { id: "where", title: "Queues and types", minor: true, cell: (one) => <div class="two-lines narrow"><span class="clip" title={one.group.queues?.join(", ")}>{one.group.queues?.join(", ")}</span><span class="clip faint mono" title={one.group.types?.join(", ")}>{one.group.types?.join(", ")}</span></div> },
  { id: "first", title: "First seen", align: "end", minor: true, sort: (one) => one.group.first_seen, cell: (one) => <Time at={one.group.first_seen} /> },
  { id: "last", title: "Last seen", align: "end", minor: true, sort: (one) => one.group.last_seen, cell: (one) => <Time at={one.group.last_seen} /> },
  { id: "act", title: <span class="unseen">Action</span>, align: "end", cell: (one) => <Button size="small" icon="redrive" needs="operate" title="Bring its dead and held jobs back" onClick={() => redrive(one.group.fingerprint, titled(one.group))}>Redrive</Button> },
];

const KINDS = ["all", "rising", "new"] as const;

export function Failures(): JSX.Element {
  const params = useParams({ kind: choice(KINDS, "all"), queue: text(), type: text(), sort: text("-day") });
  const failures = useGet<FailuresAnswer>("/v1/failures", { queue: params.queue, type: params.type, limit: 200 }, { every: 10, live: (event) => event.kind === "job" && event.error != null });
  const all = failures.data?.failures ?? [];
  const of = (kind: (typeof KINDS)[number]): readonly FailureAnswer[] => all.filter((one) => kind === "all" || (kind === "new" ? one.is_new : one.is_rising));
  const rows = of(params.kind);
  return (
    <Page title="Failures" count={failures.data && all.length}>
      <Tabs label="Kind" tabs={KINDS.map((kind) => ({ id: kind, label: kind, count: failures.data ? of(kind).length : null }))} chosen={params.kind} onChoose={(kind) => params.set({ kind })} />
      {(params.queue || params.type) && <p class="notice"><Icon name="search" size={14} /><span class="grow">Only {params.queue && <>in queue <strong>{params.queue}</strong></>} {params.type && <>of type <strong>{params.type}</strong></>}</span><Button size="small" onClick={() => params.set({ queue: "", type: "" })}>Show all</Button></p>}
      <ErrorState query={failures} />
      {failures.isFirst ? <Skeleton lines={8} /> : rows.length === 0 ? (failures.error === null && (all.length > 0
        ? <EmptyState icon="check" title={`No failure is ${params.kind}`}>{params.kind === "rising" ? "None is seen far more often than in the day before." : "All of them were seen before today."}</EmptyState>
        : <EmptyState icon="check" title={failures.data ? calm(failures.data.at, failures.data.counted_since) : ""} command="penstock insights failures">Jobs that fail are grouped here by what their errors have in common.</EmptyState>)) : (
        <Table label="Failures" rows={rows} id={(one) => one.group.fingerprint} columns={COLUMNS} sort={params.sort} onSort={(sort) => params.replace({ sort })} />
      )}
      <Older known={new Set(all.map((one) => one.group.fingerprint))} isShown={params.kind === "all" && failures.data !== undefined} />
      <Redriving />
    </Page>
  );
}

/** What the lake has kept of failures, if it has published any. */
function useTold(isWanted: boolean): { readonly rows: readonly Told[]; readonly asOf: string | null; readonly isFirst: boolean } {
  const offers = useGet<InsightOffers>(isWanted ? "/v1/insights" : null);
  const has = offers.data?.insights.some((one) => one.name === "failures" && one.rows > 0) ?? false;
  const told = useGet<InsightAnswer>(has ? "/v1/insights/failures" : null, { limit: 200 });
  return { rows: (told.data?.rows ?? []) as unknown as readonly Told[], asOf: told.data?.as_of ?? null, isFirst: offers.isFirst || told.isFirst };
}

const OLDER: readonly Column<Told>[] = [
  { id: "what", title: "Failure", grows: true, cell: (one) => <What group={one} to={`/failures/${name(one.fingerprint)}?lake`} /> },
  { id: "count", title: "Times", align: "end", cell: (one) => <Num value={one.count} short /> },
  { id: "queues", title: "Queues", minor: true, cell: (one) => one.queues.join(", ") },
  { id: "last", title: "Last seen", align: "end", cell: (one) => <Time at={one.last_seen} /> },
];

function Older({ known, isShown }: { known: ReadonlySet<string>; isShown: boolean }): JSX.Element | null {
  const told = useTold(isShown);
  const rows = told.rows.filter((one) => !known.has(one.fingerprint));
  if (!isShown || rows.length === 0) return null;
  return (
    <Card flush title="Older, from the lake" actions={<span class="faint">as of <Time at={told.asOf} /></span>}>
      <Table label="Older failures" rows={rows} id={(one) => one.fingerprint} columns={OLDER} isKeyed={false} />
    </Card>
  );
}

// ── One failure ─────────────────────────────────────────────────────────────────────────────────────

export function FailureGroup({ fingerprint = "" }: ScreenProps): JSX.Element {
  const params = useParams({ lake: flag() });
  const failure = useGet<FailureAnswer>(params.lake ? null : `/v1/failures/${name(fingerprint)}`, {}, { every: 10, live: (event) => event.kind === "job" && event.error != null });
  const told = useTold(params.lake);
  const old = told.rows.find((one) => one.fingerprint === fingerprint);
  const group = failure.data?.group ?? old;
  const title = group ? titled(group) : "Failure";
  return (
    <Page title={<span class="row">{title}{failure.data && <Badges one={failure.data} />}</span>} actions={group && <>
      <Link to="/jobs" query={{ state: "dead", q: matching(group) }} class="button">Jobs like these</Link>
      <Button kind="primary" icon="redrive" needs="operate" onClick={() => redrive(fingerprint, title)}>Redrive</Button>
    </>}>
      <p class="crumbs"><Link to="/failures" class="text-link">Failures</Link> <span class="faint mono">{fingerprint}</span></p>
      {failure.error?.status === 404 ? <EmptyState icon="failures" title="This failure is not known any more" command="penstock insights failures">Failures are kept for a week after they were last seen.</EmptyState> : <ErrorState query={failure} />}
      {(params.lake ? told.isFirst : failure.isFirst) && <Skeleton />}
      {group && <Grouped group={group} one={failure.data} />}
      <Redriving />
    </Page>
  );
}

/** Where its jobs are: what can be said of it as a search. */
const matching = (group: { readonly queues?: readonly string[]; readonly types?: readonly string[] }): string =>
  [group.queues?.length === 1 ? `queue:${quoted(group.queues[0] as string)}` : "", group.types?.length === 1 ? `type:${quoted(group.types[0] as string)}` : ""].filter(Boolean).join(" ");

function Grouped({ group, one }: { group: Told | FailureAnswer["group"]; one: FailureAnswer | undefined }): JSX.Element {
  const sample = "sample_error" in group ? group.sample_error : undefined;
  return (
    <>
      {saying(group) && <p class="lead">{saying(group)}</p>}
      <div class="cards six">
        {one && <Stat label="Last hour" tone={one.is_rising ? "bad" : "plain"}>{number(one.last_hour)}</Stat>}
        <Stat label="Last day">{number(one ? one.last_day : (group as Told).count_24h)}</Stat>
        <Stat label="In all" hint={one ? "within the last week" : "within 90 days"}>{number(group.count ?? 0)}</Stat>
        {"dead" in group && <Stat label="Left dead or held" tone={group.dead ? "warn" : "plain"} hint="jobs it ended">{number(group.dead ?? 0)}</Stat>}
        <Stat label="First seen"><Time at={group.first_seen} /></Stat>
        <Stat label="Last seen"><Time at={group.last_seen} /></Stat>
      </div>
      <div class="board">
        {one && <ByHour one={one} />}
        <Card title="Where">
          <dl class="facts">
            <dt>Queues</dt><dd class="row">{group.queues?.map((queue) => <Link key={queue} to={`/queues/${name(queue)}`} class="text-link">{queue}</Link>)}</dd>
            <dt>Types</dt><dd class="row">{group.types?.map((type) => <Link key={type} to="/jobs" query={{ q: `type:${quoted(type)}` }} class="text-link mono">{type}</Link>)}</dd>
            {group.top_frame && <><dt>At</dt><dd class="mono">{group.top_frame}</dd></>}
            <dt>Lately in</dt><dd class="stack tight">{group.sample_jobs?.map((id) => <Link key={id} to={`/jobs/${id}`} class="text-link mono">{id}</Link>)}</dd>
          </dl>
        </Card>
      </div>
      {sample && <Card title="A sample"><Trace text={sample} /></Card>}
    </>
  );
}

const HOUR = 3600;

function ByHour({ one }: { one: FailureAnswer }): JSX.Element {
  const hours = Object.keys(one.group.hours ?? {}).sort();
  const last = Math.floor(Date.parse(one.group.last_seen) / 1000 / HOUR) * HOUR;
  const end = Math.max(last, Math.floor(Date.now() / 1000 / HOUR) * HOUR);
  const times = Array.from({ length: 48 }, (_, n) => end - (47 - n) * HOUR);
  const values = times.map((at) => one.group.hours?.[new Date(at * 1000).toISOString().slice(0, 13)] ?? 0);
  return <Card title="By hour, over two days">{hours.length === 0 ? <p class="faint">Not seen within two days.</p> : <Chart label="Failures by hour" times={times} series={[{ label: "failures", values, tone: "bad", fills: true }]} height={180} />}</Card>;
}
