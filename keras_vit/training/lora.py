"""Low-rank adaptation (Hu et al. 2021) of a pretrained model, through Keras's own `enable_lora`."""

import tempfile
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.errors import check_positive

# Every matrix product of an encoder block; the paper adapts those of the attention alone.
ADAPTED = ("query_key_value", "output", "dense_0", "dense_1")


def enable_lora(model: Any, rank: int, trained: Sequence[str] = ("head",)) -> int:
    """Freezes a model except for low-rank updates of its encoder blocks, and a few layers.

    A kernel W of a block becomes W + A B with A `(inputs, rank)`, drawn, and B `(rank, outputs)`,
    zero: the model gives what it gave until it is trained. The optimizer keeps no state for the
    rest, and files stay as they were: `save` and `merged` fold A B into W.

    Args:
        model: An `ImageModel` with encoder blocks, not compiled yet.
        rank: Of the update; 4 to 16 are common.
        trained: Names of the layers that are trained in full.

    Returns:
        The number of parameters that will be trained.

    Raises:
        ValueError: `rank` is below 1, a name is unknown, or the model has no block to adapt.

    Source: Hu et al. 2021, equation 3.

    Example:

    >>> import keras_vit
    >>> from keras_vit.training.lora import enable_lora
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, num_classes=5,
    ...     input_shape=(32, 32, 3))
    >>> enable_lora(model, rank=2)
    597
    """
    check_positive(rank=rank)
    dense = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Dense) and layer.name in ADAPTED
    ]
    if not dense:
        raise ValueError(
            f"{model.name} has no encoder block for LoRA to adapt (no Dense layer named "
            f"{', '.join(ADAPTED)}). Train it in full, or freeze its backbone."
        )
    kept = {id(v) for name in trained for v in model.get_layer(name).trainable_variables}
    for variable in model.trainable_variables:
        variable.trainable = id(variable) in kept
    for layer in dense:
        layer.enable_lora(rank)
    return sum(int(keras.ops.size(v)) for v in model.trainable_variables)


def merged(model: Any) -> Any:
    """A plain copy of a model: the updates of `enable_lora` folded into the kernels.

    Example:

    >>> import keras_vit
    >>> from keras_vit.training.lora import enable_lora, merged
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
    >>> before = model.count_params()
    >>> _ = enable_lora(model, rank=2)
    >>> merged(model).count_params() == before < model.count_params()
    True
    """
    plain = type(model).from_config(model.get_config())
    # Keras folds where it writes a file; it has no other way in public.
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/merged.weights.h5"
        model.save_weights(file)
        plain.load_weights(file)
    return plain
