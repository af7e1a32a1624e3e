"""Weights in several files behind an index, and repositories in the Hugging Face hub's cache."""

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit import create
from keras_vit._base.manifest import sha256
from keras_vit.weights import load, load_weights, save_weights
from keras_vit.weights.containers import shards
from keras_vit.weights.containers.checkpoint_file import file_in_folder, open_container
from keras_vit_cli import commands as cli
from tests.bank import SIZES, fresh, pixels, small
from tests.weights.models import assert_same_weights, refused, saved, stripped

SAFETENSORS = "model.safetensors.index.json"
SECOND, THIRD = (f"model-0000{i}-of-00003.safetensors" for i in (2, 3))


def cut(folder: Path, state: dict[str, Any], save: Callable[[Any, Path], Any], kind: str) -> Path:
    """The tensors in three files and their index, as transformers names them."""
    stem, suffix = kind.removesuffix(".index.json").split(".")
    weight_map = {}
    for i in range(3):
        file = f"{stem}-{i + 1:05}-of-00003.{suffix}"
        part = {name: state[name] for name in sorted(state)[i::3]}
        save(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / kind).write_text(json.dumps(index))
    return folder / kind


def tensors_of(layout: str, folder: Path) -> dict[str, np.ndarray]:
    (folder / "whole").mkdir()
    return load_file(saved(folder / "whole", layout, activation="gelu"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vit").mkdir()
    return cut(tmp_path / "vit", tensors_of("timm", tmp_path), save_file, SAFETENSORS).parent


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


def test_sums_of_all_files_are_compared(folder: Path) -> None:
    sums = "".join(f"{sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir()))
    (folder / "SHA256SUMS").write_text(sums)
    assert_same_weights(load(folder), small(activation="gelu"))
    shard = folder / THIRD
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    refused(r"model-00003-of-00003\.safetensors has SHA-256", load, folder)
    with pytest.raises(ValueError, match=r"sha256= is the sum of one file.*SHA256SUMS"):
        load(folder, sha256=64 * "0")


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


def test_a_shard_that_is_missing_or_no_file(folder: Path) -> None:
    (folder / SECOND).unlink()
    refused(f"lists tensor '.*' in {SECOND}.* beside", load, folder)
    (folder / SECOND).mkdir()
    refused("is a folder", load, folder)
    (folder / SECOND).rmdir()
    os.mkfifo(folder / SECOND)  # opening it would wait forever
    refused("is a named pipe", load, folder)


def test_one_shard_alone_a_damaged_one_and_no_index(folder: Path, tmp_path: Path) -> None:
    alone = "several files, which are opened by their folder"
    refused(alone, load, folder / SECOND, layout="timm")
    refused("There is no model", load, f"no/{SAFETENSORS}", error=FileNotFoundError)
    file = tmp_path / "model.npz.index.json"
    file.write_text('{"weight_map": {"a": "b.npz"}}')
    refused(r"NAME\.safetensors\.index\.json or NAME\.bin", load, file)
    (folder / THIRD).write_bytes((folder / THIRD).read_bytes()[:-40])
    model = fresh()
    refused(THIRD, load_weights, model, folder)
    assert_same_weights(model, small())


missing = partial(refused, error=FileNotFoundError)
COMMIT = "3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3"
REPOSITORY = "models--google--vit-base-patch16-224"
CONFIG = {
    "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 32,
    "num_attention_heads": 4, "hidden_act": "relu", "layer_norm_eps": 1e-12, "image_size": 32,
    "patch_size": 8, "id2label": {str(i): name for i, name in enumerate("abcde")},
}  # fmt: skip


def add_file(repository: Path, name: str, content: bytes, commit: str = COMMIT) -> Path:
    """A file as `hf download` leaves it: large ones are called by their SHA-256."""
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    is_large = name.endswith(".safetensors")
    blob = repository / "blobs" / (hashlib.sha256(content).hexdigest() if is_large else git)
    link = repository / "snapshots" / commit / name
    for folder in (blob.parent, link.parent):
        folder.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link.symlink_to(Path("../../blobs") / blob.name)
    return link


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in the user's home with one repository."""
    monkeypatch.setenv("HOME", str(tmp_path))
    repository = tmp_path / ".cache" / "huggingface" / "hub" / REPOSITORY
    whole = stripped(saved(tmp_path, "huggingface", activation="relu"))
    add_file(repository, "model.safetensors", whole.read_bytes())
    add_file(repository, "config.json", json.dumps(CONFIG).encode())
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / ".no_exist" / COMMIT).mkdir(parents=True)
    return repository


def test_repositories_and_snapshots_open(repository: Path, monkeypatch: Any, capsys: Any) -> None:
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
        assert cli.main(["predict", place, "a.png"]) == 0
        assert "%" in capsys.readouterr().out


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
    damage((repository / "snapshots" / COMMIT / SECOND).resolve())
    refused(f"{SECOND}.*its name in the cache", load, repository)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_blob_that_is_damaged_missing_or_a_device(repository: Path) -> None:
    link, model = file_in_folder(repository), fresh(activation="relu")
    damage(link.resolve())
    refused(r"its name in the cache is .* Delete .*blobs/", load_weights, model, repository)
    assert_same_weights(model, small(activation="relu"))
    link.resolve().unlink()
    for place in (repository, link.parent):
        missing(r"is a link to .*blobs/.*download it again", load, place)
    link.unlink()
    link.symlink_to("/dev/zero")
    refused("is a device", load, repository)
    missing("There is no model", load, "~/no/such/folder")
