"""Damaged files of every format: a typed error with the file's name, in bounded time and memory."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis")
from tests import processes
from tests.damage import DAMAGE
from tests.damaged_formats import FORMATS

# Where there is one, a file system in memory: disks take milliseconds to replace a file.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
MORE = ((200, pytest.mark.thorough), (2000, pytest.mark.slow))


@pytest.mark.parametrize("count", [10, *(pytest.param(n, marks=mark) for n, mark in MORE)])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(name: str, count: int, tmp_path: Path, tmp_path_factory: Any) -> None:
    printed, words = tmp_path / "printed", (name, str(count), "0")
    # Hypothesis reads the constants of all our modules, in each process anew without its folder.
    constants = {"HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path_factory.getbasetemp() / "constants")}
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        process = processes.start(
            "-m tests.damage", *words, printed=printed, cwd=Path(folder), **constants
        )
        status = process.wait(1200)
        damage = Path(folder) / DAMAGE
        last = damage.read_text() if damage.exists() else "none"
    assert status == 0, f"{process.output()[-6000:]}\n{name}: {status} after {last}"
