"""Compares the model that a file's configuration describes with the size of the file.

Building the model with its values would let a few bytes of a configuration take all memory.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

from keras_vit._base.errors import accepted_arguments
from keras_vit.models import ImageModel
from keras_vit.models.skeleton import without_values
from keras_vit.weights.checkpoint_error import CheckpointError

# A kernel quantized to four bits is stored as half as many values.
PACKED = 2
# Fewer than any kind of block has.
TENSORS_PER_BLOCK = 8
# 8192 x 8192 pixels in four channels.
MOST_INPUT_VALUES = 2**28
MOST_STAGES = 16


def check_claims(
    path: Path,
    model: type[ImageModel],
    arguments: dict[str, Any],
    values: int,
    tensors: int,
    max_parameters: int | None = None,
) -> None:
    """Refuses arguments of a model that would be larger than the file it comes from.

    Args:
        arguments: Of that class, as the file has them; others are left out.
        values: How many numbers the tensors of the file hold.
        max_parameters: The most parameters to allow; None for what the file holds.
    """
    most = PACKED * values if max_parameters is None else max_parameters
    accepted = {*accepted_arguments(model)} - {"name", "dtype"}
    arguments = {name: value for name, value in arguments.items() if name in accepted}
    try:
        sides = [_size(side) for side in arguments.get("input_shape", ()) if side is not None]
        blocks, inputs = _blocks(arguments), math.prod(sides)
        parameters = 0
        if blocks * TENSORS_PER_BLOCK <= tensors:
            skeleton = without_values(partial(model, **arguments))
            parameters = sum(math.prod(each.shape) for each in skeleton.trainable_variables)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"The configuration in {path} is not that of a keras_vit model ({error!r}): "
            "it is damaged, or was made by another package."
        ) from error
    if parameters > most or blocks * TENSORS_PER_BLOCK > tensors:
        count = f"a model with {parameters:,} parameters in" if parameters else "a model with"
        raise CheckpointError(
            f"The configuration in {path} is of {count} {blocks:,} blocks, but the file holds "
            f"{values:,} numbers in {tensors:,} tensors: it is damaged, or made to exhaust the "
            "memory. Nothing was built"
            + (f"; max_parameters={max_parameters:,}." if max_parameters is not None else ".")
        )
    if inputs > MOST_INPUT_VALUES:
        raise CheckpointError(
            f"The configuration in {path} is for images of {inputs:,} values each "
            f"(input_shape={tuple(arguments['input_shape'])}); at most {MOST_INPUT_VALUES:,} are "
            "accepted. Of a file that you trust, keras.saving.load_model reads a .keras, and "
            "keras_vit.load(file, input_shape=...) the others."
        )


def _blocks(arguments: dict[str, Any]) -> int:
    """Return the number of blocks and units, each of which takes time to build."""
    stages = [*(arguments.get("depths") or ()), *(arguments.get("resnet") or ())]
    if len(stages) > MOST_STAGES:
        raise ValueError(f"{len(stages)} stages of a ResNet")
    return sum(_size(number) for number in (*stages, arguments.get("depth", 0)))


def _size(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is not a size")
    return number
