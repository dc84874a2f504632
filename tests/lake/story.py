"""A tenant whose history is told fact by fact, one queue for each thing that the tables must get right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.lake.demo import SCHEMA

TENANT = "story"
NOW = datetime(2026, 11, 2, 10, 20, tzinfo=UTC)
"""A Monday."""
HOUR = timedelta(hours=1)


def ms(count: float) -> timedelta:
    return timedelta(milliseconds=count)


class Story:
    def __init__(self, tenant: str = TENANT) -> None:
        self.tenant = tenant
        self.rows: list[dict[str, Any]] = []

    def _tell(self, kind: str, at: datetime, **fact: Any) -> None:
        seq = 0 if kind == "job" else len(self.rows) + 1
        self.rows.append({
            "tenant": self.tenant, "xid": 500 + len(self.rows), "seq": seq, "kind": kind, "occurred_at": at,
            "day": at.date().isoformat(), **fact,
        })  # fmt: skip

    def job(
        self,
        id: str,
        queue: str,
        at: datetime,
        *,
        type: str = "work",
        run_at: datetime | None = None,
        **more: Any,
    ) -> None:
        parents = more.pop("parents", None)
        options = json.dumps({"max_attempts": 3, **({"parents": parents} if parents else {})})
        self._tell("job", at, job_id=id, queue=queue, type=type, priority=0, created_at=at, scheduled_at=run_at or at, run_at=run_at, options=options, **more)  # fmt: skip

    def attempt(
        self, id: str, queue: str, number: int, ready: datetime, wait_ms: float, run_ms: float, outcome: str = "succeeded",
        status: str = "succeeded", error: str | None = None, type: str = "work",
    ) -> datetime:  # fmt: skip
        start = ready + ms(wait_ms)
        end = start + ms(run_ms)
        self._tell("attempt", end, job_id=id, queue=queue, type=type, priority=0, created_at=ready, scheduled_at=ready, attempt=number, ready_at=ready, started_at=start, ended_at=end, worker="w-1", outcome=outcome, status=status, error=error, run_at=end)  # fmt: skip
        return end

    def change(
        self,
        id: str | None,
        queue: str,
        at: datetime,
        verb: str,
        status: str | None,
        type: str | None = "work",
    ) -> None:
        self._tell("change", at, job_id=id, queue=queue if id else None, type=type if id else None, name=id or queue, verb=verb, actor="ada", status=status)  # fmt: skip

    def done(self, id: str, queue: str, at: datetime, run_ms: float = 1000, **more: Any) -> None:
        """A job that came and ran at once."""
        self.job(id, queue, at, **more)
        self.attempt(id, queue, 1, at, 0, run_ms)

    def write(self, folder: Path) -> None:
        table = pa.Table.from_pylist(self.rows, schema=SCHEMA)
        pq.write_to_dataset(
            table,
            folder,
            partition_cols=["day"],
            basename_template=f"{self.tenant}-{{i}}.parquet",
            existing_data_behavior="overwrite_or_ignore",
        )


def tell() -> Story:
    story = Story()
    lives(story)
    failures(story)
    capacity(story)
    slo(story)
    anomalies(story)
    flows(story)
    schedules(story)
    return story


def lives(story: Story) -> None:
    at = NOW.replace(hour=7, minute=59, second=59, microsecond=0)
    # Comes before eight, ends after: the job counts in one hour, its attempts in the next.
    story.job("life-1", "lives", at, key="ada")
    story.attempt("life-1", "lives", 1, at, 2500.7, 400, "failed", "queued", "ValueError: 1")
    story.attempt(
        "life-1", "lives", 2, at + ms(60_000), -250, 100
    )  # by another machine's clock it began too soon
    # Dead, then brought back.
    story.job("life-2", "lives", at)
    story.attempt("life-2", "lives", 1, at, 1000, 10, "failed", "dead", "KeyError: 'x'")
    story.change("life-2", "lives", at + 2 * HOUR, "redrive", "queued")
    # Cancelled while it runs: asked for first, then done.
    story.job("life-3", "lives", at)
    story.change("life-3", "lives", at + ms(2000), "cancel", "running")
    story.attempt("life-3", "lives", 1, at, 1000, 5000, "cancelled", "cancelled", "the customer left")
    # Cancelled by a person before it began; one lost; one held; one nobody knows more of.
    story.job("life-4", "lives", at)
    story.change("life-4", "lives", at + ms(1500), "cancel", "cancelled")
    story.job("life-5", "lives", at)
    story.attempt("life-5", "lives", 1, at, 1000, 60_000, "lost", "queued", "lease lost: worker w-1 is gone")
    story.job("life-6", "lives", at)
    story.attempt("life-6", "lives", 1, at, 1000, 1, "failed", "held", "KeyError: 'y'")
    story.job("life-7", "lives", at)
    # Not a job's: a queue is configured.
    story.change(None, "lives", at, "configure", None)


def failures(story: Story) -> None:
    for n in range(8):
        at = NOW - timedelta(days=4) + n * timedelta(minutes=1)
        story.attempt(f"old-{n}", "bad", 1, at, 0, 10, "failed", "queued", f"OldError: row {n}")
    story.attempt("old-0", "bad", 2, NOW - 2 * HOUR, 0, 10, "failed", "queued", "OldError: row 77")
    story.attempt("old-0", "bad", 3, NOW - HOUR, 0, 10, "failed", "dead", "OldError: row 78")
    story.attempt(
        "else-1", "worse", 1, NOW - 3 * HOUR, 0, 10, "failed", "dead", "OldError: row 79", type="other"
    )
    story.attempt("new-1", "bad", 1, NOW - HOUR, 0, 10, "failed", "queued", "NewError: 5")
    # No failures, though they have something to say.
    story.attempt("calm-1", "bad", 1, NOW - HOUR, 0, 10, "cancelled", "cancelled", "CalmError: 1")
    story.attempt("calm-2", "bad", 1, NOW - HOUR, 0, 10, "failed", "queued", None)


def capacity(story: Story) -> None:
    monday = datetime(2026, 10, 5, 9, tzinfo=UTC)
    # Two jobs on one Monday at nine, six on the next, each of two attempts of half an hour: six erlangs, not four.
    for week, count in ((0, 2), (1, 6)):
        for n in range(count):
            at = monday + timedelta(weeks=week) + n * timedelta(minutes=1)
            story.job(f"cap-{week}-{n}", "busy", at)
            story.attempt(f"cap-{week}-{n}", "busy", 1, at, 0, 1_800_000, "failed", "queued", "TypeError: x")
            story.attempt(f"cap-{week}-{n}", "busy", 2, at + HOUR, 0, 1_800_000)
            story.job(f"cap-patient-{week}-{n}", "patient", at)
            story.attempt(f"cap-patient-{week}-{n}", "patient", 1, at + 2 * HOUR, 0, 3_600_000)
    story.job("cap-idle", "idle", monday)
    story.change("cap-idle", "idle", monday, "cancel", "cancelled")


def slo(story: Story) -> None:
    for n, wait_ms in enumerate((100, 4_900, 7_000, 90_000)):
        for queue in ("strict", "usual"):
            story.attempt(f"slo-{queue}-{n}", queue, 1, NOW - ms(300_000), wait_ms, 10)
    for n in range(4):
        story.attempt(f"slo-old-{n}", "usual", 1, NOW - timedelta(days=3), 10, 10)
    story.attempt("slo-oldest", "usual", 1, NOW - timedelta(days=40), 10, 10)


def anomalies(story: Story) -> None:
    for week in range(5):
        at = datetime(2026, 9, 30, 14, 5, tzinfo=UTC) + timedelta(weeks=week)
        for n in range(60 if week == 3 else 0 if week == 4 else 20):
            story.job(f"odd-{week}-{n}", "odd", at + ms(n))
        for n in range(50):
            bad = week == 2 and n < 40
            story.attempt(f"bad-{week}-{n}", "ill", 1, at, 40_000 if week == 1 else 50, 10, "failed" if bad else "succeeded", "queued" if bad else "succeeded", "IllError: x" if bad else None)  # fmt: skip
    # Twice at an hour of the week is too little to say what is usual; and this hour is not over yet.
    story.job("rare-1", "rare", NOW - timedelta(days=8, hours=2))
    for n in range(90):
        story.job(f"rare-2-{n}", "rare", NOW - timedelta(days=1, hours=2))
        story.job(f"late-{n}", "odd", NOW - ms(1000))


def flows(story: Story) -> None:
    at = NOW - timedelta(hours=20)
    # a and b, both before c; b also before d. d ends last of all, after b.
    story.done("flow-a", "flow", at, 5000)
    story.done("flow-b", "flow", at + ms(100), 2000)
    for id, parents, start, run in (
        ("flow-c", ["flow-a", "flow-b"], 5000, 700),
        ("flow-d", ["flow-b"], 2100, 9000),
    ):
        story.job(id, "flow", at + ms(50), parents=parents)
        story.attempt(id, "flow", 1, at + ms(start), 0, run)
    # One whose last job still waits; its first failed once.
    story.job("flow-m", "flow", at)
    story.attempt("flow-m", "flow", 1, at, 0, 10, "failed", "queued", "FlowError")
    end = story.attempt("flow-m", "flow", 2, at + ms(5000), 0, 10)
    story.job("flow-n", "flow", at, parents=["flow-m"])
    story.change("flow-n", "flow", end, "unblock", "queued")
    # One that failed: the child was given up. Its other parent is nobody we know.
    story.job("flow-x", "flow", at)
    end = story.attempt("flow-x", "flow", 1, at, 0, 10, "failed", "dead", "FlowError")
    story.job("flow-y", "flow", at + ms(3), parents=["flow-x", "flow-unknown"])
    story.change("flow-y", "flow", end, "abandon", "cancelled")


def schedules(story: Story) -> None:
    # Weekdays at nine, four weeks; not on the third Wednesday. Always 30 ms late, once a minute.
    first = datetime(2026, 10, 5, 9, tzinfo=UTC)
    for day in range(28):
        due = first + timedelta(days=day)
        if due.weekday() < 5 and day != 16:
            late = 60_000 if day == 1 else 30
            story.job(f"fire-{day:02}", "fires", due + ms(late), run_at=due, schedule="weekdays")
    # Every four hours, but for two: one on its first day, one in its second week.
    for n in range(60):
        if n not in (1, 56):
            due = first + n * timedelta(hours=4)
            story.job(f"tick-{n:02}", "fires", due, run_at=due, schedule="ticks")
    # For two weeks, all that it should be: at nine and at ten of weekdays.
    for day in range(12):
        for hour in range(2):
            due = first + timedelta(days=day, hours=hour)
            if due.weekday() < 5:
                story.job(f"office-{day:02}-{hour}", "fires", due, run_at=due, schedule="office")


# ── At random ─────────────────────────────────────────────────────────────────────────────────────


def soup(seed: int, texts: Sequence[str], tenant: str = "soup") -> Story:
    """Lives put together by chance, at times that often coincide: what no person would think of."""
    chance = Random(seed)
    story = Story(tenant)
    begin = NOW - timedelta(days=25)
    ids: list[str] = []
    for n in range(120):
        id, queue, type = f"soup-{n:03}", chance.choice("abc"), chance.choice("xy")
        at = begin + chance.randrange(25 * 24 * 12) * timedelta(minutes=5)
        later = chance.choice(
            (None, None, at + timedelta(minutes=chance.randrange(200)), at - ms(chance.randrange(9000)))
        )
        parents = chance.sample(ids, min(len(ids), chance.choice((0, 0, 0, 1, 2))))
        schedule = chance.choice((None, None, "s", "t"))
        if chance.random() < 0.95:  # some came before history was kept
            story.job(id, queue, at, type=type, run_at=later, parents=parents, schedule=schedule)
        ids.append(id)
        ready = max(at, later or at)
        for number in range(1, chance.choice((1, 2, 2, 3, 5))):
            outcome = chance.choice(
                ("succeeded", "failed", "failed", "lost", "snoozed", "released", "cancelled")
            )
            status = (
                "succeeded"
                if outcome == "succeeded"
                else chance.choice(("queued", "queued", "dead", "held", "cancelled"))
            )
            error = chance.choice((None, *texts)) if outcome != "succeeded" else None
            wait, run = (chance.choice((-5, 0, 0.4, 1, 60_000, chance.expovariate(1e-5))) for _ in range(2))
            ready = story.attempt(id, queue, number, ready, wait, abs(run), outcome, status, error, type)
            if chance.random() < 0.3:
                verb, becomes = chance.choice(
                    (
                        ("cancel", "cancelled"),
                        ("redrive", "queued"),
                        ("cancel", "running"),
                        ("expire", "cancelled"),
                    )
                )
                story.change(id, queue, ready, verb, becomes, type)
    return story
