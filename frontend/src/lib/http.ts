// The API, from the page. Everything goes through `api`; a refusal is thrown as a `Failure` with the problem's words.
//
//   const answer = await api.get<QueuesAnswer>("/v1/queues", { count: true }, signal);
//   await api.post<QueueAnswer>(`/v1/queues/${name(queue)}/pause`, { reason });
//
// Addresses are relative to the page's own, so it works under any prefix.
import { signal } from "@preact/signals";
import { parse } from "./json.ts";

export type QueryValue = string | number | boolean | readonly string[] | null | undefined;
export type QueryValues = { readonly [name: string]: QueryValue };

/** What the API refused, or that it could not be reached (status 0). */
export class Failure extends Error {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly requestId: string | null;
  constructor(status: number, code: string, detail: string, requestId: string | null = null) {
    super(detail);
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.requestId = requestId;
  }
}

/** The tenant that is looked at, where the token is for all of them; null where it is for one. */
export const chosenTenant = signal<string | null>(null);
/** Called when the service no longer knows who we are. */
export const onUnauthorized = { run: (): void => {} };

/** Where the service is: the page is at …/ui/. */
const root = (): URL => new URL("../", new URL(".", document.baseURI));

export function address(path: string, query: QueryValues = {}): string {
  const url = new URL(path.replace(/^\//, ""), root());
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) url.searchParams.append(name, String(one));
  }
  return url.href;
}

/** A name as part of an address: it may have a slash or a space in it. */
export const name = (text: string): string => encodeURIComponent(text);

export function headers(more: Record<string, string> = {}): Record<string, string> {
  const tenant = chosenTenant.peek();
  return { "Penstock-Page": "1", ...(tenant === null ? {} : { "Penstock-Tenant": tenant }), ...more };
}

export async function failureOf(response: Response): Promise<Failure> {
  const id = response.headers.get("x-request-id");
  const text = await response.text().catch(() => "");
  try {
    const problem = JSON.parse(text) as { code?: string; detail?: string; title?: string };
    return new Failure(response.status, problem.code ?? "unknown", problem.detail ?? problem.title ?? text, id);
  } catch {
    return new Failure(response.status, "unknown", `the service answered ${response.status} ${response.statusText}`, id);
  }
}

async function ask<T>(method: string, path: string, query?: QueryValues, body?: unknown, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(address(path, query), {
      method,
      signal: signal ?? null,
      credentials: "same-origin",
      headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }),
      body: body === undefined ? null : typeof body === "string" ? body : JSON.stringify(body),
    });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Failure(0, "unreachable", "the service cannot be reached; is it running?");
  }
  if (!response.ok) {
    const failure = await failureOf(response);
    if (failure.status === 401) onUnauthorized.run();
    throw failure;
  }
  const text = await response.text();
  return (text === "" ? undefined : parse(text)) as T;
}

export const api = {
  get: <T>(path: string, query?: QueryValues, signal?: AbortSignal) => ask<T>("GET", path, query, undefined, signal),
  /** A body that is a string is sent as it is: JSON that people typed keeps its numbers. */
  post: <T>(path: string, body: unknown = {}) => ask<T>("POST", path, {}, body),
  put: <T>(path: string, body: unknown) => ask<T>("PUT", path, {}, body),
  delete: <T>(path: string) => ask<T>("DELETE", path),
};
