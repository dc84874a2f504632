// What this browser prefers: theme, time zone. And the time itself, once a second while the page is seen.
import { effect, signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";
export type Zone = "local" | "utc";

function kept<T extends string>(name: string, values: readonly T[], usual: T) {
  const there = localStorage.getItem(`penstock.${name}`) as T | null;
  const value = signal<T>(there !== null && values.includes(there) ? there : usual);
  effect(() => localStorage.setItem(`penstock.${name}`, value.value));
  return value;
}

export const theme = kept<Theme>("theme", ["auto", "light", "dark"], "auto");
export const zone = kept<Zone>("zone", ["local", "utc"], "local");
export const now = signal(Date.now());

const wantsDark = matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(wantsDark.matches);
wantsDark.addEventListener("change", () => (systemIsDark.value = wantsDark.matches));
/** Whether the page is dark now: charts read it. */
export const isDark = signal(false);

effect(() => {
  isDark.value = theme.value === "dark" || (theme.value === "auto" && systemIsDark.value);
  document.documentElement.dataset.theme = isDark.value ? "dark" : "light";
});

setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);
