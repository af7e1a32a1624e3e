"""Weights in several files behind an index: `model.safetensors.index.json`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import create
from keras_vit.weights import (
    CheckpointError,
    from_checkpoint,
    load_model,
    load_weights,
    save_weights,
)
from keras_vit.weights.containers import shards
from keras_vit.weights.containers.checkpoint_file import open_container
from keras_vit_cli import commands as cli
from tests.weights.models import assert_same_weights, outputs, pixels, saved, small

SAFETENSORS = "model.safetensors.index.json"
BIN = "pytorch_model.bin.index.json"


def cut(folder: Path, state: dict[str, Any], save: Callable[[Any, Path], Any], kind: str) -> Path:
    """The tensors in three files and their index, as transformers names them."""
    stem, suffix = kind.removesuffix(".index.json").split(".")
    names, weight_map = sorted(state), {}
    for i in range(3):
        file = f"{stem}-{i + 1:05}-of-00003.{suffix}"
        part = names[i::3]
        save({name: state[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = folder / kind
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def tensors_of(layout: str, folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    whole = folder / "whole"
    whole.mkdir()
    return load_file(saved(whole, layout, activation="gelu"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`small()` in three safetensors files."""
    from safetensors.numpy import save_file

    folder = tmp_path / "vit"
    folder.mkdir()
    cut(folder, tensors_of("timm", tmp_path), save_file, SAFETENSORS)
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    index = folder / SAFETENSORS
    content = json.loads(index.read_text())
    change(content["weight_map"])
    index.write_text(json.dumps(content))


def open_files() -> set[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.lexists(link)}


def test_a_folder_and_its_index_open_as_one_file(folder: Path) -> None:
    expected = small(activation="gelu")
    for file in (folder, folder / SAFETENSORS, str(folder)):
        assert_same_weights(from_checkpoint(file), expected)
    assert_same_weights(load_model(folder), expected)
    model = small(activation="gelu", num_classes=3)
    report = load_weights(model, folder)
    assert report.fresh == ("head/kernel", "head/bias")
    assert str(folder / SAFETENSORS) in report.file
    assert not report.sha256


def test_weights_argument_takes_it(folder: Path) -> None:
    sizes = {"hidden_dim": 32, "depth": 2, "num_heads": 4, "mlp_dim": 48, "patch_size": 8}
    model = create("ViT-Ti/16", weights=folder, num_classes=5, input_shape=(32, 32, 3), **sizes)
    assert_same_weights(model, small(activation="gelu"))


def test_bin_shards(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {k: torch.as_tensor(v) for k, v in tensors_of("huggingface", tmp_path).items()}
    index = cut(tmp_path, state, torch.save, BIN)
    expected = small(activation="gelu")
    assert_same_weights(from_checkpoint(tmp_path), expected)
    assert_same_weights(from_checkpoint(index), expected)
    torch.save(keras.Model, tmp_path / "pytorch_model-00002-of-00003.bin")  # a Python object
    with pytest.raises(CheckpointError, match="could run code"):
        from_checkpoint(tmp_path)


def test_what_transformers_writes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        image_size=32, patch_size=8, num_labels=3,
    )  # fmt: skip
    theirs = transformers.ViTForImageClassification(config).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    model = from_checkpoint(tmp_path, include_preprocessing=False)
    assert (model.num_heads, model.norm_epsilon, model.num_classes) == (4, 1e-12, 3)
    images = np.random.default_rng(0).normal(0, 1, (2, 32, 32, 3)).astype("float32")
    with torch.no_grad():
        logits = theirs(torch.as_tensor(images.transpose(0, 3, 1, 2).copy())).logits.numpy()
    np.testing.assert_allclose(outputs(model, images), logits, atol=1e-5)


def test_commands_take_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = folder.parent / "one.npz"
    assert cli.main(["convert", str(folder), str(one), "--layout", "google"]) == 0
    assert "loaded" in capsys.readouterr().out
    assert_same_weights(from_checkpoint(one), small(activation="gelu"))
    image = pytest.importorskip("PIL.Image")
    image.fromarray(pixels(40, 40, 3)).save(folder.parent / "a.png")
    for model in (folder, folder / SAFETENSORS):
        words = ["inspect", str(model), str(folder.parent / "a.png")]
        out = folder.parent / f"page{len(model.name)}"
        assert cli.main([*words, "--out", str(out)]) == 0
        assert (out / "index.html").is_file()
    assert cli.main(["predict", str(folder), str(folder.parent / "a.png")]) == 0


def test_one_whole_file_comes_before_shards(folder: Path) -> None:
    save_weights(small(activation="gelu", num_classes=2), folder / "model.safetensors", "timm")
    assert from_checkpoint(folder).num_classes == 2


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="Linux shows open files")
def test_nothing_is_read_before_it_is_asked_for_and_all_is_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_files()
    with open_container(folder / SAFETENSORS) as container:
        assert len(container.tensors) > 20
        opened = [file for file in open_files() if file.endswith(".safetensors")]
        assert len(opened) == 3
        name = "head.bias"
        assert container.tensors[name].read().shape == (5,)
    assert open_files() <= before
    from_checkpoint(folder)
    edit(folder, lambda weight_map: weight_map.pop("head.bias"))
    with pytest.raises(CheckpointError):
        from_checkpoint(folder)
    assert open_files() <= before


def test_sums_of_all_files_are_compared(folder: Path) -> None:
    from keras_vit._base.manifest import sha256

    names = [file.name for file in sorted(folder.iterdir())]
    sums = "".join(f"{sha256(folder / name)}  {name}\n" for name in names)
    (folder / "SHA256SUMS").write_text(sums)
    assert_same_weights(from_checkpoint(folder), small(activation="gelu"))
    shard = folder / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match=r"model-00003-of-00003\.safetensors has SHA-256"):
        from_checkpoint(folder)
    with pytest.raises(ValueError, match=r"sha256= is the sum of one file.*SHA256SUMS"):
        from_checkpoint(folder, sha256=64 * "0")


# Damaged and hostile ones


@pytest.mark.parametrize(
    "file",
    [
        "../vit/model-00001-of-00003.safetensors",
        "/etc/model.safetensors",
        "sub/model-00001-of-00003.safetensors",
        "..\\model.safetensors",
        "C:model.safetensors",
        "..",
        "",
        ".hidden.safetensors",
        "model.safetensors\0",
        "model-00001-of-00003.bin",
        "model.npz",
        "модель.safetensors",
        3,
        None,
        ["model.safetensors"],
        {"a": "b"},
    ],
    ids=repr,
)
def test_shards_outside_the_folder_are_refused(file: Any, folder: Path) -> None:
    edit(folder, lambda weight_map: weight_map.update({"head.bias": file}))
    with pytest.raises(CheckpointError, match=r"'head\.bias' in .* not the name of a") as raised:
        from_checkpoint(folder)
    assert SAFETENSORS in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a list of tensors"),
        ("{", "is not a list of tensors"),
        ("[]", "is not a list of tensors"),
        ("{}", "is not a list of tensors"),
        ('{"weight_map": []}', "is not a list of tensors"),
        ('{"weight_map": 7}', "is not a list of tensors"),
        ('{"weight_map": {}}', "lists 0 files"),
        ("\udcff", "is not a list of tensors"),
        ("[" * 100_000, "is not a list of tensors"),
        (" " * (2**22 + 1), "is 4,194,305 bytes long"),
    ],
    ids=[*"abcdefghij"],
)
def test_a_damaged_index(text: str, message: str, folder: Path) -> None:
    (folder / SAFETENSORS).write_bytes(os.fsencode(text))
    with pytest.raises(CheckpointError, match=message) as raised:
        from_checkpoint(folder)
    assert SAFETENSORS in str(raised.value)


def test_too_many_files(folder: Path) -> None:
    def many(weight_map: dict[str, str]) -> None:
        weight_map.update({f"t{i}": f"s{i}.safetensors" for i in range(shards.MOST_SHARDS)})

    edit(folder, many)
    with pytest.raises(CheckpointError, match="lists 259 files: from 1 to 256"):
        from_checkpoint(folder)


def test_a_missing_shard(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"lists tensor '.*' in model-00002-of-00003.* beside"
    ):
        from_checkpoint(folder)
    (folder / "model-00002-of-00003.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="is a folder"):
        from_checkpoint(folder)
    (folder / "model-00002-of-00003.safetensors").rmdir()
    os.mkfifo(folder / "model-00002-of-00003.safetensors")  # opening it would wait forever
    with pytest.raises(CheckpointError, match="is a named pipe"):
        from_checkpoint(folder)


def test_index_and_shards_that_differ(folder: Path) -> None:
    def move(weight_map: dict[str, str]) -> None:
        files = sorted({*weight_map.values()})
        others = [file for file in files if file != weight_map["head.bias"]]
        weight_map["head.bias"] = others[0]

    index = (folder / SAFETENSORS).read_text()
    edit(folder, lambda weight_map: weight_map.pop("head.bias"))
    with pytest.raises(CheckpointError, match=r"holds tensor 'head\.bias', which .* lists nowhere"):
        from_checkpoint(folder)
    (folder / SAFETENSORS).write_text(index)
    edit(folder, move)
    with pytest.raises(
        CheckpointError, match=r"holds tensor 'head\.bias', which .* lists in model"
    ):
        from_checkpoint(folder)
    (folder / SAFETENSORS).write_text(index)
    edit(folder, lambda w: w.update({"extra": w["head.bias"], "more": w["head.bias"]}))
    with pytest.raises(CheckpointError, match=r"lists tensor 'extra' in model.*, and 1 more"):
        from_checkpoint(folder)


def test_a_damaged_shard_leaves_the_model_as_it_was(folder: Path) -> None:
    model, before = small(), small()
    shard = folder / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=r"model-00003-of-00003\.safetensors"):
        load_weights(model, folder)
    assert_same_weights(model, before)


def test_one_shard_alone_is_explained(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="several files, which are opened by their folder"):
        from_checkpoint(folder / "model-00002-of-00003.safetensors", layout="timm")


def test_an_index_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no file"):
        from_checkpoint(f"no/{SAFETENSORS}")
    (tmp_path / "model.npz.index.json").write_text('{"weight_map": {"a": "b.npz"}}')
    with pytest.raises(CheckpointError, match=r"NAME\.safetensors\.index\.json or NAME\.bin"):
        from_checkpoint(tmp_path / "model.npz.index.json")
