import assert from "node:assert/strict";
import { test } from "node:test";
import type { AttemptAnswer, Figures, JobAnswer } from "../src/api.ts";
import { parse, Raw, said } from "../src/lib/json.ts";
import { lines, reaching } from "../src/lib/series.ts";
import { changesOf, formOf } from "../src/lib/settings.ts";
import { asCsv, asJsonText } from "../src/screens/exporting.ts";
import { steps } from "../src/lib/timeline.ts";

const at = (seconds: number): string => new Date(Date.parse("2026-01-31T12:00:00Z") + seconds * 1000).toISOString();
const JOB = { id: "a", type: "t", queue: "q", priority: 0, payload: new Raw("{}"), max_attempts: 3, run_at: at(0), created_at: at(0) };
const tried = (number: number, from: number, to: number, more: Partial<AttemptAnswer>): AttemptAnswer => ({ number, worker: "w", started_at: at(from), ended_at: at(to), outcome: "failed", status: "queued", run_at: at(to), ...more });

test("a job's life is its waits and its attempts", () => {
  const job = { ...JOB, status: "succeeded", attempts: 2, ended_at: at(50) } as JobAnswer;
  const told = steps(job, [tried(1, 2, 5, { run_at: at(35) }), tried(2, 40, 50, { outcome: "succeeded", status: "succeeded" })], [], null);
  assert.deepEqual(told.map((step) => [step.label, ((step.to ?? 0) - step.from) / 1000]), [["Queued", 2], ["Attempt 1", 3], ["Not due yet", 30], ["Queued", 5], ["Attempt 2", 10], ["Succeeded", 0]]);
});

test("what people did to it is a step of its own", () => {
  const job = { ...JOB, status: "queued", attempts: 1 } as JobAnswer;
  const told = steps(job, [tried(1, 1, 2, { status: "dead" })], [{ at: at(60), verb: "redrive", actor: "ada", reason: "mended", status: "queued" }], null);
  assert.deepEqual(told.map((step) => [step.label, step.note]), [["Queued", "created"], ["Attempt 1", "failed on w"], ["Dead", ""], ["Queued", "redriven by ada (mended)"]]);
  assert.equal(told.at(-1)?.to, null);
});

test("a job that runs has run since its lease was taken", () => {
  const told = steps({ ...JOB, status: "running", attempts: 1, worker: "w" } as JobAnswer, [], [], Date.parse(at(7)));
  assert.deepEqual(told.map((step) => [step.label, step.to === null]), [["Queued", false], ["Attempt 1", true]]);
});

const FIGURES = {
  at: at(150), first_at: at(0), step_seconds: 60, counted_since: at(61), queues: [],
  series: { arrived: [5, 60, 30] },
} as unknown as Figures;

test("figures are paces, and gaps where nothing was counted", () => {
  const { times, line } = lines(FIGURES);
  assert.deepEqual(line(FIGURES.series.arrived), [null, 60, 60]); // the last step is half over
  assert.equal(times.at(-1), Date.parse(at(150)) / 1000);
  assert.equal(lines(FIGURES, Date.parse(at(130)) / 1000, Date.parse(at(140)) / 1000).times.length, 2);
  assert.deepEqual([60, 3000, 80_000].map((ago) => reaching(1_000_000 - ago, 1_000_000)), ["15m", "1h", "24h"]);
});

test("only what was changed is sent", () => {
  const before = formOf({ max_concurrency: 8, rate: { limit: 10, per: 60, burst: 1 }, target_seconds: 60, retry: { kind: "exponential", base: 5, factor: 2, cap: 3600, jitter: 0.1 } });
  assert.deepEqual(changesOf(before, before), {});
  assert.deepEqual(changesOf(before, { ...before, max_concurrency: "", target_seconds: "5", "rate.per": "30", fair: "true" }), { max_concurrency: null, target_seconds: 5, rate: { limit: 10, per: 30, burst: 1 }, fair: true });
  assert.deepEqual(changesOf(before, { ...before, "retry.kind": "fixed", "retry.factor": "", "retry.cap": "" }), { retry: { kind: "fixed", base: 5, jitter: 0.1 } });
  assert.deepEqual(changesOf(before, { ...before, max_depth: "many" }), { max_depth: "many" });
});

test("a text that came raw is told as a text", () => {
  const { detail } = parse('{"detail": "it \\"waits\\""}') as { detail: Raw };
  assert.equal(said(detail), 'it "waits"');
  assert.equal(said(new Raw('{"a": 1}')), '{"a": 1}');
});

test("what is exported is what was sent, and no formula", () => {
  const job = { ...JOB, status: "dead", attempts: 1, payload: new Raw('{"n": 9007199254740993}'), error: '=cmd "x"' } as JobAnswer;
  assert.match(asJsonText([job]), /"payload": \{"n": 9007199254740993\}/);
  assert.equal((JSON.parse(asJsonText([job])) as unknown[]).length, 1);
  assert.match(asCsv([job]), /"'=cmd ""x"""/);
});
