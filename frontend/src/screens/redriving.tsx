// Bringing back the jobs of a failure: how many there are, at what pace, and how far it has come.
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { BulkAnswer, BulkOperation } from "../api.ts";
import { api, Failure, name } from "../lib/http.ts";
import { invalidate, useGet } from "../lib/query.ts";
import { Link } from "../lib/router.tsx";
import { count, duration, number, plural } from "../lib/words.ts";
import { Button, Dialog, Field, Skeleton } from "../ui/parts.tsx";
import { Progress } from "../ui/values.tsx";

const asked = signal<{ readonly fingerprint: string; readonly title: string } | null>(null);
const CHANGED = ["/v1/failures", "/v1/overview", "/v1/jobs", "/v1/queues", "/v1/stats", "/v1/bulk"];

/** Ask about bringing back the jobs of a failure; a page that has <Redriving/> shows it. */
export const redrive = (fingerprint: string, title: string): void => void (asked.value = { fingerprint, title });

export function Redriving(): JSX.Element | null {
  return asked.value && <Asking key={asked.value.fingerprint} {...asked.value} onClose={() => (asked.value = null)} />;
}

function Asking({ fingerprint, title, onClose }: { fingerprint: string; title: string; onClose: () => void }): JSX.Element {
  const [told, setTold] = useState<BulkAnswer | null>(null);
  const [begun, setBegun] = useState<BulkOperation | null>(null);
  const [rate, setRate] = useState("100");
  const [reason, setReason] = useState("");
  const [error, setError] = useState<string | null>(null);
  const post = async (body: object): Promise<BulkAnswer | null> => {
    try {
      setError(null);
      return await api.post<BulkAnswer>(`/v1/failures/${name(fingerprint)}/redrive`, body);
    } catch (refused) {
      if (!(refused instanceof Failure)) throw refused;
      setError(refused.detail);
      return null;
    }
  };
  useEffect(() => void post({ dry_run: true }).then(setTold), []);
  const { matched, is_exact } = told?.dry_run ?? { matched: 0, is_exact: true };
  const pace = Number(rate);
  const isPace = rate.trim() !== "" && Number.isFinite(pace) && pace > 0;
  const go = async (): Promise<void> => {
    const answer = await post({ dry_run: false, per_second: pace, reason: reason.trim() || null });
    if (answer?.operation) (setBegun(answer.operation), invalidate(CHANGED));
  };
  if (begun !== null) return <UnderWay begun={begun} title={title} onClose={onClose} />;
  return (
    <Dialog title="Redrive this failure" onClose={onClose} footer={<>
      <Button onClick={onClose}>Leave it</Button>
      <Button kind="primary" needs="operate" isDisabled={matched === 0 || !isPace} onClick={go}>Redrive {count(matched, is_exact)} {matched === 1 ? "job" : "jobs"}</Button>
    </>}>
      <form class="stack" onSubmit={(event) => (event.preventDefault(), matched > 0 && isPace && void go())}>
        {told === null && error === null ? <Skeleton lines={2} /> : told !== null && (
          <div class="predicate"><span class="predicate-count num">{count(matched, is_exact)}</span><span>{matched === 1 ? "job is" : "jobs are"} dead or held because of <strong>{title}</strong></span></div>
        )}
        {told !== null && matched === 0 && <p class="muted">There is nothing to bring back: its jobs were redriven already, or were retried and succeeded.</p>}
        <Field label="Jobs a second" error={isPace ? error : "Give a number above 0."} hint={matched > 0 && isPace ? `What failed once may fail again: all are back in ${duration(Math.ceil(matched / pace))}.` : "What failed once may fail again."}>
          {(id) => <input id={id} class="input" inputMode="decimal" value={rate} onInput={(event) => setRate(event.currentTarget.value)} />}
        </Field>
        <Field label="Reason" hint="Goes into the audit log.">{(id) => <input id={id} class="input" value={reason} maxLength={500} placeholder="optional" onInput={(event) => setReason(event.currentTarget.value)} />}</Field>
        <input type="submit" hidden />
      </form>
    </Dialog>
  );
}

/** How far it has come; it goes on whether or not somebody looks. */
function UnderWay({ begun, title, onClose }: { begun: BulkOperation; title: string; onClose: () => void }): JSX.Element {
  const seen = useGet<BulkOperation>(`/v1/bulk/${begun.id}`, {}, { every: 1, live: (event) => event.kind === "bulk" });
  const operation = seen.data ?? begun;
  const isOver = operation.state !== "running";
  useEffect(() => invalidate(CHANGED.slice(0, -1)), [operation.state]);
  const abort = async (): Promise<void> => {
    await api.post(`/v1/bulk/${begun.id}/abort`).catch(() => {});
    seen.refetch();
  };
  return (
    <Dialog title={isOver ? "Redriven" : "Redriving"} onClose={onClose} footer={<>
      {!isOver && <Button kind="danger" needs="operate" onClick={abort}>Abort</Button>}
      <Button kind="primary" onClick={onClose}>Close</Button>
    </>}>
      <div class="stack" role="status">
        <p>{plural(operation.changed ?? 0, "job")} of <strong>{title}</strong> {isOver ? `came back${operation.state === "aborted" ? " before it was aborted" : ""}.` : "came back so far. It goes on by itself if you leave."}</p>
        {!isOver && <Progress value={operation.changed ?? 0} of={null} label="Redriving" />}
        {(operation.refused ?? 0) > 0 && <p class="warn">{number(operation.refused ?? 0)} refused: {operation.refusals?.[0]}</p>}
        <p><Link to="/bulk" class="text-link">Show all bulk operations</Link></p>
      </div>
    </Dialog>
  );
}
