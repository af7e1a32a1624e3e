"""A folder as people have them: loaded, iterated to the end, and its faults reported."""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras_vit.data import Augmentation, load, pipeline
from tests.data.image_fixtures import CLASSES, disorderly_folder

pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return disorderly_folder(tmp_path_factory.mktemp("wüst"))


def test_faults_are_left_out_and_reported(folder: Path) -> None:
    with (
        pytest.warns(UserWarning, match="4 of 72 files cannot be decoded and are skipped"),
        pytest.warns(UserWarning, match="(?s)2 classes are left out:.*only here"),
    ):
        splits = load(folder)
    assert splits.class_names == CLASSES
    assert (len(splits.train), len(splits.val)) == (3 * 19 + 2, 8)
    assert set(splits.val.labels()) == {0, 1}
    broken = {*(f"train/{name}/broken.jpg" for name in CLASSES), "val/лютик/text.jpg"}
    unreadable = {str(path.relative_to(folder)): reason for path, reason in splits.report}
    assert set(unreadable) == broken
    assert all(unreadable.values())
    ignored = {str(path.relative_to(folder)): reason for path, reason in splits.report.ignored}
    suffix = "not one of .bmp .gif .jpeg .jpg .png .webp"
    empty = "a class without an image to train on"
    assert ignored == {
        **{f"train/лютик/{n}": suffix for n in ("photo.jpgx", "without extension", "Thumbs.db")},
        "train/empty": empty,
        "val/only here": f"{empty}, only 1 elsewhere",
    }
    for name in (*unreadable, *ignored):
        assert name in str(splits.report)


@pytest.mark.filterwarnings("ignore:4 of 72 files", "ignore:2 classes")
@pytest.mark.parametrize("verify", [True, False])
def test_it_is_iterated_to_the_end(folder: Path, verify: bool, capfd) -> None:
    splits = load(folder, verify=verify)
    training = pipeline(splits.train, 16, 8, True, augment=Augmentation(mixup=0.2), num_classes=3)
    if verify:
        model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
        history = model.fit(training, epochs=1, verbose=0)
        assert np.isfinite(history.history["loss"]).all()
    else:
        assert sum(len(y) for _, y in training.as_numpy_iterator()) == 3 * 19 + 2
    assert sum(len(x) for x, _ in pipeline(splits.val, 16, 8).as_numpy_iterator()) == 8
    # Without a check beforehand, the files are named as they are met.
    assert ("cannot be decoded and is skipped" in capfd.readouterr().err) != verify
