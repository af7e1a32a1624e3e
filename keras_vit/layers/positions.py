"""Position embeddings (ViT paper, section 3.1 and appendix D.4)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import as_pair, check_choice
from keras_vit.layers.configured import ConfiguredLayer, Shape


def interpolation_matrix(new: Any, old: int) -> Any:
    """Return the `(new, old)` matrix of linear interpolation with the corners aligned.

    The rule of the released code, `scipy.ndimage.zoom(order=1)`: new position `i` reads old
    position `i * (old - 1) / (new - 1)`. `new` may be a dynamic size of the graph.
    """
    last = ops.cast(ops.maximum(new - 1, 1), "float32")
    source = ops.cast(ops.arange(new), "float32") * ((old - 1) / last)
    return ops.relu(1 - ops.abs(source[:, None] - ops.arange(old, dtype="float32")))


def same_size(size: Any, expected: Any) -> bool:
    """Return whether a size read from a tensor is known while tracing, and is the expected one."""
    # Comparing a dynamic size gives a tensor or, in a JAX export, an error: check its type first.
    return isinstance(size, int) and size == expected


def copy_into(variable: Any, values: Any) -> None:
    """Assigns a copy: JAX may donate, and so delete, a buffer that two variables share."""
    variable.assign(ops.convert_to_numpy(values))


def resample_grid(grid: Any, new_h: Any, new_w: Any) -> Any:
    """Resamples `(grid_h, grid_w, dim)` to `(new_h, new_w, dim)` by the released code's rule."""
    rows = interpolation_matrix(new_h, grid.shape[0])
    columns = interpolation_matrix(new_w, grid.shape[1])
    return ops.einsum("yh,xw,hwd->yxd", rows, columns, ops.cast(grid, "float32"))


def sincos_2d(grid_h: Any, grid_w: Any, hidden_dim: int) -> Any:
    """Fixed sines and cosines of row and column, `(grid_h * grid_w, hidden_dim)` (MoCo v3)."""
    quarter = hidden_dim // 4
    exponents = np.arange(quarter, dtype="float32") / max(quarter - 1, 1)
    # torch.export refuses a product of a tensor and a NumPy array.
    frequencies = ops.convert_to_tensor((1.0 / 10000.0**exponents).astype("float32"))
    y = ops.cast(ops.arange(grid_h), "float32")[:, None, None] * frequencies
    x = ops.cast(ops.arange(grid_w), "float32")[None, :, None] * frequencies
    waves = (ops.sin(x), ops.cos(x), ops.sin(y), ops.cos(y))
    parts = [ops.broadcast_to(wave, (grid_h, grid_w, quarter)) for wave in waves]
    return ops.reshape(ops.concatenate(parts, axis=-1), (-1, hidden_dim))


@keras.saving.register_keras_serializable(package="keras_vit")
class PositionEmbedding(ConfiguredLayer):
    """Adds the position of each token in the image.

    Called with tokens `(batch, prefix + grid_h * grid_w, hidden_dim)` and, where the images may
    have another size than `grid`, with the patches `(batch, grid_h, grid_w, ...)` too, of which
    only the shape is read: the embeddings are then resampled inside the graph, by the rule of
    the released code. Returns the shape of the tokens.

    Args:
        grid: Rows and columns of the grid of patches that the embeddings are learned for.
        kind: `"learned"`: one vector per token, class token included (the paper's choice);
            `"learned_2d"`: half of a vector learned for the row, half for the column;
            `"sincos2d"`: fixed sines and cosines of row and column.
        num_prefix_tokens: Tokens in front of the patches: 1 for a class token, else 0. Under
            `"learned"` they have embeddings too, otherwise not.

    Raises:
        ValueError: `kind` is unknown, the width does not split evenly, or the sequence is not
            as long as the grid requires.

    Source: ViT paper, equation 1, appendix D.4 and table 8; big_vision for `"sincos2d"`.

    Example:

    >>> import keras, keras_vit
    >>> positions = keras_vit.layers.PositionEmbedding((4, 4))
    >>> tuple(positions(keras.ops.ones((2, 17, 32)), keras.ops.ones((2, 4, 4, 32))).shape[1:])
    (17, 32)
    >>> tuple(positions(keras.ops.ones((2, 16, 32)), keras.ops.ones((2, 5, 3, 32))).shape[1:])
    (16, 32)
    """

    KINDS = ("learned", "learned_2d", "sincos2d")

    def __init__(
        self,
        grid: int | tuple[int, int],
        kind: str = "learned",
        num_prefix_tokens: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.grid = as_pair(grid, "grid")
        self.kind = check_choice(kind, "kind", self.KINDS)
        self.num_prefix_tokens = num_prefix_tokens

    def build(self, tokens_shape: Shape, patches_shape: Shape | None = None) -> None:
        _, length, hidden_dim = tokens_shape
        assert hidden_dim is not None
        self.hidden_dim = hidden_dim
        grid_h, grid_w = self.grid
        expected = self.num_prefix_tokens + grid_h * grid_w
        if patches_shape is None and length not in (None, expected):
            raise ValueError(
                f"A sequence of {length} tokens does not fit a grid of {grid_h} x {grid_w} patches "
                f"with {self.num_prefix_tokens} in front, which makes {expected}. "
                "Pass the patches as second input to resample, or give the right grid."
            )
        parts = {"learned": 1, "learned_2d": 2, "sincos2d": 4}[self.kind]
        if self.hidden_dim % parts:
            raise ValueError(
                f"{self.kind!r} position embeddings need a width that {parts} divides, "
                f"not {self.hidden_dim}."
            )
        normal = keras.initializers.RandomNormal(stddev=0.02)
        if self.kind == "learned":
            self.embedding = self.add_weight(
                name="embedding", shape=(1, expected, self.hidden_dim), initializer=normal
            )
        elif self.kind == "learned_2d":
            half = self.hidden_dim // 2
            self.rows = self.add_weight(name="rows", shape=(grid_h, half), initializer=normal)
            self.columns = self.add_weight(name="columns", shape=(grid_w, half), initializer=normal)

    def positions(self, grid_h: Any, grid_w: Any) -> Any:
        """Return embeddings `(1, prefix + grid_h * grid_w, hidden_dim)` for a grid of any size."""
        same = same_size(grid_h, self.grid[0]) and same_size(grid_w, self.grid[1])
        if self.kind == "learned":
            if same:
                return ops.convert_to_tensor(self.embedding)
            prefix, patches = ops.split(self.embedding, [self.num_prefix_tokens], axis=1)
            grid = ops.reshape(patches, (*self.grid, self.hidden_dim))
            grid = ops.reshape(resample_grid(grid, grid_h, grid_w), (1, -1, self.hidden_dim))
            return ops.concatenate([ops.cast(prefix, grid.dtype), grid], axis=1)
        if self.kind == "learned_2d":
            rows, columns = ops.convert_to_tensor(self.rows), ops.convert_to_tensor(self.columns)
            if not same:
                rows = interpolation_matrix(grid_h, self.grid[0]) @ ops.cast(rows, "float32")
                columns = interpolation_matrix(grid_w, self.grid[1]) @ ops.cast(columns, "float32")
            half = (grid_h, grid_w, self.hidden_dim // 2)
            halves = [ops.broadcast_to(part, half) for part in (rows[:, None], columns[None])]
            grid = ops.reshape(ops.concatenate(halves, axis=-1), (1, -1, self.hidden_dim))
        else:
            grid = sincos_2d(grid_h, grid_w, self.hidden_dim)[None]
        return ops.pad(grid, ((0, 0), (self.num_prefix_tokens, 0), (0, 0)))

    def call(self, tokens: Any, patches: Any = None) -> Any:
        grid_h, grid_w = self.grid if patches is None else ops.shape(patches)[1:3]
        return tokens + ops.cast(self.positions(grid_h, grid_w), tokens.dtype)

    def resample_from(self, other: "PositionEmbedding") -> None:
        """Sets the weights to those of `other`, resampled to this layer's grid.

        Raises:
            ValueError: The two layers are not of one kind and width.
        """
        if (self.kind, self.hidden_dim) != (other.kind, other.hidden_dim):
            raise ValueError(
                f"Cannot resample {other.kind!r} embeddings of width {other.hidden_dim} into "
                f"{self.kind!r} embeddings of width {self.hidden_dim}: both layers must "
                "have the same kind and width."
            )
        if self.kind == "learned":
            copy_into(self.embedding, other.positions(*self.grid))
        elif self.kind == "learned_2d":
            for new, old in ((self.rows, other.rows), (self.columns, other.columns)):
                copy_into(new, interpolation_matrix(new.shape[0], old.shape[0]) @ old)

    def compute_output_shape(self, tokens_shape: Shape, *_: Shape) -> Shape:
        return tokens_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePositionBias(ConfiguredLayer):
    """Attention logits from the offset between two tokens (ViT paper, appendix D.4).

    The paper's one-dimensional relative attention: every offset along the sequence has an
    embedding, the queries attend to these as keys, and the result is added to the logits. Takes
    queries `(batch, length, heads, head_dim)`, returns `(batch, heads, length, length)`. At
    another length than `max_length` the table is resampled, its ends aligned.

    Args:
        max_length: Length of the sequence that the embeddings are learned for; at least 2.
    """

    def __init__(self, max_length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_length = max_length

    def build(self, queries_shape: Shape) -> None:
        self.embedding = self.add_weight(
            name="embedding",
            shape=(2 * self.max_length - 1, queries_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def call(self, queries: Any) -> Any:
        batch, length, heads, head_dim = ops.shape(queries)
        table = ops.convert_to_tensor(self.embedding)
        if not same_size(length, self.max_length):
            resample = interpolation_matrix(2 * length - 1, 2 * self.max_length - 1)
            table = resample @ ops.cast(table, "float32")
        table = ops.cast(table, queries.dtype) / float(np.sqrt(head_dim))
        logits = ops.einsum("bqhd,od->bhqo", queries, table)
        # Row q holds the offsets -(L-1)..L-1 of which it needs the L that start at L-1-q. Read
        # with a row shorter by one, the flat array starts each row one later: no gather needed.
        flat = ops.reshape(logits, (batch, heads, length * (2 * length - 1)))
        flat = flat[:, :, length - 1 : length - 1 + length * (2 * length - 2)]
        return ops.reshape(flat, (batch, heads, length, 2 * length - 2))[..., :length]

    def resample_from(self, other: "RelativePositionBias") -> None:
        """Sets the weights to those of `other`, resampled to this layer's length."""
        new, old = self.embedding, other.embedding
        copy_into(new, interpolation_matrix(new.shape[0], old.shape[0]) @ old)

    def compute_output_shape(self, queries_shape: Shape) -> Shape:
        batch, length, heads, _ = queries_shape
        return batch, heads, length, length


def offset_index(rows: int, columns: int) -> np.ndarray:
    """Return each pair's entry in BEiT's table, int32 `(1 + patches, 1 + patches)`.

    Offsets of rows and columns come first, from the most negative on; then three entries for the
    class token: as a query, as a key, and to itself.
    """
    y, x = np.indices((rows, columns)).reshape(2, -1)
    offsets = (y[:, None] - y + rows - 1) * (2 * columns - 1) + x[:, None] - x + columns - 1
    count = (2 * rows - 1) * (2 * columns - 1)
    index = np.pad(offsets, ((1, 0), (1, 0)))
    index[0, :], index[:, 0], index[0, 0] = count, count + 1, count + 2
    return index.astype("int32")


@keras.saving.register_keras_serializable(package="keras_vit")
class GridPositionBias(ConfiguredLayer):
    """A learned number per head for each offset of rows and columns, added to attention logits.

    Source: BEiT (Bao et al. 2021), whose table is that of Swin with three entries more, for the
    class token. Takes any tensor and returns `(1, heads, 1 + patches, 1 + patches)`.

    Args:
        grid: Rows and columns of the patches.
        num_heads: Number of heads.

    Example:

    >>> import keras, keras_vit
    >>> bias = keras_vit.layers.GridPositionBias((4, 3), num_heads=2)
    >>> tuple(bias(keras.ops.ones((5, 13, 8))).shape)
    (1, 2, 13, 13)
    """

    def __init__(self, grid: int | tuple[int, int], num_heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid = as_pair(grid, "grid")
        self.num_heads = num_heads

    def build(self, tokens_shape: Shape) -> None:
        rows, columns = self.grid
        count = (2 * rows - 1) * (2 * columns - 1) + 3
        self.table = self.add_weight(
            name="table", shape=(count, self.num_heads), initializer="zeros"
        )

    def call(self, tokens: Any) -> Any:
        bias = ops.take(ops.convert_to_tensor(self.table), offset_index(*self.grid), axis=0)
        return ops.transpose(bias, (2, 0, 1))[None]

    def resample_from(self, other: "GridPositionBias") -> None:
        """Sets the table to that of `other`, resampled to this layer's grid, its ends aligned."""
        rows, columns = (2 * side - 1 for side in self.grid)
        old_rows, old_columns = (2 * side - 1 for side in other.grid)
        offsets, others = ops.split(other.table, [old_rows * old_columns], axis=0)
        offsets = ops.reshape(offsets, (old_rows, old_columns, -1))
        offsets = ops.reshape(resample_grid(offsets, rows, columns), (rows * columns, -1))
        copy_into(self.table, ops.concatenate([offsets, ops.cast(others, offsets.dtype)], axis=0))

    def compute_output_shape(self, tokens_shape: Shape) -> Shape:
        length = 1 + self.grid[0] * self.grid[1]
        return 1, self.num_heads, length, length
