"""When schedules fire: by the wall clock, through both changes of the clock, and after a long sleep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.core import cron
from penstock.core.cron import MOST_AT_ONCE, check_cron, check_tz, last_fire, next_fire, plan
from penstock.core.errors import InvalidInput
from penstock.core.job import JobId, NewJob
from penstock.core.schedule import NO_ID, Missed, Schedule, fire_job

quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)

LORD_HOWE = pytest.mark.xfail(reason="cronsim goes by whole hours; core/cron.py says so", strict=True)
ZONES = ["Europe/Paris", "America/New_York", "Asia/Kathmandu", "UTC"]
EXPRESSIONS = [
    "* * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "0 */6 * * *",
    "*/20 5 * * *",
    "30 2 * * *",
    "45 1 * * *",
    "0 9 * * 1-5",
    "0 0 1 * *",
    "10,50 1-3 * * *",
]

CHANGES = {
    "Europe/Paris": [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)],
    "America/New_York": [datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 11, 1, 6, tzinfo=UTC)],
    "Asia/Kathmandu": [],
    "UTC": [],
}
"""The moments of 2026 at which the clocks of a zone are changed."""

SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)

some_time = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def moments(tz: str) -> st.SearchStrategy[datetime]:
    """Any moment, and often one near a change of the clock."""
    near = [
        st.timedeltas(timedelta(hours=-4), timedelta(hours=4)).map(lambda off, at=at: at + off)  # type: ignore[misc]
        for at in CHANGES[tz]
    ]
    return st.one_of(some_time, *near)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text: str, tz: str, fold: int = 0) -> datetime:
    """A moment by the wall clock of a zone; fold=1 is the second time in the repeated hour."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold).astimezone(UTC)


def fires(expression: str, tz: str, after: datetime, count: int) -> list[datetime]:
    """The next so many fire times."""
    found: list[datetime] = []
    for _ in range(count):
        after_that = next_fire(expression, tz, after)
        assert after_that is not None
        found.append(after := after_that)
    return found


@pytest.mark.parametrize("tz", ZONES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
class TestForthAndBack:
    @quick
    @given(data=st.data())
    def test_the_last_fire_before_any_moment_is_followed_by_the_next_after_it(
        self, expression: str, tz: str, data: st.DataObject
    ) -> None:
        moment = data.draw(moments(tz))
        following, before = next_fire(expression, tz, moment), last_fire(expression, tz, moment)
        assert following is not None
        assert before is not None
        assert before <= moment < following
        assert next_fire(expression, tz, before) == following
        assert last_fire(expression, tz, following) == following
        assert last_fire(expression, tz, following - MICROSECOND) == before

    def test_through_each_change_of_the_clock_both_ways_give_the_same_times(
        self, expression: str, tz: str
    ) -> None:
        for change in CHANGES[tz] or [utc("2026-06-01T00:00")]:
            start, end = change - timedelta(hours=30), change + timedelta(hours=30)
            forth, back = [], []
            found = next_fire(expression, tz, start)
            while found is not None and found <= end:
                forth.append(found)
                found = next_fire(expression, tz, found)
            found = last_fire(expression, tz, end)
            while found is not None and found > start:
                back.append(found)
                found = last_fire(expression, tz, found - MICROSECOND)
            assert forth == back[::-1]


class TestNextFire:
    def test_is_after_the_moment_never_at_it(self) -> None:
        nine = utc("2026-01-05T09:00")
        assert next_fire("0 9 * * *", "UTC", nine) == nine + timedelta(days=1)
        assert next_fire("0 9 * * *", "UTC", nine - MICROSECOND) == nine

    def test_goes_by_the_wall_clock_of_the_zone(self) -> None:
        assert next_fire("0 9 * * *", "Asia/Kathmandu", utc("2026-01-05T00:00")) == utc("2026-01-05T03:15")

    def test_takes_seconds_in_a_sixth_field_in_front(self) -> None:
        assert fires("*/20 * * * * *", "UTC", utc("2026-01-05T00:00"), 3) == [
            utc("2026-01-05T00:00:20"),
            utc("2026-01-05T00:00:40"),
            utc("2026-01-05T00:01:00"),
        ]

    def test_waits_for_the_leap_year(self) -> None:
        assert next_fire("0 0 29 2 *", "UTC", utc("2026-01-05T00:00")) == utc("2028-02-29T00:00")

    def test_keeps_the_hour_of_the_wall_clock_when_the_offset_changes(self) -> None:
        friday = local("2026-03-27T12:00", "Europe/Paris")
        assert fires("0 9 * * *", "Europe/Paris", friday, 2) == [
            utc("2026-03-28T08:00"),
            utc("2026-03-29T07:00"),
        ]


class TestSpring:
    """Paris goes from 02:00 to 03:00 on 29 March 2026; Lord Howe from 02:00 to 02:30 on 4 October."""

    def test_a_time_in_the_gap_fires_at_the_first_minute_after_it(self) -> None:
        assert fires("30 2 * * *", "Europe/Paris", utc("2026-03-28T12:00"), 2) == [
            local("2026-03-29T03:00", "Europe/Paris"),
            local("2026-03-30T02:30", "Europe/Paris"),
        ]

    def test_several_times_in_the_gap_fire_once(self) -> None:
        assert fires("10,30,50 2 * * *", "Europe/Paris", utc("2026-03-28T12:00"), 2) == [
            local("2026-03-29T03:00", "Europe/Paris"),
            local("2026-03-30T02:10", "Europe/Paris"),
        ]

    def test_a_gap_of_half_an_hour_is_a_gap_too(self) -> None:
        assert fires("15 2 * * *", "Australia/Lord_Howe", utc("2026-10-03T00:00"), 2) == [
            local("2026-10-04T02:30", "Australia/Lord_Howe"),
            local("2026-10-05T02:15", "Australia/Lord_Howe"),
        ]

    def test_every_quarter_of_an_hour_stays_that(self) -> None:
        found = fires("*/15 * * * *", "Europe/Paris", utc("2026-03-29T00:00"), 12)
        assert {after - before for before, after in pairwise(found)} == {timedelta(minutes=15)}

    def test_every_hour_stays_every_hour(self) -> None:
        found = fires("0 * * * *", "America/New_York", utc("2026-03-08T03:00"), 8)
        assert {after - before for before, after in pairwise(found)} == {timedelta(hours=1)}

    @LORD_HOWE
    def test_every_sixth_hour_fires_at_six_on_the_day_of_a_half_hour_gap(self) -> None:
        after = local("2026-10-04T00:30", "Australia/Lord_Howe")
        expected = local("2026-10-04T06:00", "Australia/Lord_Howe")
        assert next_fire("0 */6 * * *", "Australia/Lord_Howe", after) == expected

    @LORD_HOWE
    def test_minutes_of_a_fixed_hour_all_fire_on_the_day_of_a_half_hour_gap(self) -> None:
        after = local("2026-10-04T00:30", "Australia/Lord_Howe")
        assert fires("*/20 5 * * *", "Australia/Lord_Howe", after, 3) == [
            local("2026-10-04T05:00", "Australia/Lord_Howe"),
            local("2026-10-04T05:20", "Australia/Lord_Howe"),
            local("2026-10-04T05:40", "Australia/Lord_Howe"),
        ]


class TestAutumn:
    """Paris goes from 03:00 back to 02:00 on 25 October 2026; Lord Howe from 02:00 to 01:30 on 5 April."""

    def test_a_time_that_comes_twice_fires_the_first_time_only(self) -> None:
        assert fires("30 2 * * *", "Europe/Paris", utc("2026-10-24T12:00"), 2) == [
            local("2026-10-25T02:30", "Europe/Paris", fold=0),
            local("2026-10-26T02:30", "Europe/Paris"),
        ]

    @pytest.mark.parametrize("minute", ["00", "15", "30", "45", "59"])
    def test_it_is_over_for_the_day_anywhere_in_the_second_time_round(self, minute: str) -> None:
        again = local(f"2026-10-25T02:{minute}", "Europe/Paris", fold=1)
        assert next_fire("30 2 * * *", "Europe/Paris", again) == local("2026-10-26T02:30", "Europe/Paris")

    @pytest.mark.parametrize("minute", ["00", "15", "30", "45", "59"])
    def test_it_was_the_last_fire_anywhere_in_the_second_time_round(self, minute: str) -> None:
        again = local(f"2026-10-25T02:{minute}", "Europe/Paris", fold=1)
        first = local("2026-10-25T02:30", "Europe/Paris", fold=0)
        assert last_fire("30 2 * * *", "Europe/Paris", again) == first

    def test_every_quarter_of_an_hour_stays_that(self) -> None:
        found = fires("*/15 * * * *", "Australia/Lord_Howe", utc("2026-04-04T14:00"), 12)
        assert {after - before for before, after in pairwise(found)} == {timedelta(minutes=15)}

    def test_every_hour_stays_every_hour(self) -> None:
        found = fires("0 * * * *", "Europe/Paris", utc("2026-10-24T22:00"), 8)
        assert {after - before for before, after in pairwise(found)} == {timedelta(hours=1)}

    @LORD_HOWE
    def test_every_sixth_hour_fires_at_six_on_the_day_of_a_half_hour_fold(self) -> None:
        after = local("2026-04-05T00:30", "Australia/Lord_Howe")
        expected = local("2026-04-05T06:00", "Australia/Lord_Howe")
        assert next_fire("0 */6 * * *", "Australia/Lord_Howe", after) == expected

    @LORD_HOWE
    def test_minutes_of_a_fixed_hour_all_fire_on_the_day_of_a_half_hour_fold(self) -> None:
        after = local("2026-04-05T00:30", "Australia/Lord_Howe")
        assert next_fire("*/20 5 * * *", "Australia/Lord_Howe", after) == local(
            "2026-04-05T05:00", "Australia/Lord_Howe"
        )


NOON = utc("2026-01-05T12:00")
JOB = NewJob(NO_ID, "report")


def hourly(missed: Missed, due_at: datetime, expression: str = "0 * * * *") -> Schedule:
    return Schedule("hourly", expression, JOB, missed=missed, next_fire_at=due_at)


class TestPlan:
    @pytest.mark.parametrize("missed", Missed)
    def test_is_nothing_before_the_fire_time(self, missed: Missed) -> None:
        assert plan(hourly(missed, NOON), NOON - MICROSECOND) is None

    def test_is_nothing_for_a_schedule_that_does_not_fire(self) -> None:
        assert plan(replace(hourly(Missed.ALL, NOON), next_fire_at=None), NOON) is None

    @pytest.mark.parametrize("late", [timedelta(0), 5 * SECOND, 59 * SECOND])
    @pytest.mark.parametrize("missed", Missed)
    def test_is_one_job_on_time(self, missed: Missed, late: timedelta) -> None:
        fire = plan(hourly(missed, NOON), NOON + late)
        assert fire is not None
        assert (fire.name, fire.due_at, fire.at) == ("hourly", NOON, (NOON,))
        assert fire.next_fire_at == NOON + timedelta(hours=1)

    def test_skip_makes_none_of_the_times_it_missed(self) -> None:
        fire = plan(hourly(Missed.SKIP, NOON), NOON + timedelta(hours=3, minutes=30))
        assert fire is not None
        assert (fire.at, fire.next_fire_at) == ((), NOON + timedelta(hours=4))

    def test_skip_still_makes_the_one_that_is_on_time_after_a_long_sleep(self) -> None:
        awake = NOON + timedelta(hours=3)
        fire = plan(hourly(Missed.SKIP, NOON), awake + 20 * SECOND)
        assert fire is not None
        assert (fire.at, fire.next_fire_at) == ((awake,), awake + timedelta(hours=1))

    def test_skip_makes_every_job_of_the_last_minute_when_they_come_by_the_second(self) -> None:
        fire = plan(hourly(Missed.SKIP, NOON, "*/20 * * * * *"), NOON + timedelta(minutes=9))
        assert fire is not None
        assert fire.at == tuple(NOON + timedelta(minutes=8, seconds=each) for each in (20, 40, 60))

    def test_one_makes_the_latest_of_the_times_it_missed(self) -> None:
        fire = plan(hourly(Missed.ONE, NOON), NOON + timedelta(hours=3, minutes=30))
        assert fire is not None
        assert (fire.at, fire.next_fire_at) == ((NOON + timedelta(hours=3),), NOON + timedelta(hours=4))

    def test_one_makes_the_latest_in_the_repeated_hour_too(self) -> None:
        due_at = local("2026-10-23T02:30", "Europe/Paris")
        schedule = replace(hourly(Missed.ONE, due_at, "30 2 * * *"), tz="Europe/Paris")
        fire = plan(schedule, local("2026-10-25T02:10", "Europe/Paris", fold=1))
        assert fire is not None
        assert fire.at == (local("2026-10-25T02:30", "Europe/Paris", fold=0),)

    def test_all_makes_every_time_it_missed_in_order(self) -> None:
        fire = plan(hourly(Missed.ALL, NOON), NOON + timedelta(hours=3, minutes=30))
        assert fire is not None
        assert fire.at == tuple(NOON + timedelta(hours=each) for each in range(4))
        assert fire.next_fire_at == NOON + timedelta(hours=4)

    def test_all_catches_up_step_by_step_after_a_very_long_sleep(self) -> None:
        awake = NOON + timedelta(minutes=2_500)
        schedule, steps = hourly(Missed.ALL, NOON, "* * * * *"), []
        while (fire := plan(schedule, awake)) is not None:
            steps.append(fire.at)
            schedule = replace(schedule, next_fire_at=fire.next_fire_at)
        assert [len(step) for step in steps] == [MOST_AT_ONCE, MOST_AT_ONCE, 501]
        assert [at for step in steps for at in step] == [NOON + timedelta(minutes=n) for n in range(2_501)]
        assert schedule.next_fire_at == awake + timedelta(minutes=1)

    @pytest.mark.parametrize("missed", [Missed.SKIP, Missed.ONE])
    def test_the_others_are_done_in_one_step_however_long_the_sleep(
        self, missed: Missed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks: list[datetime] = []

        def counted(expression: str, tz: str, until: datetime) -> datetime | None:
            looks.append(until)
            return last_fire(expression, tz, until)

        monkeypatch.setattr(cron, "last_fire", counted)
        awake = NOON + timedelta(days=3_650)
        fire = plan(hourly(missed, NOON, "* * * * * *"), awake)
        assert fire is not None
        assert fire.next_fire_at == awake + SECOND
        assert len(fire.at) == (60 if missed is Missed.SKIP else 1)
        assert len(looks) <= 61


class TestCheckCron:
    @pytest.mark.parametrize(
        "good",
        ["* * * * *", "0 9 * * 1-5", "*/15 0-6,20 1,15 * MON-FRI", "0 0 L * *", "0 0 29 2 *", "30 0 9 * * 1"],
    )
    def test_takes(self, good: str) -> None:
        assert check_cron(good) == good

    @pytest.mark.parametrize(
        "bad",
        [
            "1-100000000 * * * *", "* * * *", "61 * * * *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "* " * 150,
            "* * * * * * *", "", "@daily", "*/0 * * * *", "5-1 * * * *", "a * * * *", "0 24 * * *", "0 0 0 * *",
            "0 0 * 13 *", "0 0 * * 8", "-1 * * * *", "1.5 * * * *", "² * * * *", "0 0 * * MON#6",
            None, 5, b"* * * * *", ["*"] * 5,
        ],
    )  # fmt: skip
    def test_refuses_at_once(self, bad: object) -> None:
        with pytest.raises(InvalidInput, match="cron must") as refused:
            check_cron(bad)
        assert refused.value.facts["field"] == "cron"

    def test_takes_256_characters_and_no_more(self) -> None:
        longest = "0 0 * * *".ljust(256)
        assert check_cron(longest) == longest
        with pytest.raises(InvalidInput, match="at most 256 characters"):
            check_cron("0 0 * * *".ljust(257))


class TestCheckTz:
    @pytest.mark.parametrize("good", ZONES)
    def test_takes(self, good: str) -> None:
        assert check_tz(good) == good

    @pytest.mark.parametrize(
        "bad",
        ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "Europe/Paris\0", "Europe", "x" * 10_000, None, 5],
    )  # fmt: skip
    def test_refuses(self, bad: object) -> None:
        with pytest.raises(InvalidInput, match="tz must be a time zone of the IANA database"):
            check_tz(bad)


class TestFireId:
    def fired(self, at: datetime = NOON, tenant: str = "acme", name: str = "hourly") -> NewJob:
        return fire_job(tenant, replace(hourly(Missed.ONE, NOON), name=name), at)

    def test_is_the_same_whoever_fires(self) -> None:
        assert self.fired().id == self.fired().id

    def test_differs_by_tenant_name_and_time(self) -> None:
        ids = {
            self.fired().id,
            self.fired(tenant="zeta").id,
            self.fired(name="daily").id,
            self.fired(NOON + SECOND).id,
        }
        assert len(ids) == 4

    def test_does_not_mix_up_where_the_tenant_ends_and_the_name_begins(self) -> None:
        assert self.fired(tenant="ab", name="c").id != self.fired(tenant="a", name="bc").id

    @quick
    @given(at=some_time.map(lambda at: at.replace(microsecond=0)), name=st.text("abc", min_size=1))
    def test_is_a_uuid_of_version_7_whose_time_is_the_fire_time(self, at: datetime, name: str) -> None:
        job_id = self.fired(at, name=name).id
        uuid = UUID(job_id)
        assert str(uuid) == job_id
        assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
        assert uuid.int >> 80 == int(at.timestamp()) * 1000

    def test_is_given_to_the_job_with_the_fire_time_as_its_run_at(self) -> None:
        template = replace(JOB, delay=SECOND, priority=5)
        fired = fire_job("acme", replace(hourly(Missed.ONE, NOON), job=template), NOON)
        expected = replace(template, id=JobId(fired.id), run_at=NOON, delay=None, schedule="hourly")
        assert fired == expected
        assert fired.id != NO_ID
