"""Register tokens that have positions in a file, which they do not have in the model."""

from dataclasses import replace
from math import isqrt, prod

import numpy as np

from keras_vit.weights.tables.layout import Checkpoint

REGISTERS, POSITIONS = "register_tokens", "position_embedding"


def with_positions_in_registers(checkpoint: Checkpoint) -> Checkpoint:
    """Return the file with the registers' positions, if any, added to the tokens: the same sum.

    timm has positions for class token and registers unless `no_embed_class` is set, as it is for
    DINOv2; no tensor but the number of positions shows it.
    """
    registers, positions = checkpoint.tensors.get(REGISTERS), checkpoint.tensors.get(POSITIONS)
    if registers is None or positions is None or len(registers.shape) != 3:
        return checkpoint
    number = registers.shape[1]
    patches = positions.shape[1] - 1 - number if len(positions.shape) == 3 else 0
    grid = checkpoint.grid or (isqrt(max(patches, 0)),) * 2
    total = patches + number
    if prod(grid) != patches or (checkpoint.grid is None and isqrt(total) ** 2 == total):
        return checkpoint

    def of_tokens(x: np.ndarray) -> np.ndarray:
        return x + positions.read()[:, 1 : 1 + number]

    def of_others(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x[:, :1], x[:, 1 + number :]], axis=1)

    shape = (1, 1 + patches, positions.shape[2])
    changed = {
        REGISTERS: registers.then(of_tokens, registers.shape),
        POSITIONS: positions.then(of_others, shape),
    }
    return replace(checkpoint, tensors={**checkpoint.tensors, **changed}, has_class_position=True)
