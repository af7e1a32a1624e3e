"""A plain Vision Transformer in `flax.linen`, as the authors' code writes it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks._work import OPTIMIZERS, Step, Work


class Block(nn.Module):
    num_heads: int
    mlp_dim: int
    dropout: float
    dtype: Any

    @nn.compact
    def __call__(self, x: Any, training: bool) -> Any:
        drop = nn.Dropout(self.dropout, deterministic=not training)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.MultiHeadDotProductAttention(
            self.num_heads,
            dtype=self.dtype,
            dropout_rate=self.dropout,
            broadcast_dropout=False,
            deterministic=not training,
        )(y, y)
        x = x + drop(y)
        y = nn.Dense(self.mlp_dim, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))
        y = nn.Dense(x.shape[-1], dtype=self.dtype)(drop(nn.gelu(y, approximate=False)))
        return x + drop(y)


class ViT(nn.Module):
    sizes: dict[str, int]
    num_classes: int
    dropout: float
    dtype: Any

    @nn.compact
    def __call__(self, images: Any, training: bool) -> Any:
        width, patch = self.sizes["hidden_dim"], (self.sizes["patch_size"],) * 2
        x = nn.Conv(width, patch, patch, padding="VALID", dtype=self.dtype)(images)
        x = x.reshape(len(x), -1, width)
        token = self.param("cls", nn.initializers.zeros, (1, 1, width))
        x = jnp.concatenate([jnp.tile(token, (len(x), 1, 1)).astype(x.dtype), x], axis=1)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        x = nn.Dropout(self.dropout, deterministic=not training)(x.astype(self.dtype))
        for _ in range(self.sizes["depth"]):
            x = Block(self.sizes["num_heads"], self.sizes["mlp_dim"], self.dropout, self.dtype)(
                x, training
            )
        x = nn.LayerNorm(dtype=self.dtype)(x)[:, 0]
        return nn.Dense(self.num_classes, dtype="float32")(x)


class Functions(NamedTuple):
    """A contestant as functions without a state.

    Attributes:
        start: From a key and images to weights, moments and a key.
        infer: From weights and images to logits.
        update: One step: from weights, moments, key, images and labels to loss and the first three.
    """

    start: Callable[[Any, Any], list[Any]]
    infer: Callable[[Any, Any], Any]
    update: Callable[..., Any]


def flax_functions(work: Work, sizes: dict[str, int]) -> Functions:
    """The flax model with its optimizer."""
    model = ViT(sizes, work.num_classes, work.dropout, jnp.dtype(work.dtype), **work.options)
    optimizer = getattr(optax, work.optimizer.lower())(1e-4, **OPTIMIZERS[work.optimizer])

    def start(key: Any, images: Any) -> list[Any]:
        weights = model.init(key, images, False)
        return [weights, optimizer.init(weights), key]

    def infer(weights: Any, images: Any) -> Any:
        return model.apply(weights, images, False)

    def update(weights: Any, moments: Any, key: Any, images: Any, labels: Any) -> Any:
        key, now = jax.random.split(key)

        def loss_of(weights: Any) -> Any:
            logits = model.apply(weights, images, True, rngs={"dropout": now})
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(weights)
        changes, moments = optimizer.update(gradients, moments, weights)
        return loss, [optax.apply_updates(weights, changes), moments, key]

    return Functions(start, infer, update)


def flax_step(work: Work, sizes: dict[str, int]) -> Step:
    """One step of the flax model: see `benchmarks._work`."""
    functions = flax_functions(work, sizes)
    images, labels = map(jnp.asarray, work.batch())
    state = jax.jit(functions.start)(jax.random.key(0), images[:1])
    if work.task == "inference":
        infer = jax.jit(functions.infer)
        return lambda: jax.device_get(infer(state[0], images))
    update = jax.jit(functions.update, donate_argnums=(0, 1, 2))

    def train() -> float:
        nonlocal state
        loss, state = update(*state, images, labels)
        return float(loss)

    return train


def flax_program(work: Work, sizes: dict[str, int], devices: Sequence[Any]) -> Any:
    """The step as it is compiled for devices that need not be here: a `jax.stages.Compiled`."""
    mesh = jax.sharding.Mesh(np.array(devices), ("batch",))
    cut, whole = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("batch",), ()))
    functions, side = flax_functions(work, sizes), work.image_size
    images = jax.ShapeDtypeStruct((work.batch_size, side, side, 3), "uint8", sharding=cut)
    labels = jax.ShapeDtypeStruct((work.batch_size,), "int32", sharding=cut)
    state = jax.eval_shape(functions.start, jax.eval_shape(lambda: jax.random.key(0)), images)
    state = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), state
    )
    if work.task == "inference":
        return jax.jit(functions.infer).lower(state[0], images).compile()
    update = jax.jit(functions.update, donate_argnums=(0, 1, 2), out_shardings=whole)
    return update.lower(*state, images, labels).compile()
