// What it all runs on: the database and who keeps it from cleaning up, whether wake-ups come through, and versions.
import type { JSX } from "preact";
import type { SystemAnswer } from "../api.ts";
import { said } from "../lib/json.ts";
import { useGet } from "../lib/query.ts";
import { text, useParams } from "../lib/router.tsx";
import { Icon } from "../ui/icons.tsx";
import { Card, ErrorState, Page, Skeleton } from "../ui/parts.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { Badge, Bytes, Duration, Num, Stat, Time } from "../ui/values.tsx";

type Part = { readonly name: string; readonly live: number; readonly dead: number; readonly bytes: number; readonly index_bytes: number; readonly vacuumed_at: string | null };
type Pin = { readonly kind: string; readonly name: string; readonly application: string; readonly username: string; readonly state: string; readonly seconds: number | null };
type Health = { readonly tables: readonly Part[]; readonly pins: readonly Pin[]; readonly read_per_job: number | null; readonly threats: readonly string[] };

const TABLES: readonly Column<Part>[] = [
  { id: "name", title: "Table", sort: (table) => table.name, cell: (table) => <code>{table.name}</code> },
  { id: "live", title: "Live rows", align: "end", sort: (table) => table.live, cell: (table) => <Num value={table.live} short /> },
  { id: "dead", title: "Dead rows", align: "end", sort: (table) => table.dead, cell: (table) => <Num value={table.dead} short /> },
  { id: "bytes", title: "Size", align: "end", sort: (table) => table.bytes, cell: (table) => <Bytes size={table.bytes} /> },
  { id: "index", title: "Indexes", align: "end", minor: true, sort: (table) => table.index_bytes, cell: (table) => <Bytes size={table.index_bytes} /> },
  { id: "vacuumed", title: "Vacuumed", minor: true, sort: (table) => table.vacuumed_at ?? "", cell: (table) => <Time at={table.vacuumed_at} /> },
];
const PINS: readonly Column<Pin>[] = [
  { id: "kind", title: "What", cell: (pin) => <Badge>{pin.kind}</Badge> },
  { id: "name", title: "Which", cell: (pin) => <code>{pin.name}</code> },
  { id: "who", title: "Whose", grows: true, cell: (pin) => <span class="clip">{[pin.application, pin.username, pin.state].filter(Boolean).join(" · ")}</span> },
  { id: "seconds", title: "Open for", align: "end", sort: (pin) => pin.seconds ?? 0, cell: (pin) => <Duration seconds={pin.seconds} /> },
];

function Database({ health }: { health: Health }): JSX.Element {
  const params = useParams({ sort: text("-bytes") });
  const sum = (of: (table: Part) => number): number => health.tables.reduce((total, table) => total + of(table), 0);
  return <>
    {health.threats.map((threat) => <div key={threat} class="notice tone-bad" role="alert"><Icon name="failures" /><div class="grow">{threat}</div></div>)}
    {health.threats.length === 0 && <div class="notice tone-good"><Icon name="check" /><div class="grow">Nothing endangers the database’s speed: no old snapshot is held, and dead rows are being removed.</div></div>}
    <div class="cards">
      <Stat label="Tables"><Bytes size={sum((table) => table.bytes)} /></Stat>
      <Stat label="Indexes"><Bytes size={sum((table) => table.index_bytes)} /></Stat>
      <Stat label="Dead rows" hint={`beside ${sum((table) => table.live).toLocaleString("en")} live ones`}><Num value={sum((table) => table.dead)} short /></Stat>
      <Stat label="Read per leased job" hint="near 1 is well; dead rows make it grow">{health.read_per_job === null ? "–" : health.read_per_job.toFixed(2)}</Stat>
    </div>
    <Card title="Tables" flush><Table label="Tables" rows={health.tables} id={(table) => table.name} columns={TABLES} sort={params.sort} onSort={(sort) => params.replace({ sort })} /></Card>
    <Card title="What holds old rows" flush>
      {health.pins.length === 0 ? <p class="card-note faint">No session, prepared transaction or replication slot does.</p>
        : <Table label="What holds old rows" rows={health.pins} id={(pin) => `${pin.kind} ${pin.name}`} columns={PINS} isKeyed={false} />}
    </Card>
  </>;
}

export function System(): JSX.Element {
  const system = useGet<SystemAnswer>("/v1/system", {}, { every: 10 });
  const data = system.data;
  return (
    <Page title="System">
      <ErrorState query={system} />
      {system.isFirst && <Skeleton />}
      {data && <>
        <Card>
          <dl class="facts">
            <dt>Penstock</dt><dd>{data.version} on Python {data.python}</dd>
            <dt>Store</dt><dd>{data.store}, whose clock says <Time at={data.at} style="absolute" /></dd>
            <dt>Wake-ups</dt><dd><span class="row tight">{data.wakeups.healthy ? <Badge tone="good" icon="check">they come through</Badge> : <Badge tone="warn" icon="failures">they do not</Badge>} {[data.wakeups.driver, said(data.wakeups.detail)].filter(Boolean).join(": ")}</span></dd>
          </dl>
        </Card>
        {data.database && <Database health={data.database as unknown as Health} />}
      </>}
    </Page>
  );
}
