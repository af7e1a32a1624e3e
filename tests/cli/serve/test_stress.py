"""`keras-vit serve` started, given new versions and ended at random moments, in seeded rounds."""

import http.client
import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from keras_vit._base.files import atomic_write
from keras_vit_cli.serve.versions import newest_version
from tests.cli.serve import helpers
from tests.cli.serve.helpers import eventually, jpeg, save, tiny_model
from tests.cli.serve.test_server import expected, probabilities
from tests.processes import start

ROUNDS = int(os.environ.get("KERAS_VIT_STRESS_ROUNDS", 7))
ALONE = (0, 1, 5)  # whose moments are within those of the others
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
MOMENTS = [("", 0), ("loading", 0), ("warming up", 0), ("http://", 0)]
MOMENTS += [("loading", 1), ("warming up", 1), ("now serving", 3)]


class Client(threading.Thread):
    """Asks again and again, also for several images; notes when, the status, the answer."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.port, self.dice, self.is_stopped = port, random.Random(seed), False
        self.answers: list[tuple[float, int | str, dict[str, Any], int]] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        done = time.monotonic()
        while not self.is_stopped:
            image, sent = self.dice.randrange(2), float("inf")
            files = {str(i): jpeg(image) for i in range(self.dice.choice([1, 5]))}
            body, headers = helpers.form(files)
            # uvicorn closes a connection that was idle for 5 seconds, as this thread may have been.
            if self.dice.random() < 0.3 or time.monotonic() - done > 2:
                connection.close()
            try:
                connection.request(
                    "POST", "/predict", body, {"Content-Type": headers["Content_Type"]}
                )
                sent = time.monotonic()
                answer = connection.getresponse()
                self.answers.append((sent, answer.status, json.loads(answer.read()), image))
            except (OSError, http.client.HTTPException) as error:
                self.answers.append((sent, repr(error), {}, image))
                time.sleep(0.02)
                connection.close()
            done = time.monotonic()


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
@pytest.mark.parametrize(
    "seed", [pytest.param(i, marks=[pytest.mark.slow] * (i in ALONE)) for i in range(ROUNDS)]
)
def test_no_moment_is_a_bad_one(seed: int, models: list[Path], tmp_path: Path) -> None:
    dice, path, names = random.Random(seed), tmp_path / "model.keras", dict[str, int]()

    def replace(number: int) -> None:
        with atomic_write(path) as temporary:
            shutil.copyfile(models[number], temporary)
        names[newest_version(path).name] = number

    replace(0)
    (line, new), clients = MOMENTS[seed % len(MOMENTS)], list[Client]()
    process = start(
        STRESS + helpers.SERVE, "serve", str(path), "--port", "0", printed=tmp_path / "printed"
    )
    if new or line == "http://":
        port = helpers.port_of(process)
        clients = [Client(port, 10 * seed + i) for i in range(3)]
        for client in clients:
            client.start()
    for number in range(1, new + 1):
        eventually(lambda: process.output().count("now serving") >= number - 1, LONG)  # noqa: B023
        replace(number % 2)
        if dice.random() < 0.3:
            time.sleep(dice.uniform(0, 1))
            replace(number % 2)
    eventually(lambda: process.output().count(line) > new - line.startswith("now"), LONG)
    time.sleep(dice.uniform(0, 0.4))
    name = signal.SIGTERM if not line or dice.random() < 0.7 else signal.SIGINT
    statuses, began = {130 if name == signal.SIGINT else 0}, time.monotonic()
    if "http://" not in process.output() and name == signal.SIGTERM:
        statuses.add(-signal.SIGTERM)
    (os.killpg if line and dice.random() < 0.5 else os.kill)(process.pid, name)
    assert process.wait(BOUND) in statuses, process.output()
    for client in clients:
        client.is_stopped = True
    eventually(lambda: not processes_of(process.pid), LONG)
    assert "Traceback" not in process.output(), process.output()
    wanted = [[expected(jpeg(image), number) for image in (0, 1)] for number in (0, 1)]
    for client in clients:
        client.join(60)
        assert client.answers
        for sent, status, content, image in client.answers:
            if status != 200:  # what was sent before the signal is answered
                assert sent > began or status == 503, (status, content)
                continue
            right = pytest.approx(wanted[names[content["version"]]][image], abs=1e-5)
            assert all(probabilities(row) == right for row in content.get("rows", [content]))
