"""Every feature that a model names lies on the one path from its images to its logits."""

from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.models import ImageModel
from tests.backend import numpy, rows
from tests.bank import KINDS, fresh_kind, pixels

# Beside the kinds of all other tests, poolings and merging in their combinations.
COMBINED: dict[str, dict[str, Any]] = {
    "two_registers": {"num_registers": 2},
    "merging": {"token_merging": 3},
    "merging_gap": {"token_merging": 3, "pooling": "gap"},
    "merging_map": {"token_merging": (0, 3), "pooling": "map"},
    "merging_distilled": {"token_merging": 3, "distilled": True},
    "token_gap": {"pooling": "token_gap"},
    "map_with_class_token": {"pooling": "map", "class_token": True},
    "pre_logits": {"representation_size": 24, "distilled": True},
}
IMAGES, NEAR = pixels(1, 32, 32, 3).astype("float32"), {"rtol": 1e-5, "atol": 1e-5}
STEPS = (0.004, -0.004, 0.002, -0.002)  # of Richardson's extrapolation: of the fourth order
HEADED = [kind for kind, options in KINDS.items() if options.get("num_classes") != 0]


def model_of(kind: str) -> ImageModel:
    return fresh_kind(kind) if kind in KINDS else fresh_kind("token", **COMBINED[kind])


def float_features(model: ImageModel) -> dict[str, Any]:
    names = [name for name in model.feature_names if name not in ("images", "logits")]
    features = {name: model.feature_model(name).output for name in names}
    return {name: x for name, x in features.items() if "float" in str(x.dtype)}


def values_of(model: ImageModel, tensors: list[Any]) -> list[Any]:
    return keras.tree.flatten(keras.Model(model.inputs[0], tensors)(IMAGES))


def rest_of(model: ImageModel, name: str, feature: Any) -> tuple[keras.Model, list[Any]]:
    """The model from a feature to the logits, and the values of what else it reads."""
    beside = [n for n in model.feature_names if n == "patches" or n.endswith("_token_index")]
    tensors = [model.feature_model(n).output for n in beside if n != name]
    for others in ([], *([t] for t in tensors), tensors):
        try:
            rest = keras.Model([feature, *others], model.output)
        except ValueError:  # the logits read more than these
            continue
        return rest, values_of(model, others) if others else []
    raise AssertionError(f"no logits from {name}")


def score(outputs: Any) -> Any:
    return ops.sum(outputs[:, 1] - outputs[:, 0])


def gradients(model: ImageModel, features: dict[str, Any]) -> dict[str, Any]:
    """Of the score by each feature, as users compute them; None where there is none."""
    joint = keras.Model(model.inputs[0], [*features.values(), model.output])
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            *values, logits = joint(IMAGES)
            total = score(logits)
        found = tape.gradient(total, values)
    elif keras.backend.backend() == "torch":
        import torch

        *values, logits = joint(IMAGES)
        found = torch.autograd.grad(score(logits), values, allow_unused=True)
    else:
        import jax

        found = []
        for name, feature in features.items():
            rest, others = rest_of(model, name, feature)
            (value,) = values_of(model, [feature])
            of_value = jax.grad(lambda x, rest, others: score(rest([x, *others])))
            found.append(jax.jit(partial(of_value, rest=rest, others=others))(value))
    arrays = [None if gradient is None else np.asarray(numpy(gradient)) for gradient in found]
    return dict(zip(features, arrays, strict=True))


def slope(rest: keras.Model, value: np.ndarray, others: list[Any], direction: np.ndarray) -> float:
    moved = np.concatenate([value + step * direction for step in STEPS]).astype("float32")
    repeated = [np.repeat(numpy(x), len(STEPS), axis=0) for x in others]
    inputs = [ops.convert_to_tensor(x) for x in (moved, *repeated)]
    logits = numpy(ops.stop_gradient(rest(inputs))).astype("float64")
    up, down, half_up, half_down = logits[:, 1] - logits[:, 0]
    whole, half = (up - down) / 0.008, (half_up - half_down) / 0.004
    return float((4 * half - whole) / 3)


@pytest.mark.parametrize("kind", rows([*HEADED, *COMBINED], ["token"]))
def test_gradients_of_features_are_finite_differences(kind: str) -> None:
    model = model_of(kind)
    features = float_features(model)
    assert len(features) > 3
    values = values_of(model, list(features.values()))
    for (name, gradient), value in zip(gradients(model, features).items(), values, strict=True):
        assert gradient is not None, name
        size = np.linalg.norm(gradient)
        assert size > 0, name
        random = np.random.default_rng(0).normal(size=gradient.shape)
        rest, others = rest_of(model, name, features[name])
        for direction in (gradient / size, random / np.linalg.norm(random)):
            found = slope(rest, numpy(value), others, direction)
            assert abs(found - float((gradient * direction).sum())) < 0.005 * size, name


def test_features_of_a_nested_model_keep_all_tokens_and_are_those_of_the_images_alone() -> None:
    """A model may call both: its last block leaves tokens out in one of them alone."""
    model, images = fresh_kind("token"), keras.Input((32, 32, 3))
    both = keras.Model(images, [model(images), model.feature_model("encoder_norm")(images)])
    logits, tokens = both.predict(IMAGES, verbose=0)
    assert tokens.shape == (1, 17, 32)
    np.testing.assert_allclose(logits, model.predict(IMAGES, verbose=0), **NEAR)
    pooled = model.feature_model("pre_logits").predict(IMAGES, verbose=0)
    np.testing.assert_allclose(numpy(model.get_layer("head")(pooled)), logits, **NEAR)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("layer", ["block_1", "encoder_norm", "block_1/mlp", "all"])
def test_hooks_see_all_tokens(layer: str) -> None:
    """As libraries of attribution register them: Captum, pytorch-grad-cam."""
    import torch

    model, seen = fresh_kind("token"), []

    def hook(module: Any, inputs: Any, outputs: Any) -> None:
        if getattr(outputs, "ndim", 0) == 3:
            seen.append(outputs.shape[1])

    register = torch.nn.modules.module.register_module_forward_hook
    if layer != "all":
        found = next(one for one in model._flatten_layers() if one.path == layer)
        register = found.register_forward_hook
    with register(hook):
        model(IMAGES)
        model.predict(IMAGES, verbose=0)
    assert len(seen) >= 2
    assert set(seen) == {17} if layer != "all" else max(seen) == 17


def test_fewer_operations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, encoded = fresh_kind("token", depth=1), []
    mlp = model.get_layer("block_0").mlp
    call = mlp.call

    def watched(tokens: Any, **options: Any) -> Any:
        encoded.append(tokens.shape[1])
        return call(tokens, **options)

    monkeypatch.setattr(mlp, "call", watched)
    model(IMAGES)
    model.feature_model("encoder_norm")(IMAGES)
    assert encoded == [1, 17]
