// Every part once, for those who write screens: /ui/parts. In no menu.
import type { JSX } from "preact";
import { Raw } from "../lib/json.ts";
import { now } from "../lib/prefs.ts";
import { toast } from "../lib/toasts.ts";
import { Chart } from "../ui/chart.tsx";
import { confirm, Predicate } from "../ui/confirm.tsx";
import { Gantt, Graph, HeatMap } from "../ui/drawings.tsx";
import { Json, Trace } from "../ui/json.tsx";
import { Button, Card, EmptyState, Field, Menu, Page } from "../ui/parts.tsx";
import { Badge, Bytes, Duration, Kbd, Num, Progress, Sparkline, Stat, STATES, StatePill, Time } from "../ui/values.tsx";

const BEGIN = Math.floor(Date.now() / 60_000) * 60 - 7200;
const TIMES = Array.from({ length: 120 }, (_, n) => BEGIN + n * 60);
const wave = (n: number, size: number, turn: number): number => Math.round(size * (1.2 + Math.sin(n / turn)));
const IN = TIMES.map((_, n) => wave(n, 400, 14)), OUT = TIMES.map((_, n) => wave(n - 3, 390, 14)), FAILED = TIMES.map((_, n) => (n > 70 && n < 90 ? 60 : 4));
const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], HOURS = Array.from({ length: 24 }, (_, n) => String(n));
const EXACT = new Raw('{"id": 9007199254740993, "price": 1.10, "to": ["ada@example.org", "grace@example.org"], "dry": false, "note": null, "nested": {"a": {"b": [1, 2]}}}');

export function Gallery(): JSX.Element {
  const at = now.peek();
  return (
    <Page title="Parts" actions={<>
      <Button onClick={() => toast("Queue paused", "good", { label: "Undo", run: () => {} })}>Toast</Button>
      <Button kind="danger" onClick={() => confirm({ title: "Cancel jobs", action: "Cancel 12,431 jobs", isDanger: true, asksReason: true, typed: "12431", what: <Predicate filter={{ status: ["dead", "held"], queue: "emails" }} count={12_431} isExact /> })}>Confirm</Button>
      <Button kind="primary" onClick={() => {}}>Primary</Button>
      <Menu label="More" items={[{ label: "Run now", icon: "play", run: () => {} }, { label: "Drop", icon: "cross", isDanger: true, run: () => {} }]} />
    </>}>
      <div class="cards">
        <Stat label="Ready" hint="across 4 queues">12,431</Stat><Stat label="Oldest" tone="bad" hint="target 30 s"><Duration seconds={200} /></Stat>
        <Stat label="Failing" tone="warn">3.2 %</Stat><Stat label="Workers" tone="good">8</Stat>
      </div>
      <Card title="In, out, failed" actions={<Badge tone="accent">2 h</Badge>}>
        <Chart label="Jobs per minute" times={TIMES} series={[{ label: "in", values: IN, tone: "accent", fills: true }, { label: "out", values: OUT, tone: "good" }, { label: "failed", values: FAILED, tone: "bad" }]} markers={[{ at: BEGIN + 4200, label: "deploy 1.4.2" }]} onZoom={() => {}} />
      </Card>
      <div class="columns">
        <Card title="Values">
          <div class="row">{STATES.map((status) => <StatePill key={status} status={status} />)}</div>
          <div class="row"><Badge>plain</Badge><Badge tone="good">good</Badge><Badge tone="warn" icon="pause">paused</Badge><Badge tone="bad">late</Badge><Kbd keys="g j" /><Kbd keys="Mod+k" /></div>
          <div class="row"><Time at={new Date(at - 90_000).toISOString()} /><Duration seconds={0.0042} /><Bytes size={184_000_000} /><Num value={1_234_567} short /><Sparkline values={IN.slice(0, 40)} label="in, the last hour" /><Sparkline values={FAILED.slice(60)} label="failed" tone="bad" /></div>
          <Progress value={40} of={120} label="A bulk operation" />
          <Field label="A field" hint="with a hint">{(id) => <input id={id} class="input" />}</Field>
        </Card>
        <Card title="Payload"><Json value={EXACT} label="payload" /><Trace text={'Traceback (most recent call last):\n  File "mail.py", line 7, in send\nTimeoutError: smtp did not answer'} /></Card>
      </div>
      <Card title="Jobs by hour of week"><HeatMap label="Jobs by hour of week" rows={DAYS} columns={HOURS} value={(r, c) => (r > 4 && c < 6 ? null : Math.max(0, Math.round(50 * Math.sin((c - 4) / 5) * (r > 4 ? 0.3 : 1))))} told={(r, c, n) => `${DAYS[r]} ${c}:00: ${n} jobs`} /></Card>
      <Card title="A flow">
        <Graph label="The flow's steps" nodes={[{ id: "a", label: "extract", status: "succeeded", parents: [] }, { id: "b", label: "transform.orders", status: "succeeded", parents: ["a"] }, { id: "c", label: "transform.users", status: "dead", parents: ["a"] }, { id: "d", label: "load", status: "waiting", parents: ["b", "c"] }]} />
        <Gantt label="When the steps ran" lines={[{ id: "a", label: "extract", status: "succeeded", waitsFrom: at - 60_000, from: at - 58_000, to: at - 40_000 }, { id: "b", label: "transform.orders", status: "succeeded", waitsFrom: at - 40_000, from: at - 36_000, to: at - 12_000 }, { id: "c", label: "transform.users", status: "dead", waitsFrom: at - 40_000, from: at - 30_000, to: at - 24_000 }]} />
      </Card>
      <Card><EmptyState title="No schedules yet" command={`penstock schedules put nightly --cron '0 2 * * *' --type report.daily`}>A schedule enqueues a job by the clock.</EmptyState></Card>
    </Page>
  );
}
