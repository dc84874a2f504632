"""Which job of a queue is next: priority, fair turns, age; limits, ordering keys and pauses observed.

A lane is the index over one queue's queued jobs. It holds no truth of its own: it is told of every change
of a job and can be rebuilt from the jobs. Entries that no longer apply are dropped when they come up.

    later     queued, not yet due                              (run_at, id)
    Group     due jobs of one key                              (-priority, run_at, id)
    rotation  the groups that may be served now                (-priority, turn, run_at, id) of each one's first job
    Order     jobs that share an ordering key; only its first  (scheduled_at, id)
              is let into later or a group, and only while none of them runs
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from heapq import heappop, heappush

from penstock.core.groups import Entry, Group, KeyUse, Order, Place, Turns
from penstock.core.job import Job, JobId, Status
from penstock.core.settings import QueueSettings
from penstock.core.timers import Timers

MOST_IDLE_GROUPS = 10_000
"""Keys without jobs whose last turn is remembered; a key forgotten is served first when it comes back."""

_SPARE_RATES = 1024
"""Rates of keys without jobs that are kept before those that have opened again are let go."""

_IN_ORDER = frozenset({Status.QUEUED, Status.RUNNING, Status.HELD})
"""States in which a job keeps its place behind its ordering key. A held job stops the line: a person decides."""


class Lane:
    """One queue: its settings, what runs, and what is next."""

    def __init__(self, name: str, jobs: Mapping[JobId, Job]) -> None:
        self.name = name
        self.settings = QueueSettings()
        self.running = 0
        self.counts = dict.fromkeys(Status, 0)
        self._jobs = jobs
        self._full_until: datetime | None = None
        self._turn = 0
        self._groups: dict[str | None, Group] = {}
        self._turns: OrderedDict[str | None, int] = OrderedDict()
        self._rates: dict[str | None, datetime] = {}
        self._room = _SPARE_RATES
        self._rotation: list[Entry] = []
        self._listed = 0
        self._throttled: list[tuple[datetime, str]] = []
        self._orders: dict[str, Order] = {}
        self._later = Timers(self._is_queued, lambda: self.counts[Status.QUEUED])
        self._queued = Timers(self._is_queued, lambda: self.counts[Status.QUEUED])
        self._stale = 0

    # ── Being told ────────────────────────────────────────────────────────────────────────────────

    def configure(self, settings: QueueSettings, now: datetime) -> None:
        # A rate that is set anew starts anew: what the old one had used up says nothing about it.
        if settings.rate != self.settings.rate:
            self._full_until = None
        if settings.rate_per_key != self.settings.rate_per_key:
            self._rates.clear()
            for group in self._groups.values():
                group.full_until = None
        self.settings = settings
        # Any key may be free or barred now, and turns may count or not.
        for group in list(self._groups.values()):
            self._list(group, now)

    def joined(self, job: Job, was: Status | None, now: datetime) -> None:
        """A job became queued."""
        asked = job.asked
        self._queued.set(job.run_at, asked.id)
        (self._groups.get(asked.key) or self._group(asked.key)).members += 1
        ordering_key = asked.ordering_key
        if ordering_key is None:
            self._offer(job, now)
            return
        order = self._orders.get(ordering_key)
        if order is None:
            order = self._orders[ordering_key] = Order()
        if was not in _IN_ORDER:
            heappush(order.heap, (job.scheduled_at, job.id))
        self._admit(ordering_key, order, now)

    def restored(self, job: Job, now: datetime) -> None:
        """A job was in this queue all along: nothing of its rates and turns is used up by saying so."""
        if job.status is Status.QUEUED:
            self.joined(job, None, now)
            return
        ordering_key = job.asked.ordering_key
        if job.status is Status.RUNNING:
            self.running += 1
            group = self._group(job.asked.key)
            group.running += 1
            group.members += 1
            if group.entry is not None:  # it may be as many as may run, with those that were back before
                self._list(group, now)
        if ordering_key is not None and job.status in (Status.RUNNING, Status.HELD):
            order = self._orders.setdefault(ordering_key, Order())
            heappush(order.heap, (job.scheduled_at, job.id))
            order.running = job.id if job.status is Status.RUNNING else order.running
            self._admit(ordering_key, order, now)

    def resume(
        self, full_until: datetime | None, turn: int, keys: Mapping[str | None, KeyUse], now: datetime
    ) -> None:
        """Go on from what was used up, and what ran, before."""
        self._full_until, self._turn = full_until, turn
        for key, use in keys.items():
            group = self._group(key)
            group.running, group.turn, group.full_until = use.running, use.turn, use.full_until
        self.running = sum(use.running for use in keys.values())
        for group in list(self._groups.values()):
            self._list(group, now)

    def used(self) -> tuple[datetime | None, int, dict[str | None, KeyUse]]:
        """What is used up: of the queue's rate and turns, and of each key's."""
        keys = {
            group.key: KeyUse(group.running, group.turn, group.full_until) for group in self._groups.values()
        }
        for key in (*self._turns, *self._rates):
            keys.setdefault(key, KeyUse(0, self._turns.get(key, 0), self._rates.get(key)))
        return self._full_until, self._turn, keys

    def recall(self, full_until: datetime | None, turn: int, keys: Mapping[str | None, KeyUse]) -> None:
        """Take what `used` told, before any job comes in; what runs is counted from the jobs."""
        self._full_until, self._turn = full_until, turn
        for key, use in keys.items():  # those who have jobs take theirs from here when these come in
            if use.turn:
                self._turns[key] = use.turn
            if use.full_until is not None:
                self._rates[key] = use.full_until

    def dropped(self, job: Job, now: datetime) -> None:
        """A queued job left without being leased."""
        self._less(self._groups[job.asked.key], now)
        self._leave_order(job, now)
        self._stale += 1
        self._compact(now)

    def took(self, job: Job, now: datetime) -> None:
        """A queued job was leased."""
        self.running += 1
        asked = job.asked
        group = self._groups.get(asked.key) or self._group(asked.key)
        group.running += 1
        settings = self.settings
        if settings.rate is not None:
            self._full_until = settings.rate.use(self._full_until, now)
        if settings.rate_per_key is not None and asked.key is not None:
            group.full_until = settings.rate_per_key.use(group.full_until, now)
        if settings.fair:
            self._turn += 1
            group.turn = self._turn
        if asked.ordering_key is not None:
            order = self._orders[asked.ordering_key]
            order.running, order.admitted = job.id, None
        if group.heap and group.heap[0].job_id == job.id:
            heappop(group.heap)
        else:
            self._stale += 1  # somebody chose another than the first
            self._compact(now)
        self._list(group, now)

    def left(self, job: Job, now: datetime) -> None:
        """A job is running no longer."""
        self.running -= 1
        group = self._groups[job.asked.key]
        group.running -= 1
        if group.entry is None:
            self._list(group, now)
        self._less(group, now)
        self._leave_order(job, now)

    def unheld(self, job: Job, now: datetime) -> None:
        """A held job is held no longer: the line behind it may move."""
        self._leave_order(job, now)

    # ── Being asked ───────────────────────────────────────────────────────────────────────────────

    def next(self, now: datetime) -> Job | None:
        """The job that should be leased next, if any may be."""
        return None if self._barred(now) is not None else self._first(now)

    def _first(self, now: datetime) -> Job | None:
        """The job that is next once the queue as a whole may lease."""
        self._let_in(now)
        rotation = self._rotation
        while rotation:
            entry = rotation[0]
            group = entry[5]
            if entry is not group.entry:
                heappop(rotation)
                continue
            job = self._jobs.get(entry[3])
            if (
                job is not None
                and self._may_be_first(job, group, entry[0], entry[2], now)
                and group.heap[0].job_id == job.id
                and (self.settings.rate_per_key is None or self._group_barred(group, now) is None)
            ):
                return job
            heappop(rotation)
            group.entry = None
            self._list(group, now)
        return None

    def why_not(self, job: Job, now: datetime) -> str | None:
        """Why a job of this queue may not be leased now; None if it may."""
        if job.status is not Status.QUEUED:
            return f"it is {job.status}"
        if job.run_at > now:
            return f"it is due at {job.run_at.isoformat()}"
        if (barred := self._barred(now)) is not None:
            return barred
        if (barred := self._group_barred(self._groups[job.asked.key], now)) is not None:
            return barred
        ordering_key = job.asked.ordering_key
        if ordering_key is not None and self._orders[ordering_key].admitted != job.id:
            return f"another job with the ordering key {ordering_key!r} goes first"
        return None

    def is_barred(self, now: datetime) -> bool:
        """Whether nothing of this queue may be leased now."""
        return self._barred(now) is not None

    def is_key_barred(self, key: str, now: datetime) -> bool:
        """Whether nothing of this key may be leased now."""
        group = self._groups.get(key)
        if group is None:
            group = Group(key)
            group.full_until = self._rates.get(key)
        return self._group_barred(group, now) is not None

    def oldest_run_at(self) -> datetime | None:
        return self._queued.first()

    def next_at(self, now: datetime) -> datetime | None:
        """The next moment at which time alone may let a job of this queue out: never later than the truth."""
        moments = [self._later.first(), self._first_wake()]
        if self._first(now) is not None:
            rate, full_until = self.settings.rate, self._full_until
            moments.append(now if rate is None or full_until is None else max(now, rate.opens_at(full_until)))
        return min((moment for moment in moments if moment is not None), default=None)

    # ── Foreseeing ────────────────────────────────────────────────────────────────────────────────

    def foresees(self, now: datetime) -> bool | None:
        """Whether `next` would find a job; None if it would have to tidy up to know. Nothing is changed."""
        return False if self._barred(now) is not None else self._foresees_first(now)

    def foresees_at(self, now: datetime) -> tuple[bool, datetime | None]:
        """What `next_at` would say, and whether that is known without tidying up. Nothing is changed."""
        found = self._foresees_first(now)
        if found is None:
            return False, None
        waking = [at for at, key in self._throttled if self._waits_until(at, key)]
        moments = [self._later.first(), min(waking, default=None)]
        if found:
            rate, full_until = self.settings.rate, self._full_until
            moments.append(now if rate is None or full_until is None else max(now, rate.opens_at(full_until)))
        return True, min((moment for moment in moments if moment is not None), default=None)

    def _foresees_first(self, now: datetime) -> bool | None:
        at = self._later.first()
        if (at is not None and at <= now) or (self._throttled and self._throttled[0][0] <= now):
            return None
        found: bool | None = False
        for entry in self._rotation:
            rank, _, run_at, job_id, _, group = entry
            if entry is not group.entry:
                continue  # another stands for its group by now
            job = self._jobs.get(job_id)
            if (
                job is not None
                and self._may_be_first(job, group, rank, run_at, now)
                and group.heap[0].job_id == job_id
                and (self.settings.rate_per_key is None or self._group_barred(group, now) is None)
            ):
                return True
            found = None
        return found

    def _waits_until(self, at: datetime, key: str) -> bool:
        group = self._groups.get(key)
        return group is not None and group.wakes_at == at and group.entry is None

    # ── Trying out ────────────────────────────────────────────────────────────────────────────────

    def turns(self, job: Job) -> Turns:
        """What taking this job changes for good, to be given to `untake`."""
        group = self._group(job.asked.key)
        return self._full_until, self._turn, group.full_until, group.turn

    def untake(self, job: Job, before: Turns, now: datetime) -> None:
        """Undo `took`: the job is queued again and was never chosen."""
        group = self._groups[job.asked.key]
        self._full_until, self._turn, group.full_until, group.turn = before
        group.members += 1
        if job.asked.ordering_key is None:
            self._offer(job, now)
        self.left(job, now)
        self._list(group, now)

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────

    def _barred(self, now: datetime) -> str | None:
        """Why nothing of this queue may be leased now."""
        settings = self.settings
        if settings.paused:
            return "the queue is paused"
        if settings.max_concurrency is not None and self.running >= settings.max_concurrency:
            return f"the queue runs its {settings.max_concurrency} jobs at once already"
        if settings.rate is not None and self._full_until is not None:
            opens_at = settings.rate.opens_at(self._full_until)
            if opens_at > now:
                return f"the queue's rate is used up until {opens_at.isoformat()}"
        return None

    def _group_barred(self, group: Group, now: datetime) -> str | None:
        """Why nothing of this key may be leased now."""
        settings = self.settings
        if group.key is None:
            return None
        if settings.max_concurrency_per_key is not None and group.running >= settings.max_concurrency_per_key:
            return f"the key {group.key!r} runs its {settings.max_concurrency_per_key} jobs at once already"
        if settings.rate_per_key is not None and group.full_until is not None:
            opens_at = settings.rate_per_key.opens_at(group.full_until)
            if opens_at > now:
                return f"the rate of the key {group.key!r} is used up until {opens_at.isoformat()}"
        return None

    def _let_in(self, now: datetime) -> None:
        """Let in what became due, and keys whose rate has opened again."""
        later = self._later
        while (at := later.first()) is not None and at <= now:
            self._ready(self._jobs[later.pop()[1]], now)
        while (at := self._first_wake()) is not None and at <= now:
            group = self._groups[heappop(self._throttled)[1]]
            group.wakes_at = None
            self._list(group, now)

    def _first_wake(self) -> datetime | None:
        """When the first of the keys that wait for their rate may be looked at again."""
        throttled = self._throttled
        while throttled:
            at, key = throttled[0]
            group = self._groups.get(key)
            if group is not None and group.wakes_at == at:
                if group.entry is None:
                    return at
                group.wakes_at = None
            heappop(throttled)
        return None

    def _offer(self, job: Job, now: datetime) -> None:
        if job.run_at > now:
            self._later.set(job.run_at, job.asked.id)
        else:
            self._ready(job, now)

    def _ready(self, job: Job, now: datetime) -> None:
        asked = job.asked
        group = self._groups.get(asked.key) or self._group(asked.key)
        entry = Place(-asked.priority, job.run_at, asked.id)
        heappush(group.heap, entry)
        if group.heap[0] is entry:
            self._list(group, now)

    def _group(self, key: str | None) -> Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key)
            group.turn = self._turns.pop(key, 0)
            group.full_until = self._rates.pop(key, None)
        return group

    def _list(self, group: Group, now: datetime) -> None:
        """Put a group where it belongs in the rotation, by its first job, or take it out."""
        heap = group.heap
        while heap:
            job = self._jobs.get(heap[0].job_id)
            if job is not None and self._may_be_first(job, group, heap[0].rank, heap[0].run_at, now):
                break
            heappop(heap)
            if (
                job is not None
                and self._is_queued(job.run_at, job.id)
                and job.run_at > now
                and self._is_admitted(job)
            ):
                self._later.set(job.run_at, job.asked.id)  # the clock was set back
        if not heap:
            group.entry = None
        elif self._group_barred(group, now) is not None:
            group.entry = None
            self._wake_when_open(group, now)
        else:
            priority, run_at, job_id = heap[0].rank, heap[0].run_at, heap[0].job_id
            turn = group.turn if self.settings.fair else 0
            if group.entry is None or group.entry[:4] != (priority, turn, run_at, job_id):
                self._listed += 1
                group.entry = (priority, turn, run_at, job_id, self._listed, group)
                heappush(self._rotation, group.entry)
                if len(self._rotation) > 2 * len(self._groups) + 64:
                    self._rotation = sorted(entry for entry in self._rotation if entry is entry[5].entry)

    def _wake_when_open(self, group: Group, now: datetime) -> None:
        """Look at a key again when its rate opens, if that is what bars it."""
        rate = self.settings.rate_per_key
        if rate is None or group.key is None or group.full_until is None:
            return
        opens_at = rate.opens_at(group.full_until)
        if opens_at > now and opens_at != group.wakes_at:
            group.wakes_at = opens_at
            heappush(self._throttled, (opens_at, group.key))
            if len(self._throttled) > 2 * len(self._groups) + 64:
                self._throttled = sorted({one for one in self._throttled if self._wakes(*one)})

    def _wakes(self, at: datetime, key: str) -> bool:
        group = self._groups.get(key)
        return group is not None and group.wakes_at == at

    def _less(self, group: Group, now: datetime) -> None:
        """A key has one job less. With its last one goes all but its turn and its rate, as far as they still matter.

        By the count of its jobs, not when its heap is found empty: that depends on who looked when, and everyone who
        applies the same commands must forget the same.
        """
        group.members -= 1
        if group.members > 0:
            return
        del self._groups[group.key]
        group.entry = None
        if group.turn:
            self._turns[group.key] = group.turn
            if len(self._turns) > MOST_IDLE_GROUPS:
                self._turns.popitem(last=False)
        if group.full_until is not None and group.full_until > now:
            self._rates[group.key] = group.full_until
            if len(self._rates) > self._room:
                self._rates = {key: until for key, until in self._rates.items() if until > now}
                self._room = max(_SPARE_RATES, 2 * len(self._rates))

    def _admit(self, ordering_key: str, order: Order, now: datetime) -> None:
        """Let the first job of an ordering key in, if none of them runs."""
        heap = order.heap
        while heap and not self._in_order(ordering_key, *heap[0]):
            heappop(heap)
        if not heap:
            del self._orders[ordering_key]
            return
        first = self._jobs[heap[0][1]]
        if order.running is not None or first.status is not Status.QUEUED:
            order.admitted = None
        elif order.admitted != first.id:
            order.admitted = first.id
            self._offer(first, now)

    def _leave_order(self, job: Job, now: datetime) -> None:
        ordering_key = job.asked.ordering_key
        order = None if ordering_key is None else self._orders.get(ordering_key)
        if ordering_key is None or order is None:
            return
        if order.running == job.id:
            order.running = None
        if order.admitted == job.id:
            order.admitted = None
        self._admit(ordering_key, order, now)

    # An id may be another job's by now: its own left the store, and somebody enqueued it anew, in another queue perhaps.

    def _in_order(self, ordering_key: str, scheduled_at: datetime, job_id: JobId) -> bool:
        job = self._jobs.get(job_id)
        return (
            job is not None
            and job.status in _IN_ORDER
            and job.asked.ordering_key == ordering_key
            and job.asked.queue == self.name
            and job.scheduled_at == scheduled_at
        )

    def _is_queued(self, run_at: datetime, job_id: JobId) -> bool:
        job = self._jobs.get(job_id)
        return (
            job is not None
            and job.status is Status.QUEUED
            and job.run_at == run_at
            and job.asked.queue == self.name
        )

    def _is_admitted(self, job: Job) -> bool:
        ordering_key = job.asked.ordering_key
        return ordering_key is None or self._orders[ordering_key].admitted == job.id

    def _may_be_first(self, job: Job, group: Group, rank: int, run_at: datetime, now: datetime) -> bool:
        """Whether an entry made for this rank and run_at still stands for a job that may be leased."""
        asked = job.asked
        return (
            job.status is Status.QUEUED
            and job.run_at == run_at
            and run_at <= now
            and asked.queue == self.name
            and asked.key == group.key
            and asked.priority == -rank
            and (asked.ordering_key is None or self._is_admitted(job))
        )

    def _compact(self, now: datetime) -> None:
        """Drop the entries of jobs that left, once they outweigh those that stayed."""
        if self._stale <= max(1024, self.counts[Status.QUEUED]):
            return
        self._stale = 0
        for group in list(self._groups.values()):
            group.heap = sorted(
                {entry for entry in group.heap if self._is_queued(entry.run_at, entry.job_id)}
            )
            self._list(group, now)  # a sorted list is a heap
        for ordering_key, order in self._orders.items():
            order.heap = sorted({entry for entry in order.heap if self._in_order(ordering_key, *entry)})
