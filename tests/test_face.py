"""The names of `keras_vit` itself: few, verbs that take what commands take, and those of before."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import data, tasks
from keras_vit.exporting.format_table import FORMATS
from keras_vit.exporting.formats import format_of_path
from tests import bank
from tests.backend import refused
from tests.cli.helpers import color_photos
from tests.conftest import Command

SIZES = {"num_classes": 10, "patch_size": 4, "input_shape": (8, 8, 1)}  # for digits
OLD = "average_views compile_model export_model from_checkpoint load_model CheckpointError MixerB16"


def test_names_of_before_warn_with_those_of_now() -> None:
    assert len(keras_vit.__all__) == 28
    assert all(getattr(keras_vit, name) is not None for name in keras_vit.__all__)
    for name in OLD.split():
        with pytest.warns(DeprecationWarning, match=rf"keras_vit\.{name} is now \w+\.\w+"):
            assert callable(getattr(keras_vit, name))
    with pytest.warns(DeprecationWarning, match=r"data_parallel\(\), \.fsdp\(\) or \.tensor_par"):
        assert callable(keras_vit.distribution.create)
    with pytest.raises(AttributeError, match="does not have 'lod'"):
        keras_vit.lod  # noqa: B018


def test_evaluate_takes_arrays_splits_names_and_files(tmp_path: Path) -> None:
    splits, lines = data.load("digits"), []
    model = bank.fresh(**SIZES, task=splits.task)
    model.save(file := tmp_path / "model.keras")
    given: list[tuple[Any, Any]] = [(model, splits), (model, splits.val)]
    given += [(model, splits.val.as_arrays()), (str(file), splits)]
    given += [(bank.fresh(**SIZES), splits.val.as_arrays())]  # without names
    images, labels = splits.val.as_arrays()
    given += [(model, (images, np.eye(10)[labels]))]
    scores = [keras_vit.evaluate(m, d, print_fn=lines.append).scores["accuracy"] for m, d in given]
    scores.append(keras_vit.evaluate(file, "digits", split="valid").scores["accuracy"])
    assert scores == scores[:1] * 7
    assert "360 images; " in lines[0]
    model.seen_images = data.seen_images.SeenImages.of({"trained on": splits.train.digests()})
    report = keras_vit.evaluate(model, "digits", print_fn=lines.append)
    assert "left out: 1,437 that the model was trained on" in lines[-1]
    assert report.examples < 361
    for wrong, message in (
        ({"data": splits.train}, "1,437 that the model was trained on"),
        ({}, "give data=, a folder"),
        ({"data": splits.val.as_arrays()[0]}, r"data=ndarray .* or a tuple \(images, labels\)"),
        ({"data": [1, 2]}, r"data=list does not say which image has which label"),
        ({"data": "digits", "batch_size": 0}, "batch_size=0 must be an integer of at least 1"),
        ({"data": "digits", "lables": "a.csv"}, "'lables' is not known.*'labels'"),
    ):
        refused(message, keras_vit.evaluate, model, **wrong)
    refused("nothing at nowhere", keras_vit.predict, model, "nowhere", error=FileNotFoundError)


@pytest.mark.usefixtures("here")
def test_predict_answers_as_the_command(command: Command) -> None:
    model = bank.tiny(num_classes=3, task=tasks.Classification(("a", "b", "c")))
    model.save("model.keras")
    color_photos(Path("photos"), 4)
    command("predict model.keras photos --top 2 --out rows.jsonl")
    expected = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    files = [row["file"] for row in expected]
    again = [*files[:0:-1], files[-1]]  # in another order, and one twice
    Path("table.csv").write_text("\n".join(["file,other", *(f"{file},1" for file in again)]))
    assert [str(row["file"]) for row in keras_vit.predict(model, "table.csv")] == again
    assert [row["file"] for row in keras_vit.predict(model, np.array(again))] == again
    for given in ("photos", files):
        rows = keras_vit.predict("model.keras", given, top=2)
        for row, answer in zip(rows, expected, strict=True):
            assert row["file"] == answer["file"]
            assert row["predictions"][0]["class"] == answer["predictions"][0]["class"]
    assert len(keras_vit.predict(model, files[0])) == 1
    (row,) = keras_vit.predict(model, ["nowhere.jpg"])
    assert row["error"] == "No such file or directory"
    images = np.full((2, *model.input_shape[1:]), 100, "uint8")
    rows = keras_vit.predict(model, images)
    assert [row["file"] for row in rows] == [0, 1]
    logits = keras.ops.convert_to_numpy(model(images))
    assert rows[0]["predictions"][0]["class"] == "abc"[int(logits[0].argmax())]


def test_predict_says_what_it_does_not_take(tmp_path: Path) -> None:
    """What has no meaning here would otherwise be taken as the names of files."""
    model = bank.tiny(num_classes=3)
    image = np.full(model.input_shape[1:], 100, "uint8")
    for given, message in (
        (data.load("digits"), "not of image files, but Splits"),
        ({"a.jpg": 1}, "not of image files, but dict"),
        ([], "not of image files, but an empty list"),
        ([image], "not of image files, but ndarray"),
        (Image.fromarray(image), "not of image files, but Image"),
        (image, r"Of one image, give image\[None\]"),
        (image[None][:0], "one at least"),
    ):
        refused(message, keras_vit.predict, model, given)
    for options in ({"top": 0}, {"batch_size": 0}):
        refused("=0 must be an integer of at", keras_vit.predict, model, image[None], **options)
    refused("model=Sequential is not a", keras_vit.predict, keras.Sequential(), image[None])


def test_fit_takes_arrays_and_names_what_it_learned(tmp_path: Path) -> None:
    splits = data.load("digits")
    recipe, lines = keras_vit.recipes.get("digits").scaled(steps=4), []
    fitted = bank.fresh(**SIZES)
    keras_vit.fit(fitted, recipe, splits, tmp_path / "a", print_fn=lines.append)
    assert fitted.class_names == tuple("0123456789")
    seen = keras_vit.load(tmp_path / "a/best.keras").seen_images
    assert set(seen.uses(splits.val.digests())) <= {"validated on", "trained on"}
    assert set(seen.uses(splits.train.digests())) == {"trained on"}
    of_arrays = bank.fresh(**SIZES)
    pixels, labels = splits.train.as_arrays()
    keras_vit.fit(of_arrays, recipe, (pixels, labels), tmp_path / "b", print_fn=lines.append)
    assert len(of_arrays.seen_images.digests["trained on"]) == pytest.approx(1437 * 0.8, abs=20)
    refused("not a tuple", keras_vit.fit, of_arrays, ("a", "b"), "digits", "c", error=TypeError)
    refused("splits=ndarray is not", keras_vit.fit, of_arrays, recipe, pixels, tmp_path / "c")
    refused("give '.*best.keras'", keras_vit.load, tmp_path / "a", error=FileNotFoundError)


def test_export_goes_by_the_suffix(tmp_path: Path) -> None:
    words, path = "'onnx', and format='tf_saved_model': leave format= out", tmp_path / "m.onnx"
    refused(words, keras_vit.export, bank.tiny(), path, "tf_saved_model")
    refused("suffix of a format", keras_vit.export, bank.tiny(), tmp_path / "m.onx")
    for name, row in FORMATS.items():
        if row.suffix is not None:
            assert format_of_path(tmp_path / f"m{row.suffix}", None) == name
