"""JSON text in and out, and what makes two requests the same."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from penstock.core import codec
from penstock.core.codec import JsonText
from penstock.core.errors import InvalidInput
from penstock.core.job import JobId, NewJob, OnExhausted, OnParentFailure
from penstock.core.retry import Retry
from penstock.testing import START

quick = settings(max_examples=100, deadline=None, derandomize=True, database=None)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def encode(value: object, limit: int = 1_000) -> JsonText:
    return codec.encode(value, field="payload", limit=limit)


class TestEncode:
    @quick
    @given(json_values)
    def test_gives_text_that_decodes_to_the_value(self, value: object) -> None:
        assert codec.decode(encode(value, 1_000_000)) == value

    def test_wastes_no_space_and_leaves_letters_as_they_are(self) -> None:
        assert encode({"name": "Zoë", "tags": [1, 2]}) == '{"name":"Zoë","tags":[1,2]}'

    @pytest.mark.parametrize(
        ("value", "size"), [("aaaa", 6), ("éé", 6), ("日日", 8), ("🎉", 6), ({"é": 1}, 8)]
    )
    def test_counts_bytes_not_characters(self, value: object, size: int) -> None:
        assert len(encode(value, size).encode()) == size
        with pytest.raises(InvalidInput, match=rf"payload must be at most {size - 1} bytes of JSON"):
            encode(value, size - 1)

    def test_says_how_large_a_value_was_that_is_too_large(self) -> None:
        with pytest.raises(InvalidInput, match="got '2,002 bytes'"):
            encode("x" * 2_000)

    @pytest.mark.parametrize(
        "value",
        [
            pytest.param(float("nan"), id="NaN"),
            pytest.param([float("inf")], id="infinity"),
            pytest.param({"a": float("-inf")}, id="minus infinity"),
            pytest.param({1, 2}, id="a set"),
            pytest.param(b"bytes", id="bytes"),
            pytest.param(START, id="a datetime"),
            pytest.param(object(), id="an object"),
            pytest.param({(1, 2): 3}, id="a key that is no text"),
            pytest.param("\ud800", id="a lone surrogate"),
            pytest.param({"\udfff": 1}, id="a lone surrogate in a key"),
            pytest.param(10**5_000, id="a number too long to print"),
        ],
    )
    def test_refuses_what_json_cannot_say_and_names_the_field(self, value: object) -> None:
        with pytest.raises(InvalidInput, match="payload must be JSON") as refused:
            encode(value)
        assert refused.value.facts["field"] == "payload"

    def test_refuses_a_list_that_holds_itself(self) -> None:
        circular: list[object] = []
        circular.append(circular)
        with pytest.raises(InvalidInput, match="payload must be JSON"):
            encode(circular)

    def test_refuses_an_object_that_holds_itself(self) -> None:
        circular: dict[str, object] = {}
        circular["me"] = [circular]
        with pytest.raises(InvalidInput, match="payload must be JSON"):
            encode(circular)

    def test_refuses_lists_nested_too_deep(self) -> None:
        nested: list[object] = []
        for _ in range(100_000):
            nested = [nested]
        with pytest.raises(InvalidInput, match="payload must be JSON"):
            encode(nested, 1_000_000)

    def test_takes_any_depth_that_a_person_would_write(self) -> None:
        nested: dict[str, object] = {}
        for _ in range(codec.DEEPEST - 1):
            nested = {"a": nested}
        assert codec.decode(encode(nested, 10_000)) == nested


ASKED = NewJob(JobId("019b7a2e-0000-7000-8000-000000000001"), "email.send", payload=JsonText('{"to":"ada"}'))

DIFFERENT: dict[str, object] = {
    "id": JobId("019b7a2e-0000-7000-8000-000000000002"),
    "type": "email.drop",
    "queue": "emails",
    "payload": JsonText('{"to":"bob"}'),
    "priority": 1,
    "run_at": START,
    "delay": timedelta(seconds=1),
    "expires_at": START,
    "expires_in": timedelta(seconds=1),
    "max_attempts": 3,
    "retry": Retry.fixed(5),
    "on_exhausted": OnExhausted.HOLD,
    "key": "customer-7",
    "ordering_key": "customer-7",
    "unique_key": "customer-7",
    "idempotency_key": "request-7",
    "idempotency_window": timedelta(hours=1),
    "parents": (JobId("019b7a2e-0000-7000-8000-000000000003"),),
    "on_parent_failure": OnParentFailure.RUN,
    "headers": JsonText('{"trace":"7"}'),
    "schedule": "nightly",
}
"""For every field of a job another value than ASKED has. A new field belongs here too."""

NAMES_THE_REQUEST = {"id", "idempotency_key", "idempotency_window"}


class TestFingerprint:
    def test_every_field_of_a_job_is_tried_here(self) -> None:
        assert list(DIFFERENT) == [field.name for field in fields(NewJob)]

    @pytest.mark.parametrize("field", sorted(DIFFERENT.keys() - NAMES_THE_REQUEST))
    def test_differs_when_a_field_differs(self, field: str) -> None:
        other = replace(ASKED, **{field: DIFFERENT[field]})
        assert codec.fingerprint(other) != codec.fingerprint(ASKED)

    def test_differs_between_any_two_of_the_differences(self) -> None:
        prints = {
            codec.fingerprint(replace(ASKED, **{field: DIFFERENT[field]}))
            for field in DIFFERENT.keys() - NAMES_THE_REQUEST
        }
        assert len(prints) == len(DIFFERENT) - len(NAMES_THE_REQUEST)

    @pytest.mark.parametrize("field", sorted(NAMES_THE_REQUEST))
    def test_does_not_see_what_only_names_the_request(self, field: str) -> None:
        other = replace(ASKED, **{field: DIFFERENT[field]})
        assert codec.fingerprint(other) == codec.fingerprint(ASKED)

    @pytest.mark.parametrize("field", ["payload", "headers"])
    def test_does_not_see_the_order_of_keys(self, field: str) -> None:
        one = replace(ASKED, **{field: JsonText('{"a":{"x":1,"y":[1,2]},"b":2}')})
        two = replace(ASKED, **{field: JsonText('{"b":2,"a":{"y":[1,2],"x":1}}')})
        assert codec.fingerprint(one) == codec.fingerprint(two)

    def test_sees_the_order_of_lists(self) -> None:
        one = replace(ASKED, payload=JsonText('{"a":[1,2]}'))
        two = replace(ASKED, payload=JsonText('{"a":[2,1]}'))
        assert codec.fingerprint(one) != codec.fingerprint(two)

    @pytest.mark.parametrize("change", [{"base": 6.0}, {"factor": 3.0}, {"cap": 60.0}, {"jitter": 0.2}])
    def test_sees_every_part_of_a_retry_policy(self, change: dict[str, float]) -> None:
        retry = Retry.exponential(5.0)
        one = replace(ASKED, retry=retry)
        two = replace(ASKED, retry=replace(retry, **change))
        assert codec.fingerprint(one) != codec.fingerprint(two)

    def test_sees_a_microsecond(self) -> None:
        one = replace(ASKED, delay=timedelta(days=3_000), run_at=START)
        later = replace(one, run_at=START + timedelta(microseconds=1))
        longer = replace(one, delay=timedelta(days=3_000, microseconds=1))
        assert len({codec.fingerprint(each) for each in (one, later, longer)}) == 3
