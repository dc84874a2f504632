// Who changed what, newest first. What rules did by themselves is in the trail of each job, not here.
import type { JSX } from "preact";
import type { AuditAnswer, AuditedAnswer } from "../api.ts";
import { preview } from "../lib/json.ts";
import { useGet } from "../lib/query.ts";
import { Link, navigate, text, useParams } from "../lib/router.tsx";
import { name } from "../lib/http.ts";
import { Button, EmptyState, ErrorState, Page, Skeleton } from "../ui/parts.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { Badge, StatePill, Time } from "../ui/values.tsx";

const PLACES: { readonly [kind: string]: (name: string) => string } = {
  job: (id) => `/jobs/${id}`, queue: (queue) => `/queues/${name(queue)}`, schedule: (schedule) => `/schedules/${name(schedule)}`,
  bulk: () => "/bulk", token: () => "/tokens", order: () => "/workers",
};

function Subject({ line }: { line: AuditedAnswer }): JSX.Element {
  const to = PLACES[line.kind]?.(line.name);
  return <span class="row tight"><Badge>{line.kind}</Badge>{to ? <Link to={to}>{line.name}</Link> : line.name}</span>;
}

const COLUMNS: readonly Column<AuditedAnswer>[] = [
  { id: "at", title: "When", cell: (line) => <Time at={line.change.at} /> },
  { id: "actor", title: "Who", cell: (line) => <span class="strong">{line.change.actor}</span> },
  { id: "verb", title: "Did", cell: (line) => line.change.verb },
  { id: "subject", title: "To", cell: (line) => <Subject line={line} /> },
  { id: "status", title: "", minor: true, cell: (line) => line.change.status && <StatePill status={line.change.status} /> },
  { id: "why", title: "Why, and what", grows: true, cell: (line) => <span class="clip">{line.change.reason && <>“{line.change.reason}” </>}<code class="faint">{preview(line.change.detail, 120)}</code></span> },
];

export function Audit(): JSX.Element {
  const params = useParams({ before: text() });
  const audit = useGet<AuditAnswer>("/v1/audit", { before: params.before || null, limit: 100 }, params.before ? {} : { live: (event) => event.actor != null, every: 15 });
  const rows = audit.data?.changes ?? [];
  return (
    <Page title="Audit">
      <ErrorState query={audit} />
      {audit.isFirst ? <Skeleton /> : rows.length === 0 && audit.error === null ? (
        <EmptyState icon="audit" title="Nobody has changed anything yet">Pauses, settings, cancels, redrives and tokens are told here.</EmptyState>
      ) : <>
        <Table label="Audit" rows={rows} id={(line) => `${line.change.at} ${line.kind} ${line.name} ${line.change.verb}`} columns={COLUMNS} />
        <div class="pager">
          <Button icon="left" isDisabled={!params.before} onClick={() => navigate("/audit")}>Newest</Button>
          <Button icon="right" isDisabled={!audit.data?.next} onClick={() => params.set({ before: audit.data?.next ?? "" })}>Older</Button>
        </div>
      </>}
    </Page>
  );
}
