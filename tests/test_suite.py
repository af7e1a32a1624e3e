"""How large the suite is: what runs on which backends, so that growth is seen."""

import pytest

from tests.backends import BACKENDS, COUNTS, HOMES, THOROUGH
from tests.conftest import REPOSITORY

# What three backends run may grow where a backend can change the answer, and is counted here.
MOST_ON_EVERY_BACKEND = 500
MOST_LINES = 30_000


def test_three_backends_run_what_a_backend_can_change(request: pytest.FixtureRequest) -> None:
    counts, files = request.config.stash[COUNTS]
    tests = {
        path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob("tests/**/test_*.py")
    }
    if not tests <= files:
        pytest.skip("a part of the suite was collected")
    assert 0 < counts[BACKENDS] <= MOST_ON_EVERY_BACKEND
    once = {names[0]: number for names, number in counts.items() if len(names) == 1}
    assert set(once) == set(BACKENDS)
    assert sum(once.values()) > 5 * counts[BACKENDS]


def test_the_tests_are_no_longer_than_their_budget() -> None:
    files = (REPOSITORY / "tests").rglob("*.py")
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) <= MOST_LINES


def test_places_are_where_tests_are() -> None:
    for place in (*HOMES, *THOROUGH):
        assert list(REPOSITORY.glob(f"{place}*")), place
    assert set(HOMES.values()) <= set(BACKENDS)
