"""What can be wrong with a log, what was found, and what to do about it.

PenstockError
├── OutcomeUnknown          it may have been written or not
├── LogCorrupt              what is written there cannot be read
├── LogGap                  a number is missing
├── LogTooNew               written by a version that knows more than this one
└── LogStopped              this process has given the log up
"""

from __future__ import annotations

from penstock.core.errors import PenstockError


class OutcomeUnknown(PenstockError):
    """It may have taken effect or not. Send it again: the same job id or lease token makes a repeat harmless."""

    code = "outcome_unknown"

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(
            f"{store} did not say in time whether this was written ({reason}); send it again, which is harmless",
            store=store,
            reason=reason,
        )


class LogCorrupt(PenstockError):
    """An entry is not what its checksum says, or cannot be read. Bring it back from a backup; nothing is skipped."""

    code = "log_corrupt"

    def __init__(self, number: int, found: str) -> None:
        super().__init__(
            f"entry {number} of the log cannot be read: {found}; bring it back from a backup",
            number=number,
            found=found,
        )


class LogGap(PenstockError):
    """A number is missing from the log. Bring it back from a backup; what follows it cannot be understood without."""

    code = "log_gap"

    def __init__(self, number: int, found: int) -> None:
        super().__init__(
            f"entry {number} of the log is missing, though {found} is there; bring it back from a backup",
            number=number,
            found=found,
        )


class LogTooNew(PenstockError):
    """The log was written by a newer Penstock. Upgrade this one: what it does not know it must not skip."""

    code = "log_too_new"

    def __init__(self, number: int, what: str, found: int, known: int) -> None:
        super().__init__(
            f"entry {number} of the log has {what} {found}, and this version knows {known}: upgrade penstock here",
            number=number,
            found=found,
            known=known,
        )


class LogStopped(PenstockError):
    """An entry could not be applied, so this process no longer knows how things stand. Report it; nothing was lost."""

    code = "log_stopped"

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(
            f"entry {number} of the log could not be applied ({reason}); this process has stopped reading rather than guess",
            number=number,
            reason=reason,
        )


class Truncated(PenstockError):
    """What was asked for has been deleted; the log begins with `first`. Begin again from the newest snapshot."""

    code = "log_truncated"

    def __init__(self, after: int, first: int) -> None:
        super().__init__(
            f"the log begins with entry {first}: what follows {after} is no longer kept",
            after=after,
            first=first,
        )
        self.first = first
