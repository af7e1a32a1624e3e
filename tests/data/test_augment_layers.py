"""Layers of Keras and KerasCV, and callables, in the pipeline: their changes and their seeds."""

from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
import keras_vit.training.fitting as fit_module
from keras_vit.data import ArraySplit, Augmentation, Splits, load, pipeline, plot_augmentations
from keras_vit.data.augment.augment_layers import resolve_augment
from keras_vit_cli import commands as cli
from keras_vit_cli.train.job_recipe import note_of_mirroring, recipe_of

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


def test_layers_replace_all_but_the_crop_under_every_policy_and_process(monkeypatch) -> None:
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
    assert resolve_augment(["tiny"], everything)[0].shift == 4
    whole = []
    for policy in ("mixed_bfloat16", "float32"):
        keras.config.set_dtype_policy(policy)
        whole.append(batches([LAYERS.RandomRotation(0.1), LAYERS.CutMix()]))
    for value, former in zip(*whole, strict=True):
        np.testing.assert_array_equal(value, former)
    images, labels = batches(keras.layers.RandomBrightness(0.3), 4, repeat=True)
    halves = zip(np.split(images, 2), np.split(labels, 2), strict=True)
    first, second = (half[np.argsort(which.argmax(-1))] for half, which in halves)
    assert all(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    layers = ["none", keras.layers.RandomFlip(), keras.layers.MixUp()]
    whole = batches(layers)
    monkeypatch.setattr("keras_vit.data.batch_plan.rows_of_process", lambda count: np.array([1, 2]))
    images, labels = batches(layers)
    np.testing.assert_array_equal(labels, whole[1])
    np.testing.assert_array_equal(images, whole[0][[1, 2, 5, 6]])

    def swap(images: Any, labels: Any) -> tuple[Any, Any]:
        order = tf.random.shuffle(tf.range(tf.shape(images)[0]))
        return tf.gather(images, order), tf.gather(labels, order)

    with pytest.raises(ValueError, match=r"swap may draw from .* differs between processes"):
        batches(swap)


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


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_mixup_and_cutmix_mix_images_as_labels(policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    layer = keras.layers.MixUp(alpha=1.0)
    _check_mixed(*batches(["none", layer], seed=5))
    assert layer.dtype_policy.name == policy
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


def _returns(value: Any) -> Any:
    def change(image: Any) -> Any:
        return value(image)

    return change


def test_errors() -> None:
    for augment, error, words in (
        (3, TypeError, "augment=3 is a int. Give an Augmentation"),
        ("strong", ValueError, "Give one of: 'inception', .* a layer itself, such as keras"),
        ("keras.layers.MixUp(0.2)", ValueError, "is not known. .* a layer itself, such as keras"),
        ([lambda image: image, "tiny"], ValueError, "'tiny' must come first"),
        (_returns(lambda image: image[:3]), ValueError, r"shape \(3, 12, 3\) for \(12, 12, 3\)"),
        (_returns(lambda image: image > 3), ValueError, "dtype bool: expected float32"),
        (_returns(lambda image: "image"), ValueError, "dtype string|not a tensor"),
        (_returns(lambda image: image / 255), ValueError, "pixels from 0 to 1 for an image"),
        (_returns(lambda image: image * 255), ValueError, "pixels from 0 to 6.5e"),
        (_returns(lambda image: image * float("nan")), ValueError, "pixels from nan to nan"),
        (_returns(lambda image: image.numpy()), ValueError, "change cannot change images of"),
        (lambda images, labels: images, ValueError, r"expected \(images, labels\)"),
        (keras.layers.RandomContrast(0.2, value_range=(0, 1)), ValueError, "value_range="),
        (keras.layers.MixUp(data_format="channels_first"), ValueError, "'channels_last'"),
        ([keras.layers.MixUp(), keras.layers.RandomFlip()], ValueError, "give keras.*Flip first"),
        ([Augmentation(mixup=0.2), keras.layers.MixUp()], ValueError, "mixes twice"),
    ):
        with pytest.raises(error, match=words):
            batches(augment)


@pytest.mark.every_backend
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_keras_cv(policy: str) -> None:
    keras_cv = pytest.importorskip("keras_cv")
    # Its inner layers take the policy at their making, and fail in mixed ones.
    rand = keras_cv.layers.RandAugment((0, 255), augmentations_per_image=1, geometric=False)
    keras.config.set_dtype_policy(policy)
    layer = keras_cv.layers.MixUp(alpha=1.0)
    images, labels = batches(["none", keras_cv.layers.RandomFlip(rate=1.0), layer])
    _check_mixed(images[:, :, ::-1], labels)
    images, labels = batches(["none", rand])
    assert (images == np.clip(images, 0, 255)).all()
    assert not np.array_equal(images, PLAIN[labels.argmax(-1)])
    np.testing.assert_array_equal(labels.sum(-1), 1)


def test_the_option_of_train_and_the_plot(tmp_path, monkeypatch, capsys) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(cli, "train", lambda job, print_fn: jobs.append(job))
    assert cli.main(["train", "--data", "digits", "--augment", "tiny"]) == 0
    assert cli.main(["train", "--data", "digits"]) == 0
    job, other = jobs
    assert (job.augment, job.identity["augment"]) == (("tiny",), "('tiny',)")
    assert other.identity["augment"] == "None"  # --resume compares them
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
    pytest.importorskip("matplotlib")
    titles: list[str] = []
    suptitle = "matplotlib.figure.Figure.suptitle"
    monkeypatch.setattr(suptitle, lambda self, title, **_: titles.append(title))
    layers = [keras.layers.RandomRotation(0.05), keras.layers.MixUp()]
    options = {"augment": layers, "channels": 1, "images": 2, "versions": 1}
    plot_augmentations(load("digits").train, tmp_path / "a.png", 8, **options)
    assert titles == ["resize, keras.layers.RandomRotation, keras.layers.MixUp"]
    assert (tmp_path / "a.png").is_file()
    plot = ["augment", "--data", "digits", "--recipe", "digits", "--images", "2", "--versions", "1"]
    assert cli.main([*plot, "--augment", "tiny", "--out", str(tmp_path / "b.png")]) == 0
    assert titles[1] == "resize, flip, shift by up to 4 px"


def test_fit(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with an interruption ends with the weights of one without."""
    recipe = replace(keras_vit.recipes.get("digits"), image_size=SIZE, epochs=1, batch_size=4)
    splits = Splits("arrays", CLASSES, {"train": SPLIT, "val": SPLIT})
    lines: list[str] = []
    # A checkpoint after every step: `keras_vit.fit` writes them by time.
    monkeypatch.setattr(fit_module, "ResumableRun", partial(fit_module.ResumableRun, every_steps=1))

    def fit(folder: str, *callbacks: keras.callbacks.Callback) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        layers = [LAYERS.RandomTranslation(0.2, 0.2), LAYERS.MixUp()]
        options = {"augment": layers, "print_fn": lines.append, "callbacks": callbacks}
        parts = [keras.Input((SIZE, SIZE, 3)), LAYERS.Flatten(), LAYERS.Dense(COUNT)]
        model = keras.Sequential(parts)  # compiles in a moment
        fit_module.fit(model, recipe, splits, tmp_path / folder, **options)
        return model.get_weights()

    class Interruption(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt  # the last checkpoint was before the second step

    expected = fit("once")
    with pytest.raises(KeyboardInterrupt):
        fit("twice", Interruption())
    for value, former in zip(fit("twice"), expected, strict=True):
        np.testing.assert_array_equal(value, former)
    assert "augment: resize, keras.layers.RandomTranslation, keras.layers.MixUp" in lines
    assert any("continues with step 2" in line for line in lines)
