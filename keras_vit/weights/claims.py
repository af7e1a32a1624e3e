"""Compares the model that a file's configuration describes with the size of the file.

Building the model first would let a few bytes of a configuration take all memory.
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from keras_vit.models.geometry import feature_stride
from keras_vit.weights.errors import CheckpointError

# A kernel quantized to four bits is stored as half as many values.
PACKED = 2
# Fewer than any kind of block has.
TENSORS_PER_BLOCK = 8
# 8192 x 8192 pixels in four channels.
MOST_INPUT_VALUES = 2**28
MOST_STAGES = 16


def check_claims(
    path: Path,
    arguments: dict[str, Any],
    values: int,
    tensors: int,
    max_parameters: int | None = None,
) -> None:
    """Refuses arguments of a model that would be larger than the file it comes from.

    Args:
        path: The file, for the message.
        arguments: Of the model's class, as the file has them.
        values: How many numbers the tensors of the file hold.
        tensors: How many tensors it holds.
        max_parameters: The most parameters to allow; None for what the file holds.
    """
    try:
        parts = list(_parameters(arguments))
        blocks = arguments.get("depth") or sum(arguments["depths"])
        blocks += sum(arguments.get("resnet") or ())
        inputs = prod(side for side in arguments.get("input_shape", ()) if side is not None)
        numbers = [*parts, blocks, inputs]
        sound = all(type(number) is int and number >= 0 for number in numbers)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"The configuration in {path} is not that of a keras_vit model ({error!r}): "
            "it is damaged, or was made by another package."
        ) from error
    if not sound:
        raise CheckpointError(
            f"The configuration in {path} has a size that is not a positive integer: "
            "it is damaged, or was made by another package."
        )
    parameters, most = sum(parts), PACKED * values if max_parameters is None else max_parameters
    if parameters > most or blocks * TENSORS_PER_BLOCK > tensors:
        raise CheckpointError(
            f"The configuration in {path} is of a model with {parameters:,} or more parameters in "
            f"{blocks:,} blocks, but the file holds {values:,} numbers in {tensors:,} tensors: it "
            "is damaged, or made to exhaust the memory. Nothing was built"
            + (f"; max_parameters={max_parameters:,}." if max_parameters is not None else ".")
        )
    if inputs > MOST_INPUT_VALUES:
        raise CheckpointError(
            f"The configuration in {path} is for images of {inputs:,} values each "
            f"(input_shape={tuple(arguments['input_shape'])}); at most {MOST_INPUT_VALUES:,} are "
            "accepted. Of a file that you trust, keras.saving.load_model reads a .keras, and "
            "from_checkpoint(file, input_shape=...) the others."
        )


def _parameters(arguments: dict[str, Any]) -> Iterator[int]:
    """Parameters of the large matrices of a model: a lower bound, in parts."""
    a = arguments
    depths = a.get("depths") or a.get("resnet") or ()
    if len(depths) > MOST_STAGES:
        raise ValueError(f"{len(depths)} stages of a ResNet")
    width = a.get("width") or a.get("resnet_width") or 0
    for stage, units in enumerate(depths):
        yield units * 13 * (width * 2**stage) ** 2  # 3 x 3 and the 1 x 1 behind it
    if "hidden_dim" not in a:
        yield width * 2 ** (len(depths) + 1) * a["num_classes"]
        return
    dim, depth, pre_logits = a["hidden_dim"], a["depth"], a.get("representation_size")
    yield dim * (pre_logits or 0)
    yield (pre_logits or dim) * a["num_classes"]
    channels = width * 2 ** (len(depths) + 1) if depths else 1
    for filters, _ in a.get("conv_stem") or ():
        yield 9 * channels * filters
        channels = filters
    yield prod(a["patch_size"]) * dim * channels
    yield dim * a.get("num_registers", 0)
    if "num_heads" not in a:  # MLP-Mixer
        yield depth * 2 * dim * (a["channels_mlp_dim"] or dim)
        yield depth * 2 * _tokens(a) * (a["tokens_mlp_dim"] or dim // 2)
        return
    yield depth * 4 * dim**2
    yield depth * 2 * dim * (a["mlp_dim"] or 4 * dim)
    kind = a.get("position_embedding", "learned")
    if kind == "learned":
        yield _tokens(a) * dim
    elif kind == "learned_2d":
        yield sum(a.get("position_grid") or ()) * (dim // 2)
    elif kind == "relative":
        yield depth * _tokens(a) * (dim // a["num_heads"])


def _tokens(arguments: dict[str, Any]) -> int:
    """Patches of the grid that a model's weights are for."""
    if arguments.get("position_grid"):
        return prod(arguments["position_grid"])
    stride = feature_stride(arguments.get("resnet"), arguments.get("conv_stem"))
    first = arguments.get("data_format") == "channels_first"
    shape = tuple(arguments.get("input_shape") or ())
    sides = shape[1:] if first else shape[:2]
    if None in sides or not sides:
        return 0
    return prod(s // (p * stride) for s, p in zip(sides, arguments["patch_size"], strict=True))
