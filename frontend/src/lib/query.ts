// Data for screens: a cache of answers by address, fetched when somebody looks, fetched again when something happens.
//
//   const queues = useGet<QueuesAnswer>("/v1/queues", {}, { live: (e) => e.kind === "job" || e.kind === "queue" });
//   queues.data      the answer; the last good one stays while a new one is fetched, and when that fails
//   queues.error     a Failure, if the last try failed: show it with <ErrorState query={queues}/>
//   queues.isFirst   nothing is known yet: show a <Skeleton/>
//   queues.refetch() now
//
//   await act(() => api.post(…), "Queue paused", ["/v1/queues"]);   // a toast; answers below these addresses are fetched again
//
// Options: `live` says which events make the answer old (at most one fetch a second); `every` fetches again after so many
// seconds in any case. While live is paused nothing is fetched by itself. A null path fetches nothing.
import { effect, type Signal, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, chosenTenant, Failure, type QueryValues } from "./http.ts";
import { gaps, isPaused, type LiveEvent, onEvent } from "./live.ts";
import { toast } from "./toasts.ts";

export type QueryOptions = { readonly live?: (event: LiveEvent) => boolean; readonly every?: number };
export type Query<T> = {
  readonly data: T | undefined;
  readonly error: Failure | null;
  readonly isFetching: boolean;
  readonly isFirst: boolean;
  readonly refetch: () => void;
};

type State = { readonly data: unknown; readonly error: Failure | null; readonly isFetching: boolean };
type Entry = {
  readonly path: string;
  readonly query: QueryValues;
  readonly state: Signal<State>;
  readonly users: Set<QueryOptions>;
  abort: AbortController | null;
  isOld: boolean;
  isHeld: boolean;
  fetchedAt: number;
  timer: ReturnType<typeof setTimeout> | null;
};

const THROTTLE_MS = 1000;
const MOST_KEPT = 60;
const entries = new Map<string, Entry>();
const IDLE: State = { data: undefined, error: null, isFetching: false };

async function fetchNow(entry: Entry): Promise<void> {
  if (entry.timer !== null) clearTimeout(entry.timer);
  entry.timer = null;
  if (entry.isHeld) return;
  if (entry.abort !== null) {
    entry.isOld = true; // one is under way: once more when it is back
    return;
  }
  entry.isOld = false;
  const abort = (entry.abort = new AbortController());
  entry.fetchedAt = Date.now();
  entry.state.value = { ...entry.state.peek(), isFetching: true };
  try {
    const data = await api.get<unknown>(entry.path, entry.query, abort.signal);
    entry.state.value = { data, error: null, isFetching: false };
  } catch (error) {
    if (abort.signal.aborted) entry.state.value = { ...entry.state.peek(), isFetching: false };
    else if (error instanceof Failure) entry.state.value = { ...entry.state.peek(), error, isFetching: false };
    else throw error;
  } finally {
    entry.abort = null;
    if (entry.isOld && entry.users.size > 0) soon(entry);
  }
}

/** Fetch before long, and no more than once a second. */
function soon(entry: Entry): void {
  if (entry.timer !== null) return;
  entry.timer = setTimeout(() => void fetchNow(entry), Math.max(50, entry.fetchedAt + THROTTLE_MS - Date.now()));
}

function entryOf(path: string, query: QueryValues): Entry {
  const key = JSON.stringify([chosenTenant.peek(), path, query]);
  let entry = entries.get(key);
  if (entry === undefined) {
    entry = { path, query, state: signal(IDLE), users: new Set(), abort: null, isOld: false, isHeld: false, fetchedAt: 0, timer: null };
  } else entries.delete(key);
  entries.set(key, entry); // the last used is the last dropped
  for (const [old, one] of entries) {
    if (entries.size <= MOST_KEPT) break;
    if (one.users.size === 0) entries.delete(old);
  }
  return entry;
}

export function useGet<T>(path: string | null, query: QueryValues = {}, options: QueryOptions = {}): Query<T> {
  const key = path === null ? null : JSON.stringify([chosenTenant.value, path, query]);
  const entry = path === null ? null : entryOf(path, query);
  useEffect(() => {
    if (entry === null) return;
    entry.users.add(options);
    if (Date.now() - entry.fetchedAt > THROTTLE_MS || entry.state.peek().error) void fetchNow(entry);
    const timer = options.every ? setInterval(() => isPaused.peek() || soon(entry), options.every * 1000) : null;
    return () => {
      entry.users.delete(options);
      if (timer !== null) clearInterval(timer);
      if (entry.users.size === 0) {
        entry.abort?.abort();
        if (entry.timer !== null) clearTimeout(entry.timer);
        entry.timer = null;
        entry.isHeld = false;
      }
    };
  }, [key]);
  const state = entry === null ? IDLE : entry.state.value;
  return {
    data: state.data as T | undefined,
    error: state.error,
    isFetching: state.isFetching,
    isFirst: path !== null && state.data === undefined && state.error === null,
    refetch: () => entry !== null && void fetchNow(entry),
  };
}

/** Answers below these addresses are old: those that somebody looks at are fetched again. */
export function invalidate(paths: readonly string[]): void {
  for (const [key, entry] of entries) {
    if (!paths.some((path) => entry.path.startsWith(path))) continue;
    if (entry.users.size === 0) entries.delete(key);
    else void fetchNow(entry);
  }
}

/** What somebody looks at is about to go, maybe sooner than its page: ask for it no more, until they have left. */
export function hold(path: string, isHeld = true): void {
  for (const entry of entries.values()) {
    if (entry.path !== path || entry.users.size === 0) continue;
    entry.isHeld = isHeld;
    if (isHeld) entry.abort?.abort();
  }
}

/** Do something, say so, and fetch what it changed. Returns undefined where it was refused, which a toast says too. */
export async function act<T>(doing: () => Promise<T>, done: string, changes: readonly string[] = ["/v1/"]): Promise<T | undefined> {
  try {
    const answer = await doing();
    toast(done, "good");
    return answer;
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    toast(error.detail, "bad");
    return undefined;
  } finally {
    invalidate(changes);
  }
}

onEvent((event) => {
  for (const entry of entries.values()) {
    for (const options of entry.users) if (options.live?.(event)) soon(entry);
  }
});
effect(() => {
  void gaps.value; // connected after a gap: nobody knows what was missed
  for (const entry of entries.values()) if (entry.users.size > 0 && entry.fetchedAt > 0) soon(entry);
});
