"""Entries, allowances, insights and the audit log in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.core.codec import JsonText
from penstock.core.errors import EntryConflict, PenstockError
from penstock.core.registry import (
    Audited,
    AuditLine,
    AuditPage,
    Entry,
    Insight,
    PutEntry,
    Spend,
    Spent,
    audit_place,
    outdated,
)
from penstock.stores.postgres import rows
from penstock.stores.postgres.reading import Reading
from penstock.stores.postgres.rules import sql


class Registry(Reading):
    """The part of the store that keeps what is not a job."""

    async def put_entries(
        self, tenant: str, commands: Sequence[PutEntry]
    ) -> list[Entry | PenstockError | None]:
        audits = [command.audit or _NOBODY for command in commands]
        found = await self._fetch(
            sql("put_entries"), tenant, self._given_now(),
            [one.kind for one in commands], [one.name for one in commands], [one.body for one in commands],
            [one.version for one in commands], [one.seconds for one in commands], [one.expires_at for one in commands],
            [one.name for one in audits], [one.verb for one in audits], [one.actor or None for one in audits],
            [one.reason for one in audits], [one.detail for one in audits],
        )  # fmt: skip
        put = {row["place"]: row for row in found}
        return [_answer(tenant, one, put[place]) for place, one in enumerate(commands, 1)]

    async def entries(self, tenant: str | None, kind: str, names: Sequence[str] | None = None) -> list[Entry]:
        if names is None:
            found = await self._fetch(sql("entries"), tenant, kind, self._given_now())
        else:
            wanted = list(dict.fromkeys(names))
            found = await self._fetch(sql("entries_named"), tenant, kind, self._given_now(), wanted)
        return sorted(map(_entry, found), key=lambda entry: (entry.tenant, entry.name))

    async def spend(self, tenant: str, spends: Sequence[Spend]) -> list[Spent]:
        found = await self._fetch(
            sql("spend"), tenant, self._given_now(), [one.name for one in spends], [one.cost for one in spends],
            [one.rate for one in spends], [one.burst for one in spends],
        )  # fmt: skip
        spent = sorted(found, key=lambda row: row["place"])
        return [Spent(row["granted"], row["remains"], row["wait_seconds"]) for row in spent]

    async def put_insights(self, insights: Sequence[Insight]) -> None:
        given = list({(one.tenant, one.name): one for one in insights}.values())
        if not given:
            return
        as_of = min(one.as_of for one in given)

        async def publish(connection: Any) -> None:
            async with self._transaction(connection):
                # One run at a time: of two that begin together, the newer stays. Nobody who reads waits for it.
                await connection.execute("LOCK TABLE penstock.insight IN SHARE ROW EXCLUSIVE MODE")
                newest = await connection.fetchval(sql("newest_insight"))
                if newest is not None and newest > as_of:
                    raise outdated(as_of, newest)
                await connection.execute(sql("drop_insights"))
                for some in _slices(given):
                    await connection.execute(
                        sql("put_insights"),
                        [one.tenant for one in some], [one.name for one in some],
                        [one.as_of for one in some], [one.body for one in some],
                    )  # fmt: skip

        await self._reach(publish)

    async def insights(self, tenant: str, names: Sequence[str]) -> list[Insight]:
        found = await self._fetch(sql("insights"), tenant, list(set(names)))
        return [Insight(tenant, row["name"], row["as_of"], JsonText(row["body"])) for row in found]

    async def audit(self, tenant: str, *, before: str | None = None, limit: int) -> AuditPage:
        found = await self._fetch(sql("audit"), tenant, audit_place(before), limit + 1)
        lines = tuple(AuditLine(row["kind"], row["name"], rows.to_change(row)) for row in found[:limit])
        return AuditPage(lines, str(found[limit - 1]["seq"]) if len(found) > limit else None)

    async def _tidy(self, limit: int) -> None:
        """Remove what nobody can see any more; each process that sweeps does it now and then."""
        await self._fetch(sql("tidy"), self._given_now(), limit)


_NOBODY = Audited("", "", "")
_SLICE_CHARS = 16 * 1024 * 1024


def _slices(insights: Iterable[Insight]) -> Iterator[list[Insight]]:
    """In order, as many at once as a statement can have: PostgreSQL takes no value of 1 GB, and an array is one."""
    some: list[Insight] = []
    chars = 0
    for one in insights:
        if some and chars + len(one.body) > _SLICE_CHARS:
            yield some
            some, chars = [], 0
        some.append(one)
        chars += len(one.body)
    if some:
        yield some


def _answer(tenant: str, command: PutEntry, row: rows.Row) -> Entry | PenstockError | None:
    version = row["put_version"]
    if version is None:
        return EntryConflict(command.kind, command.name)
    if command.body is None:
        return None
    return Entry(command.kind, tenant, command.name, version, command.body, row["put_at"], row["put_until"])


def _entry(row: rows.Row) -> Entry:
    return Entry(
        row["kind"], row["tenant"], row["name"], row["version"], JsonText(row["body"]), row["changed_at"],
        row["expires_at"],
    )  # fmt: skip
