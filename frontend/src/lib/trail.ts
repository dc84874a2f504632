// The list one came from: a job's page goes to the next and the one before in it.
import { signal } from "@preact/signals";

export type Trail = { readonly ids: readonly string[]; readonly query: { readonly [name: string]: string } };
export const trail = signal<Trail>({ ids: [], query: {} });

/** Where a job is in the list: its neighbours, and its place; null if it is not in it. */
export function neighbours(id: string, ids: readonly string[]): { readonly before: string | null; readonly after: string | null; readonly place: number } | null {
  const at = ids.indexOf(id);
  return at < 0 ? null : { before: ids[at - 1] ?? null, after: ids[at + 1] ?? null, place: at + 1 };
}
