// Values as they look everywhere: <Time at/>, <Duration seconds/>, <Bytes size/>, <Num value/>, <StatePill status/>, <Badge/>,
// <Kbd keys/>, <Copy text/>, <Progress/>, <Stat/>, <Sparkline/>.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { Status } from "../api.ts";
import { isMac } from "../lib/keys.ts";
import { now, zone } from "../lib/prefs.ts";
import { absolute, bytes, compact, duration, number, percent, relative } from "../lib/words.ts";
import { Icon, type IconName } from "./icons.tsx";

/** A moment, relative to now; the other way of telling it is in the title. */
export function Time({ at, style = "relative" }: { at: string | null | undefined; style?: "relative" | "absolute" }): JSX.Element {
  if (!at) return <span class="faint">–</span>;
  const ms = Date.parse(at);
  const whole = absolute(ms, zone.value);
  const away = relative(ms, now.value);
  return (
    <time class="num nowrap" dateTime={at} title={style === "relative" ? whole : away}>
      {style === "relative" ? away : whole}
    </time>
  );
}

/** How long ago, without “ago”: ages and waits. It goes on by itself. */
export function Age({ since }: { since: string | null | undefined }): JSX.Element {
  if (!since) return <span class="faint">–</span>;
  const ms = Date.parse(since);
  return <span class="num nowrap" title={`since ${absolute(ms, zone.value)}`}>{duration(Math.max(0, Math.floor((now.value - ms) / 1000)))}</span>;
}

export function Duration({ seconds }: { seconds: number | null | undefined }): JSX.Element {
  if (seconds === null || seconds === undefined) return <span class="faint">–</span>;
  return <span class="num nowrap" title={`${seconds} s`}>{duration(seconds)}</span>;
}

export function Bytes({ size }: { size: number | null | undefined }): JSX.Element {
  if (size === null || size === undefined) return <span class="faint">–</span>;
  return <span class="num nowrap" title={`${number(size)} bytes`}>{bytes(size)}</span>;
}

/** A number in figures of one width; a nought steps back. */
export function Num({ value, short = false, isExact }: { value: number | null | undefined; short?: boolean; isExact?: boolean | null }): JSX.Element {
  if (value === null || value === undefined) return <span class="faint">–</span>;
  return <span class={value === 0 ? "num faint" : "num"} title={short ? number(value) : undefined}>{short ? compact(value) : number(value)}{isExact === false ? "+" : ""}</span>;
}

export const STATES: readonly Status[] = ["queued", "running", "waiting", "succeeded", "dead", "held", "cancelled"];
const STATE_ICONS: Record<Status, IconName> = {
  waiting: "link", queued: "clock", running: "play", succeeded: "check", dead: "cross", held: "hold", cancelled: "ban",
};

/** A state: by its sign, its word and its colour. */
export function StatePill({ status }: { status: Status }): JSX.Element {
  return <span class={`pill state-${status}`}><Icon name={STATE_ICONS[status]} size={12} />{status}</span>;
}

export type BadgeTone = "plain" | "good" | "warn" | "bad" | "accent";
export function Badge({ tone = "plain", icon, title, children }: { tone?: BadgeTone; icon?: IconName; title?: string; children: ComponentChildren }): JSX.Element {
  return <span class={`badge tone-${tone}`} title={title}>{icon && <Icon name={icon} size={12} />}{children}</span>;
}

/** `g j`, `Mod+k`: as they are on the keyboard. */
export function Kbd({ keys }: { keys: string }): JSX.Element {
  return <span class="kbds">{keys.split(" ").map((key) => <kbd key={key}>{key.replace("Mod+", isMac ? "⌘" : "Ctrl ").replace(/(?<=[⌘ ])[a-z]$/, (k) => k.toUpperCase())}</kbd>)}</span>;
}

/** Copies also where the page came over plain HTTP, which has no clipboard. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "offscreen";
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }): JSX.Element {
  const [isDone, setDone] = useState(false);
  const copy = async (): Promise<void> => {
    await copyText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" class="button quiet icon-only" title={label} aria-label={isDone ? "Copied" : label} onClick={copy}>
      <Icon name={isDone ? "check" : "copy"} size={14} />
    </button>
  );
}

/** How far something has come; without `of`, that it goes on. */
export function Progress({ value, of, label }: { value: number; of: number | null; label: string }): JSX.Element {
  return of === null || of === 0 ? <progress class="progress" aria-label={label} /> : <progress class="progress" value={value} max={of} aria-label={label} title={percent(value / of)} />;
}

/** One figure and what it is. With `to`, wrap it in a Link. */
export function Stat({ label, children, hint, tone = "plain" }: { label: string; children: ComponentChildren; hint?: ComponentChildren; tone?: "plain" | "good" | "warn" | "bad" }): JSX.Element {
  return (
    <div class={`stat tone-${tone}`}>
      <div class="stat-label">{label}</div>
      <div class="stat-value num">{children}</div>
      {hint && <div class="stat-hint">{hint}</div>}
    </div>
  );
}

/** A line the size of a word. */
export function Sparkline({ values, label, width = 96, height = 24, tone = "accent" }: { values: readonly number[]; label: string; width?: number; height?: number; tone?: "accent" | "bad" | "good" }): JSX.Element {
  const most = Math.max(...values, 1e-9);
  const x = (n: number): number => (values.length < 2 ? width : (n / (values.length - 1)) * (width - 2) + 1);
  const y = (value: number): number => height - 2 - (value / most) * (height - 4);
  const line = values.map((value, n) => `${x(n).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return (
    <svg class={`spark spark-${tone}`} width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
      {values.length > 1 && <polygon points={`1,${height} ${line} ${width - 1},${height}`} />}
      <polyline points={line} />
    </svg>
  );
}
