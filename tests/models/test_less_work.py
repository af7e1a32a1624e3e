"""Token merging and patch dropout: what they cost and keep; and the features of a model."""

from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.inspection import attention_maps, attention_rollout, pooling_attention
from keras_vit.models import ImageModel
from tests.backend import gradients, numpy, rows
from tests.bank import KINDS, fresh_kind
from tests.models.test_common import IMAGES, compiled, pixels, predict

# Operation by operation, every length of a sequence is compiled anew on JAX; elsewhere, compiling
# the model takes longer than running it so.
answer = compiled if keras.backend.backend() == "jax" else predict
build = partial(fresh_kind, "token")


def features(model: Any, *names: str, **options: Any) -> Any:
    found = model.feature_model(names, **options)(IMAGES)
    return [numpy(found[name]) for name in names]


OPTIONS: list[dict[str, Any]] = [{}, {"remat": True, "layer_scale": 0.5}, {"token_merging": 3}]
OPTIONS += [{"position_embedding": "relative", "num_registers": 2}]
OPTIONS += [{"token_merging": 3, "pre_norm": True}]
LEFT: list[tuple[dict[str, Any], list[int]]] = [
    ({"token_merging": 3, "depth": 4}, [14, 11, 8, 5]),
    ({"token_merging": (0, 5, 0), "depth": 3}, [17, 12, 12]),
    ({"token_merging": 100, "num_registers": 2, "depth": 3}, [3 + 8, 3 + 4, 3 + 2]),
    ({"token_merging": 5, "pooling": "gap", "depth": 4}, [11, 6, 3, 2]),
    ({"token_merging": 0}, [17, 17]),
]


@pytest.mark.parametrize("arguments", rows(OPTIONS, [{}]))
def test_the_last_block_encodes_what_is_read_alone(arguments: dict[str, Any]) -> None:
    model = build(**arguments)
    tokens = model.get_layer("encoder_norm").output  # users and `feature_model` get every token
    assert tokens.shape[1] == features(model, "encoder_norm")[0].shape[1] > 1
    assert model.get_layer("pooling").input is tokens
    whole = keras.Model(model.input, model.get_layer("head")(tokens[:, 0]))
    np.testing.assert_allclose(predict(model, IMAGES), predict(whole, IMAGES), atol=1e-5)
    found, wanted = gradients(model, IMAGES), gradients(whole, IMAGES)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("arguments", "wanted"), LEFT)
def test_tokens_left_after_each_block(arguments: dict[str, Any], wanted: list[int]) -> None:
    model = build(**arguments)
    names = [f"block_{i}" for i in range(model.depth)]
    assert [x.shape[1] for x in features(model, *names)] == wanted
    assert [model.feature_model(name).output_shape[1] for name in names] == wanted


def test_merging_nothing_is_the_plain_model_bit_by_bit() -> None:
    plain = build()
    expected = answer(plain, IMAGES)
    for nothing in (0, (0, 0)):
        same = build(token_merging=nothing, patch_dropout=0.0)
        same.set_weights(plain.get_weights())
        assert [type(x) for x in same.layers] == [type(x) for x in plain.layers]
        np.testing.assert_array_equal(answer(same, IMAGES), expected)
    faster = plain.with_token_merging(3)
    assert np.abs(answer(faster, IMAGES) - expected).max() > 1e-4
    np.testing.assert_array_equal(answer(faster.with_token_merging(0), IMAGES), expected)


@pytest.mark.parametrize("kind", rows(["token", "gap", "map", "all_tokens"], ["token"]))
def test_equal_patches_are_merged_without_a_trace(kind: str) -> None:
    """Every patch has an equal neighbor: answer, grid, and attention stay the plain model's."""
    plain = fresh_kind(kind, position_embedding="none")
    images = np.repeat(pixels(2, 4, 8, 16, 3).reshape(2, 32, 2, 8, 3), 2, axis=2)
    images, merging = images.reshape(2, 32, 32, 3), plain.with_token_merging((8, 0))
    close, names = {"atol": 3e-5, "rtol": 1e-4}, ["block_0", "encoder_norm"]
    np.testing.assert_allclose(answer(merging, images), answer(plain, images), **close)
    grids = [model.feature_model(names, format="grid") for model in (merging, plain)]
    found, wanted = (grid.predict(images, verbose=0) for grid in grids)
    for name in names:
        np.testing.assert_allclose(found[name], wanted[name], **close)
    looks = {"token": [attention_maps, attention_rollout], "map": [pooling_attention]}
    for look in looks.get(kind, []):
        np.testing.assert_allclose(look(merging, images), look(plain, images), atol=1e-5)


@pytest.mark.every_backend
def test_patch_dropout_works_in_training_only_and_repeats_by_seed() -> None:
    plain, logits = build(depth=1), []
    expected = answer(plain, IMAGES)
    for _ in range(2):
        keras.utils.set_random_seed(3)
        model = build(depth=1, patch_dropout=0.5)
        model.set_weights(plain.get_weights())
        np.testing.assert_array_equal(answer(model, IMAGES), expected)
        found = model.feature_model(["tokens", "logits"])(IMAGES, training=True)
        assert tuple(found["tokens"].shape) == (2, 1 + 8, 32)
        logits.append(numpy(found["logits"]))
    np.testing.assert_array_equal(logits[0], logits[1])
    assert np.abs(logits[0] - expected).max() > 1e-4
    with pytest.raises(ValueError, match="8 patches do not fill a grid of 4 x 4"):
        model.feature_model("block_0", format="grid")(IMAGES, training=True)


@pytest.mark.backends("tensorflow")  # the others trace every size anew
def test_images_and_batches_of_any_size() -> None:
    model = build(depth=1, token_merging=3, num_registers=1, patch_dropout=0.5)
    dynamic = model.with_input_shape((None, None, 3))
    for shape in ((1, 32, 32, 3), (3, 24, 48, 3)):
        images, fixed = pixels(*shape), model.with_input_shape(shape[1:])
        np.testing.assert_allclose(compiled(dynamic, images), answer(fixed, images), atol=2e-5)
    dynamic.compile("sgd", "mean_squared_error")
    assert np.isfinite(dynamic.fit(images, np.zeros((3, 5)), verbose=0).history["loss"]).all()


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
ONE_IMAGE, NEAR = pixels(1, 32, 32, 3).astype("float32"), {"rtol": 1e-5, "atol": 1e-5}
STEPS = (0.004, -0.004, 0.002, -0.002)  # of Richardson's extrapolation: of the fourth order
HEADED = [kind for kind, options in KINDS.items() if options.get("num_classes") != 0]


def model_of(kind: str) -> ImageModel:
    return fresh_kind(kind) if kind in KINDS else fresh_kind("token", **COMBINED[kind])


def float_features(model: ImageModel) -> dict[str, Any]:
    names = [name for name in model.feature_names if name not in ("images", "logits")]
    features = {name: model.feature_model(name).output for name in names}
    return {name: x for name, x in features.items() if "float" in str(x.dtype)}


def values_of(model: ImageModel, tensors: list[Any]) -> list[Any]:
    return keras.tree.flatten(keras.Model(model.inputs[0], tensors)(ONE_IMAGE))


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


def gradients_by(model: ImageModel, features: dict[str, Any]) -> dict[str, Any]:
    """Of the score by each feature, as users compute them; None where there is none."""
    import torch

    joint = keras.Model(model.inputs[0], [*features.values(), model.output])
    *values, logits = joint(ONE_IMAGE)
    found = torch.autograd.grad(score(logits), values, allow_unused=True)
    arrays = [None if gradient is None else numpy(gradient) for gradient in found]
    return dict(zip(features, arrays, strict=True))


def slope(rest: keras.Model, value: np.ndarray, others: list[Any], direction: np.ndarray) -> float:
    moved = np.concatenate([value + step * direction for step in STEPS]).astype("float32")
    repeated = [np.repeat(numpy(x), len(STEPS), axis=0) for x in others]
    inputs = [ops.convert_to_tensor(x) for x in (moved, *repeated)]
    logits = numpy(ops.stop_gradient(rest(inputs))).astype("float64")
    up, down, half_up, half_down = logits[:, 1] - logits[:, 0]
    whole, half = (up - down) / 0.008, (half_up - half_down) / 0.004
    return float((4 * half - whole) / 3)


@pytest.mark.backends("torch")  # those of the others: tests/inspection/test_documents.py
@pytest.mark.parametrize("kind", [*HEADED, *COMBINED])
def test_gradients_of_features_are_finite_differences(kind: str) -> None:
    model = model_of(kind)
    features = float_features(model)
    assert len(features) > 3
    values = values_of(model, list(features.values()))
    for (name, gradient), value in zip(gradients_by(model, features).items(), values, strict=True):
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
    logits, tokens = both.predict(ONE_IMAGE, verbose=0)
    assert tokens.shape == (1, 17, 32)
    np.testing.assert_allclose(logits, model.predict(ONE_IMAGE, verbose=0), **NEAR)
    pooled = model.feature_model("pre_logits").predict(ONE_IMAGE, verbose=0)
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
        model(ONE_IMAGE)
        model.predict(ONE_IMAGE, verbose=0)
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
    model(ONE_IMAGE)
    model.feature_model("encoder_norm")(ONE_IMAGE)
    assert encoded == [1, 17]
