// <Json value={job.payload}/>: JSON as it was sent, to the last digit, as a tree that folds; copied as the text it is.
// <Trace text={attempt.error}/>: text that keeps its lines.
import type { JSX } from "preact";
import { type Node, type Raw, tree } from "../lib/json.ts";
import { plural } from "../lib/words.ts";
import { Copy } from "./values.tsx";

const OPEN_DEPTH = 2;
const MOST_SHOWN = 200;

export function Json({ value, label = "JSON" }: { value: Raw | null | undefined; label?: string }): JSX.Element {
  if (!value) return <span class="faint">none</span>;
  return (
    <div class="json" role="group" aria-label={label} tabIndex={0}>
      <div class="json-copy"><Copy text={value.text} label={`Copy ${label}`} /></div>
      <Value node={tree(value)} depth={0} />
    </div>
  );
}

function Value({ node, name, depth }: { node: Node; name?: string; depth: number }): JSX.Element {
  const before = name === undefined ? null : <span class="json-name">{name}: </span>;
  if (node.kind === "scalar") return <div class="json-line">{before}<span class={`json-${node.type}`}>{node.text}</span></div>;
  const [open, close] = node.kind === "array" ? ["[", "]"] : ["{", "}"];
  if (node.items.length === 0) return <div class="json-line">{before}{open}{close}</div>;
  const parts: readonly (readonly [string, Node])[] = node.kind === "object" ? node.items : node.items.map((item, n) => [String(n), item] as const);
  return (
    <details open={depth < OPEN_DEPTH && parts.length <= MOST_SHOWN}>
      <summary>{before}<span class="faint">{open} {plural(parts.length, node.kind === "array" ? "item" : "member")} {close}</span></summary>
      <div class="json-items">
        {parts.slice(0, MOST_SHOWN).map(([key, item]) => <Value key={key} name={key} node={item} depth={depth + 1} />)}
        {parts.length > MOST_SHOWN && <div class="faint">… and {parts.length - MOST_SHOWN} more; copy to see them</div>}
      </div>
    </details>
  );
}

export function Trace({ text, label = "Traceback" }: { text: string; label?: string }): JSX.Element {
  return <div class="json" role="group" aria-label={label} tabIndex={0}><div class="json-copy"><Copy text={text} label={`Copy ${label}`} /></div><div class="json-line">{text}</div></div>;
}
