"""A function that was made a job: call it as it is, or put it in a queue."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.app.handle import JobHandle
from penstock.app.sync import Sync
from penstock.core.job import NewJob
from penstock.telemetry import spans
from penstock.worker.handlers import Handler

if TYPE_CHECKING:
    from penstock.app.penstock import Penstock


class JobType:
    """What `@app.job` makes of a function. Calling it runs the function here and now, as if it were not decorated."""

    def __init__(
        self, app: Penstock, handler: Handler, options: Mapping[str, Any] | None = None, conn: object = None
    ) -> None:
        self._app = app
        self.handler = handler
        self._options = dict(options or {})
        self._conn = conn
        functools.update_wrapper(self, handler.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job type {self.name!r}>"

    @property
    def name(self) -> str:
        return self.handler.name

    @property
    def sync(self) -> Any:
        """The same for code that is not async: `send_email.sync.enqueue(to=…)`."""
        return Sync(self, self._app.portal)

    def options(self, *, conn: object = None, **options: Any) -> JobType:
        """This job type with other options: `queue`, `priority`, `delay`, `unique_key`, …; the fields of NewJob.

        With `conn`, a connection of your own, jobs are part of the transaction that is open there.
        """
        return JobType(
            self._app, self.handler, {**self._options, **options}, self._conn if conn is None else conn
        )

    def new(self, *args: Any, **kwargs: Any) -> NewJob:
        """A job that is not put in yet, for `enqueue_many` and flows. Its arguments are checked here."""
        return spans().created(self._new(args, kwargs), own_id=self._has_own_id)

    def _new(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewJob:
        payload = self.handler.arguments.payload(args, kwargs)
        return self._app.new_job(self.name, payload, {**self.handler.options, **self._options})

    @property
    def _has_own_id(self) -> bool:
        return "id" in self._options

    async def enqueue(self, *args: Any, **kwargs: Any) -> JobHandle:
        """Put a job in that calls the function with these arguments."""
        return await self._app.put(self._new(args, kwargs), self._conn, inject=not self._has_own_id)

    def enqueue_here(self, *args: Any, **kwargs: Any) -> JobHandle | None:
        """For `.sync`: in the caller's thread, if it belongs there."""
        if not self._app.puts_here(self._conn):
            return None
        return self._app.put_here(self._new(args, kwargs), self._conn, inject=not self._has_own_id)
