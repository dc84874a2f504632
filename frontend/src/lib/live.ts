// What happens, as it happens: one stream of server-sent events for the tab, however many screens listen.
//
//   const stop = onEvent((event) => …);          // job.succeeded, queue.paused, …
//   live.value                                   // "live" | "paused" | "reconnecting"
//
// It is read with fetch, so that it carries our headers, and goes on after the last event it heard. Whoever pauses it, or looks
// at another tab, pauses every refetch too: nothing on the page moves.
import { computed, effect, signal } from "@preact/signals";
import type { Event } from "../api.ts";
import { address, chosenTenant, headers } from "./http.ts";
import { session } from "./session.ts";

export type LiveEvent = Event;
export type LiveState = "live" | "paused" | "reconnecting";

const isPausedByHand = signal(false);
const isHidden = signal(document.hidden);
const isConnected = signal(false);
/** How often it connected anew after a gap that could not be filled: whoever shows data fetches it again. */
export const gaps = signal(0);

export const isPaused = computed(() => isPausedByHand.value || isHidden.value);
export const live = computed<LiveState>(() => (isPaused.value ? "paused" : isConnected.value ? "live" : "reconnecting"));

const listeners = new Set<(event: LiveEvent) => void>();
let last: string | null = null;

export function onEvent(listener: (event: LiveEvent) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function togglePause(): void {
  isPausedByHand.value = !isPausedByHand.value;
}

document.addEventListener("visibilitychange", () => (isHidden.value = document.hidden));

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });

/** Reads a stream until it ends. */
async function read(body: ReadableStream<Uint8Array>): Promise<void> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      tell(text.slice(0, end));
      text = text.slice(end + 2);
    }
  }
}

/** One frame of the stream; comments are only a sign of life. */
function tell(frame: string): void {
  const data = frame.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
  if (data === "") return;
  const event = JSON.parse(data) as LiveEvent;
  last = event.cursor;
  for (const listener of listeners) listener(event);
}

async function follow(signal: AbortSignal): Promise<void> {
  for (let tries = 0; !signal.aborted; tries++) {
    try {
      const resume: Record<string, string> = last === null ? {} : { "Last-Event-ID": last };
      const response = await fetch(address("/v1/events"), { headers: headers(resume), signal, credentials: "same-origin" });
      if (response.ok && response.body) {
        if (last === null) gaps.value++;
        isConnected.value = true;
        tries = 0;
        await read(response.body);
      } else if (response.status === 422) last = null; // too old to go on from: begin anew
      else if (response.status === 401) session.value = null;
    } catch {
      // The connection broke, or was ended by us: the loop says which.
    }
    isConnected.value = false;
    if (!signal.aborted) await pause(Math.min(500 * 2 ** tries, 10_000) * (0.5 + Math.random() / 2), signal);
  }
}

/** Follow while somebody is logged in and the page is seen. */
export function beginLive(): void {
  let ending: AbortController | null = null;
  effect(() => {
    const wanted = session.value != null && !isPaused.value;
    void chosenTenant.value; // another tenant's stream is another stream
    ending?.abort();
    ending = null;
    isConnected.value = false;
    if (wanted) {
      ending = new AbortController();
      void follow(ending.signal);
    }
  });
  effect(() => {
    void chosenTenant.value;
    last = null;
  });
}
