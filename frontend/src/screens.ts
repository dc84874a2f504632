// The one table of screens. A new screen is a file in screens/ and a line here.
//
//   path     /jobs/:id; its parts reach the screen as props, decoded
//   title    in the browser's tab and the navigation
//   icon     in the navigation; screens without one are reached from others
//   key      go-to: `g` and this
//   scopes   whoever has none of them is told so instead (default: read or operate)
import type { ComponentType } from "preact";
import type { Scope } from "./lib/session.ts";
import { FailureGroup, Failures } from "./screens/failures.tsx";
import { Gallery } from "./screens/gallery.tsx";
import { Job } from "./screens/job.tsx";
import { Jobs } from "./screens/jobs.tsx";
import { Overview } from "./screens/overview.tsx";
import { Queue } from "./screens/queue.tsx";
import { Queues } from "./screens/queues.tsx";
import { soon } from "./screens/soon.tsx";
import type { IconName } from "./ui/icons.tsx";

export type ScreenProps = { readonly [part: string]: string };
export type Screen = {
  readonly path: string;
  readonly title: string;
  readonly screen: ComponentType<ScreenProps>;
  readonly icon?: IconName;
  readonly key?: string;
  readonly scopes?: readonly Scope[];
};

export const SCREENS: readonly Screen[] = [
  { path: "/", title: "Overview", icon: "overview", key: "o", screen: Overview },
  { path: "/jobs", title: "Jobs", icon: "jobs", key: "j", screen: Jobs },
  { path: "/jobs/:id", title: "Job", screen: Job },
  { path: "/failures", title: "Failures", icon: "failures", key: "f", screen: Failures },
  { path: "/failures/:fingerprint", title: "Failure", screen: FailureGroup },
  { path: "/queues", title: "Queues", icon: "queues", key: "q", screen: Queues },
  { path: "/queues/:queue", title: "Queue", screen: Queue },
  { path: "/workers", title: "Workers", icon: "workers", key: "w", screen: soon("Workers", "penstock workers list") },
  { path: "/schedules", title: "Schedules", icon: "schedules", key: "s", screen: soon("Schedules", "penstock schedules list") },
  { path: "/schedules/:name", title: "Schedule", screen: soon("Schedule", "penstock schedules list") },
  { path: "/flows", title: "Flows", icon: "flows", key: "l", screen: soon("Flows", "penstock jobs list") },
  { path: "/flows/:id", title: "Flow", screen: soon("Flow", "penstock jobs show ID") },
  { path: "/bulk", title: "Bulk operations", icon: "bulk", key: "b", screen: soon("Bulk operations", "penstock jobs bulk") },
  { path: "/insights", title: "Insights", icon: "insights", key: "i", screen: soon("Insights", "penstock insights") },
  { path: "/tokens", title: "Tokens", icon: "tokens", key: "t", scopes: ["admin"], screen: soon("Tokens", "penstock tokens list") },
  { path: "/audit", title: "Audit", icon: "audit", key: "a", scopes: ["read", "operate"], screen: soon("Audit", "penstock audit") },
  { path: "/system", title: "System", icon: "system", key: "y", screen: soon("System", "penstock doctor") },
  { path: "/parts", title: "Parts", screen: Gallery },
];
