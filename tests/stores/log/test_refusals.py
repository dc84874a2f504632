"""What an error of a bucket repeats of what obstore and the service said, and what it must not."""

from __future__ import annotations

import pytest

from penstock.stores.log.backings.refusals import LONGEST, shown


@pytest.mark.parametrize(
    ("said", "repeated"),
    [
        (
            "error sending request to http://user:pass@host:9/b/x",
            "error sending request to http://…@host:9/b/x",
        ),
        ("to http://user:p@ss@host:9/b", "to http://…@host:9/b"),
        ("see https://docs.example/a@b", "see https://docs.example/a@b"),
        ("GET https://host/b/x?sig=ab%2Fcd&se=1) failed", "GET https://host/b/x?…) failed"),
        ("the token Bearer ya29.a0AfH6SMBx-y_z has expired", "the token Bearer … has expired"),
        ("Bearer token required", "Bearer token required"),
        ("MAC of SharedKey account:c2VjcmV0c2VjcmV0= differs", "MAC of SharedKey … differs"),
        (
            "AWS4-HMAC-SHA256 Credential=AKIA/20300101/r/s3/aws4_request, SignedHeaders=host, Signature=0a1b2c",
            "AWS4-HMAC-SHA256 Credential=…, SignedHeaders=host, Signature=…",
        ),
        ("sv=2021&sig=ab/cd=&se=2030", "sv=2021&sig=…&se=2030"),
        ("X-Amz-Security-Token=FwoGZXIv\nmore", "X-Amz-Security-Token=… more"),
    ],
)
def test_credentials_are_known_by_where_they_stand(said: str, repeated: str) -> None:
    assert shown(said, ()) == repeated


def test_a_secret_that_another_begins_with_leaves_nothing_of_that() -> None:
    assert shown("it was long-secret-and-more", ["long", "long-secret-and-more"]) == "it was …"


def test_no_more_than_a_few_lines_are_repeated() -> None:
    assert shown("x" * 1_000, ()) == "x" * LONGEST + "…"
