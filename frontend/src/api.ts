// Made from docs/openapi.json by types.mjs (`python frontend/hook.py types`). Do not edit.
import type { Raw } from "./lib/json.ts";

/** The attempt succeeded. */
export type Ack = {
  readonly job_id: string;
  readonly token: string;
  readonly result?: string;
  readonly logs?: string | null;
};

export type AckRequest = {
  readonly token: string;
  readonly result?: Raw;
  readonly logs?: string | null;
};

export type Action = "cancel" | "redrive";

export type Alive = {
  readonly status?: string;
};

/** What came of an item: a value, or an error. */
export type Answered_Beat_ = {
  readonly value?: Beat | null;
  readonly error?: Refused | null;
};

/** What came of an item: a value, or an error. */
export type Answered_Changed_ = {
  readonly value?: Changed | null;
  readonly error?: Refused | null;
};

/** What came of an item: a value, or an error. */
export type Answered_Enqueued_ = {
  readonly value?: Enqueued | null;
  readonly error?: Refused | null;
};

/** What came of an item: a value, or an error. */
export type Answered_Entry_ = {
  readonly value?: Entry | null;
  readonly error?: Refused | null;
};

/** What came of an item: a value, or an error. */
export type Answered_Fired_ = {
  readonly value?: Fired | null;
  readonly error?: Refused | null;
};

/** What came of an item: a value, or an error. */
export type Answered_Job_ = {
  readonly value?: Job | null;
  readonly error?: Refused | null;
};

/** What came of an item: a value, or an error. */
export type Answered_QueueSettings_ = {
  readonly value?: QueueSettings | null;
  readonly error?: Refused | null;
};

/** What came of an item: a value, or an error. */
export type Answered_Schedule_ = {
  readonly value?: Schedule | null;
  readonly error?: Refused | null;
};

/** What came of an item: a value, or an error. */
export type Answered_Settled_ = {
  readonly value?: Settled | null;
  readonly error?: Refused | null;
};

/** What came of an item: a value, or an error. */
export type Answered_Trail_ = {
  readonly value?: Trail | null;
  readonly error?: Refused | null;
};

/** What came of an item: a value, or an error. */
export type Answered_list_penstock_core_commands_Leased__ = {
  readonly value?: readonly (Leased)[] | null;
  readonly error?: Refused | null;
};

/** A capacity plan, and what it makes of a queue's settings. */
export type AppliedPlan = {
  readonly queue: string;
  readonly as_of: string;
  readonly before: Sizing;
  readonly after: Sizing;
  readonly why: string;
  readonly dry_run: boolean;
};

export type ApplyPlanRequest = {
  readonly dry_run?: boolean;
};

/** One lease of a job and how it ended. */
export type Attempt = {
  readonly job_id: string;
  readonly number: number;
  readonly worker: string;
  readonly token: string;
  readonly started_at: string;
  readonly ended_at: string;
  readonly outcome: Outcome;
  readonly status: Status;
  readonly run_at: string;
  readonly error?: string | null;
  readonly result?: string | null;
  readonly logs?: string | null;
};

/** One lease of the job and how it ended. */
export type AttemptAnswer = {
  readonly number: number;
  readonly worker: string;
  readonly started_at: string;
  readonly ended_at: string;
  readonly outcome: Outcome;
  readonly status: Status;
  readonly run_at: string;
  readonly error?: string | null;
  readonly result?: Raw | null;
  readonly logs?: string | null;
};

/** Something a person should look at. */
export type Attention = {
  readonly level: Level;
  readonly kind: string;
  readonly subject: string;
  readonly title: string;
  readonly detail: string;
};

export type Audit = {
  readonly limit: number;
  readonly before?: string | null;
  readonly whose?: "everyone" | "service" | "tenant";
};

/** Changes made by people and tokens, newest first. */
export type AuditAnswer = {
  readonly changes: readonly (AuditedAnswer)[];
  readonly next?: string | null;
};

/** A change made by a person or a token, and to what. */
export type AuditLine = {
  readonly kind: string;
  readonly name: string;
  readonly change: Change;
};

/** Some changes, newest first, and where to go on. */
export type AuditPage = {
  readonly lines: readonly (AuditLine)[];
  readonly next?: string | null;
};

export type AuditQuery = {
  readonly before?: string;
  readonly limit?: number;
};

/** Who changed an entry, and how that reads in the audit trail. */
export type Audited = {
  readonly name: string;
  readonly verb: string;
  readonly actor: string;
  readonly reason?: string | null;
  readonly detail?: string | null;
};

export type AuditedAnswer = {
  readonly kind: string;
  readonly name: string;
  readonly change: ChangeAnswer;
};

export type Batch = {
  readonly jobs: readonly (unknown)[];
};

/** An answer for each job, in the order they were sent. */
export type BatchAnswer = {
  readonly jobs: readonly (BatchItem)[];
};

/** The job's id, or the error that kept it out. */
export type BatchItem = {
  readonly id?: string | null;
  readonly duplicate?: Duplicate | null;
  readonly error?: Problem | null;
};

/** The answer to a heartbeat: how long the lease holds now, and whether the handler should stop. */
export type Beat = {
  readonly expires_at: string;
  readonly cancel_requested: boolean;
};

/** How long the lease holds now, and whether the handler should stop. */
export type BeatAnswer = {
  readonly expires_at: string;
  readonly cancel_requested: boolean;
};

/** What a dry run counted, or the operation that was begun. */
export type BulkAnswer = {
  readonly dry_run?: BulkCount | null;
  readonly operation?: BulkOperation | null;
};

/** What the operation would change. */
export type BulkCount = {
  readonly matched: number;
  readonly is_exact: boolean;
};

/** A change to all jobs that match, and how far it has come. */
export type BulkOperation = {
  readonly id: string;
  readonly action: Action;
  readonly filter: Filter;
  readonly state: BulkState;
  readonly actor: string;
  readonly reason: string | null;
  readonly created_at: string;
  readonly matched?: number;
  readonly changed?: number;
  readonly refused?: number;
  readonly refusals?: readonly (string)[];
  readonly ended_at?: string | null;
  readonly fingerprint?: string | null;
  readonly per_second?: number | null;
};

export type BulkRequest = {
  readonly action: "cancel" | "redrive";
  readonly filter?: FilterBody;
  readonly dry_run?: boolean;
  readonly reason?: string | null;
};

export type BulkState = "aborted" | "done" | "running";

export type BulksAnswer = {
  readonly operations: readonly (BulkOperation)[];
};

export type CancelJob = {
  readonly job_id: string;
  readonly actor: string;
  readonly reason?: string | null;
};

/** Why a job is dead, held or cancelled. */
export type Cause = "cancelled" | "discarded" | "exhausted" | "expired" | "parent_failed" | "refused";

/** Something a person or a rule did to a job, a queue or a schedule, outside of any attempt. */
export type Change = {
  readonly at: string;
  readonly verb: string;
  readonly actor: string;
  readonly reason?: string | null;
  readonly status?: Status | null;
  readonly detail?: string | null;
};

/** Something a person or a rule did. */
export type ChangeAnswer = {
  readonly at: string;
  readonly verb: string;
  readonly actor: string;
  readonly reason?: string | null;
  readonly status?: Status | null;
  readonly detail?: Raw | null;
};

/** The answer to a cancel or a redrive: what the job is now, and whose fate changed with it. */
export type Changed = {
  readonly job_id: string;
  readonly status: Status;
  readonly cancel_requested?: boolean;
  readonly others?: readonly (string)[];
};

export type ChangedAnswer = {
  readonly id: string;
  readonly status: Status;
  readonly cancel_requested?: boolean;
  readonly others?: readonly (string)[];
};

export type ChangesAnswer = {
  readonly changes: readonly (ChangeAnswer)[];
};

/** Set some of a queue's settings; pause and resume are this too. */
export type ConfigureQueue = {
  readonly queue: string;
  readonly changes: { readonly [name: string]: unknown };
  readonly actor: string;
  readonly reason?: string | null;
};

/** A cron expression in words, and when it fires next. */
export type CronAnswer = {
  readonly words: string;
  readonly next: readonly (string)[];
};

export type CronQuery = {
  readonly cron: string;
  readonly tz?: string;
};

/** End the job as cancelled: its handler was told to stop, or found nothing left to do. */
export type Discard = {
  readonly job_id: string;
  readonly token: string;
  readonly reason?: string | null;
  readonly logs?: string | null;
};

export type DiscardRequest = {
  readonly token: string;
  readonly reason?: string | null;
  readonly logs?: string | null;
};

/** A job that a worker runs. */
export type Doing = {
  readonly id: string;
  readonly type: string;
  readonly queue: string;
  readonly started_at: string;
};

export type DropSchedule = {
  readonly name: string;
  readonly actor: string;
  readonly reason?: string | null;
};

/** How schedules stand, on the store's clock. */
export type Due = {
  readonly now: string;
  readonly tenants: readonly (string)[];
  readonly next_fire_at: string | null;
};

export type DueSchedules = {
  readonly everyone?: boolean;
};

/** What made an enqueue answer with a job that was there before. */
export type Duplicate = "id" | "idempotency_key" | "unique_key";

/** The answer to an enqueue: the new job, or the one that stands for it. */
export type Enqueued = {
  readonly id: string;
  readonly duplicate?: Duplicate | null;
};

/** The new job, or the one that stands for it. */
export type EnqueuedAnswer = {
  readonly id: string;
  readonly duplicate?: Duplicate | null;
};

export type Entries = {
  readonly kind: string;
  readonly names?: readonly (string)[] | null;
  readonly whose?: "everyone" | "service" | "tenant";
};

/** Something kept under a name, within one kind and tenant. */
export type Entry = {
  readonly kind: string;
  readonly tenant: string;
  readonly name: string;
  readonly version: number;
  readonly body: string;
  readonly changed_at: string;
  readonly expires_at?: string | null;
};

/** Something that happened, as told to those who follow. */
export type Event = {
  readonly cursor: string;
  readonly at: string;
  readonly kind: string;
  readonly name: string;
  readonly what: string;
  readonly queue?: string | null;
  readonly type?: string | null;
  readonly status?: Status | null;
  readonly attempt?: number | null;
  readonly worker?: string | null;
  readonly actor?: string | null;
  readonly error?: string | null;
  readonly started_at?: string | null;
  readonly ready_at?: string | null;
};

/** What happened since, in an order that never changes, and where to go on, whether or not anything did. */
export type Events = {
  readonly events: readonly (Event)[];
  readonly next: string;
};

export type EventsQuery = {
  readonly after?: string;
  readonly queue?: string;
  readonly type?: string;
  readonly job?: string;
};

export type Explanation = {
  readonly job_id: string;
  readonly status: Status;
  readonly summary: string;
  readonly reasons?: readonly (Reason)[];
};

/** A failure, and how often it was seen of late. */
export type FailureAnswer = {
  readonly group: FailureGroup;
  readonly last_hour: number;
  readonly last_day: number;
  readonly by_hour: readonly (number)[];
  readonly is_new: boolean;
  readonly is_rising: boolean;
};

/** Failures that have one cause, as far as their errors tell. */
export type FailureGroup = {
  readonly fingerprint: string;
  readonly error_type: string;
  readonly top_frame: string;
  readonly text: string;
  readonly first_seen: string;
  readonly last_seen: string;
  readonly count?: number;
  readonly dead?: number;
  readonly hours?: { readonly [name: string]: number };
  readonly queues?: readonly (string)[];
  readonly types?: readonly (string)[];
  readonly sample_jobs?: readonly (string)[];
  readonly sample_error?: string;
};

export type FailuresAnswer = {
  readonly at: string;
  readonly counted_since: string | null;
  readonly failures: readonly (FailureAnswer)[];
};

export type FailuresQuery = {
  readonly queue?: string;
  readonly type?: string;
  readonly limit?: number;
};

/** What happened, a step at a time. */
export type Figures = {
  readonly at: string;
  readonly first_at: string;
  readonly step_seconds: number;
  readonly counted_since: string | null;
  readonly series: Series;
  readonly queues: readonly (Totals)[];
};

export type FiguresQuery = {
  readonly span?: "15m" | "1h" | "6h" | "24h" | "7d";
  readonly queue?: string;
};

/** Which jobs: those that match every condition given. An empty one matches all. */
export type Filter = {
  readonly statuses?: readonly (Status)[];
  readonly queue?: string | null;
  readonly type?: string | null;
  readonly key?: string | null;
  readonly schedule?: string | null;
  readonly cause?: Cause | null;
  readonly created_from?: string | null;
  readonly created_before?: string | null;
  readonly parents?: readonly (string)[];
  readonly in_flow?: boolean;
};

/** Which jobs: those that match every condition given. */
export type FilterBody = {
  readonly status?: readonly (Status)[];
  readonly queue?: string;
  readonly type?: string;
  readonly key?: string;
  readonly schedule?: string;
  readonly cause?: Cause;
  readonly created_from?: string;
  readonly created_before?: string;
  readonly parents?: readonly (string)[];
  readonly in_flow?: boolean;
};

export type Find = {
  readonly filter: Filter;
  readonly limit: number;
  readonly after?: string | null;
};

/** Enqueue a schedule's due jobs and move it on, if it still stands where the caller saw it. */
export type Fire = {
  readonly name: string;
  readonly due_at: string;
  readonly at: readonly (string)[];
  readonly next_fire_at: string | null;
};

/** The answer to a fire: the jobs it made; none when another scheduler was first. */
export type Fired = {
  readonly name: string;
  readonly jobs?: readonly (Enqueued)[];
};

/** A job's part in a flow. */
export type FlowJob = {
  readonly id: string;
  readonly type: string;
  readonly queue: string;
  readonly status: Status;
  readonly parents: readonly (string)[];
  readonly created_at: string;
  readonly run_at: string;
  readonly started_at: string | null;
  readonly ended_at: string | null;
  readonly attempts: number;
  readonly error: string | null;
};

export type FlowPage = {
  readonly flows: readonly (FlowSummary)[];
  readonly next?: string | null;
};

export type FlowSummary = {
  readonly id: string;
  readonly type: string;
  readonly counts: { readonly [name: string]: number };
  readonly created_at: string;
  readonly ended_at: string | null;
  readonly is_complete: boolean;
};

/** All jobs that hang together with one. */
export type FlowView = {
  readonly id: string;
  readonly jobs: readonly (FlowJob)[];
  readonly is_complete: boolean;
};

export type FlowsQuery = {
  readonly after?: string;
  readonly limit?: number;
};

export type Follow = {
  readonly limit: number;
  readonly after?: string | null;
};

/** Extend a lease from now on. */
export type Heartbeat = {
  readonly job_id: string;
  readonly token: string;
  readonly seconds?: number | null;
  readonly progress?: string | null;
};

export type HeartbeatRequest = {
  readonly token: string;
  readonly lease_seconds?: number | null;
  readonly progress?: Raw;
};

/** The audit trail: attempts, and changes beside them, each in the order in which they took effect. */
export type HistoryAnswer = {
  readonly attempts: readonly (AttemptAnswer)[];
  readonly changes: readonly (ChangeAnswer)[];
  readonly source?: "lake";
  readonly data_as_of?: string;
};

/** What a run of the lake found out for a tenant, under the name of its table; the newest run's alone is kept. */
export type Insight = {
  readonly tenant: string;
  readonly name: string;
  readonly as_of: string;
  readonly body: string;
};

/** An answer, and as of when it is right: what happened later is not in it. */
export type InsightAnswer = {
  readonly name: string;
  readonly as_of: string;
  readonly rows: readonly ({ readonly [name: string]: unknown })[];
  readonly left_out?: number;
};

/** What can be asked, and what is known about it. */
export type InsightOffer = {
  readonly name: string;
  readonly about: string;
  readonly rows: number;
};

export type InsightOffers = {
  readonly as_of: string | null;
  readonly insights: readonly (InsightOffer)[];
};

export type InsightQuery = {
  readonly queue?: string | null;
  readonly type?: string | null;
  readonly limit?: number;
};

export type Insights = {
  readonly names: readonly (string)[];
};

/** What a call is about. */
export type Items_CancelJob_ = {
  readonly items: readonly (CancelJob)[];
};

/** What a call is about. */
export type Items_ConfigureQueue_ = {
  readonly items: readonly (ConfigureQueue)[];
};

/** What a call is about. */
export type Items_DropSchedule_ = {
  readonly items: readonly (DropSchedule)[];
};

/** What a call is about. */
export type Items_Fire_ = {
  readonly items: readonly (Fire)[];
};

/** What a call is about. */
export type Items_Heartbeat_ = {
  readonly items: readonly (Heartbeat)[];
};

/** What a call is about. */
export type Items_Insight_ = {
  readonly items: readonly (Insight)[];
};

/** What a call is about. */
export type Items_LeaseJobs_ = {
  readonly items: readonly (LeaseJobs)[];
};

/** What a call is about. */
export type Items_NewJob_ = {
  readonly items: readonly (NewJob)[];
};

/** What a call is about. */
export type Items_OneSettle_ = {
  readonly items: readonly (OneSettle)[];
};

/** What a call is about. */
export type Items_PutSchedule_ = {
  readonly items: readonly (PutSchedule)[];
};

/** What a call is about. */
export type Items_RedriveJob_ = {
  readonly items: readonly (RedriveJob)[];
};

/** What a call is about. */
export type Items_Spend_ = {
  readonly items: readonly (Spend)[];
};

/** What a call is about. */
export type Items_str_ = {
  readonly items: readonly (string)[];
};

/** What a call is about. */
export type Items_tuple_str__str__ = {
  readonly items: readonly ([string, string])[];
};

/** A job as it stands: what was asked for and what has become of it. */
export type Job = {
  readonly asked: NewJob;
  readonly tenant: string;
  readonly created_at: string;
  readonly scheduled_at: string;
  readonly status: Status;
  readonly run_at: string;
  readonly expires_at?: string | null;
  readonly attempts?: number;
  readonly leases?: number;
  readonly lease?: Lease | null;
  readonly cancel_requested?: boolean;
  readonly result?: string | null;
  readonly error?: string | null;
  readonly cause?: Cause | null;
  readonly ended_at?: string | null;
  readonly progress?: string | null;
};

/** A job as it stands. */
export type JobAnswer = {
  readonly id: string;
  readonly type: string;
  readonly queue: string;
  readonly status: Status;
  readonly priority: number;
  readonly payload?: Raw;
  readonly attempts: number;
  readonly max_attempts: number | null;
  readonly run_at: string;
  readonly created_at: string;
  readonly ended_at?: string | null;
  readonly expires_at?: string | null;
  readonly result?: Raw | null;
  readonly error?: string | null;
  readonly cause?: Cause | null;
  readonly progress?: Raw | null;
  readonly cancel_requested?: boolean;
  readonly worker?: string | null;
  readonly lease_expires_at?: string | null;
  readonly leases?: number;
  readonly key?: string | null;
  readonly ordering_key?: string | null;
  readonly unique_key?: string | null;
  readonly idempotency_key?: string | null;
  readonly parents?: readonly (string)[];
  readonly schedule?: string | null;
  readonly headers?: Raw | null;
  readonly source?: "lake";
  readonly data_as_of?: string;
  readonly lacking?: readonly (string)[];
};

/** A job to be enqueued. Only `type` is needed; what is left out, the queue's settings decide. */
export type JobRequest = {
  readonly type: string;
  readonly payload?: Raw;
  readonly queue?: string | null;
  readonly priority?: number | null;
  readonly run_at?: string | null;
  readonly delay?: number | null;
  readonly expires_at?: string | null;
  readonly expires_in?: number | null;
  readonly max_attempts?: number | null;
  readonly retry?: Retry | null;
  readonly on_exhausted?: OnExhausted | null;
  readonly key?: string | null;
  readonly ordering_key?: string | null;
  readonly unique_key?: string | null;
  readonly idempotency_key?: string | null;
  readonly idempotency_window?: number | null;
  readonly parents?: readonly (string)[] | null;
  readonly on_parent_failure?: OnParentFailure | null;
  readonly headers?: { readonly [name: string]: Raw } | null;
  readonly id?: string | null;
};

export type JobsAnswer = {
  readonly jobs: readonly (JobAnswer)[];
  readonly next?: string | null;
  readonly count?: number | null;
  readonly count_is_exact?: boolean | null;
};

export type JobsQuery = {
  readonly status?: readonly (Status)[];
  readonly queue?: string;
  readonly type?: string;
  readonly key?: string;
  readonly schedule?: string;
  readonly cause?: Cause;
  readonly created_from?: string;
  readonly created_before?: string;
  readonly parents?: readonly (string)[];
  readonly in_flow?: boolean;
  readonly after?: string;
  readonly limit?: number;
  readonly count?: boolean;
};

export type Latency = {
  readonly p50_ms: number | null;
  readonly p95_ms: number | null;
  readonly p99_ms: number | null;
};

export type Lead = {
  readonly office: string;
  readonly holder: string;
  readonly seconds: number;
};

/** A temporary claim on a job. */
export type Lease = {
  readonly token: string;
  readonly worker: string;
  readonly taken_at: string;
  readonly expires_at: string;
  readonly seconds: number;
};

export type LeaseAnswer = {
  readonly jobs: readonly (LeasedAnswer)[];
};

/** Lease the next jobs of a queue. */
export type LeaseJobs = {
  readonly queue: string;
  readonly worker: string;
  readonly limit?: number;
  readonly seconds?: number | null;
};

export type LeaseRequest = {
  readonly worker_id: string;
  readonly limit?: number;
  readonly lease_seconds?: number | null;
  readonly wait?: number;
};

/** A job in its worker's hands. */
export type Leased = {
  readonly job: Job;
  readonly token: string;
  readonly parents?: readonly (Parent)[];
};

/** A job in the caller's hands. The token is the fence: settle with it before the lease runs out. */
export type LeasedAnswer = {
  readonly job: JobAnswer;
  readonly token: string;
  readonly expires_at: string;
  readonly parents?: readonly (ParentAnswer)[];
};

export type Level = "ok" | "problem" | "warning";

export type Listen = {
  readonly topics: readonly (OneTopic)[];
  readonly seconds: number;
  readonly heard?: string | null;
};

/** A moment worth a line on a chart. */
export type Marker = {
  readonly at: string;
  readonly kind: string;
  readonly text: string;
  readonly actor: string;
};

export type MarkerRequest = {
  readonly text: string;
};

export type MarkersAnswer = {
  readonly markers: readonly (Marker)[];
};

/** What becomes of fire times that passed while no scheduler ran. */
export type Missed = "all" | "one" | "skip";

/** The attempt failed. */
export type Nack = {
  readonly job_id: string;
  readonly token: string;
  readonly error: string;
  readonly retry?: boolean;
  readonly delay?: string | null;
  readonly entropy?: number;
  readonly logs?: string | null;
};

export type NackRequest = {
  readonly token: string;
  readonly error: string;
  readonly retry?: boolean;
  readonly retry_in?: number | null;
  readonly logs?: string | null;
};

/** What a producer asks for. It never changes; None means that the queue's settings decide, now and later. */
export type NewJob = {
  readonly id: string;
  readonly type: string;
  readonly queue?: string;
  readonly payload?: string;
  readonly priority?: number;
  readonly run_at?: string | null;
  readonly delay?: string | null;
  readonly expires_at?: string | null;
  readonly expires_in?: string | null;
  readonly max_attempts?: number | null;
  readonly retry?: Retry | null;
  readonly on_exhausted?: OnExhausted | null;
  readonly key?: string | null;
  readonly ordering_key?: string | null;
  readonly unique_key?: string | null;
  readonly idempotency_key?: string | null;
  readonly idempotency_window?: string;
  readonly parents?: readonly (string)[];
  readonly on_parent_failure?: OnParentFailure;
  readonly headers?: string | null;
  readonly schedule?: string | null;
};

/** A token and its secret, which is shown this once. */
export type NewTokenAnswer = {
  readonly token: Token;
  readonly secret: string;
};

export type NextAt = {
  readonly queues: readonly (string)[];
};

export type OnExhausted = "dead" | "hold";

export type OnParentFailure = "cancel" | "run";

/** A line of an audit trail. */
export type OneRecord = {
  readonly attempt?: Attempt | null;
  readonly change?: Change | null;
};

/** One way to end a lease. */
export type OneSettle = {
  readonly ack?: Ack | null;
  readonly nack?: Nack | null;
  readonly release?: Release | null;
  readonly snooze?: Snooze | null;
  readonly discard?: Discard | null;
};

/** What a wake-up is about. */
export type OneTopic = {
  readonly queue: string;
  readonly tenant?: string | null;
};

export type OrderRequest = {
  readonly order: "work" | "quiet" | "stop";
  readonly reason?: string | null;
};

/** How an attempt ended. */
export type Outcome = "cancelled" | "failed" | "lost" | "released" | "snoozed" | "succeeded";

export type Overview = {
  readonly at: string;
  readonly level: Level;
  readonly sentence: string;
  readonly counts: { readonly [name: string]: number };
  readonly oldest_seconds: number;
  readonly ended_per_minute: number;
  readonly failed_share: number | null;
  readonly workers: number;
  readonly slots: number;
  readonly busy: number;
  readonly attention: readonly (Attention)[];
  readonly queues: readonly (QueueStanding)[];
};

/** Some jobs, newest id first, and where to go on; a short page may still have a `next`. */
export type Page = {
  readonly jobs: readonly (Job)[];
  readonly next?: string | null;
};

/** What a job may know of a job it waited for. */
export type Parent = {
  readonly id: string;
  readonly status: Status;
  readonly result: string | null;
};

export type ParentAnswer = {
  readonly id: string;
  readonly status: Status;
  readonly result: Raw | null;
};

/** A worker as it last showed itself. */
export type Presence = {
  readonly id: string;
  readonly worker: string;
  readonly tenant: string;
  readonly queues: { readonly [name: string]: number };
  readonly slots: number;
  readonly running: number;
  readonly reserved: number;
  readonly pid: number;
  readonly host: string;
  readonly version: string;
  readonly started_at: string;
  readonly seen_at?: string | null;
  readonly memory_bytes?: number | null;
  readonly stopping?: boolean;
  readonly jobs?: readonly (Doing)[];
  readonly quiet?: boolean;
};

/** What went wrong. `code` is stable; `detail` is for people. */
export type Problem = {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly instance?: string | null;
  readonly facts?: { readonly [name: string]: unknown } | null;
};

export type PutEntries = {
  readonly items: readonly (PutEntry)[];
  readonly whose?: "everyone" | "service" | "tenant";
};

/** Make, replace or (without a body) drop an entry. */
export type PutEntry = {
  readonly kind: string;
  readonly name: string;
  readonly body: string | null;
  readonly version?: number | null;
  readonly seconds?: number | null;
  readonly audit?: Audited | null;
  readonly expires_at?: string | null;
};

/** Make a schedule or replace the one of that name. Its next fire time is counted from now. */
export type PutSchedule = {
  readonly schedule: Schedule;
  readonly actor: string;
  readonly reason?: string | null;
};

export type QueueAnswer = {
  readonly name: string;
  readonly settings: QueueSettings;
  readonly counts: { readonly [name: string]: number };
  readonly oldest_run_at?: string | null;
};

/** The settings of a queue. A queue nobody has set has these defaults; None means no limit. */
export type QueueSettings = {
  readonly paused?: boolean;
  readonly max_concurrency?: number | null;
  readonly max_concurrency_per_key?: number | null;
  readonly rate?: Rate | null;
  readonly rate_per_key?: Rate | null;
  readonly fair?: boolean;
  readonly max_attempts?: number;
  readonly retry?: Retry;
  readonly on_exhausted?: OnExhausted;
  readonly lease_seconds?: number;
  readonly retention_seconds?: number;
  readonly max_depth?: number | null;
  readonly target_seconds?: number;
};

/** How one queue does. */
export type QueueStanding = {
  readonly name: string;
  readonly counts: { readonly [name: string]: number };
  readonly paused: boolean;
  readonly oldest_seconds: number;
  readonly target_seconds: number;
  readonly is_late: boolean;
  readonly arrived_per_minute: number;
  readonly ended_per_minute: number;
  readonly drains_in_seconds: number | null;
  readonly failed_share: number | null;
  readonly wait_p95_ms: number | null;
  readonly run_p95_ms: number | null;
  readonly workers: number;
  readonly ended_by_step: readonly (number)[];
};

/** A queue: its settings, how many jobs are in each state, and how long the oldest queued one has been due. */
export type QueueView = {
  readonly name: string;
  readonly settings: QueueSettings;
  readonly counts?: { readonly [name: string]: number };
  readonly oldest_run_at?: string | null;
};

export type QueuesAnswer = {
  readonly queues: readonly (QueueAnswer)[];
};

/** At most `limit` leases in any span of `per` seconds; `burst` lets that many more minus one go at once.

    With the default burst of 1 the limit is exact and leases are evenly spaced. With burst b, at most
    `limit + b - 1` leases fall into any span of `per` seconds. */
export type Rate = {
  readonly limit: number;
  readonly per?: number;
  readonly burst?: number;
};

export type Ready = {
  readonly status: string;
  readonly store: string;
  readonly wakeups: string;
};

/** One thing that keeps a job from running, or would be next to do so. */
export type Reason = {
  readonly code: string;
  readonly message: string;
  readonly facts?: { readonly [name: string]: unknown };
};

export type ReasonRequest = {
  readonly reason?: string | null;
};

export type RedriveFailureRequest = {
  readonly dry_run?: boolean;
  readonly per_second?: number;
  readonly reason?: string | null;
};

/** Bring a dead, held or cancelled job back. */
export type RedriveJob = {
  readonly job_id: string;
  readonly actor: string;
  readonly reason?: string | null;
  readonly descendants?: boolean;
};

export type RedriveRequest = {
  readonly reason?: string | null;
  readonly descendants?: boolean;
};

/** The error that refused an item; the client raises the same. */
export type Refused = {
  readonly code: string;
  readonly message: string;
  readonly facts?: { readonly [name: string]: unknown };
};

/** Give the job back unharmed: the attempt does not count. Without a delay it keeps its place. */
export type Release = {
  readonly job_id: string;
  readonly token: string;
  readonly delay?: string | null;
  readonly logs?: string | null;
};

export type ReleaseRequest = {
  readonly token: string;
  readonly delay?: number | null;
  readonly logs?: string | null;
};

export type ResultAnswer = {
  readonly id: string;
  readonly status: Status;
  readonly result?: Raw | null;
  readonly error?: string | null;
  readonly cause?: Cause | null;
};

/** A back-off policy. Times are seconds; `jitter` is the largest fraction added on top, after the cap. */
export type Retry = {
  readonly kind: RetryKind;
  readonly base: number;
  readonly factor?: number;
  readonly cap?: number;
  readonly jitter?: number;
};

export type RetryKind = "exponential" | "fixed" | "linear";

export type RotateRequest = {
  readonly overlap_seconds?: number;
};

/** Which topics rang since, and what to send the next time. */
export type Rung = {
  readonly heard: string;
  readonly rung: readonly (OneTopic)[];
};

export type Schedule = {
  readonly name: string;
  readonly cron: string;
  readonly job: NewJob;
  readonly tz?: string;
  readonly missed?: Missed;
  readonly paused?: boolean;
  readonly next_fire_at?: string | null;
  readonly last_fire_at?: string | null;
  readonly declared_by?: string | null;
  readonly declared_as?: string | null;
};

export type ScheduleAnswer = {
  readonly name: string;
  readonly cron: string;
  readonly tz: string;
  readonly missed: Missed;
  readonly paused: boolean;
  readonly type: string;
  readonly queue: string;
  readonly payload: Raw;
  readonly next_fire_at: string | null;
  readonly last_fire_at: string | null;
  readonly declared_by: string | null;
  readonly words: string;
  readonly next: readonly (string)[];
};

export type ScheduleRequest = {
  readonly cron: string;
  readonly job: JobRequest;
  readonly tz?: string;
  readonly missed?: Missed;
  readonly paused?: boolean;
  readonly reason?: string | null;
};

export type SchedulesAnswer = {
  readonly schedules: readonly (ScheduleAnswer)[];
};

export type Scope = "admin" | "operate" | "produce" | "read" | "work";

/** One figure after the other, a step apart. */
export type Series = {
  readonly arrived: readonly (number)[];
  readonly succeeded: readonly (number)[];
  readonly failed: readonly (number)[];
  readonly lost: readonly (number)[];
  readonly dead: readonly (number)[];
  readonly cancelled: readonly (number)[];
  readonly wait_p50_ms: readonly (number | null)[];
  readonly wait_p95_ms: readonly (number | null)[];
  readonly run_p50_ms: readonly (number | null)[];
  readonly run_p95_ms: readonly (number | null)[];
};

/** The settings to change; what is left out stays. */
export type SettingsRequest = {
  readonly paused?: boolean;
  readonly max_concurrency?: number | null;
  readonly max_concurrency_per_key?: number | null;
  readonly rate?: Rate | null;
  readonly rate_per_key?: Rate | null;
  readonly fair?: boolean;
  readonly max_attempts?: number;
  readonly retry?: Retry;
  readonly on_exhausted?: OnExhausted;
  readonly lease_seconds?: number;
  readonly retention_seconds?: number;
  readonly max_depth?: number | null;
  readonly target_seconds?: number;
  readonly reason?: string | null;
};

export type SettleBatch = {
  readonly settles: readonly (unknown)[];
};

export type SettleBatchAnswer = {
  readonly settles: readonly (SettleBatchItem)[];
};

/** What the job has become, or the error that kept it from that. */
export type SettleBatchItem = {
  readonly id?: string | null;
  readonly status?: Status | null;
  readonly run_at?: string | null;
  readonly error?: Problem | null;
};

/** The answer to a settle: what the job became, and when it runs again if it was queued again. */
export type Settled = {
  readonly job_id: string;
  readonly status: Status;
  readonly run_at: string | null;
};

/** What the job has become, and when it runs again if it was queued again. */
export type SettledAnswer = {
  readonly id: string;
  readonly status: Status;
  readonly run_at?: string | null;
};

/** What of a queue's settings a capacity plan is about. */
export type Sizing = {
  readonly max_concurrency: number | null;
  readonly lease_seconds: number;
};

/** Run the job again later: the attempt does not count. */
export type Snooze = {
  readonly job_id: string;
  readonly token: string;
  readonly delay: string;
  readonly logs?: string | null;
};

export type SnoozeRequest = {
  readonly token: string;
  readonly delay: number;
  readonly logs?: string | null;
};

/** Take from an allowance that fills up at `rate` a second, up to `burst`. */
export type Spend = {
  readonly name: string;
  readonly cost: number;
  readonly rate: number;
  readonly burst: number;
};

/** What came of it: all of the cost was taken, or nothing. */
export type Spent = {
  readonly granted: boolean;
  readonly left: number;
  readonly wait_seconds: number;
};

export type StatsAnswer = {
  readonly at: string;
  readonly counts: { readonly [name: string]: number };
  readonly queues: readonly (QueueAnswer)[];
};

export type Status = "cancelled" | "dead" | "held" | "queued" | "running" | "succeeded" | "waiting";

export type Sweep = {
  readonly limit: number;
  readonly exported_until?: string | null;
};

/** What a sweep did: jobs whose lease or deadline had run out, and ended jobs that left the store. */
export type Swept = {
  readonly lost?: number;
  readonly expired?: number;
  readonly pruned?: number;
};

/** What this instance runs on. */
export type SystemAnswer = {
  readonly at: string;
  readonly version: string;
  readonly python: string;
  readonly store: string;
  readonly wakeups: WakeupsStatus;
  readonly database: { readonly [name: string]: unknown } | null;
};

/** A token as people may see it: never its secret. */
export type Token = {
  readonly id: string;
  readonly tenant: string;
  readonly name: string;
  readonly scopes: readonly (Scope)[];
  readonly created_at: string;
  readonly created_by: string;
  readonly expires_at?: string | null;
  readonly last_seen_at?: string | null;
  readonly rate?: Rate | null;
  readonly replaced_by?: string | null;
};

export type TokenRequest = {
  readonly name: string;
  readonly scopes: readonly ("produce" | "work" | "read" | "operate" | "admin")[];
  readonly expires_in?: number | null;
  readonly rate?: Rate | null;
};

export type TokensAnswer = {
  readonly tokens: readonly (Token)[];
};

/** A queue over the whole span. */
export type Totals = {
  readonly queue: string;
  readonly arrived: number;
  readonly succeeded: number;
  readonly failed: number;
  readonly lost: number;
  readonly dead: number;
  readonly cancelled: number;
  readonly busy_ms: number;
  readonly wait: Latency;
  readonly run: Latency;
  readonly arrived_by_step: readonly (number)[];
  readonly ended_by_step: readonly (number)[];
};

/** An audit trail, in the order in which things took effect. */
export type Trail = {
  readonly records: readonly (OneRecord)[];
};

/** A type of jobs that was met lately, and where. */
export type TypeName = {
  readonly type: string;
  readonly queues: readonly (string)[];
};

export type TypesAnswer = {
  readonly types: readonly (TypeName)[];
};

export type WaitQuery = {
  readonly wait?: number;
};

/** What carries the wake-ups, and whether it works. Unhealthy means slower pick-up; no job is in danger. */
export type WakeupsStatus = {
  readonly driver: string;
  readonly healthy: boolean;
  readonly detail: string;
};

export type WorkersAnswer = {
  readonly workers: readonly (Presence)[];
};
