"""The attention kernel for TPUs computes attention and its gradient, and is taken where asked."""

import importlib.util
import math
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.ops import kernels
from keras_vit.ops.tpu_attention import fits_vector_memory, self_attention
from keras_vit_cli.plan.step_cost import step_cost

if keras.backend.backend() != "jax":
    pytest.skip("Pallas is JAX's", allow_module_level=True)
import jax

OLD = jax.__version_info__ < (0, 7)
pytestmark = [pytest.mark.backends("jax"), pytest.mark.skipif(OLD, reason="XLA computes it then")]


def attention_by_the_formula(projected: Any, heads: int) -> Any:
    """ViT paper, equations 6 to 8."""
    batch, length, columns = projected.shape
    parts = projected.reshape(batch, length, 3, heads, columns // 3 // heads)
    query, key, value = (parts[:, :, part] for part in range(3))
    logits = jax.numpy.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(query.shape[-1])
    outputs = jax.numpy.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), value)
    return outputs.reshape(batch, length, -1)


@pytest.mark.parametrize(("length", "heads", "head_dim"), [(5, 1, 4), (17, 3, 8), (197, 2, 16)])
def test_outputs_and_gradients(length: int, heads: int, head_dim: int) -> None:
    random = np.random.default_rng(length)
    projected = random.normal(size=(2, length, 3 * heads * head_dim)).astype("float32")
    gradient = random.normal(size=(2, length, heads * head_dim)).astype("float32")
    expected, expected_vjp = jax.vjp(lambda x: attention_by_the_formula(x, heads), projected)
    outputs, vjp = jax.vjp(lambda x: self_attention(x, heads, interpret=True), projected)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=3e-6)
    np.testing.assert_allclose(vjp(gradient)[0], expected_vjp(gradient)[0], rtol=0, atol=2e-5)


def test_large_logits_do_not_overflow_and_long_sequences_do_not_fit() -> None:
    outputs = self_attention(np.full((1, 3, 12), 1e3, "float32"), 2, interpret=True)
    np.testing.assert_allclose(np.asarray(outputs), 1e3, rtol=1e-6)
    assert fits_vector_memory(197, 768, "TPU v4")  # ViT-B/16 at 224 pixels
    assert fits_vector_memory(257, 1280, "TPU v4")  # ViT-H/14
    assert fits_vector_memory(577, 1024, "TPU v5 lite")  # ViT-L/16 at 384
    assert not fits_vector_memory(577, 1024, "TPU v4")
    assert not fits_vector_memory(4097, 768, "TPU v6 lite")


SWITCHES = [("1", False), ("1", True), (None, False), ("0", False)]


@pytest.mark.parametrize(("switch", "distributed"), SWITCHES)
def test_a_block_as_on_a_tpu(monkeypatch: Any, switch: str | None, distributed: bool) -> None:
    """Its operators give a block's outputs and gradients in float32; the kernel's switch is 1."""
    monkeypatch.delenv("KERAS_VIT_TPU_ATTENTION", raising=False)
    if switch is not None:
        monkeypatch.setenv("KERAS_VIT_TPU_ATTENTION", switch)
    tokens = np.random.default_rng(0).normal(size=(2, 9, 32)).astype("float32")

    def outputs_and_gradients(dtype: str) -> list[Any]:
        keras.utils.set_random_seed(0)
        config = keras_vit.layers.BlockConfig(num_heads=2, mlp_dim=64)
        block = keras_vit.layers.EncoderBlock(config, dtype=dtype)
        block.build(tokens.shape)

        def loss(weights: Any, tokens: Any) -> Any:
            outputs, _ = block.stateless_call(weights, [], tokens, training=True)
            return (outputs.astype("float32") ** 2).mean(), outputs

        weights = [variable.value for variable in block.trainable_variables]
        step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        (_, outputs), gradients = step(weights, tokens)
        return [outputs, *jax.tree.leaves(gradients)]

    expected = outputs_and_gradients("float32")
    kernel, calls = self_attention, []

    def interpreted(projected: Any, heads: int) -> Any:
        calls.append(heads)
        return kernel(projected, heads, interpret=True)

    monkeypatch.setattr(kernels, "jax_platform", lambda: "tpu")
    monkeypatch.setattr(kernels, "jax_is_accelerated", lambda: True)
    monkeypatch.setattr(kernels, "self_attention", interpreted)
    parallel = keras_vit.distribution.create("data_parallel", devices=1)
    with parallel.scope() if distributed else nullcontext():
        results = outputs_and_gradients("mixed_bfloat16")
    assert bool(calls) == (switch == "1")
    for array, like in zip(results, expected, strict=True):
        np.testing.assert_allclose(array, like, rtol=0, atol=0.02 * float(np.abs(like).max()))


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs the compiler of TPUs")
def test_a_tpu_does_not_write_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the tokens, less than three times the bytes: they would be four times."""
    monkeypatch.setenv("KERAS_VIT_TPU_ATTENTION", "1")
    sizes: dict[str, Any] = {"devices": "v5e:2x2", "batch_size": 32, "depth": 2}
    sizes["precision"] = "mixed_bfloat16"
    shapes = [(16 * rows, 256, 3) for rows in (8, 16)]
    small, large = (step_cost("ViT-Ti/16", **sizes, input_shape=shape).moved for shape in shapes)
    assert None not in (small, large)
    assert large < 2.2 * small
