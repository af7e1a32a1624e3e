"""Labels of any shape go through order, cache, mixing and the rows of several processes."""

import numpy as np
import pytest

from keras_vit.data import ArraySplit, Augmentation, FileSplit, Split, pipeline, plot_augmentations
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression, Task
from keras_vit.training.refinement import some_images
from tests.data.image_fixtures import one_quick, plain, write

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


def arrays(task: Task, targets: np.ndarray, folder) -> Split:
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
CASES = [*((arrays, name) for name in TASKS), (files, "multilabel")]
CASES += one_quick(["ordinal", "regression", "one number", "soft classes"], files)


@pytest.mark.parametrize(("source", "name"), CASES)
@pytest.mark.parametrize("training", [False, True])
def test_every_image_keeps_its_label(source, name: str, tmp_path, training: bool) -> None:
    task, targets = TASKS[name]
    split, expected = source(task, targets, tmp_path), task.check_targets(targets)
    np.testing.assert_array_equal(split.labels(), expected)
    assert split.labels().dtype == expected.dtype
    assert (split.task, split.class_names) == (task, task.names)
    assert split.label_shape == expected.shape[1:]
    spec = pipeline(split, 8, 8, training=training, augment="none").element_spec[1]
    assert spec == tf.TensorSpec((None, *expected.shape[1:]), expected.dtype)
    levels, labels = batches_of(split, training=training, augment="none", cache=training)
    index = np.rint(levels).astype(int)
    assert sorted(index) == list(range(COUNT))
    assert (list(index) == sorted(index)) != training
    np.testing.assert_array_equal(labels, expected[index])


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
@pytest.mark.parametrize("name", ["multilabel", "regression", "soft classes"])
def test_rows_are_mixed_as_the_images_are(name: str, kind: str, tmp_path) -> None:
    split = arrays(*TASKS[name], tmp_path)
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


@pytest.mark.parametrize("name", one_quick(TASKS))
def test_plot(name: str, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    plot, split = tmp_path / "plot.png", arrays(*TASKS[name], tmp_path)
    plot_augmentations(split, plot, 8, augment="none", images=2, versions=1)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_take_splits_of_one_class_and_tasks_without_names(tmp_path) -> None:
    for source in (arrays, files):
        split = source(*TASKS["regression"], tmp_path)
        part = split.take([7, 3, 5])
        levels, labels = batches_of(part)
        np.testing.assert_allclose(levels, [7, 3, 5], atol=1e-3)
        np.testing.assert_array_equal(labels, split.labels()[[7, 3, 5]])
        assert part.task == split.task
    # A split of one class is read, though no model has one.
    rows = arrays(*TASKS["multilabel"], tmp_path)
    assert pipeline(rows, 8, 8, num_classes=3).element_spec[1].shape == (None, 3)
    assert repr(rows) == "ArraySplit('train', 22 images, multilabel of 3)"
    split = ArraySplit("train", ("a",), np.zeros((4, 8, 8, 1), np.uint8), np.zeros(4, int))
    assert repr(split) == "ArraySplit('train', 4 images, 1 class)"
    images, labels = next(iter(pipeline(split, 8, 4, num_classes=1)))
    assert (images.shape, labels.numpy().tolist()) == ((4, 8, 8, 3), [[1.0]] * 4)
    # A task without names has as many classes.
    for task in (Classification(size=3), Multilabel(size=3)):
        targets = task.check_targets(np.eye(3)[[0, 1, 2, 0]])
        split = ArraySplit("val", task, np.zeros((4, 8, 8, 3), np.uint8), targets)
        assert (split.class_names, split.num_classes) == ((), 3)
        assert len(some_images(split)) == 4
        assert "3" in repr(split)
