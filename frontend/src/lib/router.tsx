// The address is the state. Screens read it typed, and change it; nothing that a person would want to send to a colleague
// is anywhere else.
//
//   <Link to="/jobs" query={{ state: "dead", q: "queue:emails" }}>dead</Link>
//   navigate(`/jobs/${id}`);
//   const params = useParams({ state: choice(["all", "dead"], "all"), q: text(), after: text() });
//   params.q                       typed; what is not in the address has its default
//   params.set({ q: "type:a" })    a new entry in the history;  params.replace({ … }) changes the one there is
//   match("/jobs/:id", path)       { id } or null
import { computed, signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";

export type Param<T> = { readonly usual: T; read(text: string): T; write(value: T): string };

export const text = (usual = ""): Param<string> => ({ usual, read: (t) => t, write: (v) => v });
export const choice = <T extends string>(values: readonly T[], usual: T): Param<T> => ({
  usual, read: (t) => (values.includes(t as T) ? (t as T) : usual), write: (v) => v,
});
export const integer = (usual: number): Param<number> => ({
  usual, read: (t) => (/^-?\d+$/.test(t) ? Number(t) : usual), write: String,
});
export const flag = (): Param<boolean> => ({ usual: false, read: (t) => t === "1", write: (v) => (v ? "1" : "") });

/** The folder of the page: …/ui/. */
const base = new URL(".", document.baseURI).pathname;
// The address is written whole from here on: a base for its folder would be wrong on the next screen.
const here = signal(location.href);
addEventListener("popstate", () => (here.value = location.href));

/** The screen's path, such as /jobs/0192…, still encoded. */
export const path = computed(() => {
  const { pathname } = new URL(here.value);
  return pathname.startsWith(base) ? `/${pathname.slice(base.length)}` : "/";
});
export const search = computed(() => new URL(here.value).searchParams);

export type LinkQuery = { readonly [name: string]: string | number | null | undefined };

export function href(to: string, query: LinkQuery = {}): string {
  const sent = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") sent.set(name, String(value));
  }
  const asked = sent.toString();
  return base + to.replace(/^\//, "") + (asked && `?${asked}`);
}

function go(url: string, replaces: boolean): void {
  history[replaces ? "replaceState" : "pushState"](null, "", url);
  const before = new URL(here.peek()).pathname;
  here.value = location.href;
  if (new URL(here.peek()).pathname !== before) {
    scrollTo(0, 0);
    document.getElementById("main")?.focus({ preventScroll: true });
  }
}

export const navigate = (to: string, query: LinkQuery = {}, replaces = false): void => go(href(to, query), replaces);

export function Link(props: { to: string; query?: LinkQuery; class?: string; title?: string; "aria-current"?: "page" | undefined; children: ComponentChildren }): JSX.Element {
  const { to, query, children, ...rest } = props;
  return (
    <a
      {...rest}
      href={href(to, query)}
      onClick={(event) => {
        if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || event.button !== 0) return;
        event.preventDefault();
        navigate(to, query);
      }}
    >
      {children}
    </a>
  );
}

type Values<S> = { readonly [name in keyof S]: S[name] extends Param<infer T> ? T : never };
export type Params<S> = Values<S> & { set(changes: Partial<Values<S>>): void; replace(changes: Partial<Values<S>>): void };

export function useParams<S extends { readonly [name: string]: Param<unknown> }>(spec: S): Params<S> {
  const sent = search.value;
  const values: Record<string, unknown> = {};
  for (const [name, param] of Object.entries(spec) as [string, Param<unknown>][]) {
    const there = sent.get(name);
    values[name] = there === null ? param.usual : param.read(there);
  }
  const change = (changes: Record<string, unknown>, replaces: boolean): void => {
    const url = new URL(location.href);
    for (const [name, value] of Object.entries(changes)) {
      const param = spec[name] as Param<unknown>;
      if (value === undefined || value === param.usual) url.searchParams.delete(name);
      else url.searchParams.set(name, param.write(value));
    }
    go(url.href, replaces);
  };
  return {
    ...(values as Values<S>),
    set: (changes) => change(changes, false),
    replace: (changes) => change(changes, true),
  };
}

export function match(pattern: string, path: string): { readonly [name: string]: string } | null {
  const wanted = pattern.split("/");
  const there = path.split("/");
  if (wanted.length !== there.length) return null;
  const found: Record<string, string> = {};
  for (const [n, part] of wanted.entries()) {
    const given = there[n] ?? "";
    if (part.startsWith(":")) {
      if (given === "") return null;
      found[part.slice(1)] = decodeURIComponent(given);
    } else if (part !== given) return null;
  }
  return found;
}
