"""For tests of programs that have an app: the app on a store in memory, its jobs run when the test says so."""

from penstock.testing import FakeClock, Ran
from penstock.testkit.kit import TestKit

__all__ = ["FakeClock", "Ran", "TestKit"]
