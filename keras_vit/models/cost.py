"""What a model costs, said before anything is allocated."""

from dataclasses import dataclass
from typing import Any

from keras_vit.errors import as_pair, nearest
from keras_vit.models.variants import MIXER_NAMES, VIT_NAMES, mixer_arguments, vit_arguments

BYTES = {"float32": 4, "mixed_bfloat16": 2, "mixed_float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Cost:
    """Size of a model and of its work on one batch.

    Attributes:
        parameters: How many.
        macs: Multiply-accumulates of one image forward; twice that in floating-point operations.
        inference_bytes: Weights and the largest activations of a batch.
        training_bytes: Weights, gradients, Adam's two moments, and the activations kept for the
            backward pass.
    """

    parameters: int
    macs: int
    inference_bytes: int
    training_bytes: int


def vit_cost(
    *,
    patch_size: int | tuple[int, int],
    hidden_dim: int,
    depth: int,
    num_heads: int,
    mlp_dim: int,
    image_size: int | tuple[int, int] = 224,
    channels: int = 3,
    num_classes: int = 1000,
    batch_size: int = 1,
    precision: str = "float32",
    remat: bool = False,
) -> Cost:
    """The cost of a ViT with a class token and learned positions.

    Parameters and operations are exact for the matrix products (norms and softmax, below 1 %, are
    left out of `macs`); memory is an estimate of what the layers must keep.

    >>> vit_cost(patch_size=16, hidden_dim=768, depth=12, num_heads=12, mlp_dim=3072).parameters
    86567656
    """
    patch_h, patch_w = as_pair(patch_size, "patch_size")
    height, width = as_pair(image_size, "image_size")
    patches = (height // patch_h) * (width // patch_w)
    tokens = patches + 1
    pixels = patch_h * patch_w * channels
    block_matrices = 4 * hidden_dim**2 + 2 * hidden_dim * mlp_dim
    block_vectors = 4 * hidden_dim + 5 * hidden_dim + mlp_dim  # two norms, the biases
    parameters = (
        (pixels + 1) * hidden_dim
        + (1 + tokens) * hidden_dim  # class token and positions
        + depth * (block_matrices + block_vectors)
        + 2 * hidden_dim
        + (hidden_dim + 1) * num_classes
    )
    attention = 2 * tokens**2 * hidden_dim  # queries by keys, probabilities by values
    macs = (
        patches * pixels * hidden_dim
        + depth * (tokens * block_matrices + attention)
        + hidden_dim * num_classes
    )
    # A block keeps for the backward pass: its input twice normalised and twice as it was, queries,
    # keys, values, heads joined (8 widths), the MLP before and after GELU, and the attention
    # probabilities, which not every fused operator spares.
    kept = tokens * (8 * hidden_dim + 2 * mlp_dim) + num_heads * tokens**2
    activations = kept + depth * tokens * hidden_dim if remat else depth * kept
    return _with_memory(parameters, macs, batch_size, BYTES[precision], kept, activations)


def mixer_cost(
    *,
    patch_size: int | tuple[int, int],
    hidden_dim: int,
    depth: int,
    tokens_mlp_dim: int,
    channels_mlp_dim: int,
    image_size: int | tuple[int, int] = 224,
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
    kept = 4 * tokens * hidden_dim + 2 * hidden_dim * tokens_mlp_dim + 2 * tokens * channels_mlp_dim
    activations = kept + depth * tokens * hidden_dim if remat else depth * kept
    return _with_memory(parameters, macs, batch_size, BYTES[precision], kept, activations)


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


# Names, the arguments behind a name, and the count that takes them.
_COUNTED = (
    (VIT_NAMES, vit_arguments, vit_cost),
    (MIXER_NAMES, mixer_arguments, mixer_cost),
)


def cost(name: str, **options: Any) -> Cost:
    """The cost of a model by its name; options as in `vit_cost`, all but the sizes.

    >>> round(cost("ViT-S/16", image_size=224).macs / 1e9, 2)
    4.6
    """
    for names, arguments, count in _COUNTED:
        if name in names:
            return count(**{**arguments(name), **options})
    known = [known for names, *_ in _COUNTED for known in names]
    raise ValueError(f"No cost is known for {name!r}. {nearest(name, known)}")
