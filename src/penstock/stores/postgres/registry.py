"""Entries, allowances and the audit log in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.errors import PenstockError
from penstock.core.registry import AuditPage, Entry, PutEntry, Spend, Spent
from penstock.stores.postgres.reading import Reading


class Registry(Reading):
    """The part of the store that keeps what is not a job."""

    async def put_entries(
        self, tenant: str, commands: Sequence[PutEntry]
    ) -> list[Entry | PenstockError | None]:
        raise NotImplementedError

    async def entries(self, tenant: str | None, kind: str, names: Sequence[str] | None = None) -> list[Entry]:
        raise NotImplementedError

    async def spend(self, tenant: str, spends: Sequence[Spend]) -> list[Spent]:
        raise NotImplementedError

    async def audit(self, tenant: str, *, before: str | None = None, limit: int) -> AuditPage:
        raise NotImplementedError
