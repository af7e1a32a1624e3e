"""`keras-vit serve` ended at any moment of its start or of a new version: nothing stays behind."""

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from keras_vit._base.files import atomic_write
from tests.cli.serve import helpers
from tests.cli.serve.helpers import eventually, save, tiny_model
from tests.processes import start

BOUND = 40  # seconds from a signal to the end; a busy machine
LONG = 120  # for what may import TensorFlow or compile on one
# Threads change as often as they can; who hangs prints where.
STRESS = """
import faulthandler, sys
sys.setswitchinterval(1e-6)
faulthandler.dump_traceback_later(500, exit=True)
from keras_vit_cli.serve import versions
def with_a_line(function, line):
    return lambda *arguments: (print(line, flush=True), function(*arguments))[1]
versions.load_served = with_a_line(versions.load_served, "loading")
versions.warm_up = with_a_line(versions.warm_up, "warming up")
"""
# The line that is waited for before the signal, and the number of new versions until then.
MOMENTS: list[Any] = [("warming up", 0), ("http://", 0), ("loading", 1), ("now serving", 3)]
# Moments within those of the others.
WITHIN = (("", 0), ("loading", 0), ("warming up", 1))
MOMENTS += [pytest.param(*moment, marks=pytest.mark.slow) for moment in WITHIN]


def processes_of(session: int) -> list[str]:
    """A server and what it started, as far as they live."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats.append(path.read_text().rsplit(")", 1))
        except OSError:
            continue
    return [name for name, rest in stats if int(rest.split()[3]) == session and rest[1] != "Z"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("versions")
    return [save(tiny_model(seed), folder / f"{seed}.keras") for seed in (0, 1)]


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize(("line", "new"), MOMENTS)
def test_no_moment_is_a_bad_one(line: str, new: int, models: list[Path], tmp_path: Path) -> None:
    dice, path = random.Random(f"{line}{new}"), tmp_path / "model.keras"
    shutil.copyfile(models[0], path)
    words = ["serve", str(path), "--port", "0"]
    process = start(STRESS + helpers.SERVE, *words, printed=tmp_path / "printed")
    for number in range(1, new + 1):
        eventually(lambda: process.output().count("now serving") >= number - 1, LONG)  # noqa: B023
        eventually(lambda: "http://" in process.output(), LONG)
        with atomic_write(path) as temporary:
            shutil.copyfile(models[number % 2], temporary)
    eventually(lambda: process.output().count(line) > new - line.startswith("now"), LONG)
    time.sleep(dice.uniform(0, 0.4))
    name = signal.SIGTERM if not line or dice.random() < 0.7 else signal.SIGINT
    statuses = {130 if name == signal.SIGINT else 0}
    if "http://" not in process.output() and name == signal.SIGTERM:
        statuses.add(-signal.SIGTERM)
    (os.killpg if line and dice.random() < 0.5 else os.kill)(process.pid, name)
    assert process.wait(BOUND) in statuses, process.output()
    eventually(lambda: not processes_of(process.pid), LONG)
    assert "Traceback" not in process.output(), process.output()
