// All settings of a queue in a dialog. Only what was changed is sent, so two people may change different things.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { QueueSettings } from "../api.ts";
import { api, Failure, name } from "../lib/http.ts";
import { invalidate } from "../lib/query.ts";
import { changesOf, formOf } from "../lib/settings.ts";
import { toast } from "../lib/toasts.ts";
import { Button, Dialog, Field } from "../ui/parts.tsx";

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
