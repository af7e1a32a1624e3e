"""Released weights by name, fetched once and verified ever after."""

import base64
import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.weights import cache, catalog, list_weights, load, load_weights
from keras_vit.weights.containers.sums import check_file
from keras_vit.weights.released import Weights
from keras_vit.weights.tables.layouts import LAYOUTS
from tests.bank import fresh, small
from tests.weights.models import assert_same_weights, flips, refused, saved

DINOV2 = {"dinov2", "dinov2_reg4"}


def test_the_table() -> None:
    rows = list_weights()
    for column in ("name", "url", "file_name"):
        assert len({getattr(row, column) for row in rows}) == len(rows) >= 60
    for row in rows:
        assert row.url.startswith("https://")
        assert bool(row.top1) == bool(row.source)
        assert row.layout in LAYOUTS
    guessed = [row.name for row in rows if row.url_is_guessed]
    assert len(guessed) == repr(rows).count("(file name guessed)") == 5
    assert all(name.endswith(":gsam_in1k") for name in guessed)
    (row,) = list_weights("ViT-Ti/16:augreg_in21k_ft_in1k")
    assert row.megabytes == round(5_717_416 * 4 / 1e6)  # of its parameters


# Words match within names; patterns match whole ones, and a model of the name comes first: another
# is R50+ViT-B/16.
@pytest.mark.parametrize(("searched", "column", "expected"), [
    *((word, "model", {"ViT-B/16"}) for word in ("ViT-B/16", "vit-b/16")),
    ("vit-b/16:augreg_in21k", "name", {"ViT-B/16:augreg_in21k"}),
    ("nothing", "name", set()),
    *((word, "tag", {*DINOV2, "hf_dinov2", "hf_dinov2_reg4"}) for word in ("dinov2", "DINOv2")),
    ("dinov2*", "tag", DINOV2),
    ("?inov2", "tag", {"dinov2"}),
    ("?inov", "tag", set()),
    ("hf_dinov2_reg4", "layout", {"huggingface_dinov2_registers"}),
    ("hf_dinov2_reg4", "pixels", {518}),
    ("hf_dinov2_reg4", "num_classes", {0}),
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


def test_bit_flips_are_all_noticed(row: Weights) -> None:
    file = cache.cached_file(row)
    whole = file.read_bytes()
    random = np.random.default_rng(0)
    model = fresh(num_classes=3)
    reads = [lambda: load_weights(model, row.tag), lambda: check_file(cache.cached_file(row))]
    places = random.integers(0, len(whole), 200)
    for i, flipped in enumerate(flips(whole, places, random)):
        file.write_bytes(flipped)
        refused("it is damaged or was replaced", reads[i >= 5])
    assert_same_weights(model, small(num_classes=3))
    file.write_bytes(whole)
    assert cache.cached_file(row) == file


def test_a_file_that_was_deleted_is_downloaded_and_listed_again(row: Weights) -> None:
    cache.cached_file(row).unlink()
    saved(source_of(row).parent, num_classes=7)  # its host has another file by now
    assert load(row.name).num_classes == 7
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
