"""`predict` and `embed` on a Ray cluster of two nodes, of which one is killed half way."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from keras_vit_cli.predict import predict_command
from tests.cli.helpers import color_photos, save_tiny, sums
from tests.conftest import Command
from tests.data.image_fixtures import plain, write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("here")]
IMAGES = int(os.environ.get("RAY_IMAGES", "2000"))  # the issue of two nodes: 20000


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes, of a processor each, in the environment of this process."""
    ray = pytest.importorskip("ray")
    utilities = pytest.importorskip("ray.cluster_utils")
    made = utilities.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.worker = made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def photos() -> Path:
    folder = color_photos(Path("photos"), IMAGES // 2)
    return write(folder, {"red/77.jpg": b"\xff\xd8\xff"})


def test_a_node_is_killed(cluster: Any, photos: Path, command: Command, monkeypatch: Any) -> None:
    pytest.importorskip("pyarrow")
    model, written, busy = save_tiny("m.keras"), 0, set()
    command("predict", model, photos, "--out", "one.parquet", status=1)
    writer = predict_command.parquet_writer

    @contextmanager
    def killing(*arguments: Any) -> Iterator[Any]:
        def write(rows: Any) -> None:
            nonlocal written, busy
            if written < IMAGES // 2 <= written + len(rows):
                actors = import_module("ray._private.state").actors().values()
                busy = {a["Address"]["NodeID"] for a in actors if a["State"] == "ALIVE"}
                cluster.remove_node(cluster.worker, allow_graceful=False)
            written += len(rows)
            real(rows)

        with writer(*arguments) as real:
            yield write

    monkeypatch.setattr(predict_command, "parquet_writer", killing)
    words = ("--out", "two.parquet", "--ray", cluster.address)
    printed = command("predict", model, photos, *words, status=1)
    assert f"{IMAGES:,} images, 1 cannot be read" in printed
    assert written == IMAGES
    assert cluster.worker.node_id in busy
    assert len(cluster.list_all_nodes()) == 1
    assert Path("two.parquet").read_bytes() == Path("one.parquet").read_bytes()


def test_an_index_made_by_two_nodes(cluster: Any, photos: Path, command: Command) -> None:
    words = ("embed", photos, "--model", save_tiny("m.keras"), "--dtype", "float32", "--out")
    command(*words, "one", status=1)
    command(*words, "two", "--ray", cluster.address, status=1)
    assert sums(Path("two")) == sums(Path("one"))
    write(photos, {"red/new.png": plain(7)})
    for out in ("one", "two"):
        more = ("--ray", cluster.address) if out == "two" else ()
        printed = command(*words, out, *more, status=1)
        assert f"{IMAGES:,} images of 16 numbers, 1 read now" in printed
    assert sums(Path("two")) == sums(Path("one"))


def test_what_a_cluster_refuses(cluster: Any, command: Command) -> None:
    model, photo = save_tiny("m.keras"), write(Path("photos"), {"a.png": plain(0)}) / "a.png"
    words = ("predict", model, photo)
    # Of this process alone, as a folder is on a machine without a shared disk.
    os.dup2(os.open("photos", os.O_RDONLY), 900)
    here = "/proc/self/fd/900/a.png"
    refused = command("predict", model, here, "--ray", cluster.address, status=2)
    assert f"does not see {here}, which is here. Give images that every node sees" in refused
    refused = command(*words, "--ray", "127.0.0.1:1", status=2)
    assert "There is no Ray cluster at 127.0.0.1:1: [Errno 111] Connection refused" in refused
