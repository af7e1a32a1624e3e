"""How large the suite is: what runs on which backends, so that growth is seen; and its models."""

import runpy
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests import bank
from tests.backends import BACKENDS, COLLECTED, HOMES, SLOW, THOROUGH, backends_of
from tests.conftest import REPOSITORY

# What three backends run may grow where a backend can change the answer, and is counted here.
MOST_ON_EVERY_BACKEND = 500
# What comes new is paid for by what goes: docs/decisions/tests.md.
MOST_LINES = 30_520


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """All tests, also those that run elsewhere or later."""
    if request.config.args != request.config.getini("testpaths"):
        pytest.skip("a part of the suite was collected")
    return request.config.stash[COLLECTED]


def test_three_backends_run_what_a_backend_can_change(collected: list[pytest.Item]) -> None:
    counts = Counter(backends_of(item) for item in collected if not item.get_closest_marker("slow"))
    assert 0 < counts[BACKENDS] <= MOST_ON_EVERY_BACKEND
    once = {names[0]: number for names, number in counts.items() if len(names) == 1}
    assert set(once) == set(BACKENDS)
    assert sum(once.values()) > 5 * counts[BACKENDS]


def test_tables_name_tests(collected: list[pytest.Item]) -> None:
    names = [item.nodeid for item in collected]
    for start in (*HOMES, *THOROUGH, *SLOW):
        assert any(name.startswith(start) for name in names), start
    assert set(HOMES.values()) <= set(BACKENDS)


def test_the_tests_are_no_longer_than_their_budget() -> None:
    files = (REPOSITORY / "tests").rglob("*.py")
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) <= MOST_LINES


def test_seeded_faults_are_still_in_the_code_and_name_tests() -> None:
    """Those of `.ci/blind`, which itself takes a quarter of an hour."""
    faults = runpy.run_path(str(REPOSITORY / ".ci/blind"))["FAULTS"]
    assert len(faults) >= 40
    for fault in faults:
        assert (REPOSITORY / fault.file).read_text("utf-8").count(fault.code) == 1, fault.reason
        assert all((REPOSITORY / name).exists() for name in fault.tests.split()), fault.reason


CHANGES: dict[str, Callable[[Any], object]] = {
    "weights": lambda model: model.set_weights([w + 1 for w in model.get_weights()]),
    "names": lambda model: setattr(model, "class_names", ("a", "b")),
    "frozen": lambda model: setattr(model.get_layer("head"), "trainable", False),
    "compiled": lambda model: model.compile("sgd", "mse"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_test_changes_is_as_before_in_the_next(change: str) -> None:
    model = bank.tiny()
    before, weights = bank._state(model), model.get_weights()
    CHANGES[change](model)
    bank.restore()
    again = bank.tiny()
    assert bank._state(again) == before
    np.testing.assert_equal(again.get_weights(), weights)
    assert (again is model) == (change == "weights")
