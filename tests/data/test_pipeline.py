"""Batches: their order, their randomness, their number, and what breaks on the way."""

import time

import keras
import numpy as np
import pytest

from benchmarks import input_pipeline
from keras_vit.data import ArraySplit, Augmentation, FileSplit, batch_plan, load, pipeline
from tests.data.batches import check_stopped_run, passes
from tests.data.image_fixtures import flat_folder, one_quick, plain

tf = pytest.importorskip("tensorflow")
# A split, and whether it is cached: each of both once, the other pairs thoroughly.
OTHER_PAIRS = [("array_split", True), ("folder_split", True), ("array_split", False)]
PAIRS = [("folder_split", False), *one_quick(OTHER_PAIRS)]
# Three operations stand for all: each takes time to trace.
OPERATIONS = {"rand_augment": (2, 10), "operations": ("rotate", "contrast", "cutout")}
MIXED = Augmentation(**OPERATIONS, erasing=0.5, mixup=0.5, cutmix=1.0)
EVERYTHING = {"augment": MIXED, "num_classes": 2}


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


@pytest.mark.parametrize("policy", one_quick(["mixed_bfloat16", "mixed_float16"]))
def test_the_policy_changes_nothing(folder_split, policy: str) -> None:
    options = {**EVERYTHING, "training": True}
    expected = passes(pipeline(folder_split, 8, 4, **options))[0]
    keras.config.set_dtype_policy(policy)
    batches = pipeline(folder_split, 8, 4, **options)
    assert {spec.dtype for spec in batches.element_spec} == {tf.float32}
    np.testing.assert_array_equal(passes(batches)[0], expected)


@pytest.mark.parametrize("cache", [False, True])
def test_evaluation_keeps_order_and_pixels(folder_split, array_split, cache: bool) -> None:
    images, labels = array_split.as_arrays()
    for arrays in passes(pipeline(array_split, 8, 7, channels=1, cache=cache), 2):
        np.testing.assert_array_equal(arrays, np.c_[images.reshape(len(images), -1), labels])
    for images in passes(pipeline(folder_split, 8, 7, cache=cache), 2):
        # The gray level of an image is its number: 0, 2, 4, ... in class a, 1, 3, 5, ... in b.
        np.testing.assert_allclose(images[:, 0], [*range(0, 20, 2), *range(1, 20, 2)], atol=1e-4)
        np.testing.assert_array_equal(images[:, -1], folder_split.labels())


@pytest.mark.parametrize("cache", one_quick([False, True]))
def test_training_follows_from_the_seed(folder_split, cache: bool) -> None:
    def train(seed: int) -> list[np.ndarray]:
        return passes(pipeline(folder_split, 8, 10, training=True, seed=seed, cache=cache), 2)

    first, again, other = train(1), train(1), train(2)
    np.testing.assert_array_equal(first, again)
    for images in first:  # every pass is a permutation
        np.testing.assert_allclose(np.sort(images[:, 0]), np.arange(20), atol=1e-4)
    assert (first[0][:, 0] != first[1][:, 0]).any()
    assert (first[0] != other[0]).any()


def test_batches_do_not_hang_on_threads_and_images_differ(folder_split) -> None:
    def with_threads(count: int) -> list[np.ndarray]:
        batches = pipeline(folder_split, 8, 6, training=True, repeat=True).take(10)
        options = tf.data.Options()
        options.threading.private_threadpool_size = count
        return passes(batches.with_options(options))

    np.testing.assert_array_equal(with_threads(1), with_threads(8))
    # The same image 64 times: only the augmentation differs.
    noise = np.random.default_rng(0).integers(0, 256, (1, 90, 90, 3), np.uint8)
    split = ArraySplit("train", ("a",), np.repeat(noise, 64, 0), np.zeros(64, int))
    both = np.concatenate(passes(pipeline(split, 8, 16, training=True), 2))
    assert len(np.unique(both, axis=0)) == 128
    plain_ones = passes(pipeline(split, 8, 16, training=True, augment="none"))[0]
    assert len(np.unique(plain_ones, axis=0)) == 1


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_stopped_run_goes_on_bit_by_bit_and_passes_are_numbered(pair, request) -> None:
    split, cache = request.getfixturevalue(pair[0]), pair[1]
    for options in ({}, EVERYTHING):
        # 72 images: three passes of 20, and batches across their borders.
        check_stopped_run(split, 6, 12, (4, 11), cache=cache, **options)
    endless = passes(pipeline(split, 8, 5, True, repeat=True, cache=cache).take(12))[0]
    finite = passes(pipeline(split, 8, 5, True, cache=cache), 3)
    np.testing.assert_array_equal(np.concatenate(finite), endless)


def test_files_that_break_after_their_check_or_without_one(folder_split, tmp_path, capfd) -> None:
    trained = pipeline(folder_split, 8, 6, True, repeat=True).take(3)
    (before,) = passes(trained)
    # The gray level of an image is its number: 16 is the ninth of class a.
    (place,) = np.flatnonzero(np.isclose(before[:, 0], 16))
    folder_split.files[8].write_bytes(plain(16)[:40])
    (after,) = passes(trained)
    np.testing.assert_array_equal(np.delete(after, place, 0), np.delete(before, place, 0))
    assert (after[place, :-1] == 127).all()
    assert after[place, -1] == before[place, -1] == 0
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


@pytest.mark.every_backend
def test_fits_on_every_backend(folder_split) -> None:
    parts = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2, activation="softmax")]
    model = keras.Sequential(parts)
    model.compile("sgd", "sparse_categorical_crossentropy")
    history = model.fit(pipeline(folder_split, 8, 5, training=True), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert model.predict(pipeline(folder_split, 8, 6), verbose=0).shape == (20, 2)
    steps = pipeline(folder_split, 8, 5, training=True, repeat=True)
    model.fit(steps, epochs=2, steps_per_epoch=3, verbose=0)


def test_cache_is_chosen_by_what_the_images_take(monkeypatch: pytest.MonkeyPatch) -> None:
    split = load("digits").train
    assert batch_plan._decoded_bytes(split, 1) == len(split) * 64
    plain = [x.numpy() for x, _ in pipeline(split, 8, 500, channels=1)]
    for limit in (0, 2**30):
        monkeypatch.setattr(batch_plan, "MEMORY_BYTES", limit)
        cached = [x.numpy() for x, _ in pipeline(split, 8, 500, channels=1, cache=None)]
        for ours, theirs in zip(cached, plain, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_the_benchmark_runs(tmp_path) -> None:
    folder = input_pipeline.write_images(tmp_path, count=12)
    speed = input_pipeline.measure(folder, batches=2, batch_size=4, rounds=1)
    assert min(speed.bare, speed.ours, speed.augmented) > 0
    assert speed.ratio == pytest.approx(speed.ours / speed.bare)


@pytest.mark.slow
def test_it_is_not_slower_than_a_bare_chain_of_tf_data(tmp_path, capsys) -> None:
    speed = input_pipeline.measure(input_pipeline.write_images(tmp_path), rounds=7)
    with capsys.disabled():
        print(f"\n{speed}")
    assert speed.ratio >= 0.9
