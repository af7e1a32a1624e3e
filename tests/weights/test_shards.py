"""Weights in several files behind an index: `model.safetensors.index.json`."""

import json
import os
from collections.abc import Callable
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
from keras_vit.weights.containers.checkpoint_file import open_container
from tests.bank import SIZES, fresh, small
from tests.weights.models import assert_same_weights, compare_logits, refused, saved, their_vit

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
    assert_same_weights(load(folder), expected)
    report = load_weights(small(activation="gelu", num_classes=3), folder)
    assert report.fresh == ("head/kernel", "head/bias")
    assert str(folder / SAFETENSORS) in report.file
    assert not report.sha256
    assert_same_weights(create("ViT-Ti/16", weights=folder, **SIZES), expected)
    # One whole file comes before shards.
    save_weights(small(activation="gelu", num_classes=2), folder / "model.safetensors", "timm")
    assert load(folder).num_classes == 2


def test_bin_shards(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {k: torch.as_tensor(v) for k, v in tensors_of("huggingface", tmp_path).items()}
    index = cut(tmp_path, state, torch.save, "pytorch_model.bin.index.json")
    for file in (tmp_path, index):
        assert_same_weights(load(file), small(activation="gelu"))
    torch.save(keras.Model, tmp_path / "pytorch_model-00002-of-00003.bin")  # a Python object
    refused("could run code", load, tmp_path)


def test_what_transformers_writes(tmp_path: Path) -> None:
    theirs = their_vit(num_labels=3)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    model = load(tmp_path, include_preprocessing=False)
    assert (model.num_heads, model.norm_epsilon, model.num_classes) == (4, 1e-12, 3)
    compare_logits(model, theirs)


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


def test_a_missing_shard(folder: Path) -> None:
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
