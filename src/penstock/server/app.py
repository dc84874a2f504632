"""The service as one ASGI app: every operation, one OpenAPI document, the edge around it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.bulk import BulkRunner
from penstock.server import (
    administering,
    dashboard,
    following,
    insights,
    looking,
    openqueue,
    operating,
    port,
    probes,
    producing,
    sessions,
    watching,
    working,
)
from penstock.server.docs import POLICY, page
from penstock.server.edge import Edge, no_such_page, wrong_method
from penstock.server.openapi import document
from penstock.server.operation import Operation, routes
from penstock.server.service import Service

OPERATIONS: tuple[Operation, ...] = (
    *producing.OPERATIONS,
    *working.OPERATIONS,
    *looking.OPERATIONS,
    *following.OPERATIONS,
    *operating.OPERATIONS,
    *watching.OPERATIONS,
    *insights.OPERATIONS,
    *administering.OPERATIONS,
    *port.OPERATIONS,
    *probes.OPERATIONS,
    *openqueue.OPERATIONS,
)


@cache
def openapi() -> dict[str, Any]:
    """The document that is checked in as docs/openapi.json."""
    return document(OPERATIONS)


@cache
def docs() -> Response:
    return HTMLResponse(page(openapi()), headers={"Content-Security-Policy": POLICY})


def create_app(service: Service) -> ASGIApp:
    """An app for any ASGI server. FastAPI hosts it, so that others can mount their parts; our routes are lean."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = [
            asyncio.create_task(BulkRunner(service.store).run(), name="penstock bulk operations"),
            asyncio.create_task(service.historian.run(), name="penstock figures"),
        ]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            await service.close()

    app = FastAPI(
        title="Penstock", lifespan=lifespan, openapi_url="/openapi.json", docs_url=None, redoc_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    app.openapi = openapi  # type: ignore[method-assign]
    app.router.routes.append(Route("/docs", lambda request: docs()))
    app.router.routes.extend(routes(OPERATIONS, service))
    app.router.routes.extend(routes(sessions.OPERATIONS, service))
    app.router.routes.extend(dashboard.routes())
    app.add_exception_handler(404, no_such_page)
    app.add_exception_handler(405, wrong_method)
    return Edge(app, service)
