// Who is logged in, and what they may do. The server checks every request; `may` only decides what is shown as possible.
//
//   const allowed = may("operate");        // also true for admin
import { computed, signal } from "@preact/signals";
import { api, chosenTenant, Failure, onUnauthorized } from "./http.ts";

export type Scope = "produce" | "work" | "read" | "operate" | "admin";
export type Session = {
  readonly name: string;
  /** `*`: the token is for all tenants, and the page names one with each request. */
  readonly tenant: string;
  readonly scopes: readonly Scope[];
  readonly version: string;
};

/** undefined until it is known; null: nobody is logged in. */
export const session = signal<Session | null | undefined>(undefined);
export const tenant = computed(() => chosenTenant.value ?? session.value?.tenant ?? "");

export function may(...scopes: Scope[]): boolean {
  const has = session.value?.scopes ?? [];
  return has.includes("admin") || scopes.some((scope) => has.includes(scope));
}

function arrived(who: Session): void {
  const kept = localStorage.getItem("penstock.tenant");
  chosenTenant.value = who.tenant === "*" ? (kept ?? "default") : null;
  session.value = who;
}

export function chooseTenant(name: string): void {
  localStorage.setItem("penstock.tenant", name);
  chosenTenant.value = name;
}

/** Finds out who is logged in; a code in the address logs in, and leaves the address at once. */
export async function beginSession(): Promise<void> {
  onUnauthorized.run = () => {
    if (session.peek()) session.value = null;
  };
  const code = /^#code=([\w-]+)$/.exec(location.hash)?.[1];
  if (code !== undefined) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      return arrived(await api.post<Session>("/ui/session", { code }));
    } catch {
      // It was used before: perhaps by this very browser, which is logged in then.
    }
  }
  try {
    arrived(await api.get<Session>("/ui/session"));
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    session.value = null;
  }
}

export async function logIn(token: string): Promise<void> {
  arrived(await api.post<Session>("/ui/session", { token }));
}

export async function logOut(): Promise<void> {
  await api.delete("/ui/session");
  session.value = null;
}
