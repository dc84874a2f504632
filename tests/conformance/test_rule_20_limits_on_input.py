"""Rule 20: whatever is sent is bounded and checked at the edge; nothing but error text is ever cut."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.core.codec import decode
from penstock.core.commands import Enqueued
from penstock.core.errors import InvalidInput
from penstock.core.job import Status
from penstock.core.limits import Rate
from penstock.core.retry import Retry
from penstock.core.settings import QueueSettings
from penstock.queue import Queue
from penstock.testing import FakeClock

NOBODY = "01890000-0000-7000-8000-000000000000"
TEN_YEARS = 10 * 365 * 86_400
MEGABYTE = 1_048_576
HUGE = 10**5_000  # more digits than Python turns into text


def ids(count: int) -> list[str]:
    return [f"01890000-0000-7000-8000-{number:012x}" for number in range(count)]


def nested(depth: int) -> list[Any]:
    """Lists in lists; built from the inside, so that nothing here recurses."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Odd:
    """Something JSON knows nothing of."""


NAMES_TAKEN = ["a", "9", "_", "email.send", "a/b:c@d+e-f_g.h", "x" * 128]
NAMES_REFUSED = ["", "x" * 129, " a", "a b", "a\n", "-a", ".a", "é", "a\0", "🚰", "a;b", None, 5, b"a", ["a"]]

KEYS_TAKEN = ["k", " ", "x" * 512, "é" * 512, "🚰" * 512, "a\nb", "'; drop table job; --", "%s {} \\"]
KEYS_REFUSED = ["", "x" * 513, "a\0b", "\0", "a\ud800b", "\udfff", 5, b"k", ["k"]]

JOBS_TAKEN: list[tuple[str, Any]] = [
    *(("queue", name) for name in NAMES_TAKEN),
    *((field, key) for field in ("key", "ordering_key", "unique_key", "idempotency_key") for key in KEYS_TAKEN),
    ("payload", "x" * (MEGABYTE - 2)),
    ("payload", "é" * (MEGABYTE // 2 - 1)),
    ("payload", nested(100)),
    ("payload", 10**400),
    ("payload", 1e-300),
    ("payload", "\0"),
    ("headers", {}),
    ("headers", {"h": "x" * (16_384 - 8)}),
    ("priority", -32_768),
    ("priority", 32_767),
    ("max_attempts", 1),
    ("max_attempts", 1_000),
    ("delay", 0),
    ("delay", 0.000001),
    ("delay", TEN_YEARS),
    ("delay", timedelta(seconds=TEN_YEARS)),
    ("expires_in", TEN_YEARS),
    ("run_at", datetime(1970, 1, 1, tzinfo=UTC)),
    ("run_at", datetime(9000, 1, 1, tzinfo=UTC)),
    ("run_at", datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=14)))),
    ("idempotency_window", TEN_YEARS),
    ("idempotency_window", 0.000001),
    ("on_exhausted", "hold"),
    ("on_parent_failure", "run"),
    ("retry", Retry.fixed(0)),
]  # fmt: skip

JOBS_REFUSED: list[tuple[str, Any]] = [
    *(("type", name) for name in NAMES_REFUSED if name is not None),
    *(("queue", name) for name in NAMES_REFUSED if name is not None),
    *((field, key) for field in ("key", "ordering_key", "unique_key", "idempotency_key") for key in KEYS_REFUSED),
    ("payload", "x" * (MEGABYTE - 1)),
    ("payload", "é" * (MEGABYTE // 2)),
    ("payload", float("nan")),
    ("payload", [float("inf")]),
    ("payload", {"a": float("-inf")}),
    ("payload", {1, 2}),
    ("payload", b"bytes"),
    ("payload", Odd()),
    ("payload", datetime(2026, 1, 1, tzinfo=UTC)),
    ("payload", {(1, 2): 3}),
    ("payload", "\ud800"),
    ("payload", {"\udc00": 1}),
    ("payload", nested(100_000)),
    ("payload", HUGE),
    ("headers", {"h": "x" * (16_384 - 7)}),
    ("headers", ["h"]),
    ("headers", "h"),
    ("headers", {"h": float("nan")}),
    ("headers", {"h": nested(100_000)}),
    ("priority", -32_769),
    ("priority", 32_768),
    ("priority", 1.0),
    ("priority", True),
    ("priority", "1"),
    ("priority", HUGE),
    ("max_attempts", 0),
    ("max_attempts", 1_001),
    ("max_attempts", -1),
    ("max_attempts", 2.5),
    ("delay", -0.000001),
    ("delay", TEN_YEARS + 1),
    ("delay", float("nan")),
    ("delay", float("inf")),
    ("delay", 10**400),
    ("delay", "60"),
    ("delay", True),
    ("delay", timedelta(seconds=-1)),
    ("delay", timedelta.max),
    ("expires_in", -1),
    ("expires_in", TEN_YEARS + 1),
    ("run_at", datetime(2026, 1, 1)),  # noqa: DTZ001
    ("run_at", datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ("run_at", datetime(9000, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ("run_at", datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))),
    ("run_at", datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))),
    ("run_at", "2026-01-01T00:00:00Z"),
    ("run_at", 0),
    ("expires_at", datetime(2026, 1, 1)),  # noqa: DTZ001
    ("expires_at", datetime(9001, 1, 1, tzinfo=UTC)),
    ("idempotency_window", 0),
    ("idempotency_window", -1),
    ("idempotency_window", TEN_YEARS + 1),
    ("on_exhausted", "explode"),
    ("on_exhausted", []),
    ("on_parent_failure", "ignore"),
    ("retry", "exponential"),
    ("retry", {"base": 5}),
    ("parents", NOBODY),
    ("parents", 5),
    ("parents", ["not-an-id"]),
    ("parents", [NOBODY.upper().replace("0", "A")]),
    ("parents", [NOBODY, NOBODY]),
    ("parents", ids(1_001)),
    ("id", "not-an-id"),
    ("id", "01890000-0000-7000-8000-00000000ABCD"),
    ("id", "01890000000070008000000000000000"),
    ("id", 5),
]  # fmt: skip


def shown(case: object) -> str:
    """A test id that stays short and can be printed, whatever the case is."""
    if isinstance(case, int) and abs(case) > 10**20:
        return "huge"
    if isinstance(case, list | dict):
        return type(case).__name__
    return ascii(case)[:30]


class TestLimitsOnInput:
    # ── Jobs ──────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(("field", "value"), JOBS_TAKEN, ids=shown)
    async def test_what_is_within_the_limits_of_a_job_is_taken_and_kept(
        self, queue: Queue, field: str, value: Any
    ) -> None:
        asked = queue.new("email.send", **{field: value})
        await queue.enqueue_many([asked])
        assert (await queue.get(asked.id)).asked == asked

    @pytest.mark.parametrize(("field", "value"), JOBS_REFUSED, ids=shown)
    async def test_what_is_beyond_the_limits_of_a_job_is_refused_and_changes_nothing(
        self, queue: Queue, field: str, value: Any
    ) -> None:
        [answer] = await queue.enqueue_many([{"type": "email.send", field: value}])
        assert isinstance(answer, InvalidInput)
        assert answer.facts["field"] == field
        assert (await queue.find()).jobs == ()
        assert await queue.queues() == []

    async def test_what_is_beyond_the_limits_leaves_its_neighbours_alone(self, queue: Queue) -> None:
        bad = [{"type": "email.send", field: value} for field, value in JOBS_REFUSED]
        good = [queue.new("email.send") for _ in bad]
        answers = await queue.enqueue_many([item for pair in zip(bad, good, strict=True) for item in pair])
        assert [type(answer) for answer in answers] == [InvalidInput, Enqueued] * len(bad)
        assert [job.asked async for job in queue.find_all()] == good[::-1]

    async def test_a_payload_of_any_depth_is_taken_or_refused(self, queue: Queue) -> None:
        depths = [*range(500, 1_200, 10), *range(900, 1_050)]
        jobs = [
            {"type": "deep", "payload": nested(depth), "idempotency_key": str(number)}
            for number, depth in enumerate(depths)
        ]
        answers = await queue.enqueue_many([*jobs, {"type": "last"}])
        assert {type(answer) for answer in answers} <= {InvalidInput, Enqueued}
        assert len((await queue.find(type="last")).jobs) == 1

    async def test_a_thousand_parents_are_taken(self, queue: Queue) -> None:
        parents = [queue.new("step") for _ in range(1_000)]
        await queue.enqueue_many(parents)
        child = await queue.enqueue("step", parents=[parent.id for parent in parents])
        assert (await queue.get(child.id)).status is Status.WAITING

    async def test_the_longest_type_is_taken(self, queue: Queue) -> None:
        job = await queue.enqueue("x" * 128)
        assert (await queue.get(job.id)).type == "x" * 128

    async def test_the_error_says_what_is_wrong_and_what_was_given(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput) as caught:
            await queue.enqueue("email.send", priority=40_000)
        assert caught.value.facts == {
            "field": "priority",
            "must": "be a whole number from -32,768 to 32,767",
            "given": "40000",
        }
        assert str(caught.value) == "priority must be a whole number from -32,768 to 32,767; got 40000"

    async def test_the_error_tells_the_size_of_what_is_too_large(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput) as caught:
            await queue.enqueue("email.send", "x" * MEGABYTE)
        assert caught.value.facts["given"] == repr("1,048,578 bytes")

    @pytest.mark.parametrize("value", ["x" * 10_000_000, list(range(1_000_000))], ids=["text", "list"])
    async def test_the_error_stays_short_whatever_was_given(self, queue: Queue, value: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            await queue.enqueue("email.send", unique_key=value)
        assert len(str(caught.value)) < 500

    async def test_an_unknown_field_is_refused(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput) as caught:
            await queue.enqueue("email.send", priorty=5)
        assert caught.value.facts["given"] == repr("priorty")

    async def test_a_producer_cannot_say_that_a_schedule_fired_its_job(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput):
            await queue.enqueue("email.send", schedule="daily")

    async def test_a_time_is_given_in_one_way_only(self, queue: Queue, clock: FakeClock) -> None:
        with pytest.raises(InvalidInput) as caught:
            await queue.enqueue("email.send", delay=5, run_at=clock.now())
        assert caught.value.facts["field"] == "delay"

    async def test_none_stands_for_not_given(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send", queue=None, priority=None, delay=None, key=None, parents=None)
        assert (await queue.get(job.id)).asked == queue.new("email.send", id=job.id)

    # ── Working ───────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("limit", [1, 1_000])
    async def test_a_lease_of_a_permitted_number_is_given(self, queue: Queue, limit: int) -> None:
        await queue.enqueue("email.send")
        assert len(await queue.lease(worker="w1", limit=limit)) == 1

    @pytest.mark.parametrize("seconds", [1, 1.5, 86_400])
    async def test_a_lease_of_a_permitted_length_is_given(
        self, queue: Queue, clock: FakeClock, seconds: float
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=seconds)
        assert (await queue.heartbeat(leased, lease_seconds=seconds)).expires_at == clock.now() + timedelta(
            seconds=seconds
        )

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("queue", name) for name in NAMES_REFUSED),
            *(("worker", worker) for worker in ["", "x" * 129, "a\0", "\ud800", None, 5]),
            *(("limit", limit) for limit in [0, -1, 1_001, 1.0, True, None, HUGE]),
            *(("lease_seconds", s) for s in [0, 0.999, -1, 86_400.001, float("nan"), float("inf"), 10**400, "30"]),
        ],
        ids=shown,
    )  # fmt: skip
    async def test_a_lease_beyond_the_limits_is_refused(self, queue: Queue, field: str, value: Any) -> None:
        job = await queue.enqueue("email.send")
        with pytest.raises(InvalidInput) as caught:
            await queue.lease(**{"worker": "w1", field: value})
        assert caught.value.facts["field"] == field
        assert (await queue.get(job.id)).status is Status.QUEUED

    async def test_a_worker_may_have_any_name_of_128_characters(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="ü" * 128)
        assert leased.job.lease is not None
        assert leased.job.lease.worker == "ü" * 128

    @pytest.mark.parametrize("size", [MEGABYTE - 2], ids=["a megabyte"])
    async def test_a_result_of_permitted_size_is_kept(self, queue: Queue, size: int) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased, "x" * size)
        result = (await queue.get(leased.id)).result
        assert result is not None
        assert decode(result) == "x" * size

    @pytest.mark.parametrize(
        "result",
        ["x" * (MEGABYTE - 1), float("nan"), {1}, Odd(), "\ud800", nested(100_000), HUGE],
        ids=shown,
    )
    async def test_a_result_beyond_the_limits_is_refused_and_the_lease_goes_on(
        self, queue: Queue, result: Any
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        with pytest.raises(InvalidInput) as caught:
            await queue.ack(leased, result)
        assert caught.value.facts["field"] == "result"
        assert (await queue.ack(leased)).status is Status.SUCCEEDED

    async def test_progress_of_permitted_size_is_kept(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.heartbeat(leased, progress="x" * 4_094)
        assert (await queue.get(leased.id)).progress == '"' + "x" * 4_094 + '"'

    @pytest.mark.parametrize("progress", ["x" * 4_095, float("nan"), {1}, nested(100_000)], ids=shown)
    async def test_progress_beyond_the_limits_is_refused_and_the_lease_stays_as_it_was(
        self, queue: Queue, clock: FakeClock, progress: Any
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        clock.advance(seconds=1)
        with pytest.raises(InvalidInput) as caught:
            await queue.heartbeat(leased, progress=progress)
        assert caught.value.facts["field"] == "progress"
        assert await queue.get(leased.id) == leased.job

    @pytest.mark.parametrize(
        "settle",
        [
            pytest.param(lambda queue, held: queue.nack(held, "x", retry_in=-1), id="retry_in too short"),
            pytest.param(lambda queue, held: queue.nack(held, "x", retry_in=TEN_YEARS + 1), id="retry_in too long"),
            pytest.param(lambda queue, held: queue.nack(held, "x", retry_in=10**400), id="retry_in huge"),
            pytest.param(lambda queue, held: queue.nack(held, "x", retry="no"), id="retry"),
            pytest.param(lambda queue, held: queue.release(held, delay=-1), id="release"),
            pytest.param(lambda queue, held: queue.snooze(held, -1), id="snooze too short"),
            pytest.param(lambda queue, held: queue.snooze(held, TEN_YEARS + 1), id="snooze too long"),
            pytest.param(lambda queue, held: queue.snooze(held, None), id="snooze without a delay"),
            pytest.param(lambda queue, held: queue.heartbeat(held, lease_seconds=0), id="heartbeat too short"),
            pytest.param(lambda queue, held: queue.heartbeat(held, lease_seconds=86_401), id="heartbeat too long"),
        ],
    )  # fmt: skip
    async def test_a_settle_beyond_the_limits_is_refused_and_the_lease_stays_as_it_was(
        self, queue: Queue, settle: Callable[[Queue, Any], Any]
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        with pytest.raises(InvalidInput):
            await settle(queue, leased)
        assert await queue.get(leased.id) == leased.job

    # ── Error text ────────────────────────────────────────────────────────────────────────────────

    async def test_error_text_of_4096_characters_is_kept_whole(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "é" * 4_096)
        assert (await queue.get(leased.id)).error == "é" * 4_096

    @pytest.mark.parametrize("length", [4_097, 1_000_000])
    async def test_longer_error_text_is_cut_to_4096_characters_and_marked(
        self, queue: Queue, length: int
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "é" * length)
        error = (await queue.get(leased.id)).error
        assert error == "é" * (4_096 - len("… [cut]")) + "… [cut]"

    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ("a\0b", "a\\x00b"),
            ("a\ud800b", "a\\ud800b"),
            ("", ""),
            ("naïve 🚰\n\tat line 1", "naïve 🚰\n\tat line 1"),
            (ValueError("boom"), "boom"),
            (None, "None"),
        ],
        ids=["NUL", "surrogate", "empty", "unicode", "exception", "nothing"],
    )
    async def test_error_text_is_never_refused(self, queue: Queue, given: object, kept: str) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, given)
        assert (await queue.get(leased.id)).error == kept
        [attempt] = (await queue.history(leased.id)).attempts
        assert attempt.error == kept

    async def test_the_reason_of_a_discard_is_error_text_too(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.discard(leased, "x" * 5_000 + "\0")
        error = (await queue.get(leased.id)).error
        assert error is not None
        assert (len(error), error[-7:]) == (4_096, "… [cut]")

    # ── Looking and operating ─────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(
        "conditions",
        [
            {"colour": "red"},
            {"status": "lost"},
            {"status": 5},
            {"statuses": ["dead", "lost"]},
            {"statuses": "dead"},
            {"status": "dead", "statuses": ["held"]},
            {"cause": "bad luck"},
            {"queue": "a b"},
            {"type": ""},
            {"schedule": "x" * 129},
            {"key": "x" * 513},
            {"key": "a\0"},
            {"created_from": datetime(2026, 1, 1)},  # noqa: DTZ001
            {"created_before": "yesterday"},
        ],
        ids=lambda conditions: ascii(conditions)[:40],
    )
    async def test_a_bad_filter_is_refused_by_every_verb_and_changes_nothing(
        self, queue: Queue, conditions: dict[str, Any]
    ) -> None:
        job = await queue.enqueue("email.send")
        for verb in (queue.find, queue.cancel_matching, queue.redrive_matching):
            with pytest.raises(InvalidInput):
                await verb(**conditions)
        assert (await queue.get(job.id)).status is Status.QUEUED

    @pytest.mark.parametrize("limit", [0, -1, 1_001, 1.0, True, None])
    async def test_a_page_beyond_the_limits_is_refused(self, queue: Queue, limit: Any) -> None:
        with pytest.raises(InvalidInput):
            await queue.find(limit=limit)

    @pytest.mark.parametrize("limit", [1, 1_000])
    async def test_a_page_within_the_limits_is_given(self, queue: Queue, limit: int) -> None:
        await queue.enqueue("email.send")
        assert len((await queue.find(limit=limit)).jobs) == 1

    @pytest.mark.parametrize("verb", ["get", "history", "cancel", "redrive"])
    @pytest.mark.parametrize("job_id", ["", "nonsense", NOBODY.replace("-", ""), NOBODY + "0", 5, None])
    async def test_what_is_no_id_is_refused(self, queue: Queue, verb: str, job_id: Any) -> None:
        with pytest.raises(InvalidInput):
            await getattr(queue, verb)(job_id)

    async def test_a_bad_cursor_is_refused(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput) as caught:
            await queue.find(after="page 2")
        assert caught.value.facts["field"] == "after"

    async def test_a_reason_of_1024_characters_is_kept(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id, "é" * 1_024)
        [change] = (await queue.history(job.id)).changes
        assert change.reason == "é" * 1_024

    @pytest.mark.parametrize("reason", ["x" * 1_025, "a\0b", "\ud800", 5], ids=shown)
    async def test_a_reason_beyond_the_limits_is_refused_and_nothing_changes(
        self, queue: Queue, reason: Any
    ) -> None:
        job = await queue.enqueue("email.send")
        with pytest.raises(InvalidInput):
            await queue.cancel(job.id, reason)
        with pytest.raises(InvalidInput):
            await queue.pause("default", reason)
        assert (await queue.get(job.id)).status is Status.QUEUED
        assert not (await queue.queue("default")).settings.paused

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("max_concurrency", 1),
            ("max_concurrency", 1_000_000),
            ("max_concurrency_per_key", 1),
            ("max_attempts", 1_000),
            ("lease_seconds", 1),
            ("lease_seconds", 86_400),
            ("retention_seconds", 0),
            ("retention_seconds", TEN_YEARS),
            ("rate", Rate(1_000_000, per=1)),
            ("rate_per_key", Rate(1, per=TEN_YEARS)),
            ("on_exhausted", "hold"),
        ],
    )
    async def test_a_setting_within_the_limits_is_kept(self, queue: Queue, field: str, value: Any) -> None:
        await queue.configure("emails", **{field: value})
        assert getattr((await queue.queue("emails")).settings, field) == value

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("max_concurrency", 0),
            ("max_concurrency", 1_000_001),
            ("max_concurrency", 1.5),
            ("max_concurrency_per_key", 0),
            ("rate", 5),
            ("rate", "5/s"),
            ("rate_per_key", {"limit": 5}),
            ("fair", "yes"),
            ("paused", 1),
            ("max_attempts", 0),
            ("max_attempts", None),
            ("max_attempts", 1_001),
            ("retry", None),
            ("on_exhausted", "explode"),
            ("lease_seconds", 0.5),
            ("lease_seconds", 86_401),
            ("lease_seconds", 10**400),
            ("retention_seconds", -1),
            ("retention_seconds", TEN_YEARS + 1),
        ],
        ids=shown,
    )
    async def test_a_setting_beyond_the_limits_is_refused_and_none_is_changed(
        self, queue: Queue, field: str, value: Any
    ) -> None:
        other = {"fair": True} if field != "fair" else {"max_concurrency": 5}
        with pytest.raises(InvalidInput) as caught:
            await queue.configure("emails", **other, **{field: value})
        assert caught.value.facts["field"] == field
        assert (await queue.queue("emails")).settings == QueueSettings()

    async def test_an_unknown_setting_is_refused(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput) as caught:
            await queue.configure("emails", max_concurency=5)
        assert caught.value.facts["given"] == repr("max_concurency")

    @pytest.mark.parametrize("name", NAMES_REFUSED, ids=shown)
    async def test_a_bad_name_of_a_queue_or_a_schedule_is_refused(self, queue: Queue, name: Any) -> None:
        with pytest.raises(InvalidInput):
            await queue.configure(name, fair=True)
        with pytest.raises(InvalidInput):
            await queue.put_schedule(name, "* * * * *", {"type": "report.build"})
        assert await queue.queues() == []
        assert await queue.schedules() == []

    @pytest.mark.parametrize("tenant", NAMES_REFUSED, ids=shown)
    async def test_a_bad_name_of_a_tenant_is_refused(self, queue: Queue, tenant: Any) -> None:
        with pytest.raises(InvalidInput):
            queue.for_tenant(tenant)

    @pytest.mark.parametrize("actor", ["x" * 129, "a\0b", "\ud800"], ids=shown)
    async def test_a_bad_name_of_an_actor_is_refused(self, queue: Queue, actor: Any) -> None:
        with pytest.raises(InvalidInput):
            queue.for_tenant("acme", actor=actor)

    # ── Values made by callers ────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(
        ("make", "field"),
        [
            pytest.param(lambda: Retry.fixed(-1), "retry.base", id="base below nothing"),
            pytest.param(lambda: Retry.fixed(float("nan")), "retry.base", id="base not a number"),
            pytest.param(lambda: Retry.fixed(10**400), "retry.base", id="base huge"),
            pytest.param(lambda: Retry.exponential(1, factor=0.5), "retry.factor", id="factor below one"),
            pytest.param(lambda: Retry.exponential(1, factor=101), "retry.factor", id="factor too large"),
            pytest.param(lambda: Retry.linear(1, cap=TEN_YEARS + 1), "retry.cap", id="cap too large"),
            pytest.param(lambda: Retry.linear(1, jitter=1.1), "retry.jitter", id="jitter too large"),
            pytest.param(lambda: Rate(0), "rate.limit", id="limit of nothing"),
            pytest.param(lambda: Rate(1_000_001, per=60), "rate.limit", id="limit too large"),
            pytest.param(lambda: Rate(1, per=0), "rate.per", id="per nothing"),
            pytest.param(lambda: Rate(1, per=float("inf")), "rate.per", id="per ever"),
            pytest.param(lambda: Rate(1, burst=0), "rate.burst", id="burst of nothing"),
            pytest.param(lambda: Rate(1_000_000, per=0.5), "rate", id="too many a second"),
        ],
    )
    def test_a_policy_beyond_the_limits_cannot_be_made(self, make: Callable[[], object], field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            make()
        assert caught.value.facts["field"] == field
