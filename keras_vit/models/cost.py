"""Parameters, operations and memory of a model, computed before anything is allocated."""

from collections.abc import Sequence
from dataclasses import dataclass

from keras_vit.errors import as_pair
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


def vit_cost(
    *,
    patch_size: int | tuple[int, int],
    resnet: Sequence[int] | None = None,
    resnet_width: int = 64,
    hidden_dim: int,
    depth: int,
    num_heads: int,
    mlp_dim: int,
    activation: str = "gelu_tanh",
    num_registers: int = 0,
    layer_scale: float | None = None,
    image_size: int | tuple[int, int] = DEFAULT_SIZE,
    channels: int = 3,
    num_classes: int = 1000,
    batch_size: int = 1,
    precision: str = "float32",
    remat: bool = False,
) -> Cost:
    """The cost of a ViT or a hybrid with a class token and learned positions.

    Parameters and operations are exact for the matrix products (norms and softmax, below 1 %, are
    left out of `macs`); memory is an estimate of what the layers must keep.

    >>> vit_cost(patch_size=16, hidden_dim=768, depth=12, num_heads=12, mlp_dim=3072).parameters
    86567656
    """
    patch_h, patch_w = as_pair(patch_size, "patch_size")
    height, width = as_pair(image_size, "image_size")
    maps = _Maps(height, width, channels)
    if resnet is not None:
        maps.resnet(resnet, resnet_width, version=1)
    patches = (maps.height // patch_h) * (maps.width // patch_w)
    if not patches:
        raise ValueError(
            f"image_size={image_size!r} is smaller than one patch. Give a larger image_size, such "
            "as 224."
        )
    tokens = patches + 1 + num_registers
    pixels = patch_h * patch_w * maps.channels
    mlp_inputs = 2 * mlp_dim if activation == "swiglu" else mlp_dim  # gate and value side by side
    block_matrices = 4 * hidden_dim**2 + hidden_dim * (mlp_inputs + mlp_dim)
    # Two norms, the biases, two scales.
    block_vectors = (9 if layer_scale is None else 11) * hidden_dim + mlp_inputs
    parameters = (
        maps.parameters
        + (pixels + 1) * hidden_dim
        + (2 + patches + num_registers) * hidden_dim  # class token, positions, registers
        + depth * (block_matrices + block_vectors)
        + 2 * hidden_dim
        + (hidden_dim + 1) * num_classes
    )
    attention = 2 * tokens**2 * hidden_dim  # queries by keys, probabilities by values
    macs = (
        maps.macs
        + patches * pixels * hidden_dim
        + depth * (tokens * block_matrices + attention)
        + hidden_dim * num_classes
    )
    # A block keeps for the backward pass: its input twice normalised and twice as it was, queries,
    # keys, values, heads joined (8 widths), the MLP before and after GELU, and the attention
    # probabilities, which not every fused operator spares.
    stored = tokens * (8 * hidden_dim + mlp_inputs + mlp_dim) + num_heads * tokens**2
    activations = stored + depth * tokens * hidden_dim if remat else depth * stored
    largest = max(stored, maps.largest)
    activations += maps.inputs + maps.largest if remat else maps.stored
    return _with_memory(parameters, macs, batch_size, BYTES[precision], largest, activations)


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
        self.height, self.width = -(-self.height // 2), -(-self.width // 2)

    def _convolve(self, size: int, channels: int, out: int) -> int:
        """One convolution at the height and width there are; returns the values it gives."""
        self.parameters += size**2 * channels * out
        self.macs += self.height * self.width * size**2 * channels * out
        return self.height * self.width * out

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
        # Each convolution's output is stored, and normalised for the next one.
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
    # A block keeps its input and the normalised one of both MLPs, and each before and after GELU.
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
