"""What the lake found out, and what follows from it: jobs of a failure come back, a queue is set as its plan says."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from penstock.access import Scope
from penstock.bulk import FASTEST_PER_SECOND, SLOWEST_PER_SECOND
from penstock.core import bounds
from penstock.insights import InsightAnswer, InsightOffers, acting, ask, offers
from penstock.insights.acting import PER_SECOND, AppliedPlan
from penstock.server.operating import BulkAnswer
from penstock.server.operation import Call, Operation
from penstock.server.wire import BulkCount, Name, Text

USUAL_LIMIT = 100


class InsightQuery(Struct, frozen=True, forbid_unknown_fields=True):
    queue: Name | None = None
    type: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=bounds.MOST_LISTED)] = USUAL_LIMIT


class RedriveFailureRequest(Struct, frozen=True, forbid_unknown_fields=True):
    dry_run: bool = True
    """Only count; send false to act."""
    per_second: Annotated[float, Meta(ge=SLOWEST_PER_SECOND, le=FASTEST_PER_SECOND)] = PER_SECOND
    """How many jobs come back in a second, about."""
    reason: Text | None = None


class ApplyPlanRequest(Struct, frozen=True, forbid_unknown_fields=True):
    dry_run: bool = True
    """Only tell what would be set; send false to set it."""


async def list_insights(call: Call) -> InsightOffers:
    """What can be asked, and as of when the answers are."""
    return await offers(call.service.store, call.caller.tenant)


async def get_insights(call: Call) -> InsightAnswer:
    """An answer of the lake's newest run: failures, capacity, slo, anomalies, latency, schedules, usage, flows, hourly, daily."""
    query: InsightQuery = call.query
    return await ask(
        call.service.store, call.caller.tenant, call.path["table"],
        queue=query.queue, type=query.type, limit=query.limit,
    )  # fmt: skip


async def redrive_failure(call: Call) -> BulkAnswer:
    """Bring back all dead and held jobs of a failure, so many a second. A dry run unless `dry_run` is false."""
    body: RedriveFailureRequest = call.body
    queue, fingerprint = call.caller.queue, call.path["fingerprint"]
    if body.dry_run:
        return BulkAnswer(BulkCount(*await acting.count_failure(queue, fingerprint)))
    operation = await acting.begin_redrive(queue, fingerprint, per_second=body.per_second, reason=body.reason)
    call.status = 202
    call.headers["Location"] = f"{call.request.scope.get('root_path', '')}/v1/bulk/{operation.id}"
    return BulkAnswer(operation=operation)


async def apply_plan(call: Call) -> AppliedPlan:
    """Set a queue's concurrency and lease as its capacity plan says. A dry run unless `dry_run` is false."""
    return await acting.apply(call.caller.queue, call.path["queue"], dry_run=call.body.dry_run)


_SEE = (Scope.READ, Scope.OPERATE)
_NOTHING = {404: "No such insights, or nothing is published yet"}

OPERATIONS = (
    Operation("GET", "/v1/insights", list_insights, "List what the lake found out", InsightOffers, _SEE, tag="Insights"),
    Operation("GET", "/v1/insights/{table}", get_insights, "Read what the lake found out", InsightAnswer, _SEE,
              query=InsightQuery, also=_NOTHING, tag="Insights"),
    Operation("POST", "/v1/insights/failures/{fingerprint}/redrive", redrive_failure, "Bring back the jobs of a failure",
              BulkAnswer, Scope.OPERATE, RedriveFailureRequest, body_is_optional=True,
              also={202: "Begun; `Location` tells how far it is", 404: "No such failure is known"},
              example={"dry_run": False, "per_second": 20}, tag="Insights"),
    Operation("POST", "/v1/insights/capacity/{queue}/apply", apply_plan, "Apply a capacity plan to a queue", AppliedPlan,
              Scope.OPERATE, ApplyPlanRequest, body_is_optional=True,
              also={404: "There is no plan of such a queue"}, example={"dry_run": False}, tag="Insights"),
)  # fmt: skip
