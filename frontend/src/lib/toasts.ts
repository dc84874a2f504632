// Short notices at the edge of the page, read out by screen readers.
//
//   toast("Queue paused", "good", { label: "Undo", run: () => … });
import { signal } from "@preact/signals";

export type Tone = "good" | "bad" | "plain";
export type ToastAction = { readonly label: string; readonly run: () => void };
export type Notice = { readonly id: number; readonly text: string; readonly tone: Tone; readonly action?: ToastAction };

export const notices = signal<readonly Notice[]>([]);
let last = 0;

export function toast(text: string, tone: Tone = "plain", action?: ToastAction): void {
  const notice: Notice = { id: ++last, text, tone, ...(action ? { action } : {}) };
  notices.value = [...notices.value.slice(-3), notice];
  setTimeout(() => dismiss(notice.id), tone === "bad" ? 12_000 : action ? 8000 : 4000);
}

export function dismiss(id: number): void {
  notices.value = notices.value.filter((one) => one.id !== id);
}
