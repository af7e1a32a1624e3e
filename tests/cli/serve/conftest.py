"""Servers of a tiny model: one for all that only ask, and those of a test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.serve.helpers import IN_THREADS, SERVE, Server, save, tiny_model

MAX_BYTES, MAX_IMAGES = 400_000, 10
Start = Callable[..., Server]
LIMITS = ("--max-bytes", MAX_BYTES, "--max-images", MAX_IMAGES, "--max-pixels", 100_000)


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tiny_model(), tmp_path_factory.mktemp("run") / "photos.keras")


@pytest.fixture(scope="session")
def server(file: Path) -> Iterator[Server]:
    words = ["serve", file, "--port", "0", *LIMITS, "--top", "2", "--log-requests"]
    server = Server(file.parent, SERVE, *words)
    yield server
    assert server.stop() == 0
    assert server.lines[-1] == "stopped"


@pytest.fixture
def port(server: Server) -> int:
    return server.port


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Start]:
    servers = []

    def start(*words: object, code: str = SERVE) -> Server:
        words = ("serve", *words, "--port", "0") if code == SERVE else words
        code = IN_THREADS + SERVE if code == SERVE else code
        servers.append(Server(tmp_path, code, *words))
        return servers[-1]

    yield start
    for server in servers:
        if not server.has_ended:
            server.process.kill()
