// The search language of jobs: `queue:emails type:send "…" since:2h`. The same conditions as the API's filter, the command
// line's options and a bulk operation's predicate, so a list, its count and an action on it always mean the same jobs.
import type { Cause, FilterBody } from "../api.ts";

export const CAUSES: readonly Cause[] = ["exhausted", "refused", "cancelled", "discarded", "expired", "parent_failed"];
export const QUALIFIERS: readonly (readonly [name: string, about: string])[] = [
  ["queue", "in this queue"],
  ["type", "of this type"],
  ["key", "with this key"],
  ["schedule", "made by this schedule"],
  ["cause", `why it ended: ${CAUSES.join(", ")}`],
  ["since", "created since: 15m, 2h, 7d or a date"],
  ["before", "created before: 15m, 2h, 7d or a date"],
];
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const SECONDS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };

export type Search = {
  readonly filter: FilterBody;
  /** A job's id was typed: that is where to go. */
  readonly id?: string;
  /** What cannot be understood, in words. */
  readonly errors: readonly string[];
};

export const words = (text: string): string[] => text.match(/(?:[^\s"]+|"[^"]*"?)+/g) ?? [];
const unquoted = (text: string): string => text.replace(/^"([^"]*)"?$/, "$1");
export const quoted = (text: string): string => (/[\s"]/.test(text) ? `"${text.replaceAll('"', "")}"` : text);

/** A time before now (2h), or a date, as the API takes it. */
export function moment(text: string, now: number): string | null {
  const ago = /^(\d+(?:\.\d+)?)\s*([smhdw])$/.exec(text);
  if (ago) return new Date(now - Number(ago[1]) * (SECONDS[ago[2] ?? ""] ?? 0) * 1000).toISOString();
  if (!/^\d{4}-/.test(text)) return null;
  const at = Date.parse(text);
  return Number.isNaN(at) ? null : new Date(at).toISOString();
}

export function read(text: string, now: number): Search {
  const filter: { -readonly [name in keyof FilterBody]: FilterBody[name] } = {};
  const errors: string[] = [];
  let id: string | undefined;
  for (const word of words(text)) {
    const colon = word.indexOf(":");
    const name = colon < 0 ? "" : word.slice(0, colon);
    const value = unquoted(word.slice(colon + 1));
    if (ID.test(word)) id = word;
    else if (colon < 0) errors.push(`“${word}” has no qualifier: try type:${word} or queue:${word}`);
    else if (value === "") continue; // it is still being typed
    else if (name === "queue" || name === "type" || name === "key" || name === "schedule") filter[name] = value;
    else if (name === "cause") {
      if (CAUSES.includes(value as Cause)) filter.cause = value as Cause;
      else errors.push(`there is no cause “${value}”; there are ${CAUSES.join(", ")}`);
    } else if (name === "since" || name === "before") {
      const at = moment(value, now);
      if (at === null) errors.push(`“${value}” is no time: say 15m, 2h, 7d or 2026-01-31`);
      else filter[name === "since" ? "created_from" : "created_before"] = at;
    } else errors.push(`there is no qualifier “${name}”; there are ${QUALIFIERS.map(([one]) => one).join(", ")}`);
  }
  return id === undefined ? { filter, errors } : { filter, errors, id };
}

/** What may follow at the end of a text: qualifiers, or the values of one. */
export function suggestions(text: string, values: { readonly [qualifier: string]: readonly string[] }): string[] {
  const last = /\s$/.test(text) || text === "" ? "" : (words(text).at(-1) ?? "");
  const [name, value] = last.includes(":") ? [last.slice(0, last.indexOf(":")), unquoted(last.slice(last.indexOf(":") + 1))] : ["", last];
  if (name === "") {
    const used = new Set(words(text).map((word) => word.split(":")[0]));
    return QUALIFIERS.map(([one]) => one).filter((one) => one.startsWith(value) && !used.has(one)).map((one) => `${one}:`);
  }
  return (values[name] ?? []).filter((one) => one.toLowerCase().includes(value.toLowerCase()) && one !== value).slice(0, 8).map((one) => `${name}:${quoted(one)}`);
}

/** The text with its last word replaced by a suggestion. */
export function complete(text: string, suggestion: string): string {
  const before = /\s$/.test(text) || text === "" ? text : text.slice(0, text.length - (words(text).at(-1)?.length ?? 0));
  return before + suggestion + (suggestion.endsWith(":") ? "" : " ");
}
