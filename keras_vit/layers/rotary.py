"""Rotary position embeddings in two dimensions: RoPE (Su et al. 2021), as DINOv3 and EVA-02 do."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_vit._base.errors import check_choice
from keras_vit.layers.configured import ConfiguredLayer, Shape


class Rotation(NamedTuple):
    """How a family of models rotates queries and keys.

    Attributes:
        positions: From the number of rows (or columns) to the position of each, in radians.
        base: The slowest of the frequencies is nearly `1 / base`, the fastest 1.
        interleaved: Whether neighboring entries of a head are rotated into each other, or entries
            half a head apart.
    """

    positions: Callable[[Any], Any]
    base: float
    interleaved: bool


def _centers(number: Any) -> Any:
    """Centers of the patches in an image from -1 to 1, as full turns."""
    centers = (ops.cast(ops.arange(number), "float32") + 0.5) / ops.cast(number, "float32")
    return 2 * math.pi * (2 * centers - 1)


def _of_grid_16(number: Any) -> Any:
    """Return row positions scaled to a grid of 16 rows, on which EVA-02 was pre-trained."""
    return ops.cast(ops.arange(number), "float32") / ops.cast(number, "float32") * 16


ROTATIONS = {
    "dinov3": Rotation(_centers, 100.0, interleaved=False),
    "eva02": Rotation(_of_grid_16, 10000.0, interleaved=True),
}


def rotate(x: Any, angles: Any, kind: str) -> Any:
    """Rotates each pair of entries of a head by the angle of its token.

    Args:
        x: Queries or keys `(batch, length, heads, head_dim)`.
        angles: Cosines and sines `(2, length, head_dim)`, as `RotaryPositions` returns them.
        kind: A key of `ROTATIONS`.
    """
    cosine, sine = ops.unstack(ops.cast(angles, x.dtype)[:, :, None], axis=0)
    if ROTATIONS[kind].interleaved:
        shape = ops.shape(x)
        first, second = ops.unstack(ops.reshape(x, (*shape[:-1], shape[-1] // 2, 2)), axis=-1)
        turned = ops.reshape(ops.stack([-second, first], axis=-1), shape)
    else:
        first, second = ops.split(x, 2, axis=-1)
        turned = ops.concatenate([-second, first], axis=-1)
    return x * cosine + turned * sine


@keras.saving.register_keras_serializable(package="keras_vit")
class RotaryPositions(ConfiguredLayer):
    """Cosines and sines by which the queries and keys of every token are rotated.

    Takes the patches `(batch, grid_h, grid_w, ...)`, of which only the shape is read, and returns
    `(2, num_prefix_tokens + grid_h * grid_w, head_dim)`, computed in float32. A half of the
    frequencies is for the row, the other for the column. Tokens in front of the patches are not
    rotated.

    Args:
        head_dim: Width of a head; a multiple of 4.
        kind: `"dinov3"`: positions from -1 to 1 over the image ("DINOv3", Simeoni et al. 2025,
            section 3.2); `"eva02"`: rows and columns of a grid of 16 (Fang et al. 2023).
        num_prefix_tokens: Tokens in front of the patches: class token and registers.

    Raises:
        ValueError: The kind is unknown, or four does not divide `head_dim`.

    Example:

    >>> import keras, keras_vit
    >>> rotary = keras_vit.layers.RotaryPositions(8, "dinov3")
    >>> tuple(rotary(keras.ops.ones((2, 3, 4, 16))).shape)
    (2, 13, 8)
    """

    def __init__(self, head_dim: int, kind: str, num_prefix_tokens: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if head_dim % 4:
            raise ValueError(
                f"head_dim={head_dim} cannot be rotated by rows and by columns: four must divide "
                "it. Give another hidden_dim or num_heads."
            )
        self.head_dim = head_dim
        self.kind = check_choice(kind, "kind", ROTATIONS)
        self.num_prefix_tokens = num_prefix_tokens

    def call(self, patches: Any) -> Any:
        rotation, quarter = ROTATIONS[self.kind], self.head_dim // 4
        frequencies = rotation.base ** -(ops.arange(quarter, dtype="float32") / quarter)
        grid_h, grid_w = ops.shape(patches)[1:3]
        rows = rotation.positions(grid_h)[:, None, None] * frequencies
        columns = rotation.positions(grid_w)[None, :, None] * frequencies
        halves = [ops.broadcast_to(part, (grid_h, grid_w, quarter)) for part in (rows, columns)]
        angles = ops.reshape(ops.concatenate(halves, axis=-1), (-1, self.head_dim // 2))
        angles = ops.pad(angles, ((self.num_prefix_tokens, 0), (0, 0)))
        both = ops.repeat(angles, 2, axis=-1) if rotation.interleaved else ops.tile(angles, (1, 2))
        return ops.cast(ops.stack([ops.cos(both), ops.sin(both)]), self.compute_dtype)

    def compute_output_shape(self, patches_shape: Shape) -> Shape:
        rows, columns = patches_shape[1:3]
        if rows is None or columns is None:
            return 2, None, self.head_dim
        return 2, self.num_prefix_tokens + rows * columns, self.head_dim
