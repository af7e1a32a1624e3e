"""Files that Keras writes, as users write and read them; and those of version 0.1."""

from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.trainer.saved_file import LONGEST_CONFIG
from keras_vit.weights import load, load_weights
from keras_vit.weights.class_names import class_names
from tests.backend import at_once, numpy, rows, warned
from tests.bank import fill, fresh, fresh_kind, outputs, pixels, small, small_kind
from tests.conftest import REPOSITORY
from tests.models.test_common import EVERY_LAYER
from tests.weights.models import assert_same_weights, refused

IMAGES = pixels(4, 32, 32, 3)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.filterwarnings("ignore:.*legacy format")
def test_a_checkpoint_in_h5_is_read_everywhere(tmp_path: Path, command: Any) -> None:
    """By `ModelCheckpoint("best.h5")`, and then Keras's reader, ours and the command line."""
    model = fresh(num_classes=3)
    model.class_names = ("cat", "dög", "elk")
    model.compile("sgd", LOSS)
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.h5", "loss", save_best_only=True)
    model.fit(IMAGES, np.arange(4) % 3, verbose=0, callbacks=[best])
    for read in (keras.saving.load_model, load, load):
        loaded = read(tmp_path / "best.h5")
        assert (type(loaded), loaded.class_names) == (type(model), model.class_names)
        np.testing.assert_array_equal(outputs(loaded, IMAGES), outputs(model, IMAGES))
    report = load_weights(small(num_classes=7), tmp_path / "best.h5")
    assert report.fresh == ("head/kernel", "head/bias")
    (tmp_path / "best.h5").rename(tmp_path / "m.hdf5")
    keras.utils.save_img(tmp_path / "a.png", IMAGES[0])
    assert "elk" in command("predict", tmp_path / "m.hdf5", tmp_path / "a.png")


def test_saving_h5_says_what_it_leaves_out(tmp_path: Path) -> None:
    """The optimizer, of which Keras restores one that `fit` does not run with."""
    model = fresh()
    model.save(tmp_path / "m.h5")  # nothing is left out
    model.compile(keras.optimizers.SGD(0.5), LOSS)
    warned(r"legacy format.*save .*m\.keras", model.save, tmp_path / "m.h5")
    # Keras's writer takes the optimizer from what the model was compiled with.
    model.save(tmp_path / "m.keras")
    restored = keras.saving.load_model(tmp_path / "m.keras")
    assert float(restored.optimizer.learning_rate) == 0.5


def test_h5_of_keras_alone_and_of_others(tmp_path: Path) -> None:
    model = small()
    keras.saving.save_model(model, tmp_path / "m.h5")
    assert_same_weights(load(tmp_path / "m.h5"), model)
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    other.save(tmp_path / "o.h5")
    refused("holds a Sequential, not a model of keras_vit", load, tmp_path / "o.h5")
    refused("legacy.*m.keras", keras_vit.save_weights, model, tmp_path / "m.h5", error=ValueError)
    refused(r"bfloat16\. Save", small(dtype="bfloat16").save, tmp_path / "b.h5", error=ValueError)
    assert not (tmp_path / "b.h5").exists()
    around = keras.Sequential([keras.Input((32, 32, 3)), model, keras.layers.Dense(2)])
    around.save(tmp_path / "a.h5")
    loaded = keras.saving.load_model(tmp_path / "a.h5")
    np.testing.assert_array_equal(outputs(loaded, IMAGES), outputs(around, IMAGES))


@pytest.mark.parametrize("changes", [
    *({"num_classes": 7}, {"input_shape": (64, 48, 3)}, {"input_shape": (32, 32, 1)}),
    *({"patch_size": 16}, {"pooling": "gap"}, {"num_classes": 0}),
], ids=str)  # fmt: skip
def test_weights_alone_adapt_as_whole_models_do(changes: dict[str, Any], tmp_path: Path) -> None:
    model = fresh()
    model.compile("adam", LOSS)  # its state is in the file as well
    model.optimizer.build(model.trainable_variables)
    model.save_weights(tmp_path / "m.weights.h5")
    model.save(tmp_path / "m.keras")
    twins, reports = [fresh(**changes), fresh(**changes)], []
    for twin, name in zip(twins, ("m.weights.h5", "m.keras"), strict=True):
        fill(twin, 1)
        report = load_weights(twin, tmp_path / name)
        assert report.resized or report.adapted or report.fresh or report.ignored
        reports.append(str(report).split("\n", 1)[1].split("  sha256")[0])
    assert_same_weights(*twins)
    assert reports[0] == reports[1]


def test_weights_alone_of_a_grid_whose_count_is_a_square(tmp_path: Path) -> None:
    model, twin = fresh(input_shape=(64, 16, 3)), fresh(input_shape=(64, 16, 3), filled=False)
    keras_vit.save_weights(model, file := tmp_path / "m.weights.h5")
    assert not load_weights(twin, file).resized
    assert_same_weights(twin, model)
    assert "4 x 4 -> 8 x 2" in str(load_weights(twin, file, file_grid=(4, 4)))


# The others: their `.keras` files and weights alone in `tests/models/test_common.py`.
@pytest.mark.parametrize("kind", [*EVERY_LAYER, "all_tokens", "eva02"])
def test_every_layer_in_h5(kind: str, tmp_path: Path) -> None:
    changes = {} if kind == "all_tokens" else {"num_classes": 7}
    model, other = small_kind(kind), fresh_kind(kind, **changes)
    model.save(tmp_path / "m.h5")
    for read in (keras.saving.load_model, load):
        found = outputs(read(tmp_path / "m.h5"), IMAGES)
        np.testing.assert_array_equal(found, outputs(model, IMAGES))
    model.save_weights(tmp_path / "m.weights.h5")
    report = load_weights(other, tmp_path / "m.weights.h5")
    assert report.fresh == (() if kind == "all_tokens" else ("head/kernel", "head/bias"))
    for new, old in zip(other.weights, model.weights, strict=True):
        if not new.path.startswith("head"):
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (new, old)))


def test_weights_alone_of_another_model(tmp_path: Path) -> None:
    small().save_weights(file := tmp_path / "m.weights.h5")
    refused("not in the file", load_weights, small_kind("mixer"), file)
    refused("the model is of another size", load_weights, small(hidden_dim=16), file)
    refused("without an architecture", load, file)
    # A former Keras did not write the names of layers: then only the same sizes fit.
    with h5py.File(file, "r+") as opened:
        opened["layers"].visititems(lambda _, entry: entry.attrs.pop("name", None))
    twin = fresh()
    fill(twin, 1)
    load_weights(twin, file)
    assert_same_weights(twin, small())
    refused("cannot be read by Keras", load_weights, small(num_classes=7), file)


MANY = tuple(f"a kind of thing, the {i}th of many, näme" for i in range(100_000))  # 4.8 MB


def test_many_class_names(tmp_path: Path) -> None:
    model = fresh(num_classes=len(MANY), hidden_dim=16, depth=1)
    model.class_names = MANY
    model.save(tmp_path / "m.keras")
    model.save(tmp_path / "m.h5")
    keras_vit.save_weights(model, tmp_path / "folder", layout="huggingface")
    for name in ("m.keras", "m.h5", "folder"):
        assert load(tmp_path / name).class_names == MANY
    for name, layout in (("m.npz", "google"), ("m.safetensors", "timm")):
        warned(r"100,000 classes.*\.keras", keras_vit.save_weights, model, tmp_path / name, layout)
        assert load(tmp_path / name).class_names is None
    model.class_names = tuple(400 * "x" + name for name in MANY)
    too_long = f"at most {LONGEST_CONFIG:,} are accepted"
    for name in ("long.keras", "long.h5"):
        refused(too_long, model.save, tmp_path / name, error=ValueError)
    refused(too_long, keras_vit.save_weights, model, tmp_path / "long", "timm", error=ValueError)
    assert not list(tmp_path.glob("long*"))
    # One that is too long is not passed over: the number of heads would be a guess.
    with (tmp_path / "folder" / "config.json").open("a") as config:
        config.write(LONGEST_CONFIG * " ")
    refused(r"config\.json has .* bytes; at most", load, tmp_path / "folder")
    # Those of ImageNet-21k go by the name of the set.
    model = fresh(num_classes=21_843, hidden_dim=16, depth=1)
    model.class_names = class_names("imagenet-21k")
    keras_vit.save_weights(model, tmp_path / "released.npz", "google")
    assert load(tmp_path / "released.npz").class_names == model.class_names


@pytest.mark.parametrize(("name", "layout"), [("m.npz", "google"), ("m.safetensors", "timm")])
def test_files_over_the_limits(name: str, layout: str, tmp_path: Path, monkeypatch: Any) -> None:
    """What no reader would take is not written: 150 narrow blocks would meet the limits."""
    for reader in ("npz", "safetensors_file"):
        limit = f"keras_vit.weights.containers.{reader}.largest_header"
        monkeypatch.setattr(limit, lambda size: 1000)
    message = r"more and smaller tensors.*save it as \.keras"
    refused(message, keras_vit.save_weights, small(), tmp_path / name, layout)
    assert not list(tmp_path.iterdir())


FILES = REPOSITORY / "tests" / "golden" / "keras_files"
EXPECTED = np.load(FILES / "logits.npz")


OLDER = ("vit", "vit_merging", "hybrid", "mixer", "bit")


@pytest.mark.parametrize("kind", rows(OLDER, ["vit_merging", "bit"]))
def test_an_older_file_gives_the_same_logits(kind: str) -> None:
    file = FILES / f"{kind}.keras"
    loaded = keras.saving.load_model(file)
    for model in (loaded, keras_vit.weights.load(file)):
        logits = numpy(at_once(model)(EXPECTED["images"]))
        # Recorded on JAX; between backends, the tolerance of the golden cases.
        assert np.abs(logits - EXPECTED[kind]).max() <= 5e-6 * np.abs(EXPECTED[kind]).max()
    assert loaded.class_names == ("ant", "bee", "cat", "dog", "elk")
    assert loaded.get_config()["evaluation"] == {"mode": "stretch"}
    frozen = {layer.path for layer in loaded._flatten_layers() if not layer.trainable}
    expected = {"block_0/mlp", "block_1"} if kind == "vit" else set()
    assert {path for path in frozen if path in ("block_0/mlp", "block_1")} == expected
