// Parts of screens: <Page/>, <Button/>, <Tabs/>, <EmptyState/>, <ErrorState/>, <Skeleton/>, <Menu/>, <Dialog/>, <Field/>, <Card/>.
//
//   <Page title="Queues" actions={<Button …/>}> … </Page>       every screen is one
//   <Button needs="operate" onClick={…}>Pause</Button>          greyed out, and says why, for those who may not
//   <EmptyState title="No jobs yet" command="penstock enqueue hello"/>
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import type { Failure } from "../lib/http.ts";
import { may, type Scope, session } from "../lib/session.ts";
import { Icon, type IconName } from "./icons.tsx";
import { Copy } from "./values.tsx";

export function Page({ title, count, actions, children }: { title: ComponentChildren; count?: ComponentChildren; actions?: ComponentChildren; children: ComponentChildren }): JSX.Element {
  return (
    <div class="page">
      <header class="page-head">
        <h1>{title}{count !== undefined && <span class="page-count num">{count}</span>}</h1>
        {actions && <div class="row">{actions}</div>}
      </header>
      {children}
    </div>
  );
}

export function Card({ title, actions, flush = false, children }: { title?: ComponentChildren; actions?: ComponentChildren; flush?: boolean; children: ComponentChildren }): JSX.Element {
  return (
    <section class={flush ? "card flush" : "card"}>
      {title && <header class="card-head"><h2>{title}</h2>{actions && <div class="row">{actions}</div>}</header>}
      {children}
    </section>
  );
}

export type ButtonProps = {
  readonly children: ComponentChildren;
  readonly onClick: () => unknown;
  readonly icon?: IconName;
  readonly kind?: "plain" | "primary" | "danger" | "quiet";
  /** The scope it takes; the server checks it, this only shows it. */
  readonly needs?: Scope;
  readonly isDisabled?: boolean;
  readonly title?: string;
  readonly size?: "small" | "usual";
  readonly class?: string;
};

export function Button({ children, onClick, icon, kind = "plain", needs, isDisabled = false, title, size = "usual", class: more = "" }: ButtonProps): JSX.Element {
  const [isBusy, setBusy] = useState(false);
  const isAllowed = needs === undefined || may(needs);
  const why = isAllowed ? title : `Needs the scope ${needs}; ${session.value?.name ?? "this token"} has ${session.value?.scopes.join(", ")}`;
  const click = async (): Promise<void> => {
    setBusy(true);
    try {
      await onClick();
    } finally {
      setBusy(false);
    }
  };
  return (
    <button type="button" class={`button ${kind} ${size === "small" ? "small" : ""} ${more}`} disabled={isDisabled || !isAllowed || isBusy} aria-busy={isBusy} title={why} onClick={click}>
      {icon && <Icon name={icon} size={14} />}
      {children}
    </button>
  );
}

export type Tab<T extends string> = { readonly id: T; readonly label: ComponentChildren; readonly count?: ComponentChildren };

/** Tabs that are a choice of one; the choice is in the address. */
export function Tabs<T extends string>({ tabs, chosen, onChoose, label }: { tabs: readonly Tab<T>[]; chosen: T; onChoose: (id: T) => void; label: string }): JSX.Element {
  const move = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    const next = (tabs.findIndex((tab) => tab.id === chosen) + step + tabs.length) % tabs.length;
    const tab = tabs[next];
    if (tab) onChoose(tab.id);
    (event.currentTarget as HTMLElement).querySelectorAll("button")[next]?.focus();
  };
  return (
    <div class="tabs" role="group" aria-label={label} onKeyDown={move}>
      {tabs.map((tab) => (
        <button key={tab.id} type="button" class="tab" aria-pressed={tab.id === chosen} onClick={() => onChoose(tab.id)}>
          {tab.label}{tab.count !== undefined && tab.count !== null && <span class="tab-count num">{tab.count}</span>}
        </button>
      ))}
    </div>
  );
}

/** Nothing here: why, and the command that changes it. */
export function EmptyState({ title, children, command, icon = "jobs" }: { title: string; children?: ComponentChildren; command?: string; icon?: IconName }): JSX.Element {
  return (
    <div class="empty">
      <Icon name={icon} size={24} />
      <p class="empty-title">{title}</p>
      {children && <p class="muted">{children}</p>}
      {command && <div class="command"><code tabIndex={0}>{command}</code><Copy text={command} label="Copy the command" /></div>}
    </div>
  );
}

/** What the API refused, and a way to try again. `query` is what useGet returned. */
export function ErrorState({ query }: { query: { readonly error: Failure | null; readonly refetch: () => void } }): JSX.Element | null {
  const { error } = query;
  if (error === null) return null;
  return (
    <div class="notice tone-bad" role="alert">
      <Icon name="failures" />
      <div class="grow"><strong>{error.status === 0 ? "Not reachable" : error.status === 403 ? "Not allowed" : `Refused (${error.status})`}</strong> {error.detail}{error.requestId && <span class="faint"> · request {error.requestId}</span>}</div>
      <Button size="small" onClick={query.refetch} icon="redrive">Try again</Button>
    </div>
  );
}

export function Skeleton({ lines = 6 }: { lines?: number }): JSX.Element {
  return <div class="skeleton" role="status" aria-busy="true" aria-label="Loading">{Array.from({ length: lines }, (_, n) => <div key={n} class={`bone w${n % 4}`} />)}</div>;
}

export function Field({ label, hint, error, children }: { label: string; hint?: ComponentChildren; error?: string | null; children: (id: string) => ComponentChildren }): JSX.Element {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(id)}
      {error ? <p class="field-error" role="alert">{error}</p> : hint && <p class="field-hint">{hint}</p>}
    </div>
  );
}

/** A dialog over the page: the browser's own, so focus stays in it and Escape closes it. */
export function Dialog({ title, onClose, children, footer, wide = false, bare = false }: { title: string; onClose: () => void; children: ComponentChildren; footer?: ComponentChildren; wide?: boolean; bare?: boolean }): JSX.Element {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    ref.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog ref={ref} class={`dialog ${wide ? "wide" : ""} ${bare ? "bare" : ""}`} aria-label={title}
      onCancel={(event) => (event.preventDefault(), onClose())}
      onClick={(event) => event.target === ref.current && onClose()}>
      <div class="dialog-box">
        {!bare && <header class="dialog-head"><h2>{title}</h2><button type="button" class="button quiet icon-only" aria-label="Close" onClick={onClose}><Icon name="cross" size={14} /></button></header>}
        <div class="dialog-body">{children}</div>
        {footer && <footer class="dialog-foot">{footer}</footer>}
      </div>
    </dialog>
  );
}

export type MenuItem = { readonly label: string; readonly icon?: IconName; readonly run: () => void; readonly isDanger?: boolean; readonly needs?: Scope; readonly isChosen?: boolean; /** One of many, each chosen for itself. */ readonly isToggle?: boolean };

/** A button that opens a short list of things to do. */
export function Menu({ label, icon = "more", items, children }: { label: string; icon?: IconName; items: readonly MenuItem[]; children?: ComponentChildren }): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const ref = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    const away = (event: Event): void => {
      if (!ref.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", away);
    ref.current?.querySelector<HTMLButtonElement>(".menu-list button:not(:disabled)")?.focus();
    return () => document.removeEventListener("pointerdown", away);
  }, [isOpen]);
  const move = (event: KeyboardEvent): void => {
    if (event.key === "Escape") return setOpen(false);
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step === 0) return;
    event.preventDefault();
    const all = [...(ref.current?.querySelectorAll<HTMLButtonElement>(".menu-list button:not(:disabled)") ?? [])];
    all[(all.indexOf(document.activeElement as HTMLButtonElement) + step + all.length) % all.length]?.focus();
  };
  return (
    <div class="menu" ref={ref} onKeyDown={move}>
      <button type="button" class={children ? "button quiet" : "button quiet icon-only"} aria-haspopup="menu" aria-expanded={isOpen} aria-label={label} title={label} onClick={() => setOpen(!isOpen)}>
        {children ?? <Icon name={icon} />}
      </button>
      {isOpen && (
        <div class="menu-list" role="menu" aria-label={label}>
          {items.map((item) => (
            <button key={item.label} type="button" role={item.isChosen === undefined ? "menuitem" : item.isToggle ? "menuitemcheckbox" : "menuitemradio"} aria-checked={item.isChosen} class={item.isDanger ? "danger" : ""} disabled={item.needs !== undefined && !may(item.needs)} onClick={() => (setOpen(false), item.run())}>
              {item.icon && <Icon name={item.icon} size={14} />}<span class="grow">{item.label}</span>{item.isChosen && <Icon name="check" size={14} />}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
