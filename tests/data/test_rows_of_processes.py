"""Each of several processes decodes its rows of a batch, and all have the labels of all rows."""

from functools import partial

import numpy as np
import pytest

from keras_vit.data import ArraySplit, Augmentation, Split, load, pipeline
from tests.data.image_fixtures import write, write_examples

tf = pytest.importorskip("tensorflow")
COUNT, BATCH = 22, 8
# And whether images are mixed, each with the one before it.
ROWS = [(range(4), True), (range(4, 8), False), (range(0, 8, 2), True)]
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, 12, 12, 3)).astype("uint8")


def arrays(folder, reader: str = "tensorflow") -> Split:
    return ArraySplit("train", ("a", "b"), IMAGES, np.arange(COUNT) % 2, reader=reader)


def photographs(folder, reader: str = "tensorflow") -> Split:
    files = map(tf.io.encode_png, IMAGES)
    write(folder, {f"{'ab'[i % 2]}/{i}.png": file.numpy() for i, file in enumerate(files)})
    split = load(str(folder), val_fraction=0.1, reader=reader).train
    (folder / "a/4.png").write_bytes(b"damaged since")
    return split


def records(folder) -> Split:
    pairs = ((tf.io.encode_png(x).numpy(), number % 2) for number, x in enumerate(IMAGES))
    write_examples(folder / "digits.tfrecord", pairs)
    (folder / "labels.txt").write_text("a\nb\n")
    return load(f"records:{folder}", val_fraction=0.1).train


SOURCES = {
    "arrays": arrays,
    "photographs": photographs,
    "records": records,
    "arrays by Grain": partial(arrays, reader="grain"),
    "photographs by Grain": partial(photographs, reader="grain"),
}


@pytest.mark.parametrize(("rows", "mixed"), ROWS)
@pytest.mark.parametrize("source", SOURCES)
def test_rows(source: str, rows: range, mixed: bool, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    split, mine = SOURCES[source](tmp_path), np.array(rows)
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
