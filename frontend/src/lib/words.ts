// Values in words, the same everywhere: numbers, durations, sizes, times, and a filter as a person would say it.
import type { FilterBody } from "../api.ts";

const whole = new Intl.NumberFormat("en-GB");
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value: number): string => whole.format(value);
/** 12.4K; exact below ten thousand. */
export const compact = (value: number): string => (Math.abs(value) < 10_000 ? whole.format(value) : short.format(value));
export const count = (value: number, isExact: boolean | null | undefined): string => number(value) + (isExact === false ? "+" : "");
export const plural = (value: number, one: string, many = `${one}s`): string => `${number(value)} ${value === 1 ? one : many}`;
export const percent = (share: number): string =>
  `${(share * 100).toFixed(share !== 0 && Math.abs(share) < 0.1 ? 1 : 0)} %`;

const UNITS: readonly (readonly [seconds: number, sign: string])[] = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** 4 ms, 1.2 s, 3 min 20 s, 2 d 4 h: two units at most. */
export function duration(seconds: number): string {
  const sign = seconds < 0 ? "−" : "";
  const all = Math.abs(seconds);
  if (all < 0.001) return all === 0 ? "0 s" : "< 1 ms";
  if (all < 1) return `${sign}${Math.round(all * 1000)} ms`;
  if (all < 10) return `${sign}${Number(all.toFixed(1))} s`;
  let left = Math.round(all);
  const parts: string[] = [];
  for (const [size, unit] of UNITS) {
    const n = Math.floor(left / size);
    if (n > 0) parts.push(`${n} ${unit}`);
    left -= n * size;
    if (parts.length === 2 || (parts.length === 1 && n === 0)) break;
  }
  return sign + parts.join(" ");
}

/** Where no failure is known: those before the first service ran were not counted, and nobody may take that for calm. */
export function calm(at: string, since: string | null): string {
  if (since === null) return "No failure has been counted yet";
  const seconds = (Date.parse(at) - Date.parse(since)) / 1000;
  return seconds >= 7 * 86_400 ? "Nothing failed within the last week" : `Nothing failed since counting began ${duration(Math.max(1, Math.round(seconds)))} ago`;
}

/** 2 min ago, in 5 s, now: one unit, so that a column of them reads at a glance. */
export function relative(at: number, now: number): string {
  const seconds = (now - at) / 1000;
  const all = Math.abs(seconds);
  if (all < 1) return "now";
  const [size, unit] = UNITS.find(([size]) => all >= size) ?? [1, "s"];
  const told = `${Math.floor(all / size)} ${unit}`;
  return seconds > 0 ? `${told} ago` : `in ${told}`;
}

export function absolute(at: number, zone: "local" | "utc"): string {
  const date = new Date(at);
  const digits = at % 1000 === 0 ? 19 : 23; // whole seconds have no need of more
  if (zone === "utc") return `${date.toISOString().replace("T", " ").slice(0, digits)} UTC`;
  const shifted = new Date(at - date.getTimezoneOffset() * 60_000).toISOString().replace("T", " ").slice(0, digits);
  const minutes = -date.getTimezoneOffset();
  const two = (n: number): string => String(Math.floor(Math.abs(n))).padStart(2, "0");
  return `${shifted} ${minutes < 0 ? "−" : "+"}${two(minutes / 60)}:${two(minutes % 60)}`;
}

export function bytes(size: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let n = 0;
  while (Math.abs(size) >= 1000 && n < units.length - 1) {
    size /= 1000;
    n++;
  }
  return `${n === 0 ? size : size.toFixed(size < 10 ? 1 : 0)} ${units[n]}`;
}

export const oneOf = (words: readonly string[]): string =>
  words.length < 2 ? (words[0] ?? "") : `${words.slice(0, -1).join(", ")} or ${words.at(-1)}`;

/** `in state dead or held, in queue emails`: what a bulk operation covers, said before it is done. */
export function inWords(filter: FilterBody, time: (iso: string) => string = (iso) => iso): string {
  const parts = [
    filter.status?.length ? `in state ${oneOf(filter.status)}` : null,
    filter.queue ? `in queue ${filter.queue}` : null,
    filter.type ? `of type ${filter.type}` : null,
    filter.key ? `with key ${JSON.stringify(filter.key)}` : null,
    filter.schedule ? `made by schedule ${filter.schedule}` : null,
    filter.cause ? `that ended for the cause ${filter.cause}` : null,
    filter.created_from ? `created since ${time(filter.created_from)}` : null,
    filter.created_before ? `created before ${time(filter.created_before)}` : null,
  ].filter((part) => part !== null);
  return parts.length ? parts.join(", ") : "in any state, of any queue and type";
}
