"""Batches: their order, their randomness, their number, and what breaks on the way."""

import time

import numpy as np
import pytest

from benchmarks import input_pipeline
from keras_vit.data import ArraySplit, Augmentation, FileSplit, load, pipeline
from keras_vit.data.sources.array_splits import DecodedSplit
from keras_vit.tasks.balance import sampling_rates
from tests.data.batches import check_stopped_run, passes
from tests.data.image_fixtures import flat_folder, plain

tf = pytest.importorskip("tensorflow")
# One operation stands for all: each takes time to trace.
MIXED = Augmentation(rand_augment=(2, 10), operations=("rotate",), erasing=0.5, mixup=0.5, cutmix=1)
EVERYTHING = {"augment": MIXED, "num_classes": 2}
# A split, whether it is cached, and how it is augmented.
WAYS = [("folder_split", False, EVERYTHING), ("array_split", True, {})]


@pytest.fixture
def folder_split(tmp_path) -> FileSplit:
    flat_folder(tmp_path)
    files = sorted(tmp_path.glob("*/*.png"))
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
    # Unchecked files that are broken are skipped.
    flat_folder(tmp_path)
    (tmp_path / "a" / "bad.png").write_bytes(b"not an image")
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


@pytest.mark.thorough
def test_the_benchmark_runs(tmp_path) -> None:
    folder = input_pipeline.write_images(tmp_path, count=12)
    speed = input_pipeline.measure(folder, batches=2, batch_size=4, rounds=1)
    assert min(speed.bare, speed.ours, speed.augmented) > 0
    assert speed.ratio == pytest.approx(speed.ours / speed.bare)


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
    # Passes follow from seed and number alone.
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
