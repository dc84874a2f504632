import assert from "node:assert/strict";
import { test } from "node:test";
import { parse, Raw, tree } from "../src/lib/json.ts";

test("payloads stay the text they were", () => {
  const answer = parse('{"id": "a", "payload": {"n": 9007199254740993, "x": 1.0, "s": "}\\""}, "result": null, "n": 3}') as { payload: Raw; result: null; n: number };
  assert.equal(answer.payload.text, '{"n": 9007199254740993, "x": 1.0, "s": "}\\""}');
  assert.equal(answer.result, null);
  assert.equal(answer.n, 3);
});

test("what JSON.parse reads, parse reads", () => {
  for (const text of ["[]", "{}", "[1, -2.5e3, true, null]", '{"a": {"b": ["c", "\\u00e9\\n"]}}', '  "x" ']) assert.deepEqual(parse(text), JSON.parse(text));
});

test("what is no JSON is refused", () => {
  for (const text of ["", "{", '{"a" 1}', "[1 2]", '"x']) assert.throws(() => parse(text), SyntaxError);
});

test("a tree keeps the digits", () => {
  assert.deepEqual(tree("[12345678901234567890, 1.10]"), { kind: "array", items: [{ kind: "scalar", text: "12345678901234567890", type: "number" }, { kind: "scalar", text: "1.10", type: "number" }] });
});
