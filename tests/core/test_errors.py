"""Every error: its place in the tree, its code, and its way through pickle and HTTP."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from penstock.core import errors
from penstock.core.errors import (
    EntryConflict,
    Forbidden,
    IdConflict,
    IdempotencyConflict,
    InvalidInput,
    JobFailed,
    JobNotFound,
    LeaseLost,
    NotAllowed,
    NotLeasable,
    OperationNotFound,
    Overloaded,
    ParentFailed,
    ParentNotFound,
    PenstockError,
    RateLimited,
    ScheduleNotFound,
    StoreUnavailable,
    TokenNotFound,
    Unauthorized,
    UniqueConflict,
    UnknownStore,
)

ID = "019b7a2e-0000-7000-8000-000000000001"
OTHER = "019b7a2e-0000-7000-8000-000000000002"
LONG = "x" * 10_000

RAISED: list[PenstockError] = [
    InvalidInput("priority", "be a whole number", "high"),
    JobNotFound(ID),
    ParentNotFound(ID, OTHER),
    ScheduleNotFound("nightly"),
    TokenNotFound("tok_0123456789abcdef"),
    OperationNotFound(ID),
    IdConflict(ID),
    IdempotencyConflict("order-7", ID),
    UniqueConflict(ID, "welcome:42", OTHER),
    ParentFailed(ID, OTHER, "dead"),
    NotAllowed(ID, "redrive", "running"),
    NotLeasable(ID, "the queue is paused"),
    EntryConflict("token", "tok_0123456789abcdef"),
    Unauthorized("this token is not known"),
    Forbidden("this token does not allow the scope admin", scope="admin"),
    RateLimited("token", 1.5),
    Overloaded("emails", 910, 900, 1.5),
    LeaseLost(ID),
    JobFailed("01890a5d-ac96-774b-bcce-b302099a8057", "dead", "boom", "exhausted"),
    StoreUnavailable("PostgreSQL", "connection refused"),
    UnknownStore("ftp://host", "memory://"),
]
"""One of each error that is ever raised."""


def family(error_class: type[PenstockError]) -> Iterator[type[PenstockError]]:
    """An error class of core.errors and all under it, in the order of their declaration."""
    yield error_class
    for child in error_class.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from family(child)


CLASSES = list(family(PenstockError))
LEAVES = [error_class for error_class in CLASSES if len(list(family(error_class))) == 1]


def drawn() -> list[tuple[str, str | None]]:
    """The tree in the module's docstring, line by line: a class and the one it hangs from."""
    found: list[tuple[str, str | None]] = []
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"((?:│   |    )*(?:├── |└── )?)([A-Z]\w+)(?:\s{2,}.*)?$", line):
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            found.append((match[2], path[depth - 1] if depth else None))
    return found


class TestTree:
    def test_is_drawn_at_the_top_of_the_module_as_it_is_declared(self) -> None:
        declared = [
            (each.__name__, None if each is PenstockError else each.__mro__[1].__name__) for each in CLASSES
        ]
        assert drawn() == declared

    def test_every_error_that_can_be_raised_is_tried_here(self) -> None:
        assert {type(error) for error in RAISED} == set(LEAVES)

    def test_codes_are_unique(self) -> None:
        codes = [each.code for each in CLASSES]
        assert sorted(set(codes)) == sorted(codes)

    @pytest.mark.parametrize("error_class", CLASSES)
    def test_has_a_code_of_its_own(self, error_class: type[PenstockError]) -> None:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", vars(error_class)["code"])

    @pytest.mark.parametrize("error_class", LEAVES)
    def test_its_docstring_says_what_it_means_and_what_to_do(self, error_class: type[PenstockError]) -> None:
        sentences = re.findall(r"\S.*?[.](?=\s|$)", vars(error_class)["__doc__"] or "")
        assert len(sentences) >= 2


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
class TestTravel:
    def test_survives_pickle(self, error: PenstockError) -> None:
        arrived = pickle.loads(pickle.dumps(error))
        assert type(arrived) is type(error)
        assert (arrived.message, arrived.facts) == (error.message, error.facts)
        assert str(arrived) == str(error)

    def test_is_the_same_class_when_another_process_reports_it(self, error: PenstockError) -> None:
        arrived = PenstockError.from_code(error.code, error.message, error.facts)
        assert type(arrived) is type(error)
        assert (str(arrived), arrived.facts) == (str(error), error.facts)

    def test_its_message_names_its_facts(self, error: PenstockError) -> None:
        assert error.facts or type(error) is Unauthorized  # whoever is not known is told nothing
        assert all(str(fact) in error.message for fact in error.facts.values())


class TestPenstockError:
    def test_stands_for_a_code_that_this_version_does_not_know(self) -> None:
        arrived = PenstockError.from_code("quota_exceeded", "too much", {"limit": 5})
        assert type(arrived) is PenstockError
        assert (arrived.message, arrived.facts) == ("too much", {"limit": 5})

    @pytest.mark.parametrize("error_class", [errors.NotFound, errors.Conflict])
    def test_its_branches_travel_too(self, error_class: type[PenstockError]) -> None:
        arrived = pickle.loads(pickle.dumps(error_class("gone", name="x")))
        assert (type(arrived), arrived.message, arrived.facts) == (error_class, "gone", {"name": "x"})


class TestMessages:
    @pytest.mark.parametrize(
        "error",
        [
            InvalidInput("key", "be short", LONG),
            InvalidInput("payload", "be JSON", {"a": [LONG]}),
            JobNotFound(LONG),
            ScheduleNotFound(LONG),
            IdempotencyConflict(LONG, ID),
            UniqueConflict(ID, LONG, OTHER),
            UnknownStore(LONG, "memory://"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_shorten_a_long_value_and_say_how_long_it_was(self, error: PenstockError) -> None:
        assert len(str(error)) < 300
        assert re.search(r"… \(10,\d\d\d characters\)", str(error))

    def test_repeat_a_short_value_in_full(self) -> None:
        assert str(InvalidInput("name", "be a name", "a b")) == "name must be a name; got 'a b'"

    def test_keep_no_long_value_in_the_facts_of_invalid_input(self) -> None:
        assert len(str(InvalidInput("payload", "be JSON", LONG).facts["given"])) < 100

    def test_survive_a_number_that_python_will_not_print(self) -> None:
        assert "priority must be small" in str(InvalidInput("priority", "be small", 10**5_000))

    def test_survive_a_value_that_has_no_repr(self) -> None:
        class Shy:
            def __repr__(self) -> str:
                raise RuntimeError("no words")

        assert "payload must be JSON; got " in str(InvalidInput("payload", "be JSON", Shy()))


def test_an_unknown_store_does_not_repeat_the_password() -> None:
    error = UnknownStore("mysql://ada:secret@db.example.com/jobs?token=hidden", "memory://")
    assert "db.example.com" in str(error)
    assert "secret" not in f"{error} {error.facts}"
    assert "hidden" not in f"{error} {error.facts}"
