// The one table of screens. A new screen is a file in screens/ and a line here.
//
//   path     /jobs/:id; its parts reach the screen as props, decoded
//   title    in the browser's tab and the navigation
//   icon     in the navigation; screens without one are reached from others
//   key      go-to: `g` and this
//   scopes   whoever has none of them is told so instead (default: read or operate)
import type { ComponentType } from "preact";
import type { Scope } from "./lib/session.ts";
import { Audit } from "./screens/audit.tsx";
import { BulkOperations } from "./screens/bulk.tsx";
import { FailureGroup, Failures } from "./screens/failures.tsx";
import { Flow, Flows } from "./screens/flows.tsx";
import { Gallery } from "./screens/gallery.tsx";
import { Insights } from "./screens/insights.tsx";
import { Job } from "./screens/job.tsx";
import { Jobs } from "./screens/jobs.tsx";
import { Overview } from "./screens/overview.tsx";
import { Queue } from "./screens/queue.tsx";
import { Queues } from "./screens/queues.tsx";
import { Schedule, Schedules } from "./screens/schedules.tsx";
import { System } from "./screens/system.tsx";
import { Tokens } from "./screens/tokens.tsx";
import { Workers } from "./screens/workers.tsx";
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
  { path: "/workers", title: "Workers", icon: "workers", key: "w", screen: Workers },
  { path: "/schedules", title: "Schedules", icon: "schedules", key: "s", screen: Schedules },
  { path: "/schedules/:name", title: "Schedule", screen: Schedule },
  { path: "/flows", title: "Flows", icon: "flows", key: "l", screen: Flows },
  { path: "/flows/:id", title: "Flow", screen: Flow },
  { path: "/bulk", title: "Bulk operations", icon: "bulk", key: "b", screen: BulkOperations },
  { path: "/insights", title: "Insights", icon: "insights", key: "i", screen: Insights },
  { path: "/tokens", title: "Tokens", icon: "tokens", key: "t", scopes: ["admin"], screen: Tokens },
  { path: "/audit", title: "Audit", icon: "audit", key: "a", scopes: ["read", "operate"], screen: Audit },
  { path: "/system", title: "System", icon: "system", key: "y", scopes: ["admin"], screen: System },
  { path: "/parts", title: "Parts", screen: Gallery },
];
