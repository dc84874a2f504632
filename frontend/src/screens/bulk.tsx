// Operations on many jobs: what they cover in words, how far they have come, and a way to end them.
import type { JSX } from "preact";
import type { BulkOperation, BulksAnswer, Filter, FilterBody } from "../api.ts";
import { api } from "../lib/http.ts";
import { zone } from "../lib/prefs.ts";
import { act, useGet } from "../lib/query.ts";
import { Link } from "../lib/router.tsx";
import { absolute, inWords, number } from "../lib/words.ts";
import { confirm } from "../ui/confirm.tsx";
import { Button, Card, EmptyState, ErrorState, Page, Skeleton } from "../ui/parts.tsx";
import { Badge, Num, Progress, Time } from "../ui/values.tsx";

/** The filter as people and the API say it: states are `status` there. */
export const asBody = ({ statuses, parents: _, in_flow: __, ...rest }: Filter): FilterBody =>
  Object.fromEntries(Object.entries({ status: statuses?.length ? statuses : null, ...rest }).filter(([, value]) => value !== null && value !== undefined)) as FilterBody;

async function abort(operation: BulkOperation): Promise<void> {
  const answer = await confirm({
    title: "End this operation", action: "End it", isDanger: true,
    what: <p>It changes no more jobs. The {number(operation.changed ?? 0)} that it has changed stay as they are.</p>,
  });
  if (answer !== null) await act(() => api.post(`/v1/bulk/${operation.id}/abort`), "It changes no more", ["/v1/bulk"]);
}

const TONES = { running: "accent", done: "good", aborted: "warn" } as const;
const ICONS = { running: "play", done: "check", aborted: "ban" } as const;

function Operation({ operation }: { operation: BulkOperation }): JSX.Element {
  const isRunning = operation.state === "running";
  const { matched = 0, changed = 0, refused = 0, refusals = [] } = operation;
  return (
    <Card title={<span class="row tight"><Badge tone={TONES[operation.state]} icon={ICONS[operation.state]}>{operation.state}</Badge> {operation.action === "cancel" ? "Cancel" : "Redrive"} jobs</span>}
      actions={isRunning && <Button size="small" kind="danger" icon="ban" needs="operate" onClick={() => abort(operation)}>End it</Button>}>
      <p>Jobs {inWords(asBody(operation.filter), (iso) => absolute(Date.parse(iso), zone.value))}
        {operation.fingerprint && <> whose error is <Link to={`/failures/${operation.fingerprint}`}><code>{operation.fingerprint}</code></Link></>}</p>
      {isRunning && <Progress value={changed} of={null} label="It goes on" />}
      <dl class="facts">
        <dt>Come to</dt><dd><Num value={matched} /></dd>
        <dt>Changed</dt><dd><Num value={changed} />{operation.per_second != null && <span class="faint"> · {operation.per_second} a second</span>}</dd>
        {refused > 0 && <><dt>Refused</dt><dd><span class="bad num">{number(refused)}</span>{refusals.length > 0 && <details><summary>The first of them</summary><ul>{refusals.map((said) => <li key={said}>{said}</li>)}</ul></details>}</dd></>}
        <dt>By</dt><dd>{operation.actor}{operation.reason && <>, because “{operation.reason}”</>}</dd>
        <dt>Begun</dt><dd><Time at={operation.created_at} />{operation.ended_at && <>, ended <Time at={operation.ended_at} /></>}</dd>
      </dl>
    </Card>
  );
}

export function BulkOperations(): JSX.Element {
  const bulk = useGet<BulksAnswer>("/v1/bulk", {}, { live: (event) => event.kind === "bulk" || event.kind === "job", every: 5 });
  const operations = bulk.data?.operations ?? [];
  return (
    <Page title="Bulk operations" count={bulk.data && operations.length}>
      <ErrorState query={bulk} />
      {bulk.isFirst ? <Skeleton /> : operations.length === 0 && bulk.error === null ? (
        <EmptyState icon="bulk" title="Nothing was done to many jobs in the last week" command="penstock jobs redrive --status dead --queue emails">Select jobs and “all that match” on the Jobs screen, or redrive a failure.</EmptyState>
      ) : <div class="stack">{operations.map((operation) => <Operation key={operation.id} operation={operation} />)}</div>}
    </Page>
  );
}
