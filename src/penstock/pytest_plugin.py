"""The pytest plugin: a fixture `penstock`, and an ini option that says which app it puts on a store in memory."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.app.penstock import Penstock
    from penstock.testkit import TestKit


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "penstock_app",
        "the apps that the fixture `penstock` puts on a store in memory: module:app, several with spaces between",
        type="args",
        default=[],
    )


@pytest.fixture
def penstock(request: pytest.FixtureRequest) -> Iterator[TestKit]:
    """A `penstock.testkit.TestKit`: apps on a store in memory with a clock that stands still, for this test alone."""
    from penstock.testkit import TestKit  # here, so that runs that do not ask for it do not pay for it

    with TestKit() as kit:
        for address in request.config.getini("penstock_app"):
            kit.use(_app_at(address))
        yield kit


def _app_at(address: str) -> Penstock:
    from penstock.app.penstock import Penstock

    module, _, name = address.partition(":")
    try:
        app = getattr(import_module(module), name or "app")
    except (ImportError, AttributeError) as error:
        pytest.fail(f"penstock_app = {address!r} cannot be imported: {error}", pytrace=False)
    if not isinstance(app, Penstock):
        pytest.fail(f"penstock_app = {address!r} is a {type(app).__name__}, not a Penstock", pytrace=False)
    return app
