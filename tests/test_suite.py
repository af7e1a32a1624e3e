"""How large the suite is: what runs on which backends, so that growth is seen."""

import subprocess
import sys

from tests.backends import BACKENDS, HOMES
from tests.conftest import REPOSITORY

# What three backends run may grow where a backend can change the answer, and is counted here.
MOST_ON_EVERY_BACKEND = 500
MOST_LINES = 30_000
COUNT = """
import sys
import pytest
from tests import backends

class Count:
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        for names, number in backends.counts(items).items():
            print("count", number, *names)

sys.exit(pytest.main(["--collect-only", "-q", "--here"], [Count()]))
"""


def test_three_backends_run_what_a_backend_can_change() -> None:
    command = [sys.executable, "-c", COUNT]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("count ")]
    counts = {tuple(names): int(number) for _, number, *names in lines}
    assert 0 < counts[BACKENDS] <= MOST_ON_EVERY_BACKEND
    once = {names[0]: number for names, number in counts.items() if len(names) == 1}
    assert set(once) == set(BACKENDS)
    assert sum(once.values()) > 5 * counts[BACKENDS]


def test_the_tests_are_no_longer_than_30000_lines() -> None:
    files = (REPOSITORY / "tests").rglob("*.py")
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) <= MOST_LINES


def test_homes_are_where_tests_are() -> None:
    for home, backend in HOMES.items():
        assert (REPOSITORY / home).exists(), home
        assert backend in BACKENDS
