// All settings of a queue in a dialog. Only what was changed is sent, so two people may change different things.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { QueueSettings, Rate, SettingsRequest } from "../api.ts";
import { api, Failure, name } from "../lib/http.ts";
import { invalidate } from "../lib/query.ts";
import { toast } from "../lib/toasts.ts";
import { Button, Dialog, Field } from "../ui/parts.tsx";

/** What people typed: texts, for they may be half-way. */
export type Form = { readonly [field: string]: string };
const NUMBERS = ["max_attempts", "lease_seconds", "retention_seconds", "target_seconds"] as const;
const LIMITS = ["max_concurrency", "max_concurrency_per_key", "max_depth"] as const;
const RATES = ["rate", "rate_per_key"] as const;

export function formOf(settings: QueueSettings): Form {
  const form: Record<string, string> = { fair: String(settings.fair ?? false), on_exhausted: settings.on_exhausted ?? "dead" };
  for (const field of [...NUMBERS, ...LIMITS]) form[field] = settings[field] == null ? "" : String(settings[field]);
  for (const field of RATES) {
    const rate = settings[field];
    form[field] = rate == null ? "" : String(rate.limit);
    form[`${field}.per`] = String(rate?.per ?? 1);
    form[`${field}.burst`] = String(rate?.burst ?? 1);
  }
  for (const part of ["kind", "base", "factor", "cap", "jitter"] as const) form[`retry.${part}`] = settings.retry?.[part] == null ? "" : String(settings.retry[part]);
  return form;
}

/** What differs, as the API takes it. A text that is no number is sent as it is: the server says what is wrong with it. */
export function changesOf(before: Form, form: Form): SettingsRequest {
  const value = (text: string): unknown => (text.trim() === "" ? null : Number.isFinite(Number(text)) ? Number(text) : text);
  const differs = (prefix: string): boolean => Object.keys(form).some((field) => (field === prefix || field.startsWith(`${prefix}.`)) && form[field] !== before[field]);
  const changes: Record<string, unknown> = {};
  for (const field of [...NUMBERS, ...LIMITS]) if (differs(field)) changes[field] = value(form[field] ?? "");
  for (const field of RATES) {
    if (differs(field)) changes[field] = (form[field] ?? "").trim() === "" ? null : ({ limit: value(form[field] ?? ""), per: value(form[`${field}.per`] ?? ""), burst: value(form[`${field}.burst`] ?? "") } as Rate);
  }
  if (differs("fair")) changes["fair"] = form["fair"] === "true";
  if (differs("on_exhausted")) changes["on_exhausted"] = form["on_exhausted"];
  if (differs("retry")) {
    const parts = ["base", "factor", "cap", "jitter"].filter((part) => (form[`retry.${part}`] ?? "").trim() !== "").map((part) => [part, value(form[`retry.${part}`] ?? "")]);
    changes["retry"] = { kind: form["retry.kind"], ...Object.fromEntries(parts) };
  }
  return changes as SettingsRequest;
}

export function SettingsDialog({ queue, settings, onClose }: { queue: string; settings: QueueSettings; onClose: () => void }): JSX.Element {
  const [before] = useState(() => formOf(settings));
  const [form, setForm] = useState(before);
  const [reason, setReason] = useState("");
  const [error, setError] = useState<string | null>(null);
  const changes = changesOf(before, form);
  const count = Object.keys(changes).length;
  const send = async (): Promise<void> => {
    if (count === 0) return;
    try {
      await api.put(`/v1/queues/${name(queue)}`, { ...changes, reason: reason.trim() || null });
      toast(`Set ${queue}`, "good");
      invalidate(["/v1/queues", "/v1/overview", "/v1/markers"]);
      onClose();
    } catch (refused) {
      if (!(refused instanceof Failure)) throw refused;
      setError(refused.detail);
    }
  };
  const input = (field: string, placeholder = "no limit") => (id: string): JSX.Element => <input id={id} class="input" inputMode="decimal" autoComplete="off" placeholder={placeholder} value={form[field]} onInput={(event) => setForm({ ...form, [field]: event.currentTarget.value })} />;
  const select = (field: string, options: readonly (readonly [value: string, label: string])[]) => (id: string): JSX.Element => <select id={id} class="select" value={form[field]} onChange={(event) => setForm({ ...form, [field]: event.currentTarget.value })}>{options.map(([value, label]) => <option key={value} value={value}>{label}</option>)}</select>;
  const rate = (field: "rate" | "rate_per_key", label: string): JSX.Element => (
    <Three><Field label={label}>{input(field)}</Field><Field label="in seconds">{input(`${field}.per`, "1")}</Field><Field label="Burst">{input(`${field}.burst`, "1")}</Field></Three>
  );
  const kind = form["retry.kind"];
  return (
    <Dialog title={`Settings of ${queue}`} wide onClose={onClose} footer={<><Button onClick={onClose}>Leave it</Button><Button kind="primary" needs="operate" isDisabled={count === 0} onClick={send}>{count === 0 ? "Nothing changed" : `Set ${count === 1 ? "1 thing" : `${count} things`}`}</Button></>}>
      <form class="stack" onSubmit={(event) => (event.preventDefault(), void send())}>
        {error && <p class="notice tone-bad" role="alert">{error}</p>}
        <Group title="On time"><Three><Field label="Target, seconds" hint="Above it the queue counts as late.">{input("target_seconds", "60")}</Field><Field label="Lease, seconds" hint="A worker that is silent for so long has lost its job.">{input("lease_seconds", "30")}</Field><Field label="Kept, seconds" hint="After success or cancel.">{input("retention_seconds", "604800")}</Field></Three></Group>
        <Group title="Limits">
          <Three><Field label="Jobs at once">{input("max_concurrency")}</Field><Field label="At once per key">{input("max_concurrency_per_key")}</Field><Field label="Depth" hint="Beyond it nothing is taken in.">{input("max_depth")}</Field></Three>
          {rate("rate", "Starts")}
          {rate("rate_per_key", "Starts per key")}
          <Field label="Keys">{select("fair", [["false", "in order of arrival"], ["true", "take turns (fair)"]])}</Field>
        </Group>
        <Group title="When an attempt fails">
          <Three><Field label="Attempts">{input("max_attempts", "5")}</Field><Field label="Then">{select("on_exhausted", [["dead", "dead"], ["hold", "held, for a person to decide"]])}</Field><Field label="Retries">{select("retry.kind", [["exponential", "exponential"], ["linear", "linear"], ["fixed", "fixed"]])}</Field></Three>
          <Three><Field label="First after, seconds">{input("retry.base", "")}</Field>{kind === "exponential" && <Field label="Factor">{input("retry.factor", "2")}</Field>}<Field label="At most, seconds">{input("retry.cap", "")}</Field><Field label="Jitter" hint="0 to 1">{input("retry.jitter", "")}</Field></Three>
        </Group>
        <Field label="Reason" hint="Goes into the audit log, and on the charts.">{(id) => <input id={id} class="input" value={reason} maxLength={500} placeholder="optional" onInput={(event) => setReason(event.currentTarget.value)} />}</Field>
        <input type="submit" hidden />
      </form>
    </Dialog>
  );
}

const Three = ({ children }: { children: ComponentChildren }): JSX.Element => <div class="three">{children}</div>;
const Group = ({ title, children }: { title: string; children: ComponentChildren }): JSX.Element => <fieldset class="group"><legend>{title}</legend>{children}</fieldset>;
