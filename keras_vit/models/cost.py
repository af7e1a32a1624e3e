"""Parameters, operations and memory of a model, computed before anything is allocated."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from keras_vit._base.errors import as_pair
from keras_vit.models.geometry import DEFAULT_SIZE

BYTES = {"float32": 4, "mixed_bfloat16": 2, "mixed_float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Cost:
    """Size of a model and of its work on one batch.

    Attributes:
        parameters: How many.
        macs: Multiply-accumulates of one image forward; twice that in floating-point operations.
        inference_bytes: Weights and the largest activations of a batch.
        training_bytes: Weights, gradients, Adam's two moments, and the activations stored for the
            backward pass.
    """

    parameters: int
    macs: int
    inference_bytes: int
    training_bytes: int


@dataclass(frozen=True, kw_only=True)
class ViTSizes:
    """The arguments of a `VisionTransformer` that change its parameters or its work."""

    patch_size: int | tuple[int, int]
    resnet: Sequence[int] | None = None
    resnet_width: int = 64
    conv_stem: Sequence[Sequence[int]] | None = None
    hidden_dim: int
    depth: int
    num_heads: int
    mlp_dim: int
    activation: str = "gelu_tanh"
    num_registers: int = 0
    layer_scale: float | None = None
    class_token: bool = True
    distilled: bool = False
    position_embedding: str = "learned"
    pooling: str | None = "token"
    pre_norm: bool = False
    key_bias: bool = True
    mlp_norm: bool = False
    num_classes: int = 1000

    @property
    def num_prefix_positions(self) -> int:
        """Class token and distillation token."""
        return int(self.class_token) + int(self.distilled)

    @property
    def mlp_inputs(self) -> int:
        """Width of the MLP's first layer: a gate stands beside the value."""
        return 2 * self.mlp_dim if self.activation == "swiglu" else self.mlp_dim

    @property
    def block_matrices(self) -> int:
        """Parameters of a block's matrices, each of which multiplies every token."""
        return 4 * self.hidden_dim**2 + self.hidden_dim * (self.mlp_inputs + self.mlp_dim)

    def parameters(self, grid: tuple[int, int], pixels: int) -> int:
        """All but a hybrid's ResNet, for a grid of patches of so many pixels times channels."""
        rows, columns = grid
        width, prefix = self.hidden_dim, self.num_prefix_positions
        # Two norms, the biases, two scales, and a norm in the MLP.
        vectors = (8 + self.key_bias + 2 * (self.layer_scale is not None)) * width
        vectors += self.mlp_inputs + (2 * self.mlp_dim if self.mlp_norm else 0)
        positions = {
            "learned": (rows * columns + prefix) * width,
            "relative_2d": ((2 * rows - 1) * (2 * columns - 1) + 3) * self.num_heads * self.depth,
        }
        # The query, four square projections and an MLP, their biases and a norm.
        map_pooling = 4 * width**2 + 2 * width * self.mlp_dim + self.mlp_dim + 8 * width
        features = (2 if self.pooling == "token_gap" else 1) * width
        return (
            (pixels + (2 if self.pre_norm else 1)) * width  # a norm in place of the bias
            + (prefix + self.num_registers) * width
            + positions.get(self.position_embedding, 0)
            + self.depth * (self.block_matrices + vectors)
            + 2 * width
            + (map_pooling if self.pooling == "map" else 0)
            + (features + 1) * self.num_classes * (2 if self.distilled else 1)
        )


def vit_cost(
    *,
    image_size: int | tuple[int, int] = DEFAULT_SIZE,
    channels: int = 3,
    batch_size: int = 1,
    precision: str = "float32",
    remat: bool = False,
    **architecture: Any,
) -> Cost:
    """The cost of a ViT or a hybrid, whose `architecture` are the arguments of `ViTSizes`.

    Parameters and operations are exact for the matrix products (norms and softmax, below 1 %, are
    left out of `macs`); memory is an estimate of what the layers must keep.

    >>> vit_cost(patch_size=16, hidden_dim=768, depth=12, num_heads=12, mlp_dim=3072).parameters
    86567656
    """
    sizes = ViTSizes(**architecture)
    patch_h, patch_w = as_pair(sizes.patch_size, "patch_size")
    height, width = as_pair(image_size, "image_size")
    maps = _Maps(height, width, channels)
    if sizes.resnet is not None:
        maps.resnet(sizes.resnet, sizes.resnet_width, version=1)
    maps.conv_stem(sizes.conv_stem or ())
    grid = (maps.height // patch_h, maps.width // patch_w)
    patches = grid[0] * grid[1]
    if not patches:
        raise ValueError(
            f"image_size={image_size!r} is smaller than one patch. Give a larger image_size, such "
            "as 224."
        )
    hidden_dim, depth = sizes.hidden_dim, sizes.depth
    tokens = patches + sizes.num_prefix_positions + sizes.num_registers
    pixels = patch_h * patch_w * maps.channels
    attention = 2 * tokens**2 * hidden_dim  # queries by keys, probabilities by values
    macs = (
        maps.macs
        + patches * pixels * hidden_dim
        + depth * (tokens * sizes.block_matrices + attention)
        + hidden_dim * sizes.num_classes
    )
    # A block keeps for the backward pass: its input twice normalized and twice as it was, queries,
    # keys, values, heads joined (8 widths), the MLP before and after GELU, and the attention
    # probabilities, which not every fused operator spares.
    stored = tokens * (8 * hidden_dim + sizes.mlp_inputs + sizes.mlp_dim)
    stored += sizes.num_heads * tokens**2
    activations = stored + depth * tokens * hidden_dim if remat else depth * stored
    largest = max(stored, maps.largest)
    activations += maps.inputs + maps.largest if remat else maps.stored
    parameters = maps.parameters + sizes.parameters(grid, pixels)
    return _with_memory(parameters, macs, batch_size, BYTES[precision], largest, activations)


def counted_arguments(cost: Callable[..., Cost]) -> set[str]:
    """The arguments of a cost; the others of a model change neither its size nor its work."""
    names = {*inspect.signature(cost).parameters}
    return names | {field.name for field in fields(ViTSizes)} if cost is vit_cost else names


def resnet_cost(
    *,
    depths: Sequence[int],
    width: int,
    version: int = 2,
    image_size: int | tuple[int, int] = DEFAULT_SIZE,
    channels: int = 3,
    num_classes: int = 1000,
    batch_size: int = 1,
    precision: str = "float32",
    remat: bool = False,
) -> Cost:
    """The cost of a BiT ResNet, counted as `vit_cost` counts: all convolutions and the head.

    >>> resnet_cost(depths=(3, 4, 6, 3), width=64).parameters
    25549352
    """
    maps = _Maps(*as_pair(image_size, "image_size"), channels)
    maps.resnet(depths, width, version)
    norm = 2 * maps.channels if version == 2 else 0
    parameters = maps.parameters + norm + (maps.channels + 1) * num_classes
    macs = maps.macs + maps.channels * num_classes
    activations = maps.inputs + maps.largest if remat else maps.stored
    return _with_memory(parameters, macs, batch_size, BYTES[precision], maps.largest, activations)


class _Maps:
    """Feature maps on their way through a ResNet, and what they have cost so far.

    Attributes:
        stored: Values of one image that its backward pass needs.
        inputs: Of these, what the units start from.
        largest: Of these, the most that one unit keeps.
    """

    def __init__(self, height: int, width: int, channels: int) -> None:
        self.height, self.width, self.channels = height, width, channels
        self.parameters = self.macs = self.stored = self.inputs = self.largest = 0

    def _halve(self) -> None:
        self._divide(2)

    def _divide(self, stride: int) -> None:
        self.height, self.width = -(-self.height // stride), -(-self.width // stride)

    def _convolve(self, size: int, channels: int, out: int) -> int:
        """One convolution at the height and width there are; returns the values it gives."""
        self.parameters += size**2 * channels * out
        self.macs += self.height * self.width * size**2 * channels * out
        return self.height * self.width * out

    def conv_stem(self, stages: Sequence[Sequence[int]]) -> None:
        """Convolutions of 3 x 3 in front of the patches, each with its norm and GELU."""
        for channels, stride in stages:
            before = self.height * self.width * self.channels
            self._divide(stride)
            # Its input, what is normalized, and the normalized values before GELU.
            stored = before + 2 * self._convolve(3, self.channels, channels)
            self.parameters += 2 * channels
            self.channels = channels
            self.stored += stored
            self.inputs += before
            self.largest = max(self.largest, stored)

    def resnet(self, depths: Sequence[int], width: int, version: int) -> None:
        """Stem and stages."""
        self._halve()
        self.largest = 2 * self._convolve(7, self.channels, width)
        self.stored += self.largest
        self.parameters += 2 * width if version == 1 else 0
        self._halve()
        self.channels = width
        for stage, depth in enumerate(depths):
            for unit in range(depth):
                self._unit(width * 2**stage, stage > 0 and unit == 0, version)

    def _unit(self, inside: int, halves: bool, version: int) -> None:
        channels, out = self.channels, 4 * inside
        before = self.height * self.width * channels
        # Each convolution's output is stored, and normalized for the next one.
        stored = before + 2 * self._convolve(1, channels, inside)
        if halves:
            self._halve()
        stored += 2 * self._convolve(3, inside, inside) + 2 * self._convolve(1, inside, out)
        self.parameters += 2 * (2 * inside + out if version == 1 else channels + 2 * inside)
        if halves or channels != out:
            stored += self._convolve(1, channels, out)
            self.parameters += 2 * out if version == 1 else 0
        self.channels = out
        self.stored += stored
        self.inputs += before
        self.largest = max(self.largest, stored)


def mixer_cost(
    *,
    patch_size: int | tuple[int, int],
    hidden_dim: int,
    depth: int,
    tokens_mlp_dim: int,
    channels_mlp_dim: int,
    image_size: int | tuple[int, int] = DEFAULT_SIZE,
    channels: int = 3,
    num_classes: int = 1000,
    batch_size: int = 1,
    precision: str = "float32",
    remat: bool = False,
) -> Cost:
    """The cost of an MLP-Mixer, counted as `vit_cost` counts.

    >>> mixer_cost(patch_size=16, hidden_dim=768, depth=12, tokens_mlp_dim=384,
    ...            channels_mlp_dim=3072).parameters
    59880472
    """
    patch_h, patch_w = as_pair(patch_size, "patch_size")
    height, width = as_pair(image_size, "image_size")
    tokens = -(-height // patch_h) * -(-width // patch_w)  # a patch filled in part counts
    pixels = patch_h * patch_w * channels
    matrices = 2 * tokens * tokens_mlp_dim + 2 * hidden_dim * channels_mlp_dim
    vectors = tokens_mlp_dim + tokens + channels_mlp_dim + hidden_dim + 4 * hidden_dim
    parameters = (
        (pixels + 1) * hidden_dim
        + depth * (matrices + vectors)
        + 2 * hidden_dim
        + (hidden_dim + 1) * num_classes
    )
    # Tokens are mixed once for every channel, and channels once for every token.
    mixing = 2 * tokens * hidden_dim * (tokens_mlp_dim + channels_mlp_dim)
    macs = tokens * pixels * hidden_dim + depth * mixing + hidden_dim * num_classes
    # A block keeps its input and the normalized one of both MLPs, and each before and after GELU.
    stored = (
        4 * tokens * hidden_dim + 2 * hidden_dim * tokens_mlp_dim + 2 * tokens * channels_mlp_dim
    )
    activations = stored + depth * tokens * hidden_dim if remat else depth * stored
    return _with_memory(parameters, macs, batch_size, BYTES[precision], stored, activations)


def _with_memory(
    parameters: int, macs: int, batch_size: int, per_value: int, largest: int, activations: int
) -> Cost:
    return Cost(
        parameters,
        macs,
        parameters * 4 + batch_size * largest * per_value,
        # Weights, gradients and moments stay in float32 under every policy.
        parameters * 4 * 4 + batch_size * activations * per_value,
    )
