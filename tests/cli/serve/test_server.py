"""`keras-vit serve` as a process: answers, errors, limits, health, metrics, stop and reload."""

import asyncio
import http.client
import json
import os
import random
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _load as load
from keras_vit._base.errors import printable
from keras_vit._base.files import atomic_write
from keras_vit.data.decode.image_files import prepare_contents
from keras_vit.models.answers import answers_of
from keras_vit_cli.serve.versions import newest_version
from tests import processes
from tests.bank import outputs
from tests.cli.serve import helpers
from tests.cli.serve.conftest import MAX_BYTES, Start
from tests.cli.serve.helpers import FORM, Server, eventually, jpeg, request, save, tiny_model
from tests.conftest import Command
from tests.data.image_fixtures import png_of_twelve_bits


def probabilities(content: dict[str, Any]) -> dict[str, float]:
    return {entry["class"]: entry["probability"] for entry in content["predictions"]}


def expected(body: bytes, seed: int = 0) -> dict[str, float]:
    model = tiny_model(seed)
    pixels = prepare_contents(body, (32, 24), transform=model.eval_transform)
    (row,) = answers_of(model, outputs(model, pixels[None])).tolist()
    return dict(zip(map(printable, model.task.shown_names), row, strict=True))


NO_FILE = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n'
CURL = {"Content_Type": "application/x-www-form-urlencoded"}
ESCAPED = {"Content_Type": f"{FORM['Content_Type']}; charset=unicode_escape"}


def test_what_is_refused_and_what_is_not(port: int, server: Server) -> None:
    for body, headers, status, reason in (
        (b"", {}, 400, "The body is empty"),
        (b"no image", {}, 422, "not a JPEG, PNG, BMP, GIF, WebP, TIFF, AVIF or HEIC file"),
        (jpeg()[:-200], {}, 422, "damaged or incomplete"),
        (jpeg().translate(None, b"\r\n\0"), CURL, 422, "--data-binary sends all"),
        (b'{"instances": []}', CURL, 422, "(JSON is read by /v1/models/"),
        (load.bomb(), {}, 422, "more than --max-pixels 100000"),
        (bytes(MAX_BYTES + 1), {}, 413, f"more than {MAX_BYTES} bytes"),
        (NO_FILE, FORM, 400, "not have a file"),
        (b"no form", FORM, 400, "cannot be read"),
        (helpers.form({"a": jpeg()})[0], ESCAPED, 400, "charset=unicode_escape. Send it in UTF-8"),
    ):
        for path in ("/predict", "/attention"):
            answered, content, _ = request(port, path, body, **headers)
            assert (answered, list(content)) == (status, ["error", "type"])
            assert reason in content["error"]

    async def send_without_a_length() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + 9 * (b"c350\r\n" + bytes(50_000) + b"\r\n") + b"0\r\n\r\n")
        return await reader.readline()

    assert b" 413 " in asyncio.run(send_without_a_length())
    assert request(port, "/nothing")[0] == 404
    status, content, headers = request(port, "/predict")
    assert (status, headers["allow"], "POST /predict" in content["error"]) == (405, "POST", True)
    assert request(port, "/", Host="rebound.example")[0] == 400
    assert "options such as --top" in request(port, "/predict?top=1", jpeg())[1]["error"]
    # Names are escaped, and the page has a policy.
    status, content, headers = request(port, "/")
    assert status == 200
    assert "&lt;b&gt;&quot;rose&quot;&lt;/b&gt;\\x1b[31m" in content["text"]
    assert helpers.NAMES[0] not in content["text"]
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert request(port, "/ready")[0] == 200
    answered = 'keras_vit_requests_total{endpoint="predict",status="200"}'
    names = [answered, "keras_vit_batch_images_sum"]
    before = list(map(server.metric, names))
    for seed in range(3):
        request(port, "/predict", jpeg(seed))
    assert list(map(server.metric, names)) == [value + 3 for value in before]


def test_attention(port: int) -> None:
    status, content, _ = request(port, "/attention", jpeg())
    assert (status, content["covered"]) == (200, [1, 1])
    assert [len(row) for row in content["map"]] == [3, 3, 3, 3]
    assert sum(map(sum, content["map"])) == pytest.approx(1, abs=1e-4)
    best = request(port, "/predict", jpeg())[1]["predictions"][0]["class"]
    assert (content["method"], content["class"]) == ("attribution", best)
    maps = []
    for query in ("class=daisy", "class=tulip%5Cxff", "method=rollout"):
        status, content, _ = request(port, f"/attention?{query}", jpeg())
        assert status == 200, content
        maps.append(content["map"])
    assert (content["method"], content["class"]) == ("rollout", None)
    assert maps[0] != maps[1] != maps[2]
    for query, reason in {
        "?class=daisies": "Did you mean 'daisy'",
        "?method=occlusion": "attribution or rollout",
        "?method=rollout&class=daisy": "same for every class",
        "?top=1": "has top=, which /attention ignores",
    }.items():
        status, content, _ = request(port, f"/attention{query}", jpeg())
        assert (status, reason in content["error"]) == (400, True), content
    for path in ("/predict", "/attention"):
        status, content, _ = request(port, path, png_of_twelve_bits())
        assert (status, "filled, write 8 bits first: PIL" in content["warning"]) == (200, True)
        assert "warning" not in request(port, path, jpeg())[1]


def test_who_hangs_up_gives_the_place_back(file: Path, start_server: Start) -> None:
    """And what is in progress when the server stops is answered."""
    slow = start_server(file, 1, code=helpers.SLOW)

    async def hang_up() -> None:
        connections = [load.Connection(slow.port) for _ in range(4)]
        for connection in connections:
            await connection.send(jpeg())
        await asyncio.sleep(0.3)
        for connection in connections:
            connection.close()

    asyncio.run(hang_up())
    assert request(slow.port, "/predict", jpeg(1))[0] == 200
    assert slow.metric('keras_vit_requests_total{endpoint="predict",status="499"}') == 4
    # Of the four images only those of the first batch were computed.
    assert slow.metric("keras_vit_batch_images_sum") <= 3
    # A full queue is 429.
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(request, slow.port, "/predict", jpeg(i)) for i in range(4)]
        eventually(lambda: slow.metric("keras_vit_in_progress") == 4, 5)
        status, content, headers = request(slow.port, "/predict", jpeg())
        assert (status, headers["retry-after"]) == (429, "1")
        assert content["error"].startswith("The server is busy: 4 requests are in progress.")
        assert slow.stop(signal.SIGTERM) == 0
        for seed, answer in enumerate(answers):
            status, content, _ = answer.result()
            assert status == 200
            assert probabilities(content) == pytest.approx(expected(jpeg(seed)), abs=1e-5)
    assert slow.lines[-1] == "stopped"


def test_slow_and_hostile_clients_leave_the_others_alone(file: Path, start_server: Start) -> None:
    server = start_server(file, code=helpers.STUCK)
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"

    def is_closed(connection: socket.socket) -> bool:
        connection.settimeout(5)
        try:
            return not connection.recv(1000).startswith(b"HTTP/1.1 200")
        except ConnectionError:
            return True

    def slow(sent: bytes, count: int) -> list[socket.socket]:
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
        for client in clients:
            client.sendall(sent)
        return clients

    headers = slow(head, 12)
    assert request(server.port, "/predict", jpeg())[0] == 200
    assert all(map(is_closed, headers))  # all but eight at once, and those soon
    bodies = slow(head + b"Content-Length: 90\r\n\r\n1", 2)
    time.sleep(0.3)
    assert request(server.port, "/predict", jpeg())[0] == 200  # the older body gave way
    assert bodies[0].recv(1000).startswith(b"HTTP/1.1 408")
    # Attention that is never computed keeps neither predictions nor the end.
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(request, server.port, "/attention", jpeg())
        eventually(lambda: request(server.port, "/health")[0] == 503)
        assert request(server.port, "/health")[1]["status"] == "stalled"
        assert request(server.port, "/predict", jpeg())[0] == 200
        began = time.monotonic()
        assert server.stop() == -signal.SIGALRM
        assert time.monotonic() - began < 10
        status, content, _ = answer.result()
        assert (status, content["type"]) == (503, "stopping")


def test_a_damaged_version_leaves_the_last_one(tmp_path: Path, start_server: Start) -> None:
    save(tiny_model(0), tmp_path / "model.keras")
    server = start_server(tmp_path)
    (tmp_path / "model.keras").write_bytes(b"damaged")
    eventually(lambda: request(server.port, "/health")[1]["error"] is not None)
    assert "cannot be loaded" in request(server.port, "/health")[1]["error"]
    answer = request(server.port, "/predict", jpeg())[1]
    assert probabilities(answer) == pytest.approx(expected(jpeg()), abs=1e-5)
    server.process.send_signal(signal.SIGHUP)  # tries again at once
    eventually(lambda: sum("cannot be loaded" in line for line in server.lines) == 2)
    assert server.stop(signal.SIGINT) == 130  # Ctrl-C


def test_a_port_that_is_taken(port: int, file: Path, command: Command) -> None:
    error = command("serve", file, "--port", port, status=2)
    assert error.startswith(f"keras-vit: Cannot listen on 127.0.0.1, port {port}: ")
    assert error.count("\n") == 1


ROUNDS = int(os.environ.get("KERAS_VIT_STRESS_ROUNDS", 7))
QUICK = 6  # new versions under load
OTHERS = [pytest.param(n, marks=pytest.mark.slow) for n in range(ROUNDS) if n != QUICK]
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
            headers = {"Content-Type": headers["Content_Type"]}
            # uvicorn closes a connection that was idle for 5 seconds, as this thread may have been.
            if self.dice.random() < 0.3 or time.monotonic() - done > 2:
                connection.close()
            try:
                connection.request("POST", "/predict", body, headers)
                sent = time.monotonic()
                answer = connection.getresponse()
                self.answers.append((sent, answer.status, json.loads(answer.read()), image))
            except (OSError, http.client.HTTPException) as error:
                self.answers.append((sent, repr(error), {}, image))
                time.sleep(0.02)
                connection.close()
            done = time.monotonic()


def alive_in(session: int) -> list[str]:
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


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("seed", [QUICK, *OTHERS])
def test_no_moment_is_a_bad_one(seed: int, models: list[Path], tmp_path: Path) -> None:
    """A server that is started, given new versions and ended at random moments, in rounds."""
    dice, path, names = random.Random(seed), tmp_path / "model.keras", dict[str, int]()

    def replace(number: int) -> None:
        with atomic_write(path) as temporary:
            shutil.copyfile(models[number], temporary)
        names[newest_version(path).name] = number

    replace(0)
    (line, new), clients = MOMENTS[seed % len(MOMENTS)], list[Client]()
    process = processes.start(
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
    eventually(lambda: not alive_in(process.pid), LONG)
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


@pytest.mark.slow
def test_load_kill_and_restart(shared: Path) -> None:
    """An hour's load in five minutes; KERAS_VIT_LOAD_SECONDS makes it shorter."""
    serving = pytest.importorskip("benchmarks.serving")
    weights = shared / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k" / "model.safetensors"
    files = sorted((shared / "photos" / "flowers").rglob("*.jpg"))[::40]
    figures = serving.measure(weights, files, float(os.environ.get("KERAS_VIT_LOAD_SECONDS", 300)))
    print(figures)
    assert (figures["wrong"], figures["crashes"]) == (0, 0)
    assert figures["throughput_ratio"] >= 0.85
    assert figures["p99_over_single"] < 20
    assert figures["memory_growth"] <= 0.1
