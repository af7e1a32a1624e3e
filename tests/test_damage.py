"""Damaged files of every format: a typed error with the file's name, in bounded time and memory."""

from pathlib import Path

import pytest

pytest.importorskip("hypothesis")
from tests import processes
from tests.damage import DAMAGE
from tests.damaged_formats import FORMATS


@pytest.mark.parametrize("count", [10, pytest.param(2000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(name: str, count: int, tmp_path: Path) -> None:
    printed, words = tmp_path / "printed", (name, str(count), "0")
    process = processes.start("-m tests.damage", *words, printed=printed, cwd=tmp_path)
    status = process.wait(1200)
    damage = tmp_path / DAMAGE
    last = damage.read_text() if damage.exists() else "none"
    assert status == 0, f"{process.output()[-6000:]}\n{name}: {status} after {last}"
