"""What a store must do. Every store obeys the rules of core.machine; the conformance suite holds it to them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from penstock.core.commands import (
    Beat,
    CancelJob,
    Changed,
    ConfigureQueue,
    DropSchedule,
    Due,
    Enqueued,
    Filter,
    Fire,
    Fired,
    Heartbeat,
    History,
    Leased,
    LeaseJobs,
    Page,
    PutSchedule,
    QueueView,
    RedriveJob,
    Settle,
    Settled,
    Swept,
)
from penstock.core.errors import PenstockError
from penstock.core.job import Job, JobId, NewJob
from penstock.core.registry import AuditPage, Entry, Events, Insight, PutEntry, Spend, Spent
from penstock.core.schedule import Schedule
from penstock.core.settings import QueueSettings
from penstock.core.wakeups import Wakeups


class Store(Protocol):
    """Where jobs live.

    What holds for every call:

    - **Batch first.** A call takes many items and answers each in its place: with a value, or with the
      error that refused it. Items take effect in the order given. A refused item changes nothing and its
      neighbours go through.
    - **Durable before answered.** What an answer says would survive a crash of whatever the store says it
      survives (memory survives none).
    - **One tenant.** A call sees and changes the jobs, queues, schedules and keys of its tenant only.
    - **The store's time.** No caller's clock decides anything. Leases and deadlines that have run out have
      taken effect, as of the moment they ran out, before a call looks at anything.
    - **Commands are checked.** `penstock.queue` has checked every value against its limits; a store trusts it.
    """

    @property
    def wakeups(self) -> Wakeups:
        """Rung by the store after everything it does that may let a job out, and for EVERYONE after a schedule changed."""
        ...

    async def enqueue(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued | PenstockError]:
        """Make jobs, or answer with the one that stands for it: same id and body, idempotency key, unique key.

        Sending a job again with the same id and body is harmless, so an enqueue whose reply was lost can be repeated.
        """
        ...

    async def lease(self, tenant: str, requests: Sequence[LeaseJobs]) -> list[list[Leased] | PenstockError]:
        """Lease the next jobs of each queue named: highest priority, fair turn, oldest run_at, lowest id.

        No limit is ever exceeded, no job has two live leases, no token is given twice.
        """
        ...

    async def heartbeat(self, tenant: str, beats: Sequence[Heartbeat]) -> list[Beat | PenstockError]:
        """Extend leases from now on; tells whether the job was asked to stop. A stale token gets LeaseLost."""
        ...

    async def settle(self, tenant: str, settles: Sequence[Settle]) -> list[Settled | PenstockError]:
        """End leases. A stale token gets LeaseLost and changes nothing; a repeated settle gets its first answer.

        Everything that follows from a job's end, such as its children being let go, happens with it or not at all.
        """
        ...

    async def cancel(self, tenant: str, commands: Sequence[CancelJob]) -> list[Changed | PenstockError]:
        """Cancel jobs that do not run; ask those that do to stop. Cancelling twice is harmless."""
        ...

    async def redrive(self, tenant: str, commands: Sequence[RedriveJob]) -> list[Changed | PenstockError]:
        """Bring dead, held and cancelled jobs back, with their history."""
        ...

    async def configure(
        self, tenant: str, commands: Sequence[ConfigureQueue]
    ) -> list[QueueSettings | PenstockError]:
        """Set some settings of queues; the rest stay. It holds from the next lease on, everywhere."""
        ...

    async def put_schedules(
        self, tenant: str, commands: Sequence[PutSchedule]
    ) -> list[Schedule | PenstockError]:
        """Make or replace schedules. One declared again unchanged keeps its next fire time.

        Replaced by somebody who is not a program, it keeps the marks of the program that declares it.
        """
        ...

    async def drop_schedules(
        self, tenant: str, commands: Sequence[DropSchedule]
    ) -> list[Schedule | PenstockError]: ...

    async def fire(self, tenant: str, fires: Sequence[Fire]) -> list[Fired | PenstockError]:
        """Enqueue the due jobs of schedules and move these on, both or neither; of many callers one does it."""
        ...

    async def due_schedules(self, tenant: str | None = None) -> Due:
        """Who has schedules to fire, and when there will be more: of one tenant, or in one call of all."""
        ...

    async def get(self, tenant: str, ids: Sequence[JobId]) -> list[Job | PenstockError]: ...

    async def history(
        self, tenant: str, subjects: Sequence[tuple[str, str]]
    ) -> list[History | PenstockError]:
        """The audit trail of each ("job", id), ("queue", name), ("schedule", name) or (kind, name) of an entry.

        Only a job that is not there gets JobNotFound; anything else without records has an empty trail.
        """
        ...

    async def find(self, tenant: str, filter: Filter, *, after: JobId | None, limit: int) -> Page:
        """The jobs that match, newest id first, from below `after` on. Follow `next` until it is None."""
        ...

    async def queues(self, tenant: str) -> list[QueueView]:
        """Every queue that was ever used or set, by name."""
        ...

    async def schedules(self, tenant: str) -> list[Schedule]:
        """Every schedule, by name."""
        ...

    async def next_at(self, tenant: str, queues: Sequence[str]) -> datetime | None:
        """A hint on how long to sleep: when time alone may next let a job out. Never later than the truth."""
        ...

    async def now(self) -> datetime:
        """The store's time."""
        ...

    async def tenants(self) -> list[str]:
        """Everyone who ever used a queue or made a schedule here, by name."""
        ...

    async def lead(self, office: str, holder: str, seconds: float) -> bool:
        """Take an office, or keep it, for a while; False while another holds it. Lapsed, it is anyone's.

        With no seconds at all the holder gives it up; one that does not hold it changes nothing for others.

        It saves work that would otherwise be done twice and harm nobody; nothing may depend on there being one holder.
        """
        ...

    async def put_entries(
        self, tenant: str, commands: Sequence[PutEntry]
    ) -> list[Entry | PenstockError | None]:
        """Make, replace or drop entries; None answers a drop. One whose version is another gets EntryConflict."""
        ...

    async def entries(self, tenant: str | None, kind: str, names: Sequence[str] | None = None) -> list[Entry]:
        """The entries of a kind, by tenant and name: all, or those named; with no tenant given, everyone's."""
        ...

    async def spend(self, tenant: str, spends: Sequence[Spend]) -> list[Spent]:
        """Take from allowances, each as a whole or not at all, however many ask at once."""
        ...

    async def put_insights(self, insights: Sequence[Insight]) -> None:
        """Publish what a run of the lake found out, of all tenants, in place of all that is there.

        All of it or, if anything that is there is newer, nothing; and nothing is gone if none is given. The same again is
        harmless.
        """
        ...

    async def insights(self, tenant: str, names: Sequence[str]) -> list[Insight]:
        """Those of these insights that are there, by name."""
        ...

    async def audit(self, tenant: str, *, before: str | None = None, limit: int) -> AuditPage:
        """What people and tokens changed (rules excepted), newest first, from before a `next` on."""
        ...

    async def events(self, tenant: str, *, after: str | None = None, limit: int) -> Events:
        """What happened after a cursor; with none, nothing yet, and the cursor of now.

        No event is ever left out or told twice, however late its transaction commits. A cursor that is too old for what
        is kept, or not of this store, gets InvalidInput.
        """
        ...

    async def sweep(self, *, limit: int, exported_until: datetime | None = None) -> Swept:
        """Do, for every tenant, what time asks for: lost leases, missed deadlines, retention. Never needed for a lease.

        Jobs that ended after `exported_until`, or later than a lake has promised to have them (core.promises), stay.
        """
        ...

    async def close(self) -> None: ...


def cadence(store: Store) -> float:
    """How many times more seldom than usual an idle program should ask a store: one where every request costs says so."""
    return float(getattr(store, "cadence", 1.0))


@runtime_checkable
class TransactionalStore(Store, Protocol):
    """A store that can take jobs in as part of a transaction of the caller's own."""

    async def enqueue_in(
        self, connection: Any, tenant: str, jobs: Sequence[NewJob]
    ) -> list[Enqueued | PenstockError]:
        """`enqueue` on the caller's connection: in force when its transaction commits, gone when that is rolled back."""
        ...

    def enqueue_in_now(
        self, connection: Any, tenant: str, jobs: Sequence[NewJob]
    ) -> list[Enqueued | PenstockError]:
        """The same on a connection that is not async."""
        ...
