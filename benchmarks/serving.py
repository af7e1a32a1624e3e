"""`keras-vit serve` under load: answers, latency, memory, throughput beside direct calls.

    python -m benchmarks serving MODEL IMAGES --seconds 300
    python -m benchmarks serving MODEL IMAGES --seconds 60 --hostile --requests 10000

Two minutes besides the load; two cores are enough. The clients run on the same cores.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks._load import CLIENTS, Connection, Outcome, Photograph, load, send_slowly
from keras_vit.data import MAX_PIXELS
from keras_vit.data.decode.image_files import prepare_contents
from keras_vit_cli.serve.images import preparation
from keras_vit_cli.serve.model import ServedModel, load_served, warm_up

MAX_BYTES = 2 * 2**20
PARTS = 5  # of a measurement beside hostile clients
ROOT = Path(__file__).parents[1]


class Server:
    """A Python process that prints the address of its server.

    Args:
        arguments: Of the interpreter.
    """

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            # Shells start what runs in the background with Ctrl-C ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline()]
        address = re.search(r"http://[^ ]*:(\d+) ", self.lines[0])
        if address is None:
            raise RuntimeError(f"The server did not start; exit status {self.process.wait()}.")
        self.port = int(address[1])
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    def resident_bytes(self) -> int:
        """Its memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(status.split("VmRSS:")[1].split()[0])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)


def start_server(model: Path, *options: str, port: int = 0) -> Server:
    """`keras-vit serve` in a process of its own; it answers when this returns."""
    return Server("-m", "keras_vit_cli", "serve", str(model), "--port", str(port), *options)


def direct_calls(
    model: ServedModel, contents: list[bytes], batch_size: int, rounds: int
) -> tuple[np.ndarray, float]:
    """Probabilities, and images per second, of decoding and predicting without a server."""
    rows: list[np.ndarray] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        start = time.monotonic()
        for _ in range(rounds):
            for first in range(0, len(contents), batch_size):
                part = contents[first : first + batch_size]
                arguments = [preparation(model, each, MAX_PIXELS) for each in part]
                images = pool.map(lambda each: prepare_contents(*each), arguments)
                rows.extend(model.predict(np.stack(list(images))))
    rate = len(rows) / (time.monotonic() - start)
    return np.stack(rows[: len(contents)]), rate


async def _single_latency(port: int, contents: list[bytes]) -> float:
    connection, seconds = Connection(port), []
    for body in contents:
        start = time.monotonic()
        await connection.send(body)
        await connection.answer()
        seconds.append(time.monotonic() - start)
    connection.close()
    return statistics.median(seconds)


async def _under_load(
    server: Server, photographs: list[Photograph], seconds: float
) -> tuple[Outcome, list[int]]:
    outcome, memory = Outcome(), []
    work = asyncio.create_task(load(server.port, photographs, seconds, MAX_BYTES, outcome))
    while not work.done():
        await asyncio.wait([work], timeout=seconds / 100)
        memory.append(server.resident_bytes())
    await work
    return outcome, memory


async def _restarts(model: Path, photographs: list[Photograph], options: list[str]) -> Outcome:
    """Kills and stops the server under load, and starts it again on the same port."""
    outcome, server = Outcome(), start_server(model, *options)
    for number in (signal.SIGKILL, signal.SIGTERM):
        work = asyncio.create_task(load(server.port, photographs, 45, MAX_BYTES, outcome))
        await asyncio.sleep(5)
        await asyncio.to_thread(server.stop, number)
        server = await asyncio.to_thread(start_server, model, *options, port=server.port)
        before = outcome.right
        await work
        if outcome.right == before:
            outcome.wrong.append("no answer after a restart")
    server.stop()
    return outcome


def measure(
    path: Path, files: Sequence[Path], seconds: float, batch_size: int = 4, restarts: bool = True
) -> dict[str, float]:
    """All figures of a run; `wrong` counts wrong answers, also while the server is restarted."""
    model = load_served(path)
    warm_up(model, batch_size)
    contents = [file.read_bytes() for file in files]
    expected, before = direct_calls(model, contents, batch_size, 3)
    photographs = [
        Photograph(c, dict(zip(model.class_names, map(float, row), strict=True)))
        for c, row in zip(contents, expected, strict=True)
    ]
    options = ["--batch-size", str(batch_size), "--max-bytes", str(MAX_BYTES)]
    server = start_server(path, *options)
    single = asyncio.run(_single_latency(server.port, contents))
    outcome, memory = asyncio.run(_under_load(server, photographs, seconds))
    alive = server.process.poll() is None
    single_after = asyncio.run(_single_latency(server.port, contents))
    status = server.stop()
    _, after = direct_calls(model, contents, batch_size, 3)
    for kind, count in sorted(outcome.statuses.items()):
        print(f"  {kind:<32}{count:>7}")
    wrong = outcome.wrong
    if restarts:
        restarted = asyncio.run(_restarts(path, photographs, options))
        wrong = [*wrong, *restarted.wrong]
    print(*wrong[:5], sep="\n")
    direct, start = (before + after) / 2, len(memory) // 10
    single_mean, p99 = (single + single_after) / 2, float(np.percentile(outcome.seconds, 99))
    return {
        "seconds": seconds,
        "clients": CLIENTS,
        "right": outcome.right,
        "wrong": len(wrong),
        "crashes": int(not alive or status != 0),
        "broken_connections": outcome.broken,
        "direct_images_per_second": direct,
        "direct_before": before,
        "direct_after": after,
        "served_images_per_second": outcome.right / seconds,
        "throughput_ratio": outcome.right / seconds / direct,
        "single_ms_before": 1000 * single,
        "single_ms_after": 1000 * single_after,
        "p50_ms": 1000 * float(np.percentile(outcome.seconds, 50)),
        "p99_ms": 1000 * p99,
        "p99_over_single": p99 / single_mean,
        "memory_mb_after_a_tenth": memory[start] / 2**20,
        "memory_mb_at_the_end": memory[-1] / 2**20,
        "memory_growth": max(memory[start:]) / memory[start] - 1,
    }


def measure_hostile(
    path: Path, files: Sequence[Path], seconds: float, requests: int = 0
) -> dict[str, float]:
    """Latencies of 16 clients alone, and with 2.5 % faulty requests beside 1,000 slow clients.

    For so long each, and until so many requests have been sent beside the slow clients.
    """
    model = load_served(path)
    warm_up(model, 4)
    contents = [file.read_bytes() for file in files]
    rows, _ = direct_calls(model, contents, 4, 1)
    photographs = [
        Photograph(c, dict(zip(model.class_names, map(float, row), strict=True)))
        for c, row in zip(contents, rows, strict=True)
    ]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    server = start_server(path, "--queue", "32", "--max-bytes", str(MAX_BYTES))

    quiet, hostile, spawn = Outcome(), Outcome(), multiprocessing.get_context("spawn")
    part, ratios = seconds / PARTS, list[float]()
    # In turns, so that other work on the machine meets both.
    for seed in itertools.count(0, 16):
        if seed >= 16 * PARTS and sum(hostile.statuses.values()) >= requests:
            break
        sent, before = (server.port, photographs, part, MAX_BYTES), len(quiet.seconds)
        hostile_before = len(hostile.seconds)
        asyncio.run(load(*sent, quiet, 16, 0, seed))
        # In a process, so that the clocks of the others do not wait for it.
        slow = spawn.Process(target=send_slowly, args=(server.port, 1000), daemon=True)
        slow.start()
        asyncio.run(load(*sent, hostile, 16, 0.025, seed))
        slow.kill()
        slow.join()
        beside = float(np.percentile(hostile.seconds[hostile_before:], 99))
        ratios.append(beside / float(np.percentile(quiet.seconds[before:], 99)))
    status = server.stop()
    for kind, count in sorted(hostile.statuses.items()):
        print(f"  {kind:<40}{count:>7}")
    print(*quiet.wrong[:5], *hostile.wrong[:5], sep="\n")
    p50, p99 = (
        [1000 * float(np.percentile(each.seconds, q)) for each in (quiet, hostile)]
        for q in (50, 99)
    )
    return {
        "requests": sum(hostile.statuses.values()),
        "hostile": sum(hostile.statuses.values()) - hostile.photographs,
        "right": hostile.right,
        "right_quiet": quiet.right,
        "wrong": len(quiet.wrong) + len(hostile.wrong),
        "lost": quiet.lost + hostile.lost,
        "crashes": int(status != 0),
        "p50_ms_quiet": p50[0],
        "p50_ms_hostile": p50[1],
        "p99_ms_quiet": p99[0],
        "p99_ms_hostile": p99[1],
        "p99_ratio": p99[1] / p99[0],
        "p99_ratio_of_a_turn": statistics.median(ratios),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks serving", description=__doc__)
    parser.add_argument("model", type=Path, help="what keras-vit serve loads")
    parser.add_argument("images", type=Path, help="folder of photographs; 64 of them are sent")
    parser.add_argument("--seconds", type=float, default=300, help="length of the load")
    parser.add_argument("--batch-size", type=int, default=4, help="the most images per batch")
    parser.add_argument("--hostile", action="store_true", help="measure beside hostile clients")
    parser.add_argument("--requests", type=int, default=0, help="at least so many, with --hostile")
    options = parser.parse_args(arguments)
    files = sorted(options.images.rglob("*.jpg"))
    files = files[:: max(1, len(files) // 64)][:64]
    if options.hostile:
        figures = measure_hostile(options.model, files, options.seconds, options.requests)
    else:
        figures = measure(options.model, files, options.seconds, options.batch_size)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
    return int(figures["wrong"] + figures["crashes"] + figures.get("lost", 0) > 0)
