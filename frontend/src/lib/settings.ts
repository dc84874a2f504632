// A queue's settings as a form has them, and what was changed in it.
import type { QueueSettings, Rate, SettingsRequest } from "../api.ts";

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
