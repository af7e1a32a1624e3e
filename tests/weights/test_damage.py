"""Every flipped bit of what is written or downloaded is detected; released weights; shards."""

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit import create
from keras_vit._base.manifest import all_files, sha256, write_manifest
from keras_vit.weights import cache, catalog, load, load_weights, save_weights, verify_sums
from keras_vit.weights.containers import shards
from keras_vit.weights.containers.checkpoint_file import file_in_folder, open_container
from keras_vit.weights.released import Weights
from keras_vit.weights.tables.layouts import LAYOUTS
from keras_vit.weights.variables import canonical_values
from tests.bank import SIZES, fresh, pixels, small
from tests.data.image_fixtures import write
from tests.weights.models import assert_same_weights, flips, refused, saved, stripped

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
    before, random = canonical_values(model), np.random.default_rng(count)
    # Headers, directories and the sums themselves lie at both ends.
    ends = [*range(1000), *range(len(whole) - 1000, len(whole))]
    places = [*random.choice(ends, count // 3), *random.integers(0, len(whole), count - count // 3)]
    for i, flipped in enumerate(flips(whole, places, random)):
        file.write_bytes(flipped)
        read = partial(load_weights, model) if i % 4 else load
        refused(name, read, file)
    np.testing.assert_equal(canonical_values(model), before)
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
    rows = catalog.list_weights()
    for column in ("name", "url", "file_name"):
        assert len({getattr(row, column) for row in rows}) == len(rows) >= 60
    for row in rows:
        assert row.url.startswith("https://")
        assert bool(row.top1) == bool(row.source)
        assert row.layout in LAYOUTS
    assert repr(rows).count("(file name guessed)") == sum(row.url_is_guessed for row in rows) > 0
    (row,) = catalog.list_weights("ViT-Ti/16:augreg_in21k_ft_in1k")
    assert row.megabytes == round(5_717_416 * 4 / 1e6)  # of its parameters


# Words match within names, patterns whole ones; the model of the name is first, as R50+ViT-B/16.
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
    assert {getattr(row, column) for row in catalog.list_weights(searched)} == expected


@pytest.fixture
def row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
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
    part = {f"part-{row.file_name}": b"half of a download, which is not used"}
    folder = write(cache.cache_folder(), part)
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


SAFETENSORS = "model.safetensors.index.json"
SECOND, THIRD = (f"model-0000{i}-of-00003.safetensors" for i in (2, 3))


def cut(folder: Path, state: dict[str, Any], save: Callable[[Any, Path], Any], kind: str) -> Path:
    folder.mkdir(exist_ok=True)
    stem, suffix = kind.removesuffix(".index.json").split(".")
    weight_map = {}
    for i in range(3):
        file = f"{stem}-{i + 1:05}-of-00003.{suffix}"
        part = {name: state[name] for name in sorted(state)[i::3]}
        save(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    return write(folder, {kind: json.dumps(index).encode()}) / kind


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = load_file(saved(tmp_path, "timm", activation="gelu"))
    return cut(tmp_path / "vit", tensors, save_file, SAFETENSORS).parent


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    index = folder / SAFETENSORS
    content = json.loads(index.read_text())
    index.write_text(json.dumps({**content, "weight_map": change(content["weight_map"])}))


def open_files() -> set[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.lexists(link)}


def test_a_folder_and_its_index_open_as_one_file(folder: Path) -> None:
    expected = small(activation="gelu")
    for file in (folder, folder / SAFETENSORS, str(folder)):
        assert_same_weights(load(file), expected)
    report = load_weights(small(activation="gelu", num_classes=3), folder)
    assert report.fresh == ("head/kernel", "head/bias")
    assert str(folder / SAFETENSORS) in report.file
    assert not report.sha256
    assert_same_weights(create("ViT-Ti/16", weights=folder, **SIZES), expected)
    # One whole file comes before shards.
    save_weights(small(activation="gelu", num_classes=2), folder / "model.safetensors", "timm")
    assert load(folder).num_classes == 2


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="Linux shows open files")
def test_nothing_is_read_before_it_is_asked_for_and_all_is_closed(folder: Path) -> None:
    before = open_files()
    with open_container(folder / SAFETENSORS) as container:
        assert len(container.tensors) > 20
        assert sum(file.endswith(".safetensors") for file in open_files()) == 3
        assert container.tensors["head.bias"].read().shape == (5,)
    assert open_files() <= before
    load(folder)
    edit(folder, without_head)
    refused(f"{HOLDS} nowhere", load, folder)
    assert open_files() <= before


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"?")


def test_sums_of_all_files_are_compared(folder: Path) -> None:
    sums = "".join(f"{sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir()))
    (folder / "SHA256SUMS").write_text(sums)
    assert_same_weights(load(folder), small(activation="gelu"))
    damage(folder / THIRD)
    refused(r"model-00003-of-00003\.safetensors has SHA-256", load, folder)
    refused("sha256= is the sum of one file", load, folder, sha256=64 * "0", error=ValueError)


OUTSIDE = [
    *("../vit/model-00001-of-00003.safetensors", "sub/model-00001-of-00003.safetensors"),
    *("/etc/model.safetensors", "..\\model.safetensors", "C:model.safetensors", "..", ""),
    *(".hidden.safetensors", "model.safetensors\0", "model-00001-of-00003.bin", "model.npz"),
    *("модель.safetensors", 3, None, ["model.safetensors"], {"a": "b"}),
]


def without_head(weight_map: dict[str, Any]) -> dict[str, Any]:
    return {name: file for name, file in weight_map.items() if name != "head.bias"}


MANY = {f"t{i}": f"s{i}.safetensors" for i in range(shards.MOST_SHARDS)}
MORE = r"lists tensor 'extra' in model.*, and 1 more"
HOLDS, NO_LIST = r"holds tensor 'head\.bias', which .* lists", "is not a list of tensors"
OUTSIDE_NAME = r"'head\.bias' in .* not the name of a"
# Lists of tensors, and texts in place of the index, with what the error says.
INDEXES: list[tuple[Callable[[dict[str, Any]], Any] | str, str]] = [
    *((lambda w, f=f: {**w, "head.bias": f}, OUTSIDE_NAME) for f in OUTSIDE),
    (lambda w: {**w, **MANY}, "lists 259 files: from 1 to 256"),
    (without_head, f"{HOLDS} nowhere"),
    (lambda w: {**w, "head.bias": min({*w.values()} - {w["head.bias"]})}, f"{HOLDS} in model"),
    (lambda w: w | dict.fromkeys(("extra", "more"), w["head.bias"]), MORE),
    *((text, NO_LIST) for text in ("", "{", "[]", "{}", "\udcff", "[" * 100_000)),
    *((f'{{"weight_map": {value}}}', NO_LIST) for value in ("[]", "7")),
    ('{"weight_map": {}}', "lists 0 files"),
    (" " * (2**22 + 1), "is 4,194,305 bytes long"),
]


@pytest.mark.parametrize(("index", "message"), INDEXES, ids=range(len(INDEXES)))
def test_hostile_and_damaged_indexes(index: Any, message: str, folder: Path) -> None:
    if isinstance(index, str):
        (folder / SAFETENSORS).write_bytes(os.fsencode(index))
    else:
        edit(folder, index)
    said = refused(message, load, folder)
    assert SAFETENSORS in said
    assert "\n" not in said


def test_shards_that_are_alone_damaged_missing_or_no_file(folder: Path, tmp_path: Path) -> None:
    alone = "several files, which are opened by their folder"
    refused(alone, load, folder / SECOND, layout="timm")
    refused("There is no model", load, f"no/{SAFETENSORS}", error=FileNotFoundError)
    file = tmp_path / "model.npz.index.json"
    file.write_text('{"weight_map": {"a": "b.npz"}}')
    refused(r"NAME\.safetensors\.index\.json or NAME\.bin", load, file)
    whole, model = (folder / THIRD).read_bytes(), fresh()
    (folder / THIRD).write_bytes(whole[:-40])
    refused(THIRD, load_weights, model, folder)
    assert_same_weights(model, small())
    (folder / THIRD).write_bytes(whole)
    (folder / SECOND).unlink()
    refused(f"lists tensor '.*' in {SECOND}.* beside", load, folder)
    (folder / SECOND).mkdir()
    refused("is a folder", load, folder)
    (folder / SECOND).rmdir()
    os.mkfifo(folder / SECOND)  # opening it would wait forever
    refused("is a named pipe", load, folder)


missing = partial(refused, error=FileNotFoundError)
COMMIT = "3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3"
REPOSITORY = "models--google--vit-base-patch16-224"
CONFIG = {
    "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 32,
    "num_attention_heads": 4, "hidden_act": "relu", "layer_norm_eps": 1e-12, "image_size": 32,
    "patch_size": 8, "id2label": {str(i): name for i, name in enumerate("abcde")},
}  # fmt: skip


def add_file(repository: Path, name: str, content: bytes, commit: str = COMMIT) -> Path:
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    is_large = name.endswith(".safetensors")
    blob = repository / "blobs" / (hashlib.sha256(content).hexdigest() if is_large else git)
    link = repository / "snapshots" / commit / name
    write(blob.parent, {blob.name: content})
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(Path("../../blobs") / blob.name)
    return link


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    repository = tmp_path / ".cache" / "huggingface" / "hub" / REPOSITORY
    whole = stripped(saved(tmp_path, "huggingface", activation="relu"))
    add_file(repository, "model.safetensors", whole.read_bytes())
    add_file(repository, "config.json", json.dumps(CONFIG).encode())
    write(repository, {"refs/main": COMMIT.encode()})
    (repository / ".no_exist" / COMMIT).mkdir(parents=True)
    return repository


def test_repositories_and_snapshots_open(repository: Path, monkeypatch: Any, command: Any) -> None:
    snapshot = repository / "snapshots" / COMMIT
    home = f"~/.cache/huggingface/hub/{REPOSITORY}"
    for place in (repository, snapshot, snapshot / "model.safetensors", home, Path(home)):
        model = load(place)
        assert_same_weights(model, small(activation="relu"))
        assert (model.activation, model.class_names) == ("relu", tuple("abcde"))
    load_weights(small(), home)
    monkeypatch.chdir(repository.parent)
    assert load(REPOSITORY).num_classes == 5
    keras.utils.save_img("a.png", pixels(40, 40, 3))
    for place in (str(repository), home):
        assert "%" in command("predict", place, "a.png")


def test_main_is_the_snapshot_that_counts(repository: Path) -> None:
    other, main = "a" * 40, repository / "refs" / "main"
    main.unlink()  # the only one counts
    assert_same_weights(load(repository), small(activation="relu"))
    main.write_text(COMMIT)
    add_file(repository, "config.json", b"{}", other)
    assert file_in_folder(repository).parent.name == COMMIT
    main.write_text(f"{other}\n")
    missing(rf"There is no model\.keras .* in '.*{other}'", load, repository)
    for commit in ("b" * 40, "../..", "..", "", "x" * 1000):
        main.write_text(commit)
        missing(f"not name one .*{COMMIT}, {other}", load, repository)


def test_shards_in_the_cache(repository: Path) -> None:
    state = load_file(file_in_folder(repository))
    file_in_folder(repository).unlink()
    for file in cut(repository, state, save_file, SAFETENSORS).parent.glob("*model*"):
        add_file(repository, file.name, file.read_bytes())
    assert_same_weights(load(repository), small(activation="relu"))
    damage(repository / "snapshots" / COMMIT / SECOND)
    refused(f"{SECOND}.*its name in the cache", load, repository)


def test_a_blob_that_is_damaged_missing_or_a_device(repository: Path) -> None:
    link, model = file_in_folder(repository), fresh(activation="relu")
    damage(link)
    refused(r"its name in the cache is .* Delete .*blobs/", load_weights, model, repository)
    assert_same_weights(model, small(activation="relu"))
    link.resolve().unlink()
    for place in (repository, link.parent):
        missing(r"is a link to .*blobs/.*download it again", load, place)
    link.unlink()
    link.symlink_to("/dev/zero")
    refused("is a device", load, repository)
    missing("There is no model", load, "~/no/such/folder")
