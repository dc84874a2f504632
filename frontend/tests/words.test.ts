import assert from "node:assert/strict";
import { test } from "node:test";
import { layered } from "../src/lib/layout.ts";
import { complete, read, suggestions } from "../src/lib/search.ts";
import { bytes, calm, duration, inWords, relative } from "../src/lib/words.ts";

const NOW = Date.parse("2026-01-31T12:00:00Z");

test("durations have two units at most", () => {
  const told = [0, 0.004, 1.25, 42, 200, 7200, 187_200].map(duration);
  assert.deepEqual(told, ["0 s", "4 ms", "1.3 s", "42 s", "3 min 20 s", "2 h", "2 d 4 h"]);
});

test("times are told from now", () => {
  assert.deepEqual([NOW - 120_000, NOW + 5000, NOW].map((at) => relative(at, NOW)), ["2 min ago", "in 5 s", "now"]);
  assert.deepEqual([999, 1500, 25_000_000].map(bytes), ["999 B", "1.5 kB", "25 MB"]);
});

test("no failure is no calm before the counting began", () => {
  const since = ["2026-01-01T00:00:00Z", "2026-01-31T11:57:00Z", null].map((at) => calm("2026-01-31T12:00:00Z", at));
  assert.deepEqual(since, ["Nothing failed within the last week", "Nothing failed since counting began 3 min ago", "No failure has been counted yet"]);
});

test("a search is a filter", () => {
  const found = read('queue:emails key:"a b" since:2h cause:exhausted', NOW);
  assert.deepEqual(found, { filter: { queue: "emails", key: "a b", created_from: "2026-01-31T10:00:00.000Z", cause: "exhausted" }, errors: [] });
  assert.equal(inWords({ ...found.filter, status: ["dead", "held"] }), 'in state dead or held, in queue emails, with key "a b", that ended for the cause exhausted, created since 2026-01-31T10:00:00.000Z');
});

test("what a search cannot mean is said", () => {
  assert.equal(read("colour:red since:soon oops cause:rain", NOW).errors.length, 4);
  assert.equal(read("019a8c1e-0000-7000-8000-000000000000", NOW).id, "019a8c1e-0000-7000-8000-000000000000");
});

test("suggestions complete the last word", () => {
  assert.deepEqual(suggestions("queue:a ty", {}), ["type:"]);
  assert.deepEqual(suggestions("queue:em", { queue: ["emails", "other"] }), ["queue:emails"]);
  assert.equal(complete("type:x queue:em", "queue:emails"), "type:x queue:emails ");
});

test("a graph goes in layers", () => {
  const places = layered([{ id: "a", parents: [] }, { id: "b", parents: ["a"] }, { id: "c", parents: ["a"] }, { id: "d", parents: ["b", "c"] }]);
  assert.deepEqual([...places.entries()], [["a", { layer: 0, row: 0 }], ["b", { layer: 1, row: 0 }], ["c", { layer: 1, row: 1 }], ["d", { layer: 2, row: 0 }]]);
});
