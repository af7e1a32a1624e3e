"""Batches: order, randomness, number, labels of any shape, what breaks, and wrong arguments."""

import time
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.data import ArraySplit, Augmentation, FileSplit, evaluation_image, load, pipeline
from keras_vit.data.sources.array_splits import DecodedSplit
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression, Task
from keras_vit.tasks.balance import sampling_rates
from keras_vit.training.refinement import some_images
from tests.backend import refused
from tests.data import image_fixtures
from tests.data.image_fixtures import check_stopped_run, flat_folder, passes, plain, write

tf = pytest.importorskip("tensorflow")
# One operation stands for all: each takes time to trace.
MIXED = Augmentation(rand_augment=(2, 10), operations=("rotate",), erasing=0.5, mixup=0.5, cutmix=1)
# A split, whether it is cached, and how it is augmented.
WAYS = [("folder_split", False, {"augment": MIXED, "num_classes": 2}), ("array_split", True, {})]


@pytest.fixture
def folder_split(tmp_path) -> FileSplit:
    files = sorted(flat_folder(tmp_path).glob("*/*.png"))
    return FileSplit("train", ("a", "b"), files, [0] * 10 + [1] * 10, verified=True)


@pytest.fixture
def array_split() -> ArraySplit:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1), np.uint8)
    return ArraySplit("train", ("a", "b"), images, np.arange(20) % 2, augment="digits")


def test_shapes_types_number_and_a_far_start(folder_split, array_split) -> None:
    image, label = tf.TensorSpec((None, 8, 6, 3), tf.float32), tf.TensorSpec((None,), tf.int32)
    for split in (folder_split, array_split):
        batches = pipeline(split, (8, 6), 6)
        assert batches.element_spec == (image, label)
        assert len(batches) == 4 == len(list(batches))
        assert pipeline(split, 8, 6, channels=1).element_spec[0].shape == (None, 8, 8, 1)
    # What is skipped is not gone through.
    started = time.monotonic()
    far = pipeline(array_split, 8, 5, True, repeat=True, start_step=10**15)
    assert len(next(iter(far))[0]) == 5
    assert time.monotonic() - started < 60  # a nanosecond for each would be 57 days


def test_views_of_an_image_are_rows_of_their_own(array_split) -> None:
    split = array_split.as_instances()
    options = {"seed": 4, "repeat": True, "views": 3, "augment": "inception"}
    whole, late = (
        passes(pipeline(split, 8, 6, True, start_step=n, **options).take(8 - n))[0] for n in (0, 5)
    )
    np.testing.assert_array_equal(late, whole[5 * 18 :])
    # The order is that without views, across the border of passes, and no two views are equal.
    once = passes(pipeline(split, 8, 6, True, seed=4, repeat=True).take(8))[0]
    np.testing.assert_array_equal(whole[:, -1], once[:, -1].repeat(3))
    assert len(np.unique(whole, axis=0)) > 0.9 * len(whole)
    finite = pipeline(split, 8, 6, True, seed=4, views=3)
    assert (len(finite), len(passes(finite)[0])) == (4, 60)
    assert len(passes(pipeline(split, 8, 6, views=3))[0]) == 20  # evaluation has one


@pytest.mark.parametrize("cache", [False, True])
def test_evaluation_keeps_order_and_pixels(folder_split, array_split, cache: bool) -> None:
    images, labels = array_split.as_arrays()
    for arrays in passes(pipeline(array_split, 8, 7, channels=1, cache=cache), 2):
        np.testing.assert_array_equal(arrays, np.c_[images.reshape(len(images), -1), labels])
    for images in passes(pipeline(folder_split, 8, 7, cache=cache), 2):
        # The gray level of an image is its number: 0, 2, 4, ... in class a, 1, 3, 5, ... in b.
        np.testing.assert_allclose(images[:, 0], [*range(0, 20, 2), *range(1, 20, 2)], atol=1e-4)
        np.testing.assert_array_equal(images[:, -1], folder_split.labels())


def test_batches_do_not_hang_on_threads(folder_split) -> None:
    def with_threads(count: int) -> list[np.ndarray]:
        batches = pipeline(folder_split, 8, 6, training=True, repeat=True).take(10)
        options = tf.data.Options()
        options.threading.private_threadpool_size = count
        return passes(batches.with_options(options))

    np.testing.assert_array_equal(with_threads(1), with_threads(8))


@pytest.mark.parametrize(("source", "cache", "options"), WAYS)
def test_a_stopped_run_goes_on_bit_by_bit(source: str, cache: bool, options, request) -> None:
    split = request.getfixturevalue(source)
    # 72 images: three passes of 20, and batches across their borders.
    check_stopped_run(split, 6, 12, (4, 11), cache=cache, **options)
    endless, other = (
        passes(pipeline(split, 8, 5, True, repeat=True, cache=cache, seed=seed).take(12))[0]
        for seed in (0, 1)
    )
    finite = passes(pipeline(split, 8, 5, True, cache=cache), 3)
    np.testing.assert_array_equal(np.concatenate(finite), endless)
    for different in (finite[1], other[:20]):
        assert (finite[0] != different).any()


def test_files_that_break_after_their_check_or_without_one(folder_split, tmp_path, capfd) -> None:
    trained = pipeline(folder_split, 8, 6, True, repeat=True).take(3)
    (before,) = passes(trained)
    # The gray level of an image is its number: 16 is the ninth of class a.
    (place,) = np.flatnonzero(np.isclose(before[:, 0], 16))
    folder_split.files[8].write_bytes(plain(16)[:40])
    (after,) = passes(trained)
    np.testing.assert_array_equal(np.delete(after, place, 0), np.delete(before, place, 0))
    assert (after[place, :-1] == 127).all()
    folder_split.files[5].unlink()
    batches = pipeline(folder_split, 8, 6)
    assert len(batches) == 4
    (images,) = passes(batches)
    np.testing.assert_array_equal(images[:, -1], folder_split.labels())
    np.testing.assert_allclose(images[:9, 0], [0, 2, 4, 6, 8, 127, 12, 14, 127], atol=1e-4)
    errors = capfd.readouterr().err
    for file in (folder_split.files[8], folder_split.files[5]):
        assert f'keras_vit: "{file}" cannot be decoded and is replaced by a gray image.' in errors
    write(flat_folder(tmp_path), {"a/bad.png": b"not an image"})
    split = load(tmp_path, verify=False, val_fraction=0.05).train
    (bad,) = (index for index, file in enumerate(split.files) if file.name == "bad.png")
    batches = pipeline(split, 8, 6)
    assert batches.cardinality() == tf.data.UNKNOWN_CARDINALITY
    (images,) = passes(batches)
    np.testing.assert_array_equal(images[:, -1], np.delete(split.labels(), bad))
    assert 'bad.png" cannot be decoded and is skipped.' in capfd.readouterr().err
    # They are gone through: a stopped run goes on behind them.
    whole, late = (pipeline(split, 8, 5, True, repeat=True, start_step=n) for n in (0, 6))
    np.testing.assert_array_equal(passes(late.take(3))[0], passes(whole.take(9))[0][30:])


COUNTS = [60, 30, 8, 2]
LABELS = np.random.default_rng(0).permutation(np.repeat(range(4), COUNTS))
# An image's first pixel is its place, and the second its label.
IMAGES = np.zeros((100, 4, 4, 1), np.uint8)
IMAGES[:, 0, 0, 0], IMAGES[:, 0, 1, 0] = np.arange(100), LABELS
SPLIT = ArraySplit("train", tuple("abcd"), IMAGES, LABELS)
RESAMPLED = SPLIT.resampled(sampling_rates(COUNTS))


def drawn(split: ArraySplit, epoch: int = 0, start: int = 0, seed: int = 7) -> np.ndarray:
    """Places and labels of a shuffled pass, `(2, images)`."""
    rows = [tuple(map(int, row)) for row in split.dataset(seed, epoch, start).as_numpy_iterator()]
    return np.array(rows).T


def test_every_class_is_drawn_as_often_other_rates_and_stopped_streams() -> None:
    times = np.zeros(100)
    for epoch in range(40):
        places, labels = drawn(RESAMPLED, epoch)
        np.testing.assert_array_equal(labels, LABELS[places])
        assert np.abs(np.bincount(labels) - 25).max() <= 1
        counts = np.bincount(places, minlength=100)
        for label, count in enumerate(COUNTS):
            rate = 25 / count  # systematic sampling rounds it down or up for each image
            assert set(counts[label == LABELS]) <= {int(rate), int(rate) + 1}
        times += counts
    # Over many passes all images of a class are drawn alike: 40 * 25 / 60 = 16.7 +- 3.1.
    assert 5 < times[LABELS == 0].min() <= times[LABELS == 0].max() < 29
    first = drawn(RESAMPLED)
    np.testing.assert_array_equal(drawn(RESAMPLED, start=37), first[:, 37:])
    for other in (drawn(RESAMPLED, epoch=1), drawn(RESAMPLED, seed=8)):
        assert (other[0] != first[0]).any()
    assert set(drawn(SPLIT.resampled([0, 0, 1, 0]))[1]) == {2}
    # Not in evaluation; and parts and copies keep the rates.
    labels = [labels for _, labels in pipeline(RESAMPLED, 4, 32, channels=1)]
    np.testing.assert_array_equal(np.concatenate(labels), LABELS)
    part = RESAMPLED.take(np.flatnonzero(LABELS > 0))
    assert np.abs(np.bincount(drawn(part)[1])[1:] - 40 / 3).max() <= 1
    np.testing.assert_array_equal(drawn(DecodedSplit(RESAMPLED, 1)), drawn(RESAMPLED))
    # A stream goes on at any step: stopped within a pass, across its end, and in the third.
    options = {"augment": "none", "seed": 3, "channels": 1}
    check_stopped_run(RESAMPLED, 16, 20, (1, 6, 19), **options)


GRAY, COLOR = np.zeros((2, 8, 8, 1), np.uint8), np.zeros((4, 8, 8, 3), np.uint8)


def split(labels: Any = (0, 1), images: np.ndarray = GRAY, task: Any = ("a", "b")) -> ArraySplit:
    return ArraySplit("train", task, images, np.array(labels) if task == ("a", "b") else labels)


PAIR, GRADES = split(), split([0, 1, 2, 0], COLOR, Ordinal(("low", "middle", "high")))
ROWS = split(np.eye(4, 3, dtype=int), COLOR, Multilabel(("a", "b", "c")))
NAN, TWO_GRADES = float("nan"), Ordinal(("a", "b"))
MIXUP, CUTMIX = Augmentation(mixup=1.0), Augmentation(cutmix=0.5)
LEAVE_OUT, ONE_HOT = "leave num_classes out", "one-hot labels: give num_classes"


def batches(of: ArraySplit = PAIR, **options: Any) -> Any:
    return pipeline(of, **{"image_size": 8, "batch_size": 4, **options})


CALLS: dict[str, Any] = {
    "load": lambda **options: load("digits", **options),
    "arrays": split,
    "targets": lambda **options: split(images=COLOR, **options),
    "rates": lambda rates, of=PAIR: of.resampled(rates),
    "pipeline": batches,
    "mixing": partial(batches, training=True),
    "evaluate": lambda **options: evaluation_image(COLOR[0], **{"image_size": 8, **options}),
    "augment": Augmentation,
}
ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("load", {"val_fraction": 1.0}, "val_fraction=1.0 must lie between 0 and 1"),
    ("load", {"val_fraction": NAN}, "val_fraction=nan must lie between 0 and 1"),
    ("load", {"max_pixels": 0}, "max_pixels=0 must be an integer of at least 1"),
    ("load", {"on_bad_file": "no"}, "on_bad_file='no' is not known. Give one of: 'skip', 'raise'"),
    ("arrays", {"images": np.zeros((2, 8, 8, 1))}, "images are float64 of shape"),
    ("arrays", {"images": GRAY[..., 0]}, r"shape \(2, 8, 8\): give uint8 pixels"),
    ("arrays", {"labels": [0, 2]}, "Target 2 of row 1.*an integer from 0 to 1"),
    ("targets", {"labels": [7] * 4, "task": TWO_GRADES}, "Target 7 of row 0 does not suit ordinal"),
    ("targets", {"labels": [["a"], [], ["b"]], "task": Multilabel(("a", "b"))}, "3 labels for 4"),
    ("rates", {"rates": [[1, 1]]}, "give one per class"),
    ("rates", {"rates": [0, 0]}, "must be at least 0, some of them above"),
    ("rates", {"rates": [1, 1, 1], "of": ROWS}, "for integer labels"),
    ("pipeline", {"seed": -1}, "seed=-1 must be an integer, 0 or more"),
    ("pipeline", {"image_size": -1}, "image_size=-1 is not a size"),
    ("pipeline", {"augment": "strong"}, "augment='strong' is not known. Give one of: 'inception'"),
    ("pipeline", {"eval_transform": "no"}, "eval_transform='no' is not known. Give one of: 'crop'"),
    ("pipeline", {"start_step": 3}, "start_step=3 must be 0 or more, and 0 without repeat=True"),
    ("pipeline", {"views": 0}, "views=0 must be an integer, 1 or more"),
    ("pipeline", {"channels": 4}, "channels=4 must be 3"),
    ("pipeline", {"of": ROWS, "num_classes": 5}, f"rows of 3 numbers already: {LEAVE_OUT}"),
    ("mixing", {"augment": MIXUP}, "num_classes"),
    ("mixing", {"augment": CUTMIX}, rf"cutmix=0\.5 mix {ONE_HOT}"),
    ("mixing", {"augment": keras.layers.MixUp()}, f"MixUp mixes {ONE_HOT}"),
    ("mixing", {"of": GRADES, "augment": MIXUP, "num_classes": 3}, "must stay integers"),
    ("evaluate", {"transform": "no"}, "mode='no' is not known. Give one of: 'crop', 'stretch'"),
    ("evaluate", {"crop_fraction": 0.0}, r"crop_fraction=0.0 must lie in \(0, 1\]"),
    ("evaluate", {"image_size": (8, 8, 3)}, r"image_size=\(8, 8, 3\) is not a size"),
    ("evaluate", {"transform": "timm_squash", "interpolation": "nearest"}, "is not known"),
    ("evaluate", {"transform": "crop", "interpolation": "bicubic"}, "mode beside inter"),
    ("augment", {"crop": "no"}, "crop='no' is not known. Give one of: 'inception', 'random'"),
    ("augment", {"min_area": 0.0}, r"min_area=0.0 must lie in \(0, 1\]"),
    ("augment", {"mixed_part": 0.0}, r"mixed_part=0.0 must be above 0 and at most 1"),
    ("augment", {"aspect_ratio": (2.0, 1.0)}, r"aspect_ratio=\(2.0, 1.0\) must be \(low, high\)"),
    ("augment", {"rotation": 181}, r"rotation=181 must lie in \[0, 180\]"),
    ("augment", {"zoom": NAN}, r"zoom=nan must lie in \[0, 1\]"),
    ("augment", {"erasing": 1.5}, r"erasing=1.5 must lie in \[0, 1\]"),
    ("augment", {"rand_augment": (0, 10)}, "number=0 must be an integer"),
    ("augment", {"rand_augment": (2, 31)}, "magnitude=31 must lie between 0 and 30"),
    ("augment", {"rand_augment": (2, 9), "operations": ("no",)}, "operation='no' is not known"),
    ("augment", {"rand_augment": (2, 9), "operations": ()}, r"operations=\(\) is empty"),
    ("augment", {"operations": ("invert",)}, "are for RandAugment: give rand_augment"),
]


def test_errors() -> None:
    for name, arguments, message in ERRORS:
        refused(message, CALLS[name], **arguments)


COUNT = 22
RNG, XY = np.random.default_rng(0), Regression(("x", "y"), offset=(1, 2), scale=(3, 4))
TASKS = {
    "multilabel": (Multilabel(("a", "b", "c")), RNG.integers(0, 2, (COUNT, 3))),
    "regression": (XY, RNG.normal(size=(COUNT, 2))),
    "one number": (Regression(("x",)), RNG.normal(size=COUNT)),
    "soft classes": (Classification(("a", "b")), np.full((COUNT, 2), 0.5)),
    "ordinal": (Ordinal(("low", "middle", "high")), np.arange(COUNT) % 3),
}


def arrays(task: Task, targets: np.ndarray, folder=None) -> Any:
    images = np.full((COUNT, 8, 8, 3), np.arange(COUNT)[:, None, None, None], np.uint8)
    return ArraySplit("train", task, images, targets)


def files(task: Task, targets: np.ndarray, folder) -> Any:
    paths = [folder / f"{i:02d}.png" for i in range(COUNT)]
    write(folder, {path.name: plain(i) for i, path in enumerate(paths)})
    return FileSplit("train", task, paths, targets, verified=True)


def batches_of(split: Any, **options) -> tuple[np.ndarray, np.ndarray]:
    """The gray level of each image, which is its number, and the labels."""
    batches = list(pipeline(split, 8, 8, **options).as_numpy_iterator())
    images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    return images[:, 0, 0, 0], labels


# Of the files, whose labels go the same way, two kinds of task stand for all.
CASES = [(arrays, name, number % 2 == 0) for number, name in enumerate(TASKS)]
CASES += [(arrays, "multilabel", False), (files, "multilabel", True), (files, "ordinal", False)]


@pytest.mark.parametrize(("source", "name", "training"), CASES)
def test_every_image_keeps_its_label(source, name: str, tmp_path, training: bool) -> None:
    task, targets = TASKS[name]
    split, expected = source(task, targets, tmp_path), task.check_targets(targets)
    np.testing.assert_array_equal(split.labels(), expected)
    assert split.labels().dtype == expected.dtype
    assert (split.class_names, split.label_shape) == (task.names, expected.shape[1:])
    spec = pipeline(split, 8, 8, training=training, augment="none").element_spec[1]
    assert spec == tf.TensorSpec((None, *expected.shape[1:]), expected.dtype)
    levels, labels = batches_of(split, training=training, augment="none", cache=training)
    index = np.rint(levels).astype(int)
    assert sorted(index) == list(range(COUNT))
    assert (list(index) == sorted(index)) != training
    np.testing.assert_array_equal(labels, expected[index])


@pytest.mark.parametrize(
    ("name", "kind"), [("multilabel", "mixup"), ("regression", "cutmix"), ("soft classes", "mixup")]
)
def test_rows_are_mixed_as_the_images_are(name: str, kind: str) -> None:
    split = arrays(*TASKS[name])
    augment = Augmentation(crop="resize", flip=False, **{kind: 1.0})
    (images, labels), (alone, before_mixing) = (
        next(pipeline(split, 8, COUNT, training=True, augment=how).as_numpy_iterator())
        for how in (augment, "none")
    )
    # Mean pixels are mixed by the same weight as the rows; of whole images, as of pasted boxes.
    alone, mixed = alone.mean((1, 2, 3)), images.mean((1, 2, 3))
    before = np.roll(alone, 1)
    weight = ((mixed - before) / (alone - before))[:, None]
    expected = weight * before_mixing + (1 - weight) * np.roll(before_mixing, 1, axis=0)
    np.testing.assert_allclose(labels, expected, atol=1e-4)
    assert (weight != 1).all()


def test_take_splits_of_one_class_and_tasks_without_names(tmp_path) -> None:
    for source in (arrays, files):
        split = source(*TASKS["regression"], tmp_path)
        levels, labels = batches_of(split.take([7, 3, 5]))
        np.testing.assert_allclose(levels, [7, 3, 5], atol=1e-3)
        np.testing.assert_array_equal(labels, split.labels()[[7, 3, 5]])
    # A split of one class is read, though no model has one.
    split = ArraySplit("train", ("a",), np.zeros((4, 8, 8, 1), np.uint8), np.zeros(4, int))
    assert repr(split) == "ArraySplit('train', 4 images, 1 class)"
    levels, labels = batches_of(split, num_classes=1)
    assert (len(levels), labels.tolist()) == (4, [[1.0]] * 4)
    for task in (Classification(size=3), Multilabel(size=3)):
        split = arrays(task, task.check_targets(np.eye(3)[np.arange(COUNT) % 3]))
        assert (split.class_names, split.num_classes, "3" in repr(split)) == ((), 3, True)
        assert len(some_images(split)) == COUNT


# Each of several processes decodes its rows of a batch, and all have the labels of all rows.
BATCH = 8
NOISE = np.random.default_rng(0).integers(0, 256, (COUNT, 12, 12, 3)).astype("uint8")


def in_memory(folder, reader: str) -> Any:
    return ArraySplit("train", ("a", "b"), NOISE, np.arange(COUNT) % 2, reader=reader)


def photographs(folder, reader: str) -> Any:
    files = map(tf.io.encode_png, NOISE)
    write(folder, {f"{'ab'[i % 2]}/{i}.png": file.numpy() for i, file in enumerate(files)})
    split = load(str(folder), val_fraction=0.1, reader=reader).train
    (folder / "a/4.png").write_bytes(b"damaged since")
    return split


def records(folder, reader: str) -> Any:
    pairs = ((tf.io.encode_png(x).numpy(), number % 2) for number, x in enumerate(NOISE))
    image_fixtures.write_examples(folder / "digits.tfrecord", pairs)
    (folder / "labels.txt").write_text("a\nb\n")
    return load(f"records:{folder}", val_fraction=0.1).train


FIRST, SECOND, EVEN = range(4), range(4, 8), range(0, 8, 2)
SHARES = [
    (in_memory, "tensorflow", SECOND, False),
    (photographs, "tensorflow", EVEN, True),
    (records, "tensorflow", SECOND, True),
    (in_memory, "grain", FIRST, True),
    (photographs, "grain", EVEN, True),
]


@pytest.mark.parametrize(("source", "reader", "rows", "mixed"), SHARES)
def test_rows(source, reader: str, rows: range, mixed: bool, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    split, mine = source(tmp_path, reader), np.array(rows)
    augment = Augmentation(mixup=0.5, cutmix=0.5) if mixed else None
    options = {"training": True, "seed": 1, "num_classes": 2, "augment": augment}

    def batches(of_process: np.ndarray | None) -> list[tuple[np.ndarray, np.ndarray]]:
        monkeypatch.setattr("keras_vit.data.batch_plan.rows_of_process", lambda count: of_process)
        return list(pipeline(split, 8, BATCH, **options).as_numpy_iterator())

    whole, parts = batches(None), batches(mine)
    assert len(whole) == len(parts) > 1
    for (every, labels), (some, its_labels) in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(its_labels, labels)
        assert (labels >= 0).all()
        np.testing.assert_array_equal(some, every[mine] if len(every) == BATCH else every)
