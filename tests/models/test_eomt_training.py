"""A model with an EoMT head trains, resumes, and refuses what its loss cannot do."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models.image_model import ImageModel
from keras_vit.tasks import Segmentation
from keras_vit.tasks.query_losses import QueryLoss
from keras_vit.training import compile_model
from keras_vit.training.lora import enable_lora
from keras_vit.training.resume import ResumableRun
from keras_vit.training.sam import sharpness_aware
from keras_vit.weights.variables import bindings
from tests import bank
from tests.training.common import Killed, StopAt

HEAD: dict[str, Any] = {"kind": "eomt", "queries": 5, "blocks": 2}
SIZES: dict[str, Any] = {"patch_size": 4, "hidden_dim": 16, "depth": 3, "num_heads": 2}
SIZES |= {"input_shape": (20, 12, 3), "dropout": 0.1}
IMAGES = bank.pixels(24, 20, 12, 3)
LABELS = (IMAGES[..., 0] // 86).astype("int32")
RECIPE = keras_vit.recipes.get("eomt_pixels").scaled(steps=12, batch_size=8)


def vit(seed: int = 0, **changes: Any) -> ImageModel:
    keras.utils.set_random_seed(seed)
    task = Segmentation(("sky", "tree", "road"))
    return keras_vit.VisionTransformer(**SIZES | {"map_head": HEAD, "task": task, **changes})


def batches(start_step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for step in itertools.count(start_step):
        chosen = np.random.default_rng(step).permutation(24)[:8]
        yield IMAGES[chosen].astype("float32"), LABELS[chosen]


def steps_counted(model: Any) -> int:
    return int(keras.ops.convert_to_numpy(model.annealing_seed.state)[1])


@pytest.mark.every_backend
def test_a_stopped_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """With dropout, accumulation, and the random masks and points of every step."""

    def fit(folder: str, seed: int, *callbacks: Any) -> tuple[ImageModel, Any]:
        model = vit(seed)
        compile_model(model, replace(RECIPE, accumulation=2), 6)
        assert model.loss.steps == 12
        run = ResumableRun(tmp_path / folder, None, every_steps=3, print_fn=lambda _: None)
        return model, run.fit(model, batches, 3, 4, callbacks=callbacks, verbose=0).history

    whole, history = fit("whole", 0)
    with pytest.raises(Killed):
        fit("cut", 0, StopAt(8))
    resumed, again = fit("cut", 9)
    assert again == history
    assert steps_counted(whole) == steps_counted(resumed) == 12
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    # A file has the weights of a model that was never compiled.
    assert len(bindings(whole)) == len(bindings(vit()))
    whole.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(bank.outputs(whole, IMAGES[:2]), bank.outputs(loaded, IMAGES[:2]))
    loaded.fit(IMAGES, LABELS, batch_size=8, verbose=0)  # by Keras's own means: counts on
    assert steps_counted(loaded) == 15


def sam(model: Any) -> None:
    sharpness_aware(model, 0.05)


@pytest.mark.parametrize(
    ("changes", "prepare", "finish", "still"),
    [
        ({}, None, sam, ""),
        ({"dtype": "mixed_float16"}, None, None, ""),
        ({"rotary": "dinov3", "position_embedding": "none", "num_registers": 2}, None, None, ""),
        ({"map_head": {**HEAD, "masked": True}}, None, None, ""),
        ({}, lambda model: enable_lora(model, 2), None, "patch_embedding/kernel"),
    ],
    ids=["sam", "float16", "rotary", "always masked", "lora"],
)
def test_every_weight_learns(
    changes: Any, prepare: Callable[[Any], Any] | None, finish: Any, still: str
) -> None:
    model = vit(**changes)
    if prepare:
        prepare(model)
    model.compile(keras.optimizers.AdamW(3e-3), QueryLoss(steps=12), metrics=model.task.metrics())
    if finish:
        finish(model)
    before = {w.path: np.array(v) for w, v in zip(model.weights, model.get_weights(), strict=True)}
    seen = model.fit(IMAGES, LABELS, batch_size=8, epochs=4, verbose=0).history
    assert seen["loss"][-1] < seen["loss"][0]
    assert seen.keys() == {"loss", "mean_iou"}
    after = zip(model.weights, model.get_weights(), strict=True)
    same = {weight.path for weight, value in after if np.array_equal(before[weight.path], value)}
    assert (still in same) if still else not same
    assert model.predict(IMAGES[:2], verbose=0).shape == (2, 20, 12, 3)


def test_what_is_refused(tmp_path: Path) -> None:
    frozen = keras_vit.recipes.get("linear_pixels")
    for words, wrong in (
        ("one of 1 losses", lambda: vit(map_head="linear").compile("sgd", QueryLoss())),
        ("points=0", lambda: QueryLoss(points=0)),
        ("steps=2.5", lambda: QueryLoss(steps=2.5)),  # type: ignore[arg-type]
        ("pass the last blocks", lambda: keras_vit.fit(vit(), frozen, (IMAGES, LABELS), tmp_path)),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
    model = vit()
    model.compile("sgd", QueryLoss())
    with pytest.raises(ValueError, match="sample_weight"):
        model.fit(IMAGES, LABELS, sample_weight=np.ones(24), verbose=0)


@pytest.mark.backends("tensorflow")
def test_xla_does_not_call_the_host_on_tensorflow() -> None:
    model = vit()
    with pytest.raises(ValueError, match="which XLA does not compile there"):
        model.compile("sgd", QueryLoss(), jit_compile=True)
    model.compile("sgd", QueryLoss())
    assert not model.jit_compile
    assert not model._xla_is_free
    assert model.get_compile_config()["jit_compile"] == "auto"
