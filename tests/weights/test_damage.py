"""Damage: every flipped bit of what this package writes is detected, and files stay whole."""

import hashlib
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_vit import create
from keras_vit._base.manifest import all_files, write_manifest
from keras_vit.weights import load, load_weights, save_weights, verify_sums
from keras_vit.weights.containers import sums
from keras_vit.weights.variables import canonical_values
from keras_vit.weights.writer import WRITERS
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


def test_the_sums_do_not_disturb_other_readers(tmp_path: Path) -> None:
    model = small()
    for name in FORMATS:
        save_weights(model, tmp_path / name, layout=WRITTEN[name][0])
    assert np.load(tmp_path / "m.npz")["cls"].shape == (1, 1, 32)
    assert load_file(tmp_path / "m.safetensors")["cls_token"].shape == (1, 1, 32)
    assert_same_weights(keras.saving.load_model(tmp_path / "m.keras"), model)
    twin = fresh()
    twin.set_weights([0 * w for w in twin.get_weights()])
    twin.load_weights(tmp_path / "m.weights.h5")
    assert_same_weights(twin, model)


def test_a_runs_folder_and_its_sums(tmp_path: Path) -> None:
    message = r"There is no model\.keras or .*the folder of a training run"  # in an empty folder
    for read in (load, partial(load, num_classes=2)):
        refused(message, read, tmp_path, error=FileNotFoundError)
    model = small()
    model.save(tmp_path / "model.keras")
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "a\nb\\.txt").write_text("odd")
    write_manifest(tmp_path, "run", all_files(tmp_path), complete=True)
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
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


def test_a_listed_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, model = saved(tmp_path), small()
    write_manifest(tmp_path, "run", [file.name], complete=True)
    monkeypatch.setattr(sums, "_sum_without", lambda *_: pytest.fail("hashed twice"))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert load_weights(model, file).sha256 == digest
    file.write_bytes(file.read_bytes()[:-1])
    refused("SHA256SUMS", load_weights, model, file)


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


def read_all(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [*FORMATS, "folder"])
def test_a_failed_write_leaves_what_was_there(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / name
    layout = WRITTEN[name][0] if name in WRITTEN else "huggingface"
    save_weights(small(), path, layout)
    contents = read_all(tmp_path)

    def fail(path: Any, *_: Any, **__: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    for suffix in (".npz", ".safetensors"):
        monkeypatch.setitem(WRITERS, suffix, fail)
    model = small(num_classes=3)
    for method in ("save", "save_weights"):
        monkeypatch.setattr(type(model), method, lambda self, path: fail(path))
    refused("No space left on device", save_weights, model, path, layout, error=OSError)
    assert read_all(tmp_path) == contents


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
