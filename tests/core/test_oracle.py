"""In random histories, the machine's indexes always agree with what a look at every job would say."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from penstock.core.commands import Filter, LeaseJobs
from penstock.core.job import Job, JobId, Status
from penstock.core.lifecycle import ACTIVE
from penstock.core.settings import QueueSettings
from support.differential import Differential, all_jobs
from support.oracle import Used, counts, next_jobs


class Watched(Differential):
    """A differential history that is looked at, job by job, after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.used: dict[tuple[str, str], Used] = defaultdict(Used)

    def jobs(self, tenant: str) -> list[Job]:
        return self.loop.run_until_complete(all_jobs(self.reference, tenant, Filter()))

    def lease_from_both(self, tenant: str, command: LeaseJobs) -> None:
        machine = self.reference.machine(tenant, self.clock.now())
        in_queue = [job for job in self.jobs(tenant) if job.queue == command.queue]
        queue_settings = self.settings_of(tenant, command.queue)
        used = self.used[tenant, command.queue]
        expected = next_jobs(in_queue, queue_settings, used, command.limit, self.clock.now())
        chosen = machine.choose(command.queue, command.limit, self.clock.now())
        assert chosen == expected, "choose took other jobs than a look at every job does"
        before = len(self.held)
        super().lease_from_both(tenant, command)
        taken: list[JobId] = [held.job_id for held in self.held[before:]]
        assert taken == expected, "lease took other jobs than a look at every job does"
        keys = {job.id: job.asked.key for job in in_queue}
        for job_id in taken:
            used.lease(keys[job_id], queue_settings, self.clock.now())

    def configure_both(self, tenant: str, queue: str, changes: dict[str, Any]) -> None:
        before = self.settings_of(tenant, queue)
        super().configure_both(tenant, queue, changes)
        self.used[tenant, queue].configure(before, self.settings_of(tenant, queue))

    def settings_of(self, tenant: str, queue: str) -> QueueSettings:
        views = self.reference.machine(tenant, self.clock.now()).queues()
        return next((view.settings for view in views if view.name == queue), QueueSettings())

    @invariant()
    def figures_are_what_counting_gives(self) -> None:
        for tenant in ("acme", "zeta"):
            machine = self.reference.machine(tenant, self.clock.now())
            jobs = self.jobs(tenant)
            for view in machine.queues():
                in_queue = [job for job in jobs if job.queue == view.name]
                assert view.counts == counts(in_queue)
                queued = [job.run_at for job in in_queue if job.status is Status.QUEUED]
                assert view.oldest_run_at == min(queued, default=None)

    @invariant()
    def a_unique_key_has_one_active_job(self) -> None:
        for tenant in ("acme", "zeta"):
            active = [job for job in self.jobs(tenant) if job.asked.unique_key and job.status in ACTIVE]
            holders = {(job.queue, job.asked.unique_key) for job in active}
            assert len(holders) == len(active)

    @invariant()
    def whatever_may_be_leased_is_hinted_at(self) -> None:
        for tenant in ("acme", "zeta"):
            now = self.clock.now()
            machine = self.reference.machine(tenant, now)
            for view in machine.queues():
                if machine.choose(view.name, 1, now):
                    hint = machine.next_at([view.name], now)
                    assert hint is not None
                    assert hint <= now


def test_the_machine_agrees_with_a_look_at_every_job() -> None:
    quick = settings(
        max_examples=40,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        phases=[Phase.generate],
    )
    run_state_machine_as_test(Watched, settings=quick)
