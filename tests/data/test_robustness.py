"""A folder as people have them: loaded, gone through to the end, and what is wrong is said."""

from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit.data import load, pipeline
from tests.data.pictures import PICTURE, encode, write

pytest.importorskip("tensorflow")

CLASSES = ("Gänseblümchen", "лютик", "向日葵 mit Leerzeichen")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("wüst")
    good = encode(PICTURE, "JPEG")
    files = {f"train/{name}/фото {i} é.jpg": good for name in CLASSES for i in range(19)}
    files |= {f"train/{name}/broken.jpg": good[: 300 + i] for i, name in enumerate(CLASSES)}  # 5 %
    files |= {f"val/{name}/{i}.jpg": good for name in CLASSES[:2] for i in range(4)}
    files["val/лютик/text.jpg"] = b"no photograph"
    files["train/лютик/really a png.jpg"] = encode(PICTURE, "PNG")
    files["train/лютик/photo.jpgx"] = good
    files["train/лютик/without extension"] = good
    files["train/лютик/Thumbs.db"] = b"\x00"
    files["val/only here/1.jpg"] = good
    write(root, files)
    (root / "train" / "empty").mkdir()
    big = Image.fromarray(np.indices((5000, 6000)).sum(0).astype(np.uint8)).convert("RGB")
    big.save(root / "train" / CLASSES[0] / "30 megapixels.jpg", quality=70)
    return root


def test_what_is_wrong_is_left_out_and_said(folder: Path) -> None:
    with (
        pytest.warns(UserWarning, match="4 of 72 files cannot be decoded and are skipped"),
        pytest.warns(UserWarning, match="(?s)2 classes are left out:.*only here"),
    ):
        splits = load(folder)
    assert splits.class_names == CLASSES
    assert (len(splits.train), len(splits.val)) == (3 * 19 + 2, 8)
    assert set(splits.val.labels()) == {0, 1}
    unreadable = {str(path.relative_to(folder)): reason for path, reason in splits.report}
    assert set(unreadable) == {
        *(f"train/{name}/broken.jpg" for name in CLASSES),
        "val/лютик/text.jpg",
    }
    assert all(unreadable.values())
    ignored = {str(path.relative_to(folder)): reason for path, reason in splits.report.ignored}
    assert ignored == {
        "train/лютик/photo.jpgx": "not one of .bmp .gif .jpeg .jpg .png .webp",
        "train/лютик/without extension": "not one of .bmp .gif .jpeg .jpg .png .webp",
        "train/лютик/Thumbs.db": "not one of .bmp .gif .jpeg .jpg .png .webp",
        "train/empty": "a class without a photograph to train on",
        "val/only here": "a class without a photograph to train on, only 1 elsewhere",
    }
    for name in (*unreadable, *ignored):
        assert name in str(splits.report)


@pytest.mark.filterwarnings("ignore:4 of 72 files", "ignore:2 classes")
@pytest.mark.parametrize("verify", [True, False])
def test_it_is_gone_through_to_the_end(folder: Path, verify: bool, capfd) -> None:
    splits = load(folder, verify=verify)
    training = pipeline(splits.train, 16, 8, True, mixup=0.2, num_classes=3)
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
