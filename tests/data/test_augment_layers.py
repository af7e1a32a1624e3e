"""Layers of Keras and KerasCV, and callables, in the pipeline; and the plot of what it makes."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.data import ArraySplit, Augmentation, pipeline, plot_augmentations
from keras_vit.data.augment.augment_layers import resolve_augment
from keras_vit_cli import commands as cli
from keras_vit_cli.train.job_recipe import note_of_mirroring, recipe_of
from tests.backend import refused
from tests.data.image_fixtures import flat_folder

tf = pytest.importorskip("tensorflow")
COUNT, SIZE = 8, 12
CLASSES = tuple("abcdefgh")  # one per image, so that a label tells which images were mixed
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, SIZE, SIZE, 3), np.uint8)
SPLIT = ArraySplit("train", CLASSES, IMAGES, np.arange(COUNT), augment="tiny")
PLAIN = IMAGES.astype("float32")  # in the order of their classes
LAYERS = keras.layers
SEEDED: dict[str, Any] = {
    "one": lambda: LAYERS.RandomRotation(0.1),
    "sequential": lambda: keras.Sequential([LAYERS.RandomZoom(0.2), LAYERS.RandomBrightness(0.2)]),
    "pipeline and mixing": lambda: [
        LAYERS.Pipeline([LAYERS.RandomFlip(), LAYERS.RandomContrast(0.3)]),
        LAYERS.MixUp(),
        LAYERS.CutMix(),
    ],
    "after a name": lambda: ["transfer", LAYERS.RandomErasing(factor=1.0)],
    "callable": lambda: lambda image: 255 - image,
}


def batches(augment: Any, count: int | None = None, **options: Any) -> Any:
    """Images and labels of one pass, or of `count` batches, as arrays."""
    options = {"training": True, "num_classes": COUNT, "seed": 3, **options}
    dataset = pipeline(SPLIT, SIZE, 4, augment=augment, **options)
    assert {spec.dtype for spec in dataset.element_spec} == {tf.float32}
    parts = list(dataset.take(-1 if count is None else count).as_numpy_iterator())
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


@pytest.mark.every_backend
@pytest.mark.parametrize("make", [keras.layers.AutoContrast, keras.layers.RandomGrayscale])
def test_images_equal_those_of_the_layer_itself(make: Any) -> None:
    layer = make() if make is keras.layers.AutoContrast else make(factor=1.0)
    images, labels = batches(["none", layer])
    expected = keras.ops.convert_to_numpy(layer(PLAIN, training=True))
    np.testing.assert_allclose(images, expected[labels.argmax(-1)], atol=1e-3)


def test_layers_replace_all_but_the_crop_in_every_process(monkeypatch) -> None:
    """Neither the flip nor the shift of the split's own augmentation is applied as well."""
    images, labels = batches(keras.layers.RandomFlip("horizontal"), 20, repeat=True)
    originals = PLAIN[labels.argmax(-1)]
    same = (images == originals).all((1, 2, 3))
    mirrored = (images == originals[:, :, ::-1]).all((1, 2, 3))
    np.testing.assert_array_equal(same, ~mirrored)
    assert 20 < mirrored.sum() < 60  # of 80: per image, not per batch
    assert set(mirrored.reshape(20, 4).sum(1)) - {0, 4}
    everything = Augmentation(min_area=0.3, rand_augment=(2, 10), mixup=0.2, erasing=0.1)
    flip = keras.layers.RandomFlip()
    assert resolve_augment(None, everything) == (everything, ())
    assert resolve_augment(flip, everything) == (Augmentation(min_area=0.3, flip=False), (flip,))
    assert resolve_augment([everything, flip], Augmentation()) == (everything, (flip,))
    layers = ["none", keras.layers.RandomFlip(), keras.layers.MixUp()]
    whole = batches(layers)
    monkeypatch.setattr("keras_vit.data.batch_plan.rows_of_process", lambda count: np.array([1, 2]))
    images, labels = batches(layers)
    np.testing.assert_array_equal(labels, whole[1])
    np.testing.assert_array_equal(images, whole[0][[1, 2, 5, 6]])

    def swap(images: Any, labels: Any) -> tuple[Any, Any]:
        order = tf.random.shuffle(tf.range(tf.shape(images)[0]))
        return tf.gather(images, order), tf.gather(labels, order)

    refused(r"swap may draw from .* differs between processes", batches, swap)


@pytest.mark.every_backend
def test_callables_get_batches_and_may_have_conditions() -> None:
    def blend(images: Any, labels: Any) -> tuple[Any, Any]:
        return (images + images[::-1]) / 2, (labels + labels[::-1]) / 2

    _check_mixed(*batches(["none", blend]))

    def brighten(image: Any) -> Any:
        if tf.reduce_mean(image) > 300:  # AutoGraph, as in `Dataset.map`
            return image
        return image + 1

    images, labels = batches(["none", brighten])
    expected = np.minimum(PLAIN[labels.argmax(-1)] + 1, 255)  # clipped
    np.testing.assert_array_equal(images, expected)


@pytest.mark.parametrize("name", SEEDED)
def test_numbers_follow_from_the_seed(name: str) -> None:
    def drawn(count: int, **options: Any) -> Any:
        return batches(SEEDED[name](), count, repeat=True, **options)

    first = drawn(4)
    keras.utils.set_random_seed(7)
    for before, after, late in zip(first, drawn(4), drawn(3, start_step=1), strict=True):
        np.testing.assert_array_equal(after, before)
        np.testing.assert_array_equal(late, before[4:])
    if name != "callable":
        assert not np.array_equal(np.sort(drawn(4, seed=4)[0], 0), np.sort(first[0], 0))


def test_mixup_and_cutmix_mix_images_as_labels() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")  # which changes nothing of them
    layer = keras.layers.MixUp(alpha=1.0)
    _check_mixed(*batches(["none", layer], seed=5))
    assert layer.dtype_policy.name == "mixed_bfloat16"
    assert "_get_seed_generator" not in vars(layer)
    images, labels = batches(["none", keras.layers.CutMix()], seed=5)
    np.testing.assert_allclose(labels.sum(-1), 1, atol=1e-6)
    for image, label in zip(images, labels, strict=True):
        shares = [(image == original).all(-1).mean() for original in PLAIN]
        np.testing.assert_allclose(shares, label, atol=0.2)  # whole pixels of 12 x 12


def _check_mixed(images: np.ndarray, labels: np.ndarray) -> None:
    np.testing.assert_allclose(labels.sum(-1), 1, atol=1e-6)
    assert (labels.max(-1) < 0.999).any()
    np.testing.assert_allclose(images, np.tensordot(labels, PLAIN, 1), atol=1e-2)


def test_errors() -> None:
    for augment, error, words in (
        (3, TypeError, "augment=3 is a int. Give an Augmentation"),
        ("strong", ValueError, "Give one of: 'inception', .* a layer itself, such as keras"),
        ([lambda image: image, "tiny"], ValueError, "'tiny' must come first"),
        (lambda image: image[:3], ValueError, r"shape \(3, 12, 3\) for \(12, 12, 3\)"),
        (lambda image: image > 3, ValueError, "dtype bool: expected float32"),
        (lambda image: "image", ValueError, "dtype string|not a tensor"),
        (lambda image: image / 255, ValueError, "pixels from 0 to 1 for an image"),
        (lambda image: image * 255, ValueError, "pixels from 0 to 6.5e"),
        (lambda image: image * float("nan"), ValueError, "pixels from nan to nan"),
        (lambda image: image.numpy(), ValueError, "cannot change images of"),
        (lambda images, labels: images, ValueError, r"expected \(images, labels\)"),
        (keras.layers.RandomContrast(0.2, value_range=(0, 1)), ValueError, "value_range="),
        (keras.layers.MixUp(data_format="channels_first"), ValueError, "'channels_last'"),
        ([keras.layers.MixUp(), keras.layers.RandomFlip()], ValueError, "give keras.*Flip first"),
        ([Augmentation(mixup=0.2), keras.layers.MixUp()], ValueError, "mixes twice"),
    ):
        refused(words, batches, augment, error=error)


def test_the_option_of_train(monkeypatch, capsys) -> None:
    """tests/cli/test_cli.py has that --resume compares it."""
    jobs: list[Any] = []
    monkeypatch.setattr(cli, "train", lambda job, print_fn: jobs.append(job))
    assert cli.main(["train", "--data", "digits", "--augment", "tiny"]) == 0
    (job,) = jobs
    named = recipe_of(replace(job, recipe="deit"))
    assert (named.augmentation.shift, named.mixup, named.cutmix) == (4, 0, 0)
    recipe = recipe_of(replace(job, recipe="deit", augment=(keras.layers.RandomFlip(),)))
    assert recipe.augment == Augmentation(min_area=recipe.augmentation.min_area, flip=False)
    with pytest.raises(ValueError, match="freeze_backbone computes features once"):
        recipe_of(replace(job, freeze_backbone=True, weights="w"))
    # What the note on mirrored images proposes is accepted.
    frozen = replace(job, freeze_backbone=True, weights="w", augment=("none",))
    assert note_of_mirroring(frozen, recipe_of(frozen)) == ""
    seen_twice = replace(recipe_of(frozen), views="flip")
    assert note_of_mirroring(frozen, seen_twice).endswith("give --views one")
    assert "--augment none or digits" in note_of_mirroring(job, recipe_of(job))
    assert cli.main(["train", "--data", "digits", "--augment", "keras.layers.RandomFlip"]) == 2
    assert "'inception', 'randaugment', 'transfer'" in capsys.readouterr().err


def test_a_sheet_has_a_row_per_image_a_column_per_pass_and_a_bound(tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    shown, titles, above, sizes = [], [], [], []

    def save(self, path: Path, **_: object) -> None:
        sizes.append(self.get_size_inches() * self.dpi)
        Path(path).write_bytes(b"")

    for name, fake in (
        ("axes.Axes.imshow", lambda self, image, **_: shown.append(image)),
        ("axes.Axes.set_title", lambda self, title, **_: titles.append(title)),
        ("figure.Figure.suptitle", lambda self, title, **_: above.append(title)),
        ("figure.Figure.savefig", save),
    ):
        monkeypatch.setattr(f"matplotlib.{name}", fake)
    images = np.full((60, 8, 8, 3), 40, np.uint8)
    images[:, :, :4] = np.arange(60)[:, None, None, None] * 4
    split = ArraySplit("train", ("a", "b"), images, np.arange(60) % 2)
    plain = Augmentation(crop="resize", flip=False)
    plot = partial(plot_augmentations, split, image_size=8)
    plot(tmp_path / "plot.png", augment=plain, images=3, versions=2)
    assert len(shown) == 9
    assert titles == ["a", "b", "b"]  # images 0, 29 and 59, the names above the first column
    for column in range(3):  # the image as it is, twice, because nothing is augmented
        for row, index in enumerate((0, 29, 59)):
            np.testing.assert_allclose(shown[3 * column + row], images[index] / 255, atol=1e-6)
    plot(tmp_path / "mixed.png", augment=replace(plain, mixup=1.0), images=3, versions=2)
    assert any("%" in title for title in titles[6:])
    layers = [Augmentation(min_area=0.3, erasing=0.25), keras.layers.MixUp()]
    plot(tmp_path / "many.png", augment=layers, images=60, versions=1)
    words = "inception crop of at least 30 %, flip, random erasing of 25 %, keras.layers.MixUp"
    assert above[-1] == words
    assert max(sizes[-1]) == pytest.approx(8000)


def test_paths_of_plots_that_are_refused_and_the_command(tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "folder").mkdir()
    (tmp_path / "theirs.png").write_bytes(b"theirs")
    for name, error, message in (
        ("path.txt", ValueError, "does not have the suffix of an image: give one of .*png"),
        ("folder", FileExistsError, "folder is a folder: give a file, such as plot.png"),
        ("theirs.png", FileExistsError, "theirs.png exists, and is not a PNG file that"),
    ):
        refused(message, plot_augmentations, SPLIT, tmp_path / name, 8, overwrite=True, error=error)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "theirs.png"]
    assert (tmp_path / "theirs.png").read_bytes() == b"theirs"
    # Broken files are skipped, and the last line is the next command.
    photos, path = flat_folder(tmp_path / "my photos", 3), tmp_path / "new" / "plot.png"
    sorted(photos.glob("*/*"))[0].write_bytes(b"not an image")
    command = ["augment", "--data", str(photos), "--out", str(path), "--image-size", "16"]
    command += ["--images", "100", "--versions", "1", "--recipe"]
    assert cli.main([*command, "digits"]) == 0
    *_, place, last = capsys.readouterr().out.splitlines()
    assert f"written to {path}" in place
    assert last == f"next: keras-vit train --data '{photos}' --recipe digits"
    written = path.read_bytes()
    for recipe, words in (("dei", "deit"), ("digits", "--overwrite")):
        assert cli.main([*command, recipe]) == 2
        assert words in capsys.readouterr().err
    path.write_bytes(written + b"\0")
    assert cli.main([*command, "digits", "--overwrite"]) == 0
    assert path.read_bytes() == written
