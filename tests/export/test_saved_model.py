"""The SavedModel serves without keras_vit, and agrees with `predict`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data
from tests.models.test_common import KINDS, build, wake

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"

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
    served = tf.saved_model.load(folder + "/1")
    files = [open(f, "rb").read() for f in json.load(open(folder + "/files.json"))]
    answer = served.signatures["serving_default"](contents=tf.constant(files))
    # Strings as fixed-width bytes: NumPy would pickle objects.
    answer = {k: v.numpy().astype("S") if v.dtype == tf.string else v for k, v in answer.items()}
    np.savez(folder + "/answer.npz", **answer)
    images = np.load(folder + "/images.npy")
    pixels = served.signatures["images"](images=tf.constant(images))
    np.savez(folder + "/pixels.npz", probabilities=pixels["probabilities"])
"""


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of several kinds and shapes, one of them no image."""
    pil = pytest.importorskip("PIL.Image")
    folder, random = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    files = []
    for i, suffix in enumerate(("jpg", "png", "jpg", "bmp")):
        pixels = random.integers(0, 256, (40 + 9 * i, 70 - 5 * i, 3)).astype("uint8")
        files.append(folder / f"{i}.{suffix}")
        pil.fromarray(pixels).save(files[-1])
    files.append(folder / "no_image.jpg")
    files[-1].write_text("this is text")
    return files


def serve(
    folders: list[Path], files: list[Path], images: np.ndarray, run_python: Callable[..., str]
) -> list[tuple[Any, Any]]:
    """The answers of the model in each folder, to files and to pixels."""
    for folder in folders:
        (folder / "files.json").write_text(json.dumps([str(file) for file in files]))
        np.save(folder / "images.npy", rounded(images))
    run_python(SERVE, "tensorflow", *map(str, folders))
    return [(np.load(folder / "answer.npz"), np.load(folder / "pixels.npz")) for folder in folders]


def evaluation_images(files: list[Path], size: int | tuple[int, int]) -> np.ndarray:
    """What the evaluation's pipeline makes of files: `predict` has another decoder without it."""
    import tensorflow as tf

    size = (size, size) if isinstance(size, int) else size
    contents = (tf.constant(file.read_bytes()) for file in files)
    return np.stack([data.evaluation_image(data.decode_image(c), size).numpy() for c in contents])


def rounded(images: np.ndarray) -> np.ndarray:
    return np.rint(images).clip(0, 255).astype("uint8")


def softmax(logits: np.ndarray) -> np.ndarray:
    return keras.ops.convert_to_numpy(keras.ops.softmax(logits))


# The TensorFlow process that writes the file of another backend is the same for every kind.
SERVED = [k for k in KINDS if k != "all_tokens"] if ON_TENSORFLOW else ["token"]
QUICK = [k for k in ("token", "map", "mixer") if k in SERVED]


@pytest.mark.parametrize(
    "kinds", [QUICK, pytest.param(SERVED, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_serves_every_kind_as_predict_does(
    kinds: list[str], photographs: list[Path], tmp_path: Path, run_python: Callable[..., str]
) -> None:
    """One process serves them all: to start one takes longer than to serve."""
    names = ["ant", "bee", "cat", "dog", "elk"]
    images = evaluation_images(photographs[:-1], (32, 32))
    models = {kind: build(kind) for kind in kinds}
    for kind, model in models.items():
        keras_vit.export_model(model, tmp_path / kind / "1", class_names=names, top_k=3)
    folders = [tmp_path / kind for kind in kinds]
    answers = serve(folders, photographs, images, run_python)
    for (kind, model), (answer, pixels) in zip(models.items(), answers, strict=True):
        expected = softmax(model.predict(images, verbose=0))
        assert answer["valid"].tolist() == [True] * 4 + [False], kind
        np.testing.assert_allclose(answer["probabilities"][:4], expected, atol=1e-5, err_msg=kind)
        of_pixels = softmax(model.predict(rounded(images), verbose=0))
        np.testing.assert_allclose(pixels["probabilities"], of_pixels, atol=1e-5, err_msg=kind)
        order = np.argsort(-expected, axis=1)[:, :3]
        assert [[n.decode() for n in row] for row in answer["top_classes"][:4]] == [
            [names[i] for i in row] for row in order
        ], kind
        # The bad file is a marked row, and the batch around it is served.
        assert not answer["probabilities"][4].any(), kind
        assert set(answer["top_classes"][4]) == {b""}, kind


def test_a_model_of_any_size(
    photographs: list[Path], tmp_path: Path, run_python: Callable[..., str]
) -> None:
    model = build("token", input_shape=(None, None, 3), position_grid=(4, 4))
    model.class_names = tuple("abcde")
    with pytest.raises(ValueError, match="image_size=224"):
        keras_vit.export_model(model, tmp_path / "1")
    keras_vit.export_model(model, tmp_path / "1", image_size=(40, 24))
    images = evaluation_images(photographs[:-1], (40, 24))
    [(answer, _)] = serve([tmp_path], photographs, images, run_python)
    expected = softmax(model.predict(images, verbose=0))
    np.testing.assert_allclose(answer["probabilities"][:4], expected, atol=1e-5)


@pytest.mark.slow
def test_a_hundred_real_photographs(
    shared: Path, tmp_path: Path, run_python: Callable[..., str]
) -> None:
    folder = shared / "photos" / "flowers"
    files = [folder / line for line in (folder / "val.txt").read_text().split()][::4][:100]
    assert len(files) == 100
    model = keras_vit.ViTTi16(num_classes=5, input_shape=(96, 96, 3), depth=4, dtype="float32")
    wake(model)
    keras_vit.export_model(model, tmp_path / "1")
    images = evaluation_images(files, 96)
    [(answer, _)] = serve([tmp_path], files, images[:2], run_python)
    expected = softmax(model.predict(images, verbose=0))
    assert np.abs(answer["probabilities"] - expected).max() <= 1e-3
    assert (answer["probabilities"].argmax(1) == expected.argmax(1)).all()
    assert len(set(expected.argmax(1))) > 1  # predicting one class would prove little


def test_images_that_are_prepared_are_not_prepared_again(tmp_path: Path) -> None:
    """Where the preparation changes an image of the model's size, too, as those of timm do."""
    import tensorflow as tf

    model = build("token")
    model.eval_transform = {"mode": "timm_center", "crop_fraction": 0.5, "interpolation": "bicubic"}
    path = keras_vit.export_model(model, tmp_path / "1")
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype("uint8")
    expected = softmax(model.predict(images, verbose=0))
    found = keras_vit.export.load_exported(path).predict(images)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    larger = np.repeat(np.repeat(images, 2, axis=1), 2, axis=2)
    serve_images = tf.saved_model.load(str(path)).signatures["images"]
    answer = serve_images(images=tf.constant(larger))["probabilities"].numpy()
    center = np.stack(
        [
            keras_vit.data.evaluation_image(tf.constant(image), (32, 32), model.eval_transform)
            for image in larger
        ]
    )
    np.testing.assert_allclose(answer, softmax(model.predict(center, verbose=0)), atol=1e-5)


def test_refusals_leave_nothing_behind(tmp_path: Path) -> None:
    model = build("token")
    target = tmp_path / "name" / "1"
    for broken, words in (
        (build("token", include_preprocessing=False), "include_preprocessing=True"),
    ):
        with pytest.raises(ValueError, match=words):
            keras_vit.export_model(broken, target)
    with pytest.raises(ValueError, match="2 class_names for classification of 5"):
        keras_vit.export_model(model, target, class_names=["a", "b"])
    with pytest.raises(ValueError, match="tf_saved_model"):
        keras_vit.export_model(model, target, format="onyx")
    assert not target.parent.exists()
    target.mkdir(parents=True)
    (target / "precious").write_text("kept")
    with pytest.raises(FileExistsError, match="with or without overwrite=True"):
        keras_vit.export_model(model, target)
    assert [path.name for path in target.parent.iterdir()] == ["1"]
    assert (target / "precious").read_text() == "kept"


def test_a_second_attempt_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one leaves nothing."""

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("keras_vit.export.saved_model.write_text", full)
        with pytest.raises(OSError, match="No space"):
            keras_vit.export_model(build("token"), tmp_path / "1")
    assert not list(tmp_path.iterdir())
    keras_vit.export_model(build("token"), tmp_path / "1")
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


HOSTILE = """
import sys
import numpy as np
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1])
contents, images = (served.signatures[name] for name in ("serving_default", "images"))
nothing = tf.zeros((0, 9, 9, 3), tf.uint8)
for answer in (contents(contents=tf.zeros(0, tf.string)), images(images=nothing)):
    print({name: value.numpy().shape for name, value in sorted(answer.items())})
answer = contents(contents=tf.constant([open(file, "rb").read() for file in sys.argv[2:]]))
print(answer["valid"].numpy().tolist())
print(answer["top_classes"].numpy()[0].tolist())
np.save(sys.argv[1] + "/../probabilities.npy", answer["probabilities"])
"""


def test_serves_what_nobody_expects(tmp_path: Path, run_python: Callable[..., str]) -> None:
    pil = pytest.importorskip("PIL.Image")
    exif = pil.Exif()
    exif[0x0112] = 6
    pixels = np.random.default_rng(0).integers(0, 256, (40, 70, 3)).astype("uint8")
    pil.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    pil.fromarray(np.rot90(pixels, -1).copy()).save(tmp_path / "upright.png")
    pil.new("1", (10_000, 10_000)).save(tmp_path / "large.png")
    model = build("token")
    wake(model)
    names = ["[/b]", "a\nb", "\udcff", "\x1b[31m", ""]
    keras_vit.export_model(model, tmp_path / "1", class_names=names)
    files = [str(tmp_path / f"{name}.png") for name in ("turned", "upright", "large")]
    from_files, from_images, valid, classes = run_python(
        HOSTILE, "tensorflow", str(tmp_path / "1"), *files
    ).splitlines()
    nothing = {"probabilities": (0, 5), "top_classes": (0, 5), "top_probabilities": (0, 5)}
    assert from_files == from_images == str({**nothing, "valid": (0,)})
    assert valid == "[True, True, False]"
    probabilities = np.load(tmp_path / "probabilities.npy")
    np.testing.assert_array_equal(probabilities[0], probabilities[1])
    expected = [name.encode("utf-8", "surrogateescape") for name in names]
    assert classes == str([expected[i] for i in np.argsort(-probabilities[0], kind="stable")])
    keras_vit.export_model(model, tmp_path / "2", max_pixels=40 * 70 - 1)
    answer = run_python(HOSTILE, "tensorflow", str(tmp_path / "2"), *files)
    assert answer.splitlines()[2] == "[False, False, False]"
