// A job's life as steps, one after the other: what it was, from when to when, and what ended it.
import type { AttemptAnswer, ChangeAnswer, JobAnswer, Status } from "../api.ts";

export type Step = {
  readonly state: Status;
  readonly from: number;
  /** null: it still is. The last step of a job that ended takes no time. */
  readonly to: number | null;
  readonly label: string;
  readonly note: string;
  readonly isWait: boolean;
};

type Record = { readonly at: number; readonly attempt?: AttemptAnswer; readonly change?: ChangeAnswer };
const ENDED: readonly Status[] = ["succeeded", "dead", "held", "cancelled"];
const WAITS: { readonly [state in Status]?: string } = { queued: "Queued", waiting: "Waits for parents", dead: "Dead", held: "Held", cancelled: "Cancelled", succeeded: "Succeeded" };
const PAST: { readonly [verb: string]: string } = { cancel: "cancelled by", redrive: "redriven by", expire: "expired:", abandon: "given up:", release: "released:" };

const told = (change: ChangeAnswer): string => `${PAST[change.verb] ?? `${change.verb} by`} ${change.actor}${change.reason ? ` (${change.reason})` : ""}`;

/** `runningSince` is known of a job that runs now, and of no other. */
export function steps(job: JobAnswer, attempts: readonly AttemptAnswer[], changes: readonly ChangeAnswer[], runningSince: number | null): readonly Step[] {
  const made: Step[] = [];
  let state: Status = job.parents?.length ? "waiting" : "queued";
  let from = Date.parse(job.created_at);
  let due = attempts.length === 0 ? Date.parse(job.run_at) : from;
  let note = job.schedule ? `made by schedule ${job.schedule}` : "created";
  const wait = (to: number | null): void => {
    const end = to ?? Infinity;
    if (state === "queued" && due > from + 50) {
      made.push({ state, from, to: due < end ? due : to, label: "Not due yet", note, isWait: true });
      if (due >= end) return;
      [from, note] = [due, "due"];
      if (to === null && due > Date.now()) return;
    }
    made.push({ state, from, to, label: WAITS[state] ?? state, note, isWait: true });
  };
  const records: Record[] = [
    ...attempts.map((attempt) => ({ at: Date.parse(attempt.ended_at), attempt })),
    ...changes.filter((change) => change.status != null).map((change) => ({ at: Date.parse(change.at), change })),
  ].sort((a, b) => a.at - b.at);
  for (const { at, attempt, change } of records) {
    if (attempt) {
      const began = Date.parse(attempt.started_at);
      wait(began);
      made.push({ state: "running", from: began, to: at, label: `Attempt ${attempt.number}`, note: `${attempt.outcome} on ${attempt.worker}`, isWait: false });
      [state, from, due, note] = [attempt.status, at, Date.parse(attempt.run_at), attempt.status === "queued" ? `again after it ${attempt.outcome === "failed" ? "failed" : `was ${attempt.outcome}`}` : ""];
    } else if (change && change.status != null && change.status !== "running") {
      wait(at);
      [state, from, due, note] = [change.status, at, at, told(change)];
    }
  }
  if (job.status === "running") {
    const began = runningSince ?? from;
    wait(began);
    made.push({ state: "running", from: began, to: null, label: `Attempt ${job.attempts}`, note: job.worker ? `on ${job.worker}` : "", isWait: false });
  } else if (ENDED.includes(job.status)) {
    const at = job.ended_at ? Date.parse(job.ended_at) : from;
    made.push({ state: job.status, from: at, to: at, label: WAITS[job.status] ?? job.status, note: note || (job.cause ?? ""), isWait: false });
  } else wait(null);
  return made.filter((step) => step.to === null || !step.isWait || step.to - step.from >= 1);
}
