// A list of jobs as a file. Payloads go out as the text they came as.
import type { JobAnswer } from "../api.ts";
import { Raw } from "../lib/json.ts";

const FIELDS = ["id", "type", "queue", "status", "priority", "attempts", "created_at", "run_at", "ended_at", "worker", "key", "cause", "error", "payload", "result"] as const;

const plain = (value: unknown): string => (value instanceof Raw ? value.text : value === null || value === undefined ? "" : String(value));
/** A cell that begins like a formula would be one in a spreadsheet. */
const cell = (value: unknown): string => `"${plain(value).replace(/^[=+@-]/, "'$&").replaceAll('"', '""')}"`;
const member = (name: string, value: unknown): string => `${JSON.stringify(name)}: ${value instanceof Raw ? value.text : JSON.stringify(value ?? null)}`;

export const asCsv = (jobs: readonly JobAnswer[]): string => [FIELDS.join(","), ...jobs.map((job) => FIELDS.map((field) => cell(job[field])).join(","))].join("\r\n") + "\r\n";
export const asJsonText = (jobs: readonly JobAnswer[]): string => `[\n${jobs.map((job) => `  {${Object.entries(job).map(([name, value]) => member(name, value)).join(", ")}}`).join(",\n")}\n]\n`;

export function save(kind: "JSON" | "CSV", jobs: readonly JobAnswer[]): void {
  const url = URL.createObjectURL(new Blob([kind === "CSV" ? asCsv(jobs) : asJsonText(jobs)], { type: kind === "CSV" ? "text/csv" : "application/json" }));
  const link = document.createElement("a");
  [link.href, link.download] = [url, `jobs.${kind.toLowerCase()}`];
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
