"""Every verb in every state: the MOVES table is all that may happen, and the functions keep to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.codec import JsonText
from penstock.core.commands import Ack, Discard, Nack, Release, Settle, Snooze
from penstock.core.errors import LeaseLost, NotAllowed, PenstockError
from penstock.core.job import Attempt, Cause, Job, JobId, Lease, LeaseToken, NewJob, OnExhausted, Status
from penstock.core.lifecycle import MOVES, Verb
from penstock.core.retry import Retry
from penstock.core.settings import QueueSettings
from penstock.testing import START

ID = JobId("019b7a2e-0000-7000-8000-000000000001")
TOKEN = LeaseToken("token-1")
STALE = LeaseToken("token-0")
LATER = START + timedelta(seconds=10)
DEADLINE = START + timedelta(hours=1)
LEASE = Lease(TOKEN, "w1", START, START + timedelta(seconds=30), 30)
MINUTE = timedelta(minutes=1)
DEFAULTS = QueueSettings(max_attempts=3, retry=Retry.fixed(7, jitter=0))
HOLDING = replace(DEFAULTS, on_exhausted=OnExhausted.HOLD)

ENDED = {Status.SUCCEEDED, Status.DEAD, Status.HELD, Status.CANCELLED}


def job_in(status: Status) -> Job:
    """A job as it really looks in a state: a lease while it runs, an end once it has ended."""
    return Job(
        NewJob(ID, "email.send"),
        "acme",
        created_at=START,
        scheduled_at=START,
        status=status,
        run_at=START,
        expires_at=DEADLINE,
        attempts=0 if status in (Status.WAITING, Status.QUEUED) else 1,
        leases=0 if status in (Status.WAITING, Status.QUEUED) else 1,
        lease=LEASE if status is Status.RUNNING else None,
        ended_at=LATER if status in ENDED else None,
        cause=Cause.EXHAUSTED if status in (Status.DEAD, Status.HELD) else None,
    )


def last_attempt(job: Job) -> Job:
    return replace(job, attempts=3)


def asked_to_stop(job: Job) -> Job:
    return replace(job, cancel_requested=True)


def settled(job: Job, command: Settle, settings: QueueSettings = DEFAULTS) -> Job:
    return lifecycle.settle(job, command, settings, LATER)[0]


def lost(job: Job, settings: QueueSettings = DEFAULTS) -> Job:
    return lifecycle.lose(job, settings)[0]


NACK = Nack(ID, TOKEN, "boom")

WAYS: Mapping[Verb, Sequence[Callable[[Job], Job]]] = {
    Verb.UNBLOCK: [lambda job: lifecycle.unblock(job, LATER)],
    Verb.ABANDON: [lambda job: lifecycle.abandon(job, LATER)],
    Verb.LEASE: [lambda job: lifecycle.take(job, LEASE)],
    Verb.HEARTBEAT: [
        lambda job: lifecycle.heartbeat(job, TOKEN, None, LATER),
        lambda job: lifecycle.heartbeat(asked_to_stop(job), TOKEN, 60, LATER),
    ],
    Verb.ACK: [
        lambda job: settled(job, Ack(ID, TOKEN)),
        lambda job: settled(asked_to_stop(job), Ack(ID, TOKEN)),
    ],
    Verb.NACK: [
        lambda job: settled(job, NACK),
        lambda job: settled(job, replace(NACK, delay=MINUTE)),
        lambda job: settled(job, replace(NACK, retry=False)),
        lambda job: settled(job, replace(NACK, retry=False), HOLDING),
        lambda job: settled(last_attempt(job), NACK),
        lambda job: settled(last_attempt(job), NACK, HOLDING),
        lambda job: settled(asked_to_stop(job), NACK),
    ],
    Verb.LOSE: [
        lost,
        lambda job: lost(last_attempt(job)),
        lambda job: lost(last_attempt(job), HOLDING),
        lambda job: lost(asked_to_stop(job)),
    ],
    Verb.RELEASE: [
        lambda job: settled(job, Release(ID, TOKEN)),
        lambda job: settled(job, Release(ID, TOKEN, MINUTE)),
        lambda job: settled(asked_to_stop(job), Release(ID, TOKEN)),
    ],
    Verb.SNOOZE: [
        lambda job: settled(job, Snooze(ID, TOKEN, MINUTE)),
        lambda job: settled(asked_to_stop(job), Snooze(ID, TOKEN, MINUTE)),
    ],
    Verb.DISCARD: [
        lambda job: settled(job, Discard(ID, TOKEN)),
        lambda job: settled(asked_to_stop(job), Discard(ID, TOKEN, "stopped")),
    ],
    Verb.CANCEL: [lambda job: lifecycle.cancel(job, LATER)],
    Verb.EXPIRE: [lifecycle.expire],
    Verb.REDRIVE: [
        lambda job: lifecycle.redrive(job, Status.QUEUED, LATER),
        lambda job: lifecycle.redrive(job, Status.WAITING, LATER),
    ],
}
"""Every way in which a verb can go, whatever state the job is in."""

NEED_A_TOKEN = {Verb.HEARTBEAT, Verb.ACK, Verb.NACK, Verb.RELEASE, Verb.SNOOZE, Verb.DISCARD}
NEED_A_LEASE = {*NEED_A_TOKEN, Verb.LOSE}

ALLOWED = list(MOVES)
REFUSED = [(verb, status) for verb in Verb for status in Status if (verb, status) not in MOVES]


class TestTable:
    def test_knows_a_way_for_every_verb(self) -> None:
        assert WAYS.keys() == set(Verb)

    @pytest.mark.parametrize(("verb", "status"), ALLOWED)
    def test_an_allowed_pair_leads_to_the_states_named_and_to_each_of_them(
        self, verb: Verb, status: Status
    ) -> None:
        reached = {way(job_in(status)).status for way in WAYS[verb]}
        assert reached == set(MOVES[verb, status])

    @pytest.mark.parametrize(("verb", "status"), ALLOWED)
    def test_an_allowed_pair_leaves_the_job_it_was_given_as_it_was(self, verb: Verb, status: Status) -> None:
        job = job_in(status)
        for way in WAYS[verb]:
            way(job)
        assert job == job_in(status)

    @pytest.mark.parametrize(("verb", "status"), REFUSED)
    def test_any_other_pair_is_refused_and_changes_nothing(self, verb: Verb, status: Status) -> None:
        job = job_in(status)
        error: type[PenstockError] = LeaseLost if verb in NEED_A_TOKEN else NotAllowed
        for way in WAYS[verb]:
            with pytest.raises(error) as refused:
                way(job)
            assert refused.value.facts["job_id"] == ID
        assert job == job_in(status)

    @pytest.mark.parametrize("verb", sorted(NEED_A_LEASE))
    @pytest.mark.parametrize("status", sorted(set(Status) - {Status.RUNNING}))
    def test_a_lease_left_on_a_job_that_does_not_run_opens_no_door(self, verb: Verb, status: Status) -> None:
        job = replace(job_in(status), lease=LEASE)
        for way in WAYS[verb]:
            with pytest.raises(NotAllowed) as refused:
                way(job)
            assert refused.value.facts == {"job_id": ID, "verb": verb, "status": status}

    @pytest.mark.parametrize(
        ("verb", "status", "to"),
        [
            (verb, status, to)
            for verb in Verb
            for status in Status
            for to in Status
            if to not in MOVES.get((verb, status), ())
        ],
    )
    def test_move_refuses_every_step_that_is_not_in_the_table(
        self, verb: Verb, status: Status, to: Status
    ) -> None:
        with pytest.raises(NotAllowed):
            lifecycle.move(job_in(status), verb, to)

    def test_a_job_is_a_value_that_nobody_can_change(self) -> None:
        with pytest.raises(AttributeError):
            job_in(Status.QUEUED).status = Status.DEAD  # type: ignore[misc]


class TestTake:
    def test_counts_the_attempt_from_the_lease_on(self) -> None:
        taken = lifecycle.take(replace(job_in(Status.QUEUED), attempts=1, leases=4), LEASE)
        assert (taken.attempts, taken.leases, taken.lease) == (2, 5, LEASE)

    def test_forgets_the_progress_of_the_attempt_before(self) -> None:
        assert lifecycle.take(replace(job_in(Status.QUEUED), progress=JsonText("50")), LEASE).progress is None


class TestHeartbeat:
    def test_extends_the_lease_from_now_by_its_own_length(self) -> None:
        beaten = lifecycle.heartbeat(job_in(Status.RUNNING), TOKEN, None, LATER)
        assert beaten.lease == replace(LEASE, expires_at=LATER + timedelta(seconds=30))

    def test_a_length_given_holds_for_later_heartbeats_too(self) -> None:
        first = lifecycle.heartbeat(job_in(Status.RUNNING), TOKEN, 90, LATER)
        second = lifecycle.heartbeat(first, TOKEN, None, LATER + MINUTE)
        assert second.lease == replace(LEASE, expires_at=LATER + MINUTE + timedelta(seconds=90), seconds=90)

    def test_refuses_a_token_that_is_not_the_live_one(self) -> None:
        with pytest.raises(LeaseLost):
            lifecycle.heartbeat(job_in(Status.RUNNING), STALE, None, LATER)


class TestSettle:
    @pytest.mark.parametrize(
        "command",
        [
            Ack(ID, STALE),
            Nack(ID, STALE, "boom"),
            Release(ID, STALE),
            Snooze(ID, STALE, MINUTE),
            Discard(ID, STALE),
        ],
        ids=lambda command: type(command).__name__,
    )
    def test_refuses_a_token_that_is_not_the_live_one(self, command: Settle) -> None:
        with pytest.raises(LeaseLost):
            lifecycle.settle(job_in(Status.RUNNING), command, DEFAULTS, LATER)

    @pytest.mark.parametrize(
        "command",
        [
            Ack(ID, TOKEN, JsonText("42")),
            NACK,
            Release(ID, TOKEN),
            Snooze(ID, TOKEN, MINUTE),
            Discard(ID, TOKEN, "no"),
        ],
        ids=lambda command: type(command).__name__,
    )
    def test_writes_down_the_attempt_it_ends(self, command: Settle) -> None:
        job = replace(job_in(Status.RUNNING), leases=4)
        ended, attempt = lifecycle.settle(job, command, DEFAULTS, LATER)
        assert ended.lease is None
        assert attempt == Attempt(
            ID, 4, "w1", TOKEN, LEASE.taken_at, LATER,
            lifecycle.OUTCOMES[lifecycle.VERBS[type(command)]], ended.status, ended.run_at,
            attempt.error, attempt.result,
        )  # fmt: skip

    def test_ack_keeps_the_result_on_the_job_and_in_the_attempt(self) -> None:
        ended, attempt = lifecycle.settle(
            job_in(Status.RUNNING), Ack(ID, TOKEN, JsonText("42")), DEFAULTS, LATER
        )
        assert (ended.result, attempt.result, ended.ended_at) == ("42", "42", LATER)

    def test_nack_waits_as_the_retry_policy_says(self) -> None:
        assert settled(job_in(Status.RUNNING), NACK).run_at == LATER + timedelta(seconds=7)

    def test_nack_waits_as_the_handler_says_if_it_does(self) -> None:
        assert settled(job_in(Status.RUNNING), replace(NACK, delay=MINUTE)).run_at == LATER + MINUTE

    def test_nack_prefers_what_the_job_asked_for_to_the_settings_of_its_queue(self) -> None:
        asked = NewJob(ID, "email.send", max_attempts=1, on_exhausted=OnExhausted.HOLD)
        ended = settled(replace(job_in(Status.RUNNING), asked=asked), NACK)
        assert (ended.status, ended.cause) == (Status.HELD, Cause.EXHAUSTED)

    def test_nack_without_retry_ends_the_job_whatever_attempts_are_left(self) -> None:
        ended = settled(job_in(Status.RUNNING), replace(NACK, retry=False))
        assert (ended.status, ended.cause, ended.error) == (Status.DEAD, Cause.REFUSED, "boom")

    def test_nack_of_a_job_asked_to_stop_cancels_it_even_when_it_could_be_tried_again(self) -> None:
        ended = settled(asked_to_stop(job_in(Status.RUNNING)), NACK)
        assert (ended.status, ended.cause, ended.cancel_requested) == (
            Status.CANCELLED,
            Cause.CANCELLED,
            False,
        )

    @pytest.mark.parametrize("command", [Release(ID, TOKEN), Snooze(ID, TOKEN, MINUTE)])
    def test_release_and_snooze_do_not_use_up_an_attempt(self, command: Settle) -> None:
        job = replace(job_in(Status.RUNNING), attempts=2, leases=5)
        ended = settled(job, command)
        assert (ended.attempts, ended.leases) == (1, 5)

    def test_release_without_a_delay_keeps_the_place_in_the_line(self) -> None:
        assert settled(job_in(Status.RUNNING), Release(ID, TOKEN)).run_at == START

    def test_release_with_a_delay_waits_from_now_on(self) -> None:
        assert settled(job_in(Status.RUNNING), Release(ID, TOKEN, MINUTE)).run_at == LATER + MINUTE

    def test_snooze_waits_from_now_on(self) -> None:
        assert settled(job_in(Status.RUNNING), Snooze(ID, TOKEN, MINUTE)).run_at == LATER + MINUTE

    def test_discard_keeps_the_reason(self) -> None:
        ended = settled(job_in(Status.RUNNING), Discard(ID, TOKEN, "nothing to send"))
        assert (ended.cause, ended.error) == (Cause.DISCARDED, "nothing to send")


class TestLose:
    def test_counts_from_the_moment_the_lease_ran_out(self) -> None:
        ended, attempt = lifecycle.lose(job_in(Status.RUNNING), DEFAULTS)
        assert (ended.run_at, attempt.ended_at) == (LEASE.expires_at, LEASE.expires_at)

    def test_names_the_worker_that_went_silent(self) -> None:
        assert "w1" in (lost(job_in(Status.RUNNING)).error or "")

    def test_uses_up_the_attempt(self) -> None:
        assert lost(job_in(Status.RUNNING)).attempts == 1


class TestCancel:
    def test_only_asks_a_running_job_to_stop(self) -> None:
        cancelled = lifecycle.cancel(job_in(Status.RUNNING), LATER)
        assert cancelled == replace(job_in(Status.RUNNING), cancel_requested=True)

    def test_says_who_ended_a_job_that_had_not_started(self) -> None:
        cancelled = lifecycle.cancel(job_in(Status.QUEUED), LATER)
        assert (cancelled.cause, cancelled.ended_at) == (Cause.CANCELLED, LATER)

    def test_a_second_time_changes_nothing(self) -> None:
        once = lifecycle.cancel(job_in(Status.QUEUED), LATER)
        assert lifecycle.cancel(once, LATER + MINUTE) == once


class TestRules:
    def test_expire_takes_effect_as_of_the_deadline(self) -> None:
        expired = lifecycle.expire(job_in(Status.WAITING))
        assert (expired.cause, expired.ended_at) == (Cause.EXPIRED, DEADLINE)

    def test_abandon_blames_the_parent(self) -> None:
        abandoned = lifecycle.abandon(job_in(Status.WAITING), LATER)
        assert (abandoned.cause, abandoned.ended_at) == (Cause.PARENT_FAILED, LATER)

    def test_unblock_makes_a_job_due_when_its_last_parent_ended(self) -> None:
        assert lifecycle.unblock(job_in(Status.WAITING), LATER).run_at == LATER

    def test_unblock_does_not_hurry_a_job_meant_for_later(self) -> None:
        job = replace(job_in(Status.WAITING), run_at=LATER + MINUTE)
        assert lifecycle.unblock(job, LATER).run_at == LATER + MINUTE

    def test_redrive_gives_back_all_attempts_and_lifts_the_deadline(self) -> None:
        back = lifecycle.redrive(replace(job_in(Status.DEAD), leases=3), Status.QUEUED, LATER)
        assert (back.attempts, back.leases, back.run_at) == (0, 3, LATER)
        assert (back.expires_at, back.cause, back.ended_at) == (None, None, None)

    @pytest.mark.parametrize("to", sorted(set(Status) - {Status.QUEUED, Status.WAITING}))
    def test_redrive_leads_nowhere_but_back(self, to: Status) -> None:
        with pytest.raises(NotAllowed):
            lifecycle.redrive(job_in(Status.DEAD), to, LATER)


class TestDiagram:
    def test_draws_every_move_of_the_table_that_changes_the_state(self) -> None:
        drawn = {
            (verb, source, target)
            for source, target, verbs in re.findall(
                r"^ +(\w+) --> (\w+): (.+)$", lifecycle.diagram(), re.MULTILINE
            )
            for verb in verbs.split(", ")
        }
        moves = {(verb, status, to) for (verb, status), targets in MOVES.items() for to in targets}
        assert drawn == {(verb, source, target) for verb, source, target in moves if source is not target}

    def test_draws_how_a_job_begins(self) -> None:
        born = re.findall(r"^ +\[\*\] --> (\w+): enqueue$", lifecycle.diagram(), re.MULTILINE)
        assert tuple(born) == lifecycle.BORN

    def test_is_the_one_in_the_architecture_page(self) -> None:
        page = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8")
        drawings = [
            drawing.strip()
            for drawing in re.findall(r"^```mermaid\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        ]
        assert lifecycle.diagram() in drawings
