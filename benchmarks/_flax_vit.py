"""A plain Vision Transformer in `flax.linen`, as the authors' code writes it."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks._contestants import OPTIMIZERS, Step, Work


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


def flax_step(work: Work, sizes: dict[str, int]) -> Step:
    """One step of the flax model: see `benchmarks._contestants`."""
    model = ViT(sizes, work.num_classes, work.dropout, jnp.dtype(work.dtype), **work.options)
    images, labels = map(jnp.asarray, work.batch())
    key = jax.random.key(0)
    weights = jax.jit(lambda key: model.init(key, images[:1], False))(key)
    if work.task == "inference":
        infer = jax.jit(lambda weights, images: model.apply(weights, images, False))
        return lambda: jax.device_get(infer(weights, images))
    optimizer = getattr(optax, work.optimizer.lower())(1e-4, **OPTIMIZERS[work.optimizer])
    state = [weights, jax.jit(optimizer.init)(weights), key]

    def update(weights: Any, moments: Any, key: Any) -> Any:
        key, now = jax.random.split(key)

        def loss_of(weights: Any) -> Any:
            logits = model.apply(weights, images, True, rngs={"dropout": now})
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(weights)
        changes, moments = optimizer.update(gradients, moments, weights)
        return loss, [optax.apply_updates(weights, changes), moments, key]

    update = jax.jit(update, donate_argnums=(0, 1, 2))

    def train() -> float:
        nonlocal state
        loss, state = update(*state)
        return float(loss)

    return train
