"""A tiny model, images for it, and requests to a server."""

import json
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_vit._base.files import atomic_write
from keras_vit.tasks import Classification
from tests import bank, processes
from tests.data.image_fixtures import encode

NAMES = ('<b>"rose"</b>\x1b[31m', "tulip\udcff", "daisy")


def tiny_model(seed: int = 0, **options: Any) -> Any:
    task = Classification(NAMES)
    model = bank.tiny(task=task, num_classes=3, depth=2, input_shape=(32, 24, 3), **options)
    bank.fill(model, seed, 0.3)
    return model


def jpeg(seed: int = 0, size: tuple[int, int] = (60, 50)) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (6, 5, 3)).astype("uint8")
    return encode(Image.fromarray(noise).resize(size), "JPEG")


# urllib's own keeps the proxies of the first test that opened an address.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def request(
    port: int, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, JSON (or `"text"`), in it what follows as `"tail"`, and headers of an answer."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    message = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, sent)
    try:
        answer = _OPENER.open(message, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        sent_back = answer.read()
    end = int(answer.headers.get("inference-header-content-length", len(sent_back)))
    text, tail = sent_back[:end].decode(), sent_back[end:]
    is_json = tail or answer.headers["content-type"] == "application/json"
    content = json.loads(text) if is_json else {"text": text}
    content |= {"tail": tail} if tail else {}
    return answer.status, content, {k.lower(): v for k, v in answer.headers.items()}


FORM = {"Content_Type": "multipart/form-data; boundary=x"}


def form(files: dict[str, bytes], field: str = "image") -> tuple[bytes, dict[str, str]]:
    body = b""
    for name, contents in files.items():
        head = f'--x\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'
        body += head.encode() + contents + b"\r\n"
    return body + b"--x--\r\n", FORM


def save(model: Any, path: Path) -> Path:
    with atomic_write(path) as temporary:
        model.save(temporary)
    return path


def eventually(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


# Decodes in threads, which start at once; the server of all tests that only ask has processes.
IN_THREADS = """
import asyncio
from keras_vit_cli.serve import decoders, threads
class InThreads(threads.WatchedThreads):
    def __init__(self, count):
        super().__init__(count, "decoder")
    def in_each(self, function, *arguments):
        return [self.submit(function, *arguments)]
    async def call(self, function, *arguments):
        return await asyncio.wrap_future(self.submit(function, *arguments))
decoders.Decoders = InThreads
"""
# Versions are looked for often, so that tests wait little for a new one.
SERVE = """
import signal, sys
import keras_vit_cli.start
from keras_vit_cli.serve import versions
versions.POLL_SECONDS = 0.1
signal.signal(signal.SIGINT, signal.default_int_handler)  # not all shells leave it so
sys.exit(keras_vit_cli.start.main())
"""
# A server that prints its spans, a line of JSON each, in place of sending them.
TRACED = f"""import os; os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://localhost:4318"
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.trace.export import ConsoleSpanExporter as Console
trace_exporter.OTLPSpanExporter = lambda: Console(formatter=lambda s: s.to_json(None) + chr(10))
{IN_THREADS}{SERVE}"""
CHANGED = f"""{IN_THREADS}
import dataclasses, functools, pathlib, sys, time
from keras_vit_cli.options.serve import ServeOptions
from keras_vit_cli.serve import connections, images, server, service, versions
load, report = versions.load_served, functools.partial(print, flush=True)
path = pathlib.Path(sys.argv[1])
"""
# A server whose model takes some seconds, the second argument, per batch of two.
SLOW = f"""{CHANGED}
def load_slowly(path):
    model = load(path)
    def predict(images):
        time.sleep(float(sys.argv[2]))
        return model.predict(images)
    return dataclasses.replace(model, predict=predict)
versions.load_served = load_slowly
server.serve(ServeOptions(path, port=0, batch_size=2, queue=4), report)
"""
# A server with small limits, whose attention never comes to an end.
STUCK = f"""{CHANGED}
connections.IDLE_SECONDS, connections.CLIENT_CONNECTIONS, images.PATIENCE_SECONDS = 0.5, 8, 0.2
server.ANSWER_SECONDS, server.STOP_SECONDS, service.STALL_SECONDS = 0, 1, 0.5
endless = lambda *_: time.sleep(60)
versions.load_served = lambda path: dataclasses.replace(load(path), explain=endless)
server.serve(ServeOptions(path, port=0, batch_size=1, queue=2), report)
"""


def port_of(process: processes.WarmProcess) -> int:
    eventually(lambda: "http://" in process.output() or process.poll() is not None, 120)
    address = re.search(r"http://[^ ]*:(\d+) ", process.output())
    assert address, process.output()
    return int(address[1])


class Server:
    """A server in a process that was forked; it answers once this is made."""

    def __init__(self, folder: Path, code: str, *words: object) -> None:
        for package in ("uvicorn", "prometheus_client"):
            pytest.importorskip(package)
        self.process = processes.start(code, *map(str, words), printed=folder / "printed")
        self.port = port_of(self.process)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def lines(self) -> list[str]:
        return self.process.output().splitlines()

    def metric(self, name: str) -> float:
        text = request(self.port, "/metrics")[1]["text"]
        line = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(line[1]) if line else 0

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)
