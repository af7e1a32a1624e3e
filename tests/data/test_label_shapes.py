"""Labels of any shape go through order, cache, mixing and the rows of several processes."""

import numpy as np
import pytest

from keras_vit.data import ArraySplit, Augmentation, FileSplit, Split, load, pipeline
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression, Task
from keras_vit.training.refinement import some_images
from tests.data.image_fixtures import plain, write, write_examples

tf = pytest.importorskip("tensorflow")
COUNT = 22
RNG, XY = np.random.default_rng(0), Regression(("x", "y"), offset=(1, 2), scale=(3, 4))
TASKS = {
    "multilabel": (Multilabel(("a", "b", "c")), RNG.integers(0, 2, (COUNT, 3))),
    "regression": (XY, RNG.normal(size=(COUNT, 2))),
    "one number": (Regression(("x",)), RNG.normal(size=COUNT)),
    "soft classes": (Classification(("a", "b")), np.full((COUNT, 2), 0.5)),
    "ordinal": (Ordinal(("low", "middle", "high")), np.arange(COUNT) % 3),
}


def arrays(task: Task, targets: np.ndarray, folder=None) -> Split:
    images = np.full((COUNT, 8, 8, 3), np.arange(COUNT)[:, None, None, None], np.uint8)
    return ArraySplit("train", task, images, targets)


def files(task: Task, targets: np.ndarray, folder) -> Split:
    paths = [folder / f"{i:02d}.png" for i in range(COUNT)]
    write(folder, {path.name: plain(i) for i, path in enumerate(paths)})
    return FileSplit("train", task, paths, targets, verified=True)


def batches_of(split: Split, **options) -> tuple[np.ndarray, np.ndarray]:
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


PAIRS = [("multilabel", "mixup"), ("regression", "cutmix"), ("soft classes", "mixup")]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
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
        part = split.take([7, 3, 5])
        levels, labels = batches_of(part)
        np.testing.assert_allclose(levels, [7, 3, 5], atol=1e-3)
        np.testing.assert_array_equal(labels, split.labels()[[7, 3, 5]])
    # A split of one class is read, though no model has one.
    split = ArraySplit("train", ("a",), np.zeros((4, 8, 8, 1), np.uint8), np.zeros(4, int))
    assert repr(split) == "ArraySplit('train', 4 images, 1 class)"
    levels, labels = batches_of(split, num_classes=1)
    assert (len(levels), labels.tolist()) == (4, [[1.0]] * 4)
    # A task without names has as many classes.
    for task in (Classification(size=3), Multilabel(size=3)):
        split = arrays(task, task.check_targets(np.eye(3)[np.arange(COUNT) % 3]))
        assert (split.class_names, split.num_classes, "3" in repr(split)) == ((), 3, True)
        assert len(some_images(split)) == COUNT


# Each of several processes decodes its rows of a batch, and all have the labels of all rows.
BATCH = 8
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, 12, 12, 3)).astype("uint8")


def in_memory(folder, reader: str) -> Split:
    return ArraySplit("train", ("a", "b"), IMAGES, np.arange(COUNT) % 2, reader=reader)


def photographs(folder, reader: str) -> Split:
    files = map(tf.io.encode_png, IMAGES)
    write(folder, {f"{'ab'[i % 2]}/{i}.png": file.numpy() for i, file in enumerate(files)})
    split = load(str(folder), val_fraction=0.1, reader=reader).train
    (folder / "a/4.png").write_bytes(b"damaged since")
    return split


def records(folder, reader: str) -> Split:
    pairs = ((tf.io.encode_png(x).numpy(), number % 2) for number, x in enumerate(IMAGES))
    write_examples(folder / "digits.tfrecord", pairs)
    (folder / "labels.txt").write_text("a\nb\n")
    return load(f"records:{folder}", val_fraction=0.1).train


FIRST, SECOND, EVEN = range(4), range(4, 8), range(0, 8, 2)
ROWS = [
    (in_memory, "tensorflow", SECOND, False),
    (photographs, "tensorflow", EVEN, True),
    (records, "tensorflow", SECOND, True),
    (in_memory, "grain", FIRST, True),
    (photographs, "grain", EVEN, True),
]


@pytest.mark.parametrize(("source", "reader", "rows", "mixed"), ROWS)
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
