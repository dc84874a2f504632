"""Whether it is alive, whether it is ready, and what it counts."""

from __future__ import annotations

import asyncio

from msgspec import Struct
from starlette.responses import Response

from penstock.core.errors import PenstockError
from penstock.server.operation import Call, Operation
from penstock.telemetry.prometheus import CONTENT_TYPE

READY_SECONDS = 3.0


class Alive(Struct, frozen=True):
    status: str = "ok"


class Ready(Struct, frozen=True):
    status: str
    """`ready`, or `not ready` with the reason."""
    store: str
    wakeups: str
    """What carries wake-ups, and whether it works. Without them pick-up is slower; nothing is in danger."""


async def livez(call: Call) -> Alive:
    """Whether the process answers at all."""
    return Alive()


async def health(call: Call) -> Alive:
    """The same as /livez, under OpenQueue's name."""
    return Alive()


async def readyz(call: Call) -> Ready:
    """Whether the store can be reached."""
    return await _ready(call)


async def ready(call: Call) -> Ready:
    """The same as /readyz, under OpenQueue's name."""
    return await _ready(call)


async def _ready(call: Call) -> Ready:
    status = call.service.store.wakeups.status()
    wakeups = f"{status.driver}: {'healthy' if status.healthy else status.detail}"
    try:
        async with asyncio.timeout(READY_SECONDS):
            await call.service.store.now()
    except (PenstockError, TimeoutError) as error:
        call.status = 503
        reason = (
            error.message if isinstance(error, PenstockError) else f"no answer within {READY_SECONDS:g} s"
        )
        return Ready("not ready", reason, wakeups)
    return Ready("ready", "reached", wakeups)


async def metrics(call: Call) -> Response:
    """What this instance has counted, and how the queues stand, for Prometheus."""
    return Response(await call.service.metrics.render(call.service.store), media_type=CONTENT_TYPE)


OPERATIONS = (
    Operation("GET", "/livez", livez, "Is it alive?", Alive, None, tag="Probes"),
    Operation("GET", "/readyz", readyz, "Is it ready?", Ready, None, also={503: "The store cannot be reached"}, tag="Probes"),
    Operation("GET", "/health", health, "Is it alive?", Alive, None, tag="Probes"),
    Operation("GET", "/ready", ready, "Is it ready?", Ready, None, also={503: "The store cannot be reached"}, tag="Probes"),
    Operation("GET", "/metrics", metrics, "Metrics for Prometheus", str, None, media_type=CONTENT_TYPE, tag="Probes"),
)  # fmt: skip
