"""Sums: every flipped bit of what is written or downloaded is detected; released weights."""

import base64
import hashlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit import create
from keras_vit._base.manifest import all_files, write_manifest
from keras_vit.weights import (
    cache,
    catalog,
    list_weights,
    load,
    load_weights,
    save_weights,
    verify_sums,
)
from keras_vit.weights.released import Weights
from keras_vit.weights.tables.layouts import LAYOUTS
from keras_vit.weights.variables import canonical_values
from tests.bank import SIZES, fresh, small
from tests.weights.models import assert_same_values, assert_same_weights, flips, refused, saved

GIANT = {"layer_scale": 0.5, "activation": "swiglu", "num_classes": 0}
# Every layout that is written, in every container.
WRITTEN: dict[str, tuple[str | None, dict[str, Any]]] = {
    "m.npz": ("google", {}),
    "big_vision.npz": ("big_vision", {"pooling": "gap"}),
    "m.safetensors": ("timm", {}),
    "hf.safetensors": ("huggingface", {}),
    "dinov2.safetensors": ("huggingface_dinov2", GIANT),
    "m.keras": (None, {}),
    "m.weights.h5": (None, {}),
}
FORMATS = ("m.npz", "m.safetensors", "m.keras", "m.weights.h5")


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_detected(name: str, count: int, tmp_path: Path) -> None:
    layout, changes = WRITTEN[name]
    model, file = small(**changes), tmp_path / name
    save_weights(model, file, layout=layout)
    whole = file.read_bytes()
    load_weights(model, file)
    before = canonical_values(model)
    random = np.random.default_rng(count)
    # Headers, directories and the sums themselves lie at both ends.
    ends = [*range(1000), *range(len(whole) - 1000, len(whole))]
    places = [*random.choice(ends, count // 3), *random.integers(0, len(whole), count - count // 3)]
    for i, flipped in enumerate(flips(whole, places, random)):
        file.write_bytes(flipped)
        read = partial(load_weights, model) if i % 4 else load
        refused(name, read, file)
    assert_same_values(model, before)
    file.write_bytes(whole)
    load_weights(model, file)


def test_a_runs_folder_and_its_sums(tmp_path: Path) -> None:
    message = r"There is no model\.keras or .*the folder of a training run"  # in an empty folder
    for read in (load, partial(load, num_classes=2)):
        refused(message, read, tmp_path, error=FileNotFoundError)
    model = small()
    model.save(tmp_path / "model.keras")
    write_manifest(tmp_path, "run", all_files(tmp_path), complete=True)
    assert_same_weights(load(tmp_path), model)
    verify_sums(tmp_path / "model.keras")

    small(num_classes=3).save(tmp_path / "other.keras")  # added later, and not listed
    assert load(tmp_path / "other.keras").num_classes == 3
    os.replace(tmp_path / "other.keras", tmp_path / "model.keras")
    refused("delete SHA256SUMS if you replaced it", load, tmp_path)
    (tmp_path / "SHA256SUMS").unlink()
    write_manifest(tmp_path, "run", all_files(tmp_path), complete=True)
    sums = (tmp_path / "SHA256SUMS").read_bytes()
    place = sums.index(b"model.keras")
    for at in range(place - 66, place + 12):
        (tmp_path / "SHA256SUMS").write_bytes(sums[:at] + bytes([sums[at] ^ 4]) + sums[at + 1 :])
        refused("SHA256SUMS", load, tmp_path)


def test_the_sum_that_the_caller_gives(tmp_path: Path) -> None:
    file, model = saved(tmp_path), fresh()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert load_weights(model, file, sha256=digest.upper()).sha256 == digest
    assert load(file, sha256=digest).load_report.sha256 == digest
    # A file of another program carries no sum: the report has it, for the user to note.
    np.savez(file, **np.load(file))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"\n  sha256   {digest}" in str(load_weights(model, file))
    named = partial(create, "ViT-Ti/16", weights=file, **SIZES)
    assert_same_weights(named(sha256=digest), small())
    into = partial(load_weights, model)
    for read in (named, partial(into, file), partial(load, file)):
        refused(f"has SHA-256 {digest}, not", read, sha256="0" * 64)
        refused("64 hexadecimal digits", read, sha256="abc", error=ValueError)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(value: float, tmp_path: Path) -> None:
    model = small()
    kernel = model.get_layer("head").kernel
    kernel.assign(np.full(kernel.shape, value))
    model.save(tmp_path / "model.keras")
    refused("NaN or infinity in head/kernel: the training", load, tmp_path)
    save_weights(model, tmp_path / "m.safetensors", "timm")
    refused(r"'head.weight' holds (nan|inf)", load, tmp_path / "m.safetensors")


@pytest.mark.parametrize("name", FORMATS)
def test_only_own_files_are_replaced(tmp_path: Path, name: str) -> None:
    layout, file, model = WRITTEN[name][0], tmp_path / name, small()
    kept = partial(refused, error=FileExistsError)
    file.write_bytes(b"somebody's")
    kept("was not written by keras_vit", save_weights, model, file, layout)
    assert file.read_bytes() == b"somebody's"
    file.unlink()
    save_weights(model, file, layout)
    written = file.read_bytes()
    kept("overwrite=True", save_weights, model, file, layout, overwrite=False)
    assert file.read_bytes() == written
    save_weights(model, file, layout)


DINOV2 = {"dinov2", "dinov2_reg4"}


def test_the_table() -> None:
    rows = list_weights()
    for column in ("name", "url", "file_name"):
        assert len({getattr(row, column) for row in rows}) == len(rows) >= 60
    for row in rows:
        assert row.url.startswith("https://")
        assert bool(row.top1) == bool(row.source)
        assert row.layout in LAYOUTS
    assert repr(rows).count("(file name guessed)") == sum(row.url_is_guessed for row in rows) > 0
    (row,) = list_weights("ViT-Ti/16:augreg_in21k_ft_in1k")
    assert row.megabytes == round(5_717_416 * 4 / 1e6)  # of its parameters


# Words match within names; patterns match whole ones, and a model of the name comes first: another
# is R50+ViT-B/16.
@pytest.mark.parametrize(("searched", "column", "expected"), [
    *((word, "model", {"ViT-B/16"}) for word in ("ViT-B/16", "vit-b/16")),
    ("vit-b/16:augreg_in21k", "name", {"ViT-B/16:augreg_in21k"}),
    *((word, "tag", {*DINOV2, "hf_dinov2", "hf_dinov2_reg4"}) for word in ("dinov2", "DINOv2")),
    ("dinov2*", "tag", DINOV2),
    ("?inov2", "tag", {"dinov2"}),
    ("?inov", "tag", set()),
    ("hf_dinov2_reg4", "layout", {"huggingface_dinov2_registers"}),
    ("B/16:sam_in1k", "model", {"ViT-B/16", "Mixer-B/16"}),
])  # fmt: skip
def test_searches(searched: str, column: str, expected: set[Any]) -> None:
    assert {getattr(row, column) for row in list_weights(searched)} == expected


@pytest.fixture
def row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """A file in place of a released one: a small model at a file:// address, an empty cache."""
    (tmp_path / "bucket").mkdir()
    url = saved(tmp_path / "bucket").as_uri()
    row = Weights("tiny_in1k", "ViT-Ti/8", url, "google", 32, 5)
    monkeypatch.setattr(catalog, "RELEASED", (row,))
    monkeypatch.setattr(catalog, "_fits", lambda row, model: model.hidden_dim == 32)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    return row


def source_of(row: Weights) -> Path:
    return Path(row.url.removeprefix("file://"))


def test_a_tag_is_fetched_once(row: Weights) -> None:
    folder = cache.cache_folder()
    folder.mkdir(parents=True)
    (folder / f"part-{row.file_name}").write_bytes(b"half of a download, which is not used")
    assert_same_weights(load("ViT-Ti/8:tiny_in1k"), small())
    assert not (folder / f"part-{row.file_name}").exists()
    source_of(row).unlink()  # from now on the cache must do
    assert load_weights(small(num_classes=3), row.tag).fresh == ("head/kernel", "head/bias")
    assert {path.name for path in folder.iterdir()} == {"SHA256SUMS", "ViT-Ti_8.tiny_in1k.npz"}


def test_a_file_that_is_damaged_or_deleted(row: Weights) -> None:
    file, random = cache.cached_file(row), np.random.default_rng(0)
    whole = file.read_bytes()
    for flipped in flips(whole, random.integers(0, len(whole), 9), random):
        file.write_bytes(flipped)
        refused("it is damaged or was replaced", load_weights, small(num_classes=3), row.tag)
    file.unlink()
    saved(source_of(row).parent, num_classes=7)  # its host has another file by now
    assert load(row.name).num_classes == 7  # downloaded and listed again
    sums = cache.cache_folder() / "SHA256SUMS"
    assert len(sums.read_text().splitlines()) == 1
    sums.write_text("no sum")
    refused(r"SHA256SUMS is not a SHA-256 sum .* Delete", load, row.name)


@pytest.fixture
def host(row: Weights, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Headers of a host of the same file, like Hugging Face's or Google's: these have its sum."""
    content = source_of(row).read_bytes()
    published: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            redirects = "X-Linked-ETag" in published and self.path != "/store.npz"
            self.send_response(302 if redirects else 200)
            if redirects:
                self.send_header("Location", "/store.npz")
            for name, value in published.items() if self.path != "/store.npz" else ():
                self.send_header(name, value)
            self.send_header("Content-Length", "0" if redirects else str(len(content)))
            self.end_headers()
            if self.command == "GET" and not redirects:
                self.wfile.write(content)

        do_GET = do_HEAD

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/model.npz"
        monkeypatch.setattr(catalog, "RELEASED", (replace(row, url=url),))
        yield published
        server.shutdown()


def test_a_download_is_held_against_the_sum_of_its_host(host: Any, row: Weights) -> None:
    content = source_of(row).read_bytes()
    sha256, md5 = hashlib.sha256(content).hexdigest(), hashlib.md5(content).digest()
    google = f"crc32c=AAAAAA==,md5={base64.b64encode(md5).decode()}"
    for headers in ({"X-Linked-ETag": f'"{sha256}"'}, {"x-goog-hash": google}, {}):
        host.clear()
        host.update(headers)
        assert_same_weights(load(row.name), small())
        (cache.cache_folder() / row.file_name).unlink()
    google = f"md5={base64.b64encode(bytes(16)).decode()}"
    for headers in ({"X-Linked-ETag": f'"{"0" * 64}"'}, {"x-goog-hash": google}):
        host.clear()
        host.update(headers)
        refused("the download is damaged", load, row.name)
        assert not list(cache.cache_folder().glob("*.npz"))


def test_offline_the_error_says_what_to_download_and_where_to_put_it(row: Weights) -> None:
    content = source_of(row).read_bytes()
    source_of(row).write_text("<html>404</html>")  # no file of weights
    refused(".", load, row.name)
    assert not list(cache.cache_folder().glob("*.npz"))
    source_of(row).unlink()
    message = refused(re.escape(row.url), load, row.name, error=FileNotFoundError)
    assert "\n" not in message
    place = cache.cache_folder() / row.file_name
    assert str(place) in message
    place.write_bytes(content)  # as the message asks
    assert_same_weights(load(row.name), small())


def test_misspelled_tags_propose_the_nearest() -> None:
    model = small(hidden_dim=192, num_heads=3, depth=12, patch_size=16)  # ViT-Ti/16
    for message, *call in (
        ("Did you mean 'augreg_in21k'", load_weights, model, "augreg_21k"),
        (r"were released for .*ViT-S/14, .*not for a model", load_weights, model, "dinov2"),
        ("Did you mean 'ViT-B/16:augreg_in21k'", load, "ViT-B/16:augreg_in21"),
        (r"'ViT-.*:orig_in21k'", load, "orig_in21k"),
    ):
        refused(message, *call, error=ValueError)
