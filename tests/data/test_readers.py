"""Grain's batches are TensorFlow's: order, labels and crops the same, pixels within a level."""

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.data import Augmentation, EvalTransform, load, pipeline
from keras_vit.data.image_readers import READERS
from keras_vit.evaluation import predict_split
from tests import bank
from tests.backend import refused
from tests.data.image_fixtures import flat_folder, photographs, write

pytest.importorskip("grain")
tf = pytest.importorskip("tensorflow")
SIZES = ((44, 30), (23, 41), (64, 64), (90, 17))  # width, height
OF_DIGITS = {**bank.TINY, "patch_size": 4, "input_shape": (8, 8, 1), "num_classes": 10}
MIXED = Augmentation(min_area=0.3, mixup=0.4, cutmix=1.0, mixed_part=0.8)
AFFINE = Augmentation(crop="resize", rotation=20, zoom=0.2, shear=0.1, shift=2)
# tests/data/test_preprocessing.py has every augmentation and mode.
GOES_ON = {"training": True, "repeat": True, "start_step": 2, "cache": True}
WAYS: list[dict[str, Any]] = [
    *({**GOES_ON, "augment": augment} for augment in ("inception", "randaugment", AFFINE)),
    {"eval_transform": "crop", "channels": 1},
    {"eval_transform": EvalTransform("timm_center", 0.9, "bicubic")},
    {"training": True, "augment": MIXED, "num_classes": 2, "cache": True},
    {"training": True, "views": 2, "repeat": True, "start_step": 3, "cache": True},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("photographs"), SIZES, 26)


def batches(folder: Path, reader: str, verify: bool = True, **options: Any) -> list[Any]:
    """The first six."""
    split = load(folder, reader=reader, verify=verify).train.with_decoder("pillow")
    options = {"image_size": (24, 32), "batch_size": 6, "seed": 3, **options}
    return list(islice(pipeline(split, **options).as_numpy_iterator(), 6))


def assert_same(ours: list[Any], theirs: list[Any], atol: float = 1.0) -> None:
    assert len(ours) == len(theirs) > 0
    for (images, labels), (expected, its_labels) in zip(ours, theirs, strict=True):
        assert (images.dtype, labels.dtype) == (expected.dtype, its_labels.dtype)
        np.testing.assert_allclose(labels, its_labels, atol=1e-6)
        np.testing.assert_allclose(images, expected, atol=atol)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_training_evaluation_and_mixing(folder: Path, options: dict[str, Any]) -> None:
    # Where TensorFlow decodes a box alone, colors along its border are a few levels off.
    both = [batches(folder, reader, **options) for reader in READERS]
    # RandAugment works on bytes: a level before it may be many after, such as in "equalize".
    byte_wise = options.get("augment") == "randaugment"
    assert_same(*both, atol=255 if byte_wise else 1.0)
    if byte_wise:
        (images, _), (expected, _) = both[0][0], both[1][0]
        assert np.median(np.abs(images - expected)) < 1


def test_channels_first_cache_and_files_that_do_not_decode(folder, tmp_path, capfd) -> None:
    plain, cached = batches(folder, "grain"), batches(folder, "grain", cache=True)
    first = batches(folder, "grain", data_format="channels_first")
    assert first[0][0].shape == (6, 3, 24, 32)
    assert_same([(np.moveaxis(x, 1, -1), y) for x, y in first], plain, atol=0)
    assert_same(cached, plain, atol=0)
    shutil.copytree(folder, tmp_path / "copy")
    broken = write(tmp_path / "copy", {"a/00.jpg": b"not an image"})
    options = {"verify": False, "training": True, "repeat": True, "augment": "none"}
    for start in (0, 3):
        assert_same(*[batches(broken, reader, start_step=start, **options) for reader in READERS])
    split = load(flat_folder(tmp_path / "flat"), reader="grain").train
    split.files[1].write_bytes(b"damaged since")
    images, _ = next(iter(pipeline(split, 16, len(split))))
    assert (images[1] == 127).all()
    printed = capfd.readouterr().err
    assert f"{split.files[1]} cannot be decoded and is replaced by a gray image" in printed


def test_a_pass_goes_on_elsewhere_and_what_grain_does_not_read() -> None:
    split = load("digits", reader="grain").train
    options = {"training": True, "channels": 1, "augment": "none"}
    first, second = (pipeline(split, 8, 500, **options) for _ in range(2))
    next(iter(first))
    one, two, again = (np.concatenate([y for _, y in each]) for each in (first, first, second))
    np.testing.assert_array_equal(again, one)
    assert (one != two).any()
    # An iterator goes on where another stopped, as Grain's checkpoints do it, in a later pass too.
    batches = pipeline(split, 8, 600, **options)
    list(batches)
    stopped, again = iter(batches), iter(pipeline(split, 8, 600, training=True, channels=1))
    next(stopped)
    state, expected = stopped.get_state(), next(stopped)[1]
    again.set_state(state)
    np.testing.assert_array_equal(next(again)[1], expected)
    flips = {"training": True, "channels": 1, "augment": keras.layers.RandomFlip()}
    refused("reader='tensorflow'", pipeline, split, 8, 32, **flips)
    refused("which TensorFlow reads", load, "records:no", reader="grain")
    refused("data set of TFDS", load, "mnits", reader="grain", error=FileNotFoundError)
    refused("reader='pandas'", load, "digits", reader="pandas")


@pytest.mark.every_backend
def test_fit_evaluate_and_predict(recwarn: pytest.WarningsRecorder) -> None:
    splits, model = load("digits", reader="grain"), bank.fresh(**OF_DIGITS)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    train = pipeline(splits.train, 8, 512, training=True, channels=1)
    val = pipeline(splits.val, 8, 100, channels=1)
    assert len(model.fit(train, validation_data=val, epochs=2, verbose=0).history["val_loss"]) == 2
    endless = pipeline(splits.train, 8, 64, training=True, channels=1, repeat=True)
    model.fit(endless, epochs=2, steps_per_epoch=2, verbose=0)
    accuracy = np.mean(model.predict(val, verbose=0).argmax(-1) == splits.val.labels())
    assert model.evaluate(val, verbose=0)[1] == pytest.approx(accuracy)
    model.eval_transform = EvalTransform(views="flip")  # by a model of Keras around this one
    assert predict_split(model, splits.val)[1].shape == (360, 10)
    assert not [str(w.message) for w in recwarn if "Grain" in str(w.message)]
    assert not [w for w in recwarn if "ran out of data" in str(w.message)]
