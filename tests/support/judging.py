"""What must be true of a simulated run: of the log that was written, of what clients were told, and of all who read it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock.core.commands import Fired
from penstock.core.errors import JobNotFound, PenstockError
from penstock.core.job import Attempt
from penstock.stores.log import history
from penstock.stores.log.backings.packed import unpack
from penstock.stores.log.entry import LogEntry, Op, read
from penstock.stores.log.history import Facts
from penstock.stores.log.snapshots import Snapshots
from penstock.stores.log.state import Parts, State
from support.book import Book
from support.book_jobs import Wrong
from support.log_dump import dumped
from support.simoperators import EACH
from support.simprocess import Call, Look, Process

if TYPE_CHECKING:
    from support.storesim import World

PLACES: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "enqueue": lambda one: ("enqueue", one.id),
    "lease": lambda one: ("lease", one.worker),
    "heartbeat": lambda one: ("heartbeat", json.loads(one.progress)),
    "settle": lambda one: ("settle", type(one).__name__, one.token),
    "cancel": lambda one: ("cancel", one.reason),
    "redrive": lambda one: ("redrive", one.reason),
    "configure": lambda one: ("configure", one.reason),
    "put_schedules": lambda one: ("put_schedules", one.reason),
}
"""By what a call is known in the log: the same as its client called it."""


@dataclass
class Truth:
    """One log from its first entry, read from the copy that nobody cut."""

    shard: str
    book: Book = field(default_factory=Book)
    facts: Facts = field(default_factory=Facts)
    applied: dict[tuple[Any, ...], list[tuple[int, Any]]] = field(default_factory=lambda: defaultdict(list))
    """By call: the entries that it is in, and what was answered there."""
    statuses: dict[tuple[str, str], list[tuple[int, str | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By job: what it was from which entry on; None when it had left."""
    written: list[float] = field(default_factory=list)
    """When each entry was there and all before it."""

    def __post_init__(self) -> None:
        self.state = State(Parts(new_machine=self.facts.machine))

    def take(self, number: int, at: float, data: bytes) -> None:
        entry = read(self.shard, number, data)
        self.facts.begin(number)
        answers = self.state.apply(number, entry)
        self.facts.end()
        self.book.apply(number, entry, answers)
        self.written.append(max(at, self.written[-1] if self.written else at))
        if entry is not None and answers:
            self._note(number, entry, answers)

    def _note(self, number: int, entry: LogEntry, answers: list[Any]) -> None:
        for op, told in zip(entry.ops, answers, strict=True):
            for command, answer in _each(op, told):
                self.applied[PLACES[op.verb](command)].append((number, answer))
        for tenant, jobs in self.book.jobs.items():
            for job_id, job in jobs.items():
                self._status(number, (tenant, job_id), job.status)
        for tenant, jobs in self.book.gone.items():
            for job_id in jobs:
                if job_id not in self.book.jobs[tenant]:
                    self._status(number, (tenant, job_id), None)

    def _status(self, number: int, job: tuple[str, str], status: str | None) -> None:
        known = self.statuses[job]
        if not known or known[-1][1] != status:
            known.append((number, status))


def _each(op: Op, told: Any) -> Iterator[tuple[Any, Any]]:
    if op.verb in PLACES:
        yield from zip(op.given, told, strict=True)


async def judge(world: World, last: Process) -> None:
    truths = []
    for shard in world.logs:
        truth = Truth(shard)
        written = world.archive.get(shard, {})
        number = 0
        while (number := number + 1) in written:
            at, packed = written[number]
            truth.take(number, at, unpack(packed, shard, str(number)).data if world.numbered else packed)
        truths.append(truth)
        _same_jobs(world, truth)
    _told(world, truths)
    _in_time(world, truths)
    once = _once(world, truths)
    for look in world.looks:
        _seen(world, truths, once, look)
    _fired(world, truths)
    for truth in truths:
        world.met["entries"] += len(truth.written)
        world.met["late ones refused"] += truth.book.late
        world.met["leases lost"] += truth.book.lost
        world.met["leases"] += len(truth.book.held)
        world.met["repeated settles"] += truth.book.repeated
        world.met["pruned"] += sum(map(len, truth.book.gone.values()))
        world.met["fired"] += len(truth.book.fired)
        await _all_agree(world, truth, last)
        await _history(world, truth)


def _same_jobs(world: World, truth: Truth) -> None:
    """The machine and the book have come to the same end, and each lease is in the trail with how it ended."""
    parts = truth.state.parts
    for tenant, jobs in truth.book.jobs.items():
        machine = parts.machines.get(tenant)
        there = {} if machine is None else dict(machine.ledger.jobs.items())
        if sorted(there) != sorted(jobs):
            raise Wrong(f"the machine has other jobs of {tenant} than the book: {there.keys() ^ jobs.keys()}")
        for job_id, job in there.items():
            kept = jobs[job_id]
            mine = (kept.status, kept.run_at, kept.attempts, kept.token, kept.cancel_requested, kept.ended_at)
            token = job.lease and job.lease.token
            its = (job.status, job.run_at, job.attempts, token, job.cancel_requested, job.ended_at)
            if mine != its:
                raise Wrong(f"{job_id} is {its} to the machine, and {mine} to the book")
            assert machine is not None
            trail = machine.ledger.trails.get(("job", job_id), [])
            ended = {one.token: str(one.outcome) for one in trail if isinstance(one, Attempt)}
            if ended != {token: one[0] for token, one in kept.ended.items()} or job.leases != len(ended) + (
                kept.token is not None
            ):
                raise Wrong(f"the trail of {job_id} says {ended}, and the book {kept.ended}")


def _told(world: World, truths: list[Truth]) -> None:
    """What was acknowledged is in the log, once for each time and with that answer; what failed is not."""
    calls: dict[tuple[Any, ...], list[Call]] = defaultdict(list)
    for call in world.calls:
        if call.key[0] in PLACES:
            calls[call.key].append(call)
    applied = {key: found for truth in truths for key, found in truth.applied.items()}
    for key, found in applied.items():
        if key not in calls and key[1] is not None:
            raise Wrong(f"{key} is in the log, and nobody asked for it: {found}")
    for key, made in calls.items():
        there = [_plain(answer) for _, answer in applied.get(key, [])]
        told = [
            call for call in made if call.outcome == "told" and not (key[0] == "lease" and not call.answer)
        ]
        unknown = sum(call.outcome == "unknown" for call in made)
        empty = sum(call.outcome == "told" for call in made) - len(told)
        # One whose job is not in the log that its token names is asked about again, wherever the job may be.
        astray = sum(isinstance(answer, JobNotFound) for _, answer in applied.get(key, ()))
        more = unknown + empty + (astray if world.shards > 1 else 0)
        for call in told:
            if _plain(call.answer) not in there:
                raise Wrong(f"{key} was answered {call.answer}, and the log says {applied.get(key)}")
        if not len(told) <= len(there) <= len(told) + more:
            raise Wrong(
                f"{key} was acknowledged {len(told)} times, unknown {unknown} times, and is {len(there)} times in the log"
            )
        world.met["unknown and done"] += len(there) - len(told) if unknown else 0


def _plain(answer: Any) -> Any:
    """An answer so that two can be compared that were made apart."""
    if isinstance(answer, PenstockError):
        return type(answer).__name__, str(answer)
    if isinstance(answer, list):
        return [_plain(one) for one in answer]
    return answer


def _once(world: World, truths: list[Truth]) -> set[tuple[Any, ...]]:
    """Calls that were sent once and written once: of these it is known which entry is whose."""
    sent = Counter(call.key for call in world.calls if call.outcome != "failed")
    written = Counter(key for truth in truths for key, found in truth.applied.items() for _ in found)
    return {key for key in sent if sent[key] == written[key] == 1}


def _in_time(world: World, truths: list[Truth]) -> None:
    """What was begun after another was acknowledged stands behind it."""
    once = _once(world, truths)
    for truth in truths:
        placed = [
            (call.ended, call.begun, truth.applied[call.key][0][0])
            for call in world.calls
            if call.outcome == "told"
            and call.ended is not None
            and call.key in once
            and call.key in truth.applied
        ]
        placed.sort()
        world.met["in order"] += len(placed)
        highest, done = 0, 0
        for _, begun, number in sorted(placed, key=lambda one: one[1]):
            while placed[done][0] < begun:
                highest = max(highest, placed[done][2])
                done += 1
            if number < highest:
                raise Wrong(f"entry {number} was begun at {begun}, after {highest} was acknowledged")


def _fired(world: World, truths: list[Truth]) -> None:
    """Where nothing may be missed, each fire time had a job, and none is left out between two."""
    there = {job_id for truth in truths for job_id in truth.book.fired}
    for call in world.calls:
        if call.key[0] == "fire" and call.outcome == "told" and isinstance(call.answer, Fired):
            for job in call.answer.jobs:
                if job.duplicate is None and job.id not in there:
                    raise Wrong(f"{call.key} made {job.id}, and the log has no such fire time")
    for tenant in sorted({tenant for truth in truths for tenant in truth.book.jobs}):
        made = [one for truth in truths for one in truth.book.fired.values()]
        times = sorted(at for of, name, at in made if (of, name) == (tenant, "each"))
        for earlier, later in pairwise(times):
            if later - earlier != EACH:
                raise Wrong(f"the schedule of {tenant} had jobs at {earlier} and at {later}")


def _seen(world: World, truths: list[Truth], once: set[tuple[Any, ...]], look: Look) -> None:
    """A look sees a job as it was at some moment between question and answer, never earlier."""
    for truth in truths:
        known = truth.statuses.get((look.tenant, look.job_id))
        if known is None:
            continue
        acked = [
            number
            for call in world.calls
            if call.outcome == "told" and call.ended is not None and call.ended < look.begun
            if call.key in once
            for number, _ in truth.applied.get(call.key, ())
        ]
        least, most = max(acked, default=0), sum(at <= look.ended for at in truth.written)
        ends = [number for number, _ in known[1:]] + [10**9]
        may = {
            status
            for (number, status), end in zip(known, ends, strict=True)
            if number <= most and end > least
        }
        if look.status not in may:
            raise Wrong(f"{look} was shown, between entries {least} and {most} it was {may}: {known}")
        world.met["looks"] += 1
        return
    raise Wrong(f"{look}: the job was acknowledged, and is in no log")


async def _all_agree(world: World, truth: Truth, last: Process) -> None:
    """Whoever has followed, whoever opens it now, and one that reads the log from its first entry."""
    number = world.logs.index(truth.shard)
    expected = _normal(truth.state)
    fresh = Process(world, "fresh", None, 0)
    following = [one for one in world.living.values() if not one.is_dead and one.name.startswith("app")]
    for process in [last, fresh, *following]:
        store = (await process.store.logs())[number] if world.shards > 1 else process.store
        await store._log.follow()
        found = _normal(store._log.state)
        world.met["agree"] += 1
        for part in expected.keys() | found.keys():
            if expected.get(part) != found.get(part):
                raise Wrong(
                    f"{process.name} has another state of {part} in {truth.shard}: {_difference(expected.get(part), found.get(part))}"
                )


def _normal(state: State) -> dict[str, Any]:
    """A state, without the order in which jobs came to be there."""
    found: dict[str, Any] = json.loads(dumped(state))
    parts: dict[str, Any] = {}
    for name, part in found.items():
        if isinstance(part, dict):
            children = zip((job["asked"]["id"] for job in part["jobs"]), part["children"], strict=True)
            parts |= {f"{name} {kind}": value for kind, value in part.items()}
            parts[f"{name} children"] = sorted((of, children) for of, children in children if children)
            parts[f"{name} jobs"] = sorted(part["jobs"], key=lambda job: str(job["asked"]["id"]))
            # One that is answered no more need not be remembered.
            asked = [one for one in part["requests"] if datetime.fromisoformat(one[1]["until"]) > state.time]
            parts[f"{name} requests"] = sorted(asked, key=str)
            for kind in ("trails", "lanes"):
                parts[f"{name} {kind}"] = sorted(part[kind], key=str)
        else:
            parts[name] = part
    return parts


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, list) and isinstance(found, list):
        missing = [one for one in expected if expected.count(one) > found.count(one)]
        more = [one for one in found if found.count(one) > expected.count(one)]
        return f"{missing[:2]} expected, {more[:2]} found"
    return f"{expected} expected, {found} found"


async def _history(world: World, truth: Truth) -> None:
    """What was written for the lake is what happened, each fact once."""
    found = await Snapshots(world.held, truth.shard).manifest()
    if found is None:
        return
    manifest, _ = found
    snapshots = Snapshots(world.held, truth.shard)
    tables = [history.decoded(await snapshots.get_history(at)) for at in manifest.history]
    if any(later.first <= earlier.last for earlier, later in pairwise(manifest.history)):
        raise Wrong(f"history overlaps: {manifest.history}")
    if manifest.told != manifest.number or manifest.forgotten:
        raise Wrong(
            f"history is told up to {manifest.told}, forgotten {manifest.forgotten}: {manifest.number}"
        )
    written = history.joined(tables).to_pylist() if tables else []
    expected = history.table([row for row in truth.facts.rows if row.xid <= manifest.told]).to_pylist()
    world.met["facts"] += len(written)
    key = ("tenant", "xid", "seq")
    for rows in (written, expected):
        rows.sort(key=lambda row: [row[name] for name in key])
    if written != expected:
        raise Wrong(
            f"history of {truth.shard} up to {manifest.told} has {len(written)} facts, not {len(expected)}: "
            + _difference(expected, written)
        )
