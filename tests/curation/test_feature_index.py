"""The format of an index, what is refused, and what a second or a killed call computes."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from keras_vit._base.manifest import MANIFEST
from keras_vit.curation import DamagedIndexError, FeatureIndex, IndexMismatchError, embed, index_of
from keras_vit.curation import embedding as module
from keras_vit.curation.photo_encoder import Encoder
from keras_vit.evaluation.prediction import read_images
from keras_vit.models import ImageModel
from tests.backend import refused
from tests.bank import TINY, fresh, outputs, pixels
from tests.data.image_fixtures import encode, write

FILES = ("features.safetensors", "files.jsonl", "index.json", "modified.npy", MANIFEST)


def build() -> ImageModel:
    return fresh(**TINY | {"patch_size": 4, "input_shape": (8, 8, 3)})


@pytest.fixture(scope="module")
def model() -> Iterator[ImageModel]:
    """One encoder per model and arguments: each one of its own would be compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Encoder", cache(Encoder))
        yield build()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 images of two classes, one of them damaged, none of them like another."""
    images = [encode(Image.fromarray(image), "PNG") for image in pixels(23, 12, 10, 3)]
    files = {f"{('rose', 'daisy')[i % 2]}/{i:02d}.png": image for i, image in enumerate(images)}
    damaged = {"rose/04.png": b"not an image", "daisy/notes.txt": b"not an image, either"}
    return write(tmp_path_factory.mktemp("library"), files | damaged)


@pytest.fixture
def photos(library: Path, tmp_path: Path) -> Path:
    return shutil.copytree(library, tmp_path / "photos")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.every_backend
def test_rows_are_the_features_of_the_files_in_order(model: Any, photos: Path) -> None:
    index = embed(model, photos, photos.parent / "index", dtype="float32", batch_size=4)
    names = sorted(p.relative_to(photos).as_posix() for p in photos.rglob("*.png"))
    names.remove("rose/04.png")
    assert (list(index.files), list(index.unreadable)) == (names, ["rose/04.png"])
    assert index.class_names == ("daisy", "rose")
    assert index.info["left_out"] == {".txt": 1}
    assert [index.class_names[label] for label in index.labels] == [n.split("/")[0] for n in names]
    images, failed = read_images(model, [index.path(i) for i in range(len(index))])
    assert not failed
    expected = outputs(model.feature_model("pre_logits"), images)
    np.testing.assert_allclose(index.rows(), expected, atol=2e-6)
    tensors = safetensors.numpy.load_file(index.folder / "features.safetensors")
    np.testing.assert_array_equal(tensors["features"], index.features)
    files = [photos / "rose/00.png"]
    tokens = outputs(model.feature_model("block_0"), read_images(model, files)[0])
    for pooling, expected in (("token", tokens[:, 0]), ("mean", tokens[:, 1:].mean(axis=1))):
        index = embed(model, files, photos.parent / pooling, "block_0", "float32", pooling=pooling)
        np.testing.assert_allclose(index.rows(), expected, atol=2e-6)


def test_a_second_call_computes_the_rest(model: Any, photos: Path, monkeypatch: Any) -> None:
    out, new = photos.parent / "index", photos.parent / "afresh"
    before, call = embed(model, photos, out, batch_size=4), Encoder.__call__
    batches: list[int] = []  # images in each that is computed from here on

    def count(self: Encoder, images: np.ndarray) -> np.ndarray:
        batches.append(len(images))
        return call(self, images)

    monkeypatch.setattr(Encoder, "__call__", count)
    for change in (
        lambda: None,
        lambda: os.utime(photos / "daisy/01.png", ns=(0, 0)),  # read, and not computed
        lambda: (out / "modified.npy").unlink(),  # without its times, all files are
    ):
        change()
        assert embed(model, photos, out, batch_size=4).sums == before.sums
    assert (out / "modified.npy").is_file()
    assert batches == []
    (photos / "daisy/03.png").unlink()
    shutil.copy(photos / "rose/00.png", photos / "daisy/aa.png")
    shutil.copy(photos / "rose/02.png", photos / "rose/04.png")  # it was damaged
    after = embed(model, photos, out, batch_size=4)
    assert (batches, after.unreadable) == ([2], {})
    assert "daisy/03.png" not in after.files

    def stop(progress: module.Progress) -> None:
        if progress.files >= 12:
            raise KeyboardInterrupt

    batches.clear()
    refused("", embed, model, photos, new, batch_size=4, report=stop, error=KeyboardInterrupt)
    # The numbers of an image do not depend on its place in a batch, or on the other images there.
    afresh = embed(model, photos, new, batch_size=4)
    assert sum(batches) == 23
    assert contents(after.folder) == contents(afresh.folder)


@pytest.mark.parametrize("keep_former", [False, True])
def test_killed_anywhere_and_resumed(model, library, photos, monkeypatch, keep_former) -> None:
    """After any byte of the two files that grow, before and after the manifest: the same bytes."""
    out, spare = photos.parent / "index", photos.parent / "spare"
    if keep_former:
        for name in ("00", "08", "14"):
            (photos / f"rose/{name}.png").unlink()
        shutil.copytree(embed(model, photos, out, batch_size=4).folder, spare)
        shutil.copytree(library, photos, dirs_exist_ok=True)
    workspace, whole = photos.parent / ".index.partial", photos.parent / "whole"
    with monkeypatch.context() as patch:
        patch.setattr(module.OutputFolder, "publish", lambda self: None)
        with nullcontext() if keep_former else pytest.raises(DamagedIndexError):
            embed(model, photos, out, batch_size=4)
    shutil.copytree(workspace, whole)
    expected = contents(embed(model, photos, out, batch_size=4).folder)
    assert sorted(expected) == sorted(FILES)
    rows, log = (whole / "features.safetensors").read_bytes(), (whole / "log.jsonl").read_bytes()
    manifest = (whole / MANIFEST).read_text().splitlines()[0].replace("true", "false", 1)
    random = np.random.default_rng(1)
    for _ in range(10):
        shutil.rmtree(out)
        if keep_former:
            shutil.copytree(spare, out)
        shutil.copytree(whole, workspace)
        (workspace / MANIFEST).write_text(manifest + "\n")
        for name in ("files.jsonl", "modified.npy"):
            (workspace / name).unlink()
        (workspace / "log.jsonl").write_bytes(log[: random.integers(len(log) + 1)])
        (workspace / "features.safetensors").write_bytes(rows[: random.integers(len(rows) + 1)])
        assert contents(embed(model, photos, out, batch_size=4).folder) == expected


def test_what_is_not_of_the_index_is_refused_and_stays(model: Any, photos: Path) -> None:
    out, foreign = photos.parent / "index", photos.parent / "foreign"
    before = contents(embed(model, photos, out).folder)
    write(foreign, {"index.json": b"{}"})
    other, stretched, mismatch = build(), build(), IndexMismatchError
    other.set_weights([1.5 * values for values in model.get_weights()])
    stretched.set_weights(model.get_weights())
    stretched.eval_transform = "stretch"
    for error, words, call in (
        (mismatch, "other weights", lambda: embed(other, photos, out)),
        (mismatch, "other weights", lambda: index_of(other, out)),
        (mismatch, "mode='crop'.*mode='stretch'", lambda: embed(stretched, photos, out)),
        (mismatch, "'pre_logits'.*'logits'", lambda: embed(model, photos, out, layer="logits")),
        (mismatch, "'float16'.*'float32'", lambda: embed(model, photos, out, dtype="float32")),
        (mismatch, "photographs in", lambda: embed(model, photos / "rose", out)),
        (ValueError, "pre_logits", lambda: embed(model, photos, photos.parent / "new", "block_0")),
        (ValueError, "Leave it out", lambda: embed(model, photos, out, pooling="mean")),
        (FileExistsError, "not of an earlier feature index", lambda: embed(model, photos, foreign)),
        (DamagedIndexError, "is not an index of features", lambda: FeatureIndex.open(foreign)),
        (ValueError, "which is read", lambda: embed(model, photos, photos / "index")),
    ):
        refused(words, call, error=error)
    assert contents(out) == before
    head = model.with_classifier(7)  # another head has the same features
    assert index_of(head, out).files == embed(head, photos, out).files
    (out / "note.txt").write_text("mine")  # as are the measures of an audit
    (photos / "rose/00.png").unlink()
    embed(model, photos, out)
    assert (out / "note.txt").read_text() == "mine"
    large = build()
    norm = large.get_layer("encoder_norm")
    norm.set_weights([values * 0 + 1e5 for values in norm.get_weights()])
    refused("float32", embed, large, photos, photos.parent / "index16")
    embed(large, photos, photos.parent / "index32", dtype="float32")
    norm.set_weights([values * np.nan for values in norm.get_weights()])
    refused("NaN or infinite", embed, large, photos, photos.parent / "nan")


def test_a_damaged_file_is_named(model: Any, library: Path, tmp_path: Path) -> None:
    folder = embed(model, library, tmp_path / "index").folder
    for name, content in contents(folder).items():
        damaged = {"cut off": content[: 9 if name == MANIFEST else -3], "gone": None}
        damaged["changed"] = content[:12] + b"~" + content[13:]
        if name == "modified.npy":
            del damaged["gone"]  # then all files are read
        for changed in damaged.values():
            (folder / name).unlink()
            if changed is not None:
                (folder / name).write_bytes(changed)
            refused(name, FeatureIndex.open, folder, verify=True, error=DamagedIndexError)
            (folder / name).write_bytes(content)


def test_splits_and_labels_of_folders_tables_and_lists(model: Any, photos: Path) -> None:
    out, table, parts = photos.parent, photos / "table.csv", photos.parent / "parts"
    write(photos, {"train.txt": b"daisy/01.png\nrose/00.png\n", "val.txt": b"daisy/03.png\n"})
    index = embed(model, photos, out / "listed")
    assert index.files[:3] == ("daisy/01.png", "daisy/03.png", "daisy/05.png")
    assert index.splits[:3] == ("train", "val", None)
    table.write_text("file,kind,split\nrose/00.png,tulip,val\ndaisy/01.png,,train\n")
    index = embed(model, table, out / "of_table")
    assert (index.files, index.splits) == (("daisy/01.png", "rose/00.png"), ("train", "val"))
    assert (index.labels.tolist(), index.class_names) == ([-1, 0], ("tulip",))
    names = ("train/a/1.png", "train/b/1.png", "valid/a/IMG_1")
    write(parts, dict.fromkeys(names, (photos / "rose/00.png").read_bytes()))
    index = embed(model, parts, out / "of_parts")
    assert (index.labels.tolist(), index.splits) == ([0, 1, 0], ("train", "train", "val"))
    index = embed(model, [parts / name for name in names[:0:-1]], out / "of_list")
    assert (index.labels.tolist(), index.files) == ([-1, -1], names[1:])


def test_an_index_and_its_photographs_can_be_moved(model: Any, photos: Path) -> None:
    index = embed(model, photos, photos.parent / "index")
    (there := photos.parent / "there").mkdir()
    for folder in (photos, index.folder):
        folder.rename(there / folder.name)
    assert FeatureIndex.open(there / "index").path(0).is_file()
    assert embed(model, there / "photos", there / "index").sums == index.sums
    assert json.loads((there / "index/index.json").read_text())["photos"] == "../photos"
    # Of an index that went without its photographs, nothing is computed again either.
    (there / "index").rename(photos.parent / "elsewhere")
    alone = embed(model, there / "photos", photos.parent / "elsewhere")
    assert alone.path(0).is_file()
    np.testing.assert_array_equal(alone.features, index.features)
