// Doing something to many jobs: to those selected, or to all that match, as a bulk operation.
import type { BulkAnswer, FilterBody, JobAnswer, Status } from "../api.ts";
import { api, Failure } from "../lib/http.ts";
import { act, invalidate } from "../lib/query.ts";
import { navigate } from "../lib/router.tsx";
import { toast } from "../lib/toasts.ts";
import { count as counted, plural } from "../lib/words.ts";
import { confirm, Predicate } from "../ui/confirm.tsx";

export type Verb = "cancel" | "redrive";
/** The states to which each can be done. */
export const APPLIES: Record<Verb, readonly Status[]> = { cancel: ["waiting", "queued", "running", "held"], redrive: ["dead", "held", "cancelled"] };

/** The states of a filter to which something can be done. */
export const applying = (verb: Verb, filter: FilterBody): readonly Status[] => APPLIES[verb].filter((status) => !filter.status || filter.status.includes(status));

const past = (verb: Verb): string => (verb === "cancel" ? "Cancelled" : "Redrove");
const saying = (verb: Verb): string => (verb === "cancel" ? "Cancel" : "Redrive");

/** One request each: there are no more of them than a page has. */
export async function toSome(verb: Verb, jobs: readonly JobAnswer[], done: () => void): Promise<void> {
  const fit = jobs.filter((job) => APPLIES[verb].includes(job.status));
  const answer = await confirm({
    title: `${saying(verb)} jobs`, action: `${saying(verb)} ${plural(fit.length, "job")}`, isDanger: verb === "cancel", asksReason: true,
    what: <p>{plural(fit.length, "job")} of {jobs.length} selected can be {verb === "cancel" ? "cancelled" : "redriven"}. {verb === "cancel" ? "Those that run are asked to stop." : "They keep their history and run again."}</p>,
  });
  if (answer === null) return;
  const outcomes = await Promise.allSettled(fit.map((job) => api.post(`/v1/jobs/${job.id}/${verb}`, { reason: answer.reason || null })));
  const refused = outcomes.filter((one) => one.status === "rejected").map((one) => (one.reason as Error).message);
  toast(`${past(verb)} ${plural(fit.length - refused.length, "job")}${refused.length ? `; ${refused.length} refused: ${refused[0]}` : ""}`, refused.length ? "bad" : "good");
  done();
  invalidate(["/v1/jobs", "/v1/stats", "/v1/queues"]);
}

/** A bulk operation: counted first, with the very predicate that is then carried out. */
export async function toAll(verb: Verb, shown: FilterBody, done: () => void): Promise<void> {
  const filter: FilterBody = { ...shown, status: applying(verb, shown) };
  let told: BulkAnswer;
  try {
    told = await api.post<BulkAnswer>("/v1/bulk", { action: verb, filter, dry_run: true });
  } catch (error) {
    if (error instanceof Failure) return toast(error.detail, "bad");
    throw error;
  }
  const { matched, is_exact } = told.dry_run ?? { matched: 0, is_exact: true };
  const answer = await confirm({
    title: `${saying(verb)} all that match`, action: `${saying(verb)} ${counted(matched, is_exact)} jobs`, isDanger: verb === "cancel", asksReason: true,
    what: <Predicate filter={filter} count={matched} isExact={is_exact} />, ...(matched > 100 ? { typed: String(matched) } : {}),
  });
  if (answer === null) return;
  const begun = await act(() => api.post<BulkAnswer>("/v1/bulk", { action: verb, filter, dry_run: false, reason: answer.reason || null }), "Begun; it goes on by itself", ["/v1/bulk", "/v1/jobs", "/v1/stats"]);
  if (begun) {
    done();
    toast(`Its progress is under Bulk operations`, "plain", { label: "Show", run: () => navigate("/bulk") });
  }
}
