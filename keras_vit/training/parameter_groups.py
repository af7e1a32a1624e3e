"""Multipliers of weight decay and learning rate, by patterns over the paths of variables.

    parameters ── first row whose pattern matches the path ──► weight decay, learning rate, frozen?

As in big_vision's `optax.py`, a parameter that no row matches is an error.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras


@dataclass(frozen=True)
class ParameterGroup:
    r"""One row of a table of parameter groups.

    Attributes:
        pattern: A regular expression for the whole path of a variable, such as
            `r"block_0/.*"`. Paths are those of `[v.path for v in model.variables]`.
        weight_decay: Multiplier of the optimizer's weight decay; 0 for none.
        learning_rate: Multiplier of the optimizer's learning rate, above 0. Weight decay is not
            multiplied by it, as in big_vision.
        trainable: False freezes the parameters: their gradients are not computed.

    Raises:
        ValueError: The pattern is not a regular expression, or a multiplier is out of range.
    """

    pattern: str
    weight_decay: float = 1.0
    learning_rate: float = 1.0
    trainable: bool = True

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(
                f"pattern={self.pattern!r} is not a regular expression: {error}. "
                r"""Give for example r"block_0/.*"."""
            ) from error
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay={self.weight_decay!r} must be 0 or more.")
        if not self.learning_rate > 0:
            raise ValueError(
                f"learning_rate={self.learning_rate!r} must be above 0. "
                "To freeze parameters give trainable=False."
            )


Table = Sequence[ParameterGroup]

# big_vision's default: kernels decay; biases, norms, positions and tokens do not.
KERNELS_DECAY: Table = (
    ParameterGroup(r"(.*/)?kernel"),
    ParameterGroup(r".*", weight_decay=0.0),
)


def find_groups(paths: Iterable[str], table: Table) -> list[ParameterGroup]:
    """Return the row of the table for each path: the first whose pattern matches all of it.

    Raises:
        ValueError: No row matches a path; the message names all such paths.

    >>> [group.weight_decay for group in find_groups(["head/kernel", "head/bias"], KERNELS_DECAY)]
    [1.0, 0.0]
    """
    paths = list(paths)
    rows = [next((row for row in table if re.fullmatch(row.pattern, p)), None) for p in paths]
    if uncovered := [path for path, row in zip(paths, rows, strict=True) if row is None]:
        raise ValueError(
            f"No pattern covers {', '.join(map(repr, uncovered))}. "
            f"Patterns: {', '.join(repr(row.pattern) for row in table)}. Add a row for them, or "
            "ParameterGroup('.*') as the last one."
        )
    return [row for row in rows if row is not None]


def as_table(rows: Iterable[ParameterGroup | dict[str, Any]]) -> tuple[ParameterGroup, ...]:
    """Return a table from its rows, or from the dictionaries that a saved configuration holds."""
    return tuple(row if isinstance(row, ParameterGroup) else ParameterGroup(**row) for row in rows)


def freeze(model: keras.Model, table: Table) -> None:
    """Freezes the parameters of rows with `trainable=False`, and layers that are frozen as a whole.

    Frozen variables are no longer in `model.trainable_variables`, and no backend computes their
    gradients. Compile the model afterwards.

    Raises:
        ValueError: No row matches a trainable parameter, or all of them would be frozen.

    Example:

    >>> import keras_vit
    >>> from keras_vit.training.parameter_groups import KERNELS_DECAY, ParameterGroup, freeze
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=2, num_heads=2, input_shape=(32, 32, 3))
    >>> freeze(model, [ParameterGroup("(?!head/).*", trainable=False), *KERNELS_DECAY])
    >>> [variable.path for variable in model.trainable_variables]
    ['head/kernel', 'head/bias']
    """
    variables = model.trainable_variables
    groups = find_groups([variable.path for variable in variables], table)
    frozen = [v for v, group in zip(variables, groups, strict=True) if not group.trainable]
    if variables and len(frozen) == len(variables):
        raise ValueError(
            "The table freezes every parameter, so nothing would train. "
            "Leave at least the head: '(?!head/).*' matches all but the head."
        )
    for variable in frozen:
        variable.trainable = False
    for layer in model.layers:
        if layer.weights and not layer.trainable_variables:
            layer.trainable = False


def frozen_rows(patterns: Iterable[str], table: Table) -> tuple[ParameterGroup, ...]:
    """Return the table with rows in front that freeze what the patterns match."""
    return (*(ParameterGroup(pattern, trainable=False) for pattern in patterns), *table)


def layerwise_decay(
    depth: int, decay: float, table: Table = KERNELS_DECAY
) -> tuple[ParameterGroup, ...]:
    """Return a table whose learning rates fall from layer to layer, from the head to the patches.

    The head, the last norm and biases that all blocks share have the full learning rate, block i of
    `depth` decay^(depth - i) of it, and what comes before the first block decay^(depth + 1), as in
    BEiT (Bao et al. 2022), section 3.1 and its released code.

    Args:
        depth: Encoder blocks of the model.
        decay: Factor from one layer to the one before, in (0, 1]; 0.65 to 0.9 are usual.
        table: Rows for the rest; their learning rates are multiplied.

    Raises:
        ValueError: The factor is out of range.

    Example:

    >>> from keras_vit.training.parameter_groups import find_groups, layerwise_decay
    >>> paths = ["patch_embedding/kernel", "block_0/mlp/dense_0/bias", "block_1/x"]
    >>> paths += ["pooling_norm/gamma", "relative_position_bias/table", "head/kernel"]
    >>> [group.learning_rate for group in find_groups(paths, layerwise_decay(2, 0.5))]
    [0.125, 0.25, 0.5, 1.0, 1.0, 1.0]
    """
    if not 0 < decay <= 1:
        raise ValueError(
            f"decay={decay!r} must be in (0, 1], for instance 0.75; 1 changes nothing."
        )
    layers = {rf"block_{i}/": decay ** (depth - i) for i in range(depth)}
    behind = r"(encoder_norm|pooling(_norm)?|pre_logits|pre_head_norm|head|(head|dpt|eomt)_\w+)/"
    layers[rf"relative_position_bias/|{behind}"] = 1.0
    layers[""] = decay ** (depth + 1)
    return tuple(
        replace(
            row,
            # The layer matches the beginning of the path, and the row all of it.
            pattern=f"(?={layer})(?:{row.pattern})",
            learning_rate=rate * row.learning_rate,
        )
        for layer, rate in layers.items()
        for row in table
    )
