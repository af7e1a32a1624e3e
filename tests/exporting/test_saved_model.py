"""The SavedModel serves without keras_vit, and agrees with `predict`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

import keras_vit
from tests import bank
from tests.data.image_fixtures import orientation
from tests.exporting.artifacts import (
    Artifacts,
    evaluation_images,
    exported,
    probabilities,
    softmax,
)
from tests.models.test_common import build

# In an interpreter of its own: it fails where the package would be imported.
SERVE = """
import json, sys
import numpy as np
import tensorflow as tf

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("keras_vit", "keras"):
            raise ImportError(name)

sys.meta_path.insert(0, Forbidden())
for folder in sys.argv[1:]:
    work = json.load(open(folder + "/work.json"))
    served = tf.saved_model.load(work["model"]).signatures
    files = [open(file, "rb").read() for file in work["files"]]
    answer = served["serving_default"](contents=tf.constant(files))
    # Strings as fixed-width bytes: NumPy would pickle objects.
    answer = {k: v.numpy().astype("S") if v.dtype == tf.string else v for k, v in answer.items()}
    np.savez(folder + "/files.npz", **answer)
    np.savez(folder + "/images.npz", **served["images"](images=np.load(folder + "/images.npy")))
    empty = {"files": served["serving_default"](contents=tf.zeros(0, tf.string)),
             "images": served["images"](images=tf.zeros((0, 9, 9, 3), tf.uint8))}
    shapes = {name: {k: v.shape.as_list() for k, v in a.items()} for name, a in empty.items()}
    json.dump(shapes, open(folder + "/shapes.json", "w"))
"""
NAMES = ["ant", "bee", "cat", "dog", "elk"]
HOSTILE_NAMES = ["[/b]", "a\nb", "\udcff", "\x1b[31m", ""]


def serve(folder: Path, **work: tuple[Path, list[Path], np.ndarray]) -> dict[str, Any]:
    """The answers of each model to its files, its images and nothing (the shapes); its images."""
    folders = {name: folder / name for name in work}
    for at, (model, files, images) in zip(folders.values(), work.values(), strict=True):
        at.mkdir()
        served = {"model": str(model), "files": [str(file) for file in files]}
        (at / "work.json").write_text(json.dumps(served))
        np.save(at / "images.npy", rounded(images))
    # One process serves them all: to start one takes longer than to serve.
    command = [sys.executable, "-c", SERVE, *map(str, folders.values())]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    answers = {}
    for name, at in folders.items():
        shapes = json.loads((at / "shapes.json").read_text())
        of_files, of_images = np.load(at / "files.npz"), np.load(at / "images.npz")
        answers[name] = of_files, of_images, shapes, work[name][2]
    return answers


def rounded(images: np.ndarray) -> np.ndarray:
    return np.rint(images).clip(0, 255).astype("uint8")


def photographs(folder: Path) -> list[Path]:
    random = np.random.default_rng(0)
    files = [folder / name for name in ("0.jpg", "1.png", "2.jpg", "3.png", "4.bmp")]
    for i, file in enumerate(files):
        pixels = random.integers(0, 256, (40 + 9 * i, 70 - 5 * i, 3)).astype("uint8")
        Image.fromarray(pixels).save(file)
    return files


def unusual(folder: Path) -> list[Path]:
    """A photograph that its EXIF data turns, the same upright, and one that is too large."""
    pixels = bank.pixels(40, 70, 3)
    files = [folder / f"{name}.png" for name in ("turned", "upright", "large")]
    Image.fromarray(pixels).save(files[0], exif=orientation(6))
    Image.fromarray(np.rot90(pixels, -1).copy()).save(files[1])
    Image.new("1", (10_000, 10_000)).save(files[2])
    return files


@pytest.fixture(scope="module")
def served(artifacts: Artifacts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `serve` returns for a model, for one of any size, and for what is unusual."""
    folder = tmp_path_factory.mktemp("served")
    files, odd = photographs(folder), unusual(folder)
    square, other = (evaluation_images(files[:-1], size) for size in ((32, 32), (40, 24)))
    artifacts.model("any size").class_names = tuple("abcde")
    any_size = artifacts.path("any size", image_size=(40, 24))
    artifacts.model("one block", lambda: build("token", depth=1))
    hostile = artifacts.path("one block", class_names=HOSTILE_NAMES)
    limited = artifacts.path("one block", max_pixels=40 * 70 - 1)
    token = artifacts.path("token", class_names=NAMES, top_k=3)
    users = {"hostile": (hostile, odd, other), "limited": (limited, odd, other)}
    sizes = {"token": (token, files, square), "any_size": (any_size, files, other)}
    return serve(folder, **sizes, **users)


def test_serves_as_predict_does(served: Any, artifacts: Artifacts) -> None:
    answer, of_images, _, images = served["token"]
    model = artifacts.model("token")
    expected = softmax(model.predict(images, verbose=0))
    assert answer["valid"].tolist() == [True] * 4 + [False]
    np.testing.assert_allclose(answer["probabilities"][:4], expected, atol=1e-5)
    of_pixels = softmax(model.predict(rounded(images), verbose=0))
    np.testing.assert_allclose(of_images["probabilities"], of_pixels, atol=1e-5)
    order = np.argsort(-expected, axis=1)[:, :3]
    names = [[name.decode() for name in row] for row in answer["top_classes"][:4]]
    assert names == [[NAMES[i] for i in row] for row in order]
    # The bad file is a marked row, and the batch around it is served.
    assert not answer["probabilities"][4].any()
    assert set(answer["top_classes"][4]) == {b""}


def test_serves_what_nobody_expects(served: dict[str, Any], artifacts: Artifacts) -> None:
    answer, *_, images = served["any_size"]
    expected = probabilities(artifacts.model("any size"), images)
    np.testing.assert_allclose(answer["probabilities"][:4], expected, atol=1e-5)
    answer, _, shapes, _ = served["hostile"]
    nothing = {"probabilities": [0, 5], "top_classes": [0, 5], "top_probabilities": [0, 5]}
    assert shapes["files"] == shapes["images"] == {**nothing, "valid": [0]}
    assert answer["valid"].tolist() == [True, True, False]
    first, second, _ = answer["probabilities"]
    np.testing.assert_array_equal(first, second)
    names = [name.encode("utf-8", "surrogateescape") for name in HOSTILE_NAMES]
    order = np.argsort(-first, kind="stable")
    assert answer["top_classes"][0].tolist() == [names[i] for i in order]
    assert served["limited"][0]["valid"].tolist() == [False] * 3


def test_prepared_images_and_those_of_other_channels(tmp_path: Path) -> None:
    """Not prepared again where that changes an image of the model's size, as those of timm do."""
    import tensorflow as tf

    model = build("token", depth=1)
    model.eval_transform = {"mode": "timm_center", "crop_fraction": 0.5, "interpolation": "bicubic"}
    file, images = exported(tmp_path / "timm", model), bank.pixels(2, 32, 32, 3)
    np.testing.assert_allclose(file.predict(images), probabilities(model, images), atol=1e-5)
    larger = images.repeat(2, axis=1).repeat(2, axis=2)
    serve_images = tf.saved_model.load(str(file.path)).signatures["images"]
    answer = serve_images(images=tf.constant(larger))["probabilities"].numpy()
    prepare = keras_vit.data.evaluation_image
    center = [prepare(tf.constant(image), (32, 32), model.eval_transform) for image in larger]
    np.testing.assert_allclose(answer, probabilities(model, np.stack(center)), atol=1e-5)
    # Files of images have one, three or four channels: no signature takes the bytes of others.
    model, images = build("token", input_shape=(32, 32, 5), depth=1), bank.pixels(2, 48, 40, 5)
    file, part = exported(tmp_path, model), images[:, :32, :32]
    assert file.contract.channels == 5
    np.testing.assert_allclose(file.predict(part), probabilities(model, part), atol=1e-4)
    signatures = tf.saved_model.load(str(file.path)).signatures
    assert sorted(signatures) == ["images", "pixels"]
    assert signatures["images"](images=tf.constant(images))["probabilities"].shape == (2, 5)


def test_a_full_disk_leaves_nothing_and_a_folder_of_the_user_stays(tmp_path: Path) -> None:
    folder, full = tmp_path / "1", OSError("No space left on device")
    with (
        patch("keras_vit.exporting.saved_model.write_text", side_effect=full),
        pytest.raises(OSError, match="No space"),
    ):
        keras_vit.export(bank.tiny(), folder)
    assert not list(tmp_path.iterdir())
    keras_vit.export(bank.tiny(), folder)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "precious").write_text("kept")
    with pytest.raises(FileExistsError, match="never replaced"):
        keras_vit.export(bank.tiny(), tmp_path / "2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    assert (tmp_path / "2" / "precious").read_text() == "kept"
