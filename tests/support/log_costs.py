"""The tables of `docs/log.md`, made of what `penstock doctor` reckons with: `python -m support.log_costs` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.stores.log.cost import (
    HOURS_A_MONTH,
    LOST,
    PRICES_OF,
    S3_EXPRESS,
    S3_STANDARD,
    Requests,
    at_rest,
    commits_a_second,
    of_jobs,
)
from penstock.stores.log.options import told

MILLION = 1_000_000


def tables() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for price in (S3_STANDARD, S3_EXPRESS):
        yield f"{price.name}: ${price.put:g} for a million writes or listings, ${price.get:g} for a million reads ({PRICES_OF})."
        yield ""
    yield "A million jobs (put in, leased, ended), by how many are in each commit and by how many processes commit:"
    yield ""
    yield from _table(
        ("jobs per commit", *(f"{n} process{'es' if n > 1 else ''}" for n in LOST), "Express, 1 process"),
        (
            (str(jobs), *(_dollars(of_jobs(MILLION, jobs, n).cost(S3_STANDARD)) for n in LOST),
             _dollars(of_jobs(MILLION, jobs).cost(S3_EXPRESS)))
            for jobs in (1, 10, 50, 200)
        ),
    )  # fmt: skip
    yield ""
    yield "A month in which nothing happens, with scheduler and compactor, by workers and `poll`:"
    yield ""
    polls = (1.0, 5.0, 15.0, 60.0)
    yield from _table(
        ("workers", *(f"poll={told(poll)}" + (" (as it is)" if poll == 5 else "") for poll in polls), "requests a second"),
        (
            (str(n), *(_dollars(at_rest(n, poll_seconds=poll).cost(S3_STANDARD)) for poll in polls),
             f"{_rate(at_rest(n, hours=1)):.2f}")
            for n in (1, 3, 10)
        ),
    )  # fmt: skip
    yield ""
    yield "Calls made one by one by one process, day and night, in commits a second and dollars a month, by `window`:"
    yield ""
    windows = (0.0, 0.05, 0.25, 1.0)
    yield from _table(
        ("calls a second", *(f"window={told(window)}" + (" (as it is)" if not window else "") for window in windows)),
        ((str(calls), *(_busy(calls, window) for window in windows)) for calls in (1, 10, 100)),
    )  # fmt: skip


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _busy(calls: float, window: float) -> str:
    commits = commits_a_second(calls, window)
    return f"{commits:.1f}, {_dollars(Requests(commits * 3600 * HOURS_A_MONTH, 0).cost(S3_STANDARD))}"


def _rate(hour: Requests) -> float:
    return (hour.puts + hour.gets) / 3600


def _dollars(cost: float) -> str:
    return f"${cost:.2f}"


if __name__ == "__main__":
    print(tables())
