"""What can go wrong with a log and what holds it.

PenstockError
├── StoreUnavailable
│   ├── OutcomeUnknown      a write that may have happened or not
│   ├── StorageFull
│   ├── ClockOff            what time it is there cannot be told
│   ├── StorageRefused      permission lost, credentials expired
│   └── StorageGone         the folder or bucket is not there
├── Truncated               what was asked for has been deleted; begin at the snapshot
├── LogCorrupt              bytes that cannot have been written so
├── LogGap                  a number is missing
├── LogTooNew               written by a newer version
├── LogStopped              an entry could not be applied here
├── StoreNotConditional     two writers of one key both won
├── NotALog                 something else is kept there
├── ShardsDiffer            it has another number of logs
├── Conflict
│   └── CrossShard          a parent is in another log
└── OpenedElsewhere         opened before a fork
"""

from __future__ import annotations

from penstock.core.errors import Conflict, PenstockError, StoreUnavailable


class OutcomeUnknown(StoreUnavailable):
    """It may have taken effect or not. Repeat it: job ids and lease tokens make a repeat harmless."""

    code = "outcome_unknown"

    def __init__(self, store: str, what: str, why: str) -> None:
        PenstockError.__init__(
            self,
            f"{what} was sent to {store} and never confirmed ({why}); it may have taken effect or not",
            store=store,
            what=what,
            why=why,
        )


class StorageFull(StoreUnavailable):
    """There is no room. Nothing was changed; make room, and send it again."""

    code = "storage_full"

    def __init__(self, store: str, reason: str) -> None:
        PenstockError.__init__(
            self,
            f"{store} has no room: {reason}; nothing was changed, make room and try again",
            store=store,
            reason=reason,
        )


class ClockOff(StoreUnavailable):
    """Its time cannot be told, and leases hang on it. Nothing was written; it goes on by itself when the clock is right."""

    code = "clock_off"

    def __init__(self, store: str, found: str) -> None:
        PenstockError.__init__(
            self,
            f"the clock of {store} cannot be told: {found}; nothing was written, because every lease hangs on it: set"
            " the clocks of the store and of this machine right",
            store=store,
            found=found,
        )


class StorageRefused(StoreUnavailable):
    """The storage does not let us. Look at its permissions, and whether the credentials have expired."""

    code = "storage_refused"

    def __init__(self, store: str, reason: str) -> None:
        PenstockError.__init__(
            self,
            f"{store} refuses: {reason}; check permissions and credentials",
            store=store,
            reason=reason,
        )


class StorageGone(StoreUnavailable):
    """The folder or the bucket is not there. It is never made up anew: what it held may be elsewhere."""

    code = "storage_gone"

    def __init__(self, store: str, reason: str) -> None:
        PenstockError.__init__(
            self, f"{store} is not there: {reason}; check its name", store=store, reason=reason
        )


class Truncated(PenstockError):
    """The numbers asked for have been deleted. Begin at the newest snapshot, and read from there."""

    code = "log_truncated"

    def __init__(self, log: str, after: int, first: int) -> None:
        super().__init__(
            f"{log} begins at {first:,}, and was asked for what follows {after:,}; begin at its newest snapshot",
            log=log,
            after=after,
            first=first,
        )
        self.log, self.first = log, first


class LogCorrupt(PenstockError):
    """The log holds what nobody can have written. Nothing was changed or skipped; restore the place named."""

    code = "log_corrupt"

    def __init__(self, log: str, where: str, found: str) -> None:
        super().__init__(
            f"{log} is damaged at {where}: {found}; nothing was changed, restore it from a copy",
            log=log,
            where=where,
            found=found,
        )


class LogGap(PenstockError):
    """A number is missing that must be there. Nothing beyond it was read; restore it from a copy."""

    code = "log_gap"

    def __init__(self, log: str, missing: int, present: int) -> None:
        super().__init__(
            f"{log} has no entry {missing:,}, though it has {present:,}; restore what was removed",
            log=log,
            missing=missing,
            present=present,
        )


class LogTooNew(PenstockError):
    """A newer Penstock wrote this. Upgrade this process; it has read nothing beyond and changed nothing."""

    code = "log_too_new"

    def __init__(self, log: str, found: object, known: object) -> None:
        super().__init__(
            f"{log} is in format {found}, and this version of Penstock reads up to {known}; upgrade it",
            log=log,
            found=found,
            known=known,
        )


class StoreNotConditional(PenstockError):
    """The storage does not keep "only if absent", so two writers would overwrite each other. Use another one."""

    code = "store_not_conditional"

    def __init__(self, store: str, found: str) -> None:
        super().__init__(
            f"{store} cannot hold a log: {found}; use a store that enforces conditional writes",
            store=store,
            found=found,
        )


class NotALog(PenstockError):
    """Something else is kept there. Nothing was changed; give the log a folder or prefix of its own."""

    code = "not_a_log"

    def __init__(self, store: str, found: str) -> None:
        super().__init__(
            f"{store} holds {found!r}, which is no part of a log, and has no FORMAT; give the log a place of its own",
            store=store,
            found=found,
        )


class ShardsDiffer(PenstockError):
    """The number of logs is given once, when a place is first opened. Open it with that, or without a number."""

    code = "shards_differ"

    def __init__(self, store: str, there: int, asked: int) -> None:
        super().__init__(
            f"{store} was made with shards={there} and is opened with shards={asked}: jobs would be looked for where"
            f" they are not; leave ?shards= out, or move the jobs to a new place that is made with {asked}",
            store=store,
            there=there,
            asked=asked,
        )


class CrossShard(Conflict):
    """A job and its parent are in queues of different logs, and nobody can change two at once. Let them share one."""

    code = "cross_shard"

    def __init__(self, job_id: str, queue: str, parent_id: str, parent_queue: str) -> None:
        part, _, _ = parent_queue.partition("/")
        super().__init__(
            f"job {job_id} of queue {queue} names the parent {parent_id} of queue {parent_queue}, which is in another"
            f" log; queues share one if their names are alike up to the first /, so call it {part}/{queue}, say",
            job_id=job_id,
            queue=queue,
            parent_id=parent_id,
            parent_queue=parent_queue,
        )


class OpenedElsewhere(PenstockError):
    """This was opened in the parent of this process. Threads and locks do not survive a fork: open it again here."""

    code = "opened_elsewhere"

    def __init__(self, store: str, opened_by: int, pid: int) -> None:
        super().__init__(
            f"{store} was opened by process {opened_by}, and this is {pid}; open it again after the fork",
            store=store,
            opened_by=opened_by,
            pid=pid,
        )


class LogStopped(PenstockError):
    """An entry could not be applied, so this process no longer knows how things stand. Report it; nothing was lost."""

    code = "log_stopped"

    def __init__(self, log: str, number: int, reason: str) -> None:
        super().__init__(
            f"entry {number:,} of {log} could not be applied ({reason}); this process stops rather than guess, please report it",
            log=log,
            number=number,
            reason=reason,
        )
