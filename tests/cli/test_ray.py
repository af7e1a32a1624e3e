"""`predict` and `embed` on a Ray cluster of two nodes, of which one is killed half way."""

import json
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
    ray = pytest.importorskip("ray")
    utilities = pytest.importorskip("ray.cluster_utils")
    made = utilities.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.worker = made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stand-in for S3, which nodes that start after it know by the variables of AWS."""
    fs, moto = pytest.importorskip("pyarrow.fs"), pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    place = "{}:{}".format(*server.get_host_and_port())
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{place}")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "DEFAULT_REGION"):
        monkeypatch.setenv(f"AWS_{name}", "us-east-1")
    yield fs.S3FileSystem(allow_bucket_creation=True, endpoint_override=place, scheme="http")
    server.stop()


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
    pytest.importorskip("pyarrow")
    command(*words, "one.parquet", status=1)
    command(*words, "two.parquet", "--ray", cluster.address, status=1)
    assert Path("two.parquet").read_bytes() == Path("one.parquet").read_bytes()
    assert sums(Path("two.parquet_index")) == sums(Path("one.parquet_index"))
    write(photos, {"red/new.png": plain(7)})
    for out in ("one", "two"):
        more = ("--ray", cluster.address) if out == "two" else ()
        printed = command(*words, f"{out}.parquet_index", *more, status=1)
        assert f"{IMAGES:,} images of 16 numbers, 1 read now" in printed
    assert sums(Path("two.parquet_index")) == sums(Path("one.parquet_index"))


def test_images_in_a_bucket(storage: Any, cluster: Any, command: Command) -> None:
    """The rows of the same files on a disk; and names that an address would need escapes for."""
    parquet, model = pytest.importorskip("pyarrow.parquet"), save_tiny("m.keras")
    files = {f"red/{name}.png": plain(i) for i, name in enumerate(("a b", "#1%20", "ü?=", "[x]"))}
    files |= {"cut.jpg": b"\xff\xd8\xff", "notes.txt": b"", ".hidden/x.png": plain(5)}
    write(Path("photos"), files)
    storage.create_dir("bucket")
    for name, content in files.items():
        with storage.open_output_stream(f"bucket/photos/{name}") as stream:
            stream.write(content)
    for words in (("predict", model), ("embed", "--model", model)):
        rows = []
        for place, *more in (("photos",), ("s3://bucket/photos", "--ray", cluster.address)):
            out = f"{words[0]}{len(rows)}.parquet"
            command(*words, place, "--out", out, *more, status=1)
            rows.append(parquet.read_table(out).to_pylist())
        here, there = rows
        assert len(here) == 5
        assert "red/ü?=.png" in str(here)
        # Classes are of folders on a disk.
        expected = [r | {"file": f"s3://bucket/{r['file']}"} for r in here]
        assert there == [r | {"label": None} if "label" in r else r for r in expected]
    Path("list.txt").write_text("s3://bucket/photos/gone.png\nphotos/red/a b.png\n")
    words = ("predict", model, "@list.txt", "--format", "jsonl", "--ray", cluster.address)
    gone, read = map(json.loads, command(*words, status=1).splitlines())
    assert (gone["error"], read["error"]) == ("No such file or directory", None)
    again = ("embed s3://bucket/photos --out", f"{out}_index", "--model", model)
    assert ", 0 read now" in command(*again, "--ray", cluster.address, status=1)
    for place, reason in (("s3://bucket/no", "No image is at"), ("zz://x/y", "cannot be listed: ")):
        assert reason in command("predict", model, place, "--ray", cluster.address, status=2)


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
