// Tokens of this tenant: made here and shown once, rotated with an overlap, revoked at once.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { NewTokenAnswer, Token, TokensAnswer } from "../api.ts";
import { api, Failure } from "../lib/http.ts";
import { now } from "../lib/prefs.ts";
import { act, invalidate, useGet } from "../lib/query.ts";
import type { Scope } from "../lib/session.ts";
import { confirm } from "../ui/confirm.tsx";
import { Button, Dialog, EmptyState, ErrorState, Field, Menu, Page, Skeleton } from "../ui/parts.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { Badge, Copy, Time } from "../ui/values.tsx";

const SCOPES: readonly (readonly [Scope, string])[] = [
  ["produce", "enqueue jobs and look at them"], ["work", "lease and settle jobs"], ["read", "look at everything"],
  ["operate", "pause, redrive, cancel, set"], ["admin", "all of it, and tokens"],
];
const LIVES: readonly (readonly [string, number | null])[] = [["never", null], ["in a day", 86_400], ["in 30 days", 30 * 86_400], ["in 90 days", 90 * 86_400], ["in a year", 365 * 86_400]];

/** The secret, this once. */
function Shown({ made, onClose }: { made: NewTokenAnswer; onClose: () => void }): JSX.Element {
  return (
    <Dialog title={`The token ${made.token.name}`} onClose={onClose} footer={<Button kind="primary" onClick={onClose}>I have kept it</Button>}>
      <p>It is shown this once: only a digest is stored, and nobody can show it again.</p>
      <div class="command secret"><code tabIndex={0}>{made.secret}</code><Copy text={made.secret} label="Copy the token" /></div>
      <p class="faint">Use it as <code>Authorization: Bearer …</code>, or set <code>PENSTOCK_TOKEN</code>.</p>
    </Dialog>
  );
}

function NewToken({ onMade, onClose }: { onMade: (made: NewTokenAnswer) => void; onClose: () => void }): JSX.Element {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState<readonly Scope[]>(["produce"]);
  const [life, setLife] = useState("in 90 days");
  const [error, setError] = useState<string | null>(null);
  const toggle = (scope: Scope): void => setScopes(scopes.includes(scope) ? scopes.filter((one) => one !== scope) : [...scopes, scope]);
  const make = async (): Promise<void> => {
    try {
      onMade(await api.post<NewTokenAnswer>("/v1/tokens", { name, scopes, expires_in: LIVES.find(([said]) => said === life)?.[1] ?? null }));
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      setError(failure.detail);
    }
  };
  return (
    <Dialog title="New token" onClose={onClose} footer={<>
      <Button onClick={onClose}>Leave it</Button>
      <Button kind="primary" isDisabled={name === "" || scopes.length === 0} onClick={make}>Make the token</Button>
    </>}>
      <Field label="Name" hint="Who or what uses it; it is in the audit log" error={error}>{(id) => <input id={id} class="input" value={name} placeholder="billing-service" onInput={(event) => setName(event.currentTarget.value)} />}</Field>
      <fieldset class="field"><legend>It may</legend>
        {SCOPES.map(([scope, about]) => <label key={scope} class="check-line"><input type="checkbox" checked={scopes.includes(scope)} onChange={() => toggle(scope)} /><span><strong>{scope}</strong> <span class="faint">{about}</span></span></label>)}
      </fieldset>
      <Field label="It expires">{(id) => <select id={id} class="select" value={life} onChange={(event) => setLife(event.currentTarget.value)}>{LIVES.map(([said]) => <option key={said}>{said}</option>)}</select>}</Field>
    </Dialog>
  );
}

export function Tokens(): JSX.Element {
  const tokens = useGet<TokensAnswer>("/v1/tokens", {}, { live: (event) => event.kind === "token", every: 30 });
  const [isMaking, setMaking] = useState(false);
  const [made, setMade] = useState<NewTokenAnswer | null>(null);
  const rows = tokens.data?.tokens ?? [];
  const show = (one: NewTokenAnswer | undefined): void => {
    setMaking(false);
    if (one) setMade(one);
    invalidate(["/v1/tokens"]);
  };
  const rotate = async (token: Token): Promise<void> => {
    const answer = await confirm({ title: `Rotate ${token.name}`, action: "Rotate it", what: <p>A new token takes its place. The old one goes on beside it for a day, so that whoever uses it has time to change.</p> });
    if (answer !== null) show(await act(() => api.post<NewTokenAnswer>(`/v1/tokens/${token.id}/rotate`, { overlap_seconds: 86_400 }), `${token.name} was rotated`, ["/v1/tokens"]));
  };
  const revoke = async (token: Token): Promise<void> => {
    const answer = await confirm({ title: `Revoke ${token.name}`, action: "Revoke it", isDanger: true, typed: token.name, what: <p>Within seconds nobody gets in with it any more. Last used <Time at={token.last_seen_at} />.</p> });
    if (answer !== null) await act(() => api.delete(`/v1/tokens/${token.id}`), `${token.name} was revoked`, ["/v1/tokens"]);
  };
  const columns: readonly Column<Token>[] = [
    { id: "name", title: "Token", sort: (token) => token.name, cell: (token) => <><span class="strong">{token.name}</span><span class="clip faint"><code>{token.id}</code></span></> },
    { id: "scopes", title: "It may", cell: (token) => <span class="row tight">{token.scopes.map((scope) => <Badge key={scope} tone={scope === "admin" ? "warn" : "plain"}>{scope}</Badge>)}</span> },
    { id: "standing", title: "", minor: true, cell: (token) => token.replaced_by ? <Badge tone="warn" icon="clock">being replaced</Badge> : token.tenant === "*" ? <Badge tone="accent">all tenants</Badge> : null },
    { id: "seen", title: "Last used", sort: (token) => token.last_seen_at ?? "", cell: (token) => token.last_seen_at ? <Time at={token.last_seen_at} /> : <span class="faint">never</span> },
    { id: "expires", title: "Expires", sort: (token) => token.expires_at ?? "9", cell: (token) => token.expires_at ? <span class={Date.parse(token.expires_at) - now.value < 7 * 86_400_000 ? "warn" : ""}><Time at={token.expires_at} /></span> : <span class="faint">never</span> },
    { id: "made", title: "Made", minor: true, cell: (token) => <><Time at={token.created_at} /> <span class="faint">by {token.created_by}</span></> },
    { id: "orders", title: "", align: "end", cell: (token) => <Menu label={`What to do with ${token.name}`} items={[
      { label: "Rotate", icon: "redrive", needs: "admin", run: () => void rotate(token) },
      { label: "Revoke", icon: "ban", needs: "admin", isDanger: true, run: () => void revoke(token) },
    ]} /> },
  ];
  return (
    <Page title="Tokens" count={tokens.data && rows.length} actions={<Button kind="primary" icon="plus" needs="admin" onClick={() => setMaking(true)}>New token</Button>}>
      <ErrorState query={tokens} />
      {tokens.isFirst ? <Skeleton /> : rows.length === 0 && tokens.error === null ? (
        <EmptyState icon="tokens" title="This tenant has no token of its own" command="penstock tokens create billing --scope produce">Whoever calls the API shows one.</EmptyState>
      ) : <Table label="Tokens" rows={rows} id={(token) => token.id} name={(token) => token.name} columns={columns} />}
      {isMaking && <NewToken onMade={show} onClose={() => setMaking(false)} />}
      {made && <Shown made={made} onClose={() => setMade(null)} />}
    </Page>
  );
}
