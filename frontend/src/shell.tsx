// What is around every screen: navigation, top bar, palette, help, notices, questions. And the log-in before it.
import { signal, useSignalEffect } from "@preact/signals";
import { Component, type ComponentChildren, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { api, chosenTenant, Failure } from "./lib/http.ts";
import { allKeys, useKeys } from "./lib/keys.ts";
import { live, togglePause } from "./lib/live.ts";
import { theme, zone } from "./lib/prefs.ts";
import { Link, match, navigate, path } from "./lib/router.tsx";
import { chooseTenant, logIn, logOut, may, session, tenant } from "./lib/session.ts";
import { dismiss, notices } from "./lib/toasts.ts";
import { SCREENS, type Screen } from "./screens.ts";
import { Questions } from "./ui/confirm.tsx";
import { Icon, type IconName } from "./ui/icons.tsx";
import { Button, Dialog, EmptyState, Field, Menu } from "./ui/parts.tsx";
import { Kbd } from "./ui/values.tsx";

const isPaletteOpen = signal(false);
const isHelpOpen = signal(false);
const isNavOpen = signal(false);
const isAllowed = (screen: Screen): boolean => may(...(screen.scopes ?? ["read", "operate"]));

function found(): { readonly screen: Screen; readonly parts: { readonly [name: string]: string } } | null {
  for (const screen of SCREENS) {
    const parts = match(screen.path, path.value);
    if (parts !== null) return { screen, parts };
  }
  return null;
}

export function Shell(): JSX.Element | null {
  const at = found();
  useSignalEffect(() => {
    document.title = `${found()?.screen.title ?? "Not found"} · Penstock`;
    isNavOpen.value = false;
  });
  if (session.value === undefined) return null;
  if (session.value === null) return <><Login /><Notices /></>;
  const Shown = at?.screen.screen;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>Skip to content</a>
      <Navigation at={at?.screen.path ?? ""} />
      <div class="frame">
        <TopBar />
        <main id="main" tabIndex={-1}>
          <Caught key={path.value}>
            {at === null || !Shown ? <EmptyState icon="search" title="There is no such page" command="penstock --help">The address may be old or mistyped.</EmptyState>
              : !isAllowed(at.screen) ? <EmptyState icon="tokens" title={`${at.screen.title} needs the scope ${(at.screen.scopes ?? ["read"]).join(" or ")}`}>The token “{session.value.name}” has {session.value.scopes.join(", ")}.</EmptyState>
              : <Shown {...at.parts} />}
          </Caught>
        </main>
      </div>
      <GoTo />
      {isPaletteOpen.value && <Palette />}
      {isHelpOpen.value && <Help />}
      <Questions />
      <Notices />
    </>
  );
}

/** A screen that breaks takes nothing else with it. */
class Caught extends Component<{ children: ComponentChildren }, { error: Error | null }> {
  override state = { error: null as Error | null };
  static override getDerivedStateFromError = (error: Error) => ({ error });
  render(): ComponentChildren {
    const { error } = this.state;
    if (error === null) return this.props.children;
    console.error(error);
    return <EmptyState icon="failures" title="This screen broke">{error.message}. Reload the page; if it happens again, please report it.</EmptyState>;
  }
}

function Navigation({ at }: { at: string }): JSX.Element {
  return (
    <nav class={isNavOpen.value ? "nav open" : "nav"} aria-label="Screens" onClick={() => (isNavOpen.value = false)}>
      <div class="brand"><span class="brand-mark"><Icon name="flows" /></span>Penstock</div>
      {SCREENS.filter((screen) => screen.icon).map((screen) => {
        const isHere = screen.path === at || (screen.path !== "/" && at.startsWith(`${screen.path}/`));
        return (
          <Link key={screen.path} to={screen.path} class="nav-link" title={screen.key && `g ${screen.key}`} aria-current={isHere ? "page" : undefined}>
            <Icon name={screen.icon as IconName} />{screen.title}
          </Link>
        );
      })}
      <div class="nav-foot faint">{session.value?.version}</div>
    </nav>
  );
}

const LIVE_WORDS = { live: "Live", paused: "Paused", reconnecting: "Reconnecting" } as const;

function TopBar(): JSX.Element {
  return (
    <header class="top">
      <button type="button" class="button quiet icon-only nav-toggle" aria-label="Screens" aria-expanded={isNavOpen.value} onClick={() => (isNavOpen.value = !isNavOpen.value)}><Icon name="menu" /></button>
      <TenantChoice />
      <button type="button" class="palette-button" onClick={() => (isPaletteOpen.value = true)}><Icon name="search" size={14} /><span class="grow">Go to …</span><Kbd keys="Mod+k" /></button>
      <span class="grow" />
      <button type="button" class={`live live-${live.value}`} title={live.value === "paused" ? "Nothing on the page moves; go on" : "Pause: nothing on the page will move"} onClick={togglePause}>
        <span class="live-dot" /><span aria-live="polite">{LIVE_WORDS[live.value]}</span>
      </button>
      <button type="button" class="button quiet small" title="Times: local or UTC" onClick={() => (zone.value = zone.value === "utc" ? "local" : "utc")}>{zone.value === "utc" ? "UTC" : "Local"}</button>
      <Menu label="Theme" icon={theme.value === "dark" ? "moon" : theme.value === "light" ? "sun" : "auto"} items={(["auto", "light", "dark"] as const).map((one) => ({ label: one[0]?.toUpperCase() + one.slice(1), isChosen: theme.value === one, run: () => (theme.value = one) }))} />
      <Menu label={`Logged in as ${session.value?.name}`} icon="user" items={[
        { label: "Keyboard", icon: "more", run: () => (isHelpOpen.value = true) },
        { label: "Log out", icon: "out", run: () => void logOut() },
      ]} />
    </header>
  );
}

/** Whoever has a token for all tenants chooses one. */
function TenantChoice(): JSX.Element {
  const [names, setNames] = useState<readonly string[]>([]);
  const isEveryone = session.value?.tenant === "*";
  useEffect(() => {
    if (isEveryone) void api.post<readonly string[]>("/v1/store/tenants").then(setNames, () => {});
  }, [isEveryone]);
  if (!isEveryone) return <span class="tenant" title="Tenant">{tenant.value}</span>;
  return (
    <select class="tenant select" aria-label="Tenant" value={chosenTenant.value ?? ""} onChange={(event) => chooseTenant(event.currentTarget.value)}>
      {[...new Set([chosenTenant.value ?? "default", ...names])].sort().map((one) => <option key={one}>{one}</option>)}
    </select>
  );
}

// ── Keys ────────────────────────────────────────────────────────────────────────────────────────────

function GoTo(): null {
  useKeys([
    ...SCREENS.filter((screen) => screen.key).map((screen) => [`g ${screen.key}`, `Go to ${screen.title}`, () => navigate(screen.path)] as const),
    ["Mod+k", "Go to anything", () => (isPaletteOpen.value = !isPaletteOpen.peek())],
    ["?", "Show this help", () => (isHelpOpen.value = true)],
    ["/", "Search jobs", () => navigate("/jobs")],
  ], true);
  return null;
}

function Help(): JSX.Element {
  const keys = allKeys();
  const isGo = (keys: string): boolean => keys.startsWith("g ");
  const list = (some: typeof keys): JSX.Element => <dl class="keys">{some.map(([key, about]) => <div key={key}><dt><Kbd keys={key} /></dt><dd>{about}</dd></div>)}</dl>;
  return (
    <Dialog title="Keyboard" wide onClose={() => (isHelpOpen.value = false)}>
      <div class="columns"><div>{list(keys.filter(([key]) => isGo(key)))}</div><div>{list(keys.filter(([key]) => !isGo(key)))}</div></div>
    </Dialog>
  );
}

type Command = { readonly label: string; readonly icon: IconName; readonly hint?: string; readonly run: () => void };

function commands(typed: string): readonly Command[] {
  const id = /^[0-9a-f-]{36}$/.exec(typed.trim())?.[0];
  const all: Command[] = [
    ...SCREENS.filter((screen) => screen.icon && isAllowed(screen)).map((screen) => ({ label: screen.title, icon: screen.icon as IconName, ...(screen.key ? { hint: `g ${screen.key}` } : {}), run: () => navigate(screen.path) })),
    ...["dead", "running", "queued", "held"].map((state) => ({ label: `Jobs: ${state}`, icon: "jobs" as const, run: () => navigate("/jobs", { state }) })),
    ...(["auto", "light", "dark"] as const).map((one) => ({ label: `Theme: ${one}`, icon: "sun" as const, run: () => void (theme.value = one) })),
    { label: zone.value === "utc" ? "Show local times" : "Show times in UTC", icon: "clock", run: () => void (zone.value = zone.value === "utc" ? "local" : "utc") },
    { label: live.value === "paused" ? "Go on with live updates" : "Pause live updates", icon: "pause", run: togglePause },
    { label: "Keyboard help", icon: "more", hint: "?", run: () => void (isHelpOpen.value = true) },
    { label: "Log out", icon: "out", run: () => void logOut() },
  ];
  const wanted = typed.toLowerCase().split(/\s+/);
  const fitting = all.filter((one) => wanted.every((word) => one.label.toLowerCase().includes(word)));
  if (id) return [{ label: `Open job ${id}`, icon: "jobs", run: () => navigate(`/jobs/${id}`) }];
  return typed.trim() === "" ? all : [...fitting, { label: `Search jobs: ${typed}`, icon: "search", run: () => navigate("/jobs", { q: typed.includes(":") ? typed : `type:${typed.trim()}` }) }];
}

function Palette(): JSX.Element {
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const list = useRef<HTMLDivElement>(null);
  const offered = commands(typed);
  const close = (): void => void (isPaletteOpen.value = false);
  const run = (command: Command | undefined): void => (close(), command?.run());
  useEffect(() => list.current?.children[at]?.scrollIntoView({ block: "nearest" }), [at]);
  const key = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step !== 0) (event.preventDefault(), setAt((at + step + offered.length) % offered.length));
    else if (event.key === "Enter") (event.preventDefault(), run(offered[at]));
  };
  return (
    <Dialog title="Go to anything" bare onClose={close}>
      <div class="palette-head"><Icon name="search" /><input class="palette-input" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant={`command-${at}`} aria-label="Go to" placeholder="A screen, a job's id, queue:emails …" autoFocus value={typed} onInput={(event) => (setTyped(event.currentTarget.value), setAt(0))} onKeyDown={key} /></div>
      <div id="palette-list" class="palette-list" role="listbox" aria-label="Commands" ref={list} tabIndex={-1}>
        {offered.map((one, n) => (
          <div key={one.label} id={`command-${n}`} role="option" aria-selected={n === at} class="offer" onMouseMove={() => setAt(n)} onClick={() => run(one)}>
            <Icon name={one.icon} size={14} /><span class="grow">{one.label}</span>{one.hint && <Kbd keys={one.hint} />}
          </div>
        ))}
      </div>
    </Dialog>
  );
}

function Notices(): JSX.Element {
  return (
    <div class="notices" role="status" aria-live="polite">
      {notices.value.map((notice) => (
        <div key={notice.id} class={`toast tone-${notice.tone}`}>
          <Icon name={notice.tone === "bad" ? "failures" : "check"} size={14} /><span class="grow">{notice.text}</span>
          {notice.action && <button type="button" class="text-button" onClick={() => (dismiss(notice.id), notice.action?.run())}>{notice.action.label}</button>}
          <button type="button" class="button quiet icon-only" aria-label="Dismiss" onClick={() => dismiss(notice.id)}><Icon name="cross" size={12} /></button>
        </div>
      ))}
    </div>
  );
}

// ── Log-in ──────────────────────────────────────────────────────────────────────────────────────────

function Login(): JSX.Element {
  const [token, setToken] = useState("");
  const [error, setError] = useState<string | null>(null);
  const send = async (): Promise<void> => {
    try {
      await logIn(token.trim());
    } catch (refused) {
      if (!(refused instanceof Failure)) throw refused;
      setError(refused.status === 401 ? "This token is not known: it never was, has expired, or was revoked." : refused.detail);
    }
  };
  return (
    <main class="login">
      <form class="login-box" onSubmit={(event) => (event.preventDefault(), void send())}>
        <div class="brand"><span class="brand-mark"><Icon name="flows" /></span>Penstock</div>
        <h1>Log in</h1>
        <Field label="Token" error={error} hint={<>Make one with <code>penstock tokens create NAME --scope read</code>. It is exchanged for a cookie and not kept.</>}>
          {(id) => <input id={id} class="input mono" type="password" autoComplete="current-password" autoFocus value={token} onInput={(event) => setToken(event.currentTarget.value)} placeholder="pst_…" />}
        </Field>
        <Button kind="primary" class="full" isDisabled={token.trim() === ""} onClick={send}>Log in</Button>
      </form>
    </main>
  );
}
