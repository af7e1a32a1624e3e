"""Low-rank adaptation (Hu et al. 2021) of a pretrained model, through Keras's own `enable_lora`."""

import tempfile
from typing import Any

import keras

from keras_vit._base.errors import check_positive
from keras_vit.models.head import HEAD_LAYERS

# Every matrix product of an encoder block; the paper adapts those of the attention alone.
ADAPTED = ("query_key_value", "output", "dense_0", "dense_1")


def enable_lora(model: Any, rank: int) -> int:
    """Freezes a model except for its head and low-rank updates of its encoder blocks.

    A kernel W of a block becomes W + A B with a random A `(inputs, rank)` and B `(rank, outputs)`
    of zeros, so that the outputs do not change at first. The optimizer has states for these alone.
    `save` and `merged` fold A B into W, so that files have the usual layout.

    Args:
        model: An `ImageModel` with encoder blocks, not compiled yet.
        rank: Rank of the updates; 4 to 16 are common.

    Returns:
        The number of trainable parameters.

    Raises:
        ValueError: `rank` is below 1, or the model does not have encoder blocks.

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
            f"{model.name} does not have an encoder block for LoRA to adapt (a Dense layer named "
            f"{', '.join(ADAPTED)}). Train it in full, or freeze its backbone."
        )
    heads = [layer for layer in model.layers if layer.name in HEAD_LAYERS]
    of_heads = {id(variable) for head in heads for variable in head.trainable_variables}
    for variable in model.trainable_variables:
        variable.trainable = id(variable) in of_heads
    for layer in dense:
        layer.enable_lora(rank)
    return sum(int(keras.ops.size(v)) for v in model.trainable_variables)


def freeze_backbone(model: Any) -> None:
    """Make the layers of the head the only trainable ones."""
    for layer in model.layers:
        layer.trainable = layer.name in HEAD_LAYERS


def trainable_layers(model: Any) -> list[tuple[keras.layers.Layer, bool]]:
    """Return all layers with what their `trainable` is, for `set_trainable_layers` to restore."""
    return [(layer, layer.trainable) for layer in model._flatten_layers()]


def set_trainable_layers(layers: list[tuple[keras.layers.Layer, bool]]) -> None:
    for layer, trainable in layers:
        layer.trainable = trainable


def merged(model: Any) -> Any:
    """Return a plain copy of a model: the updates of `enable_lora` folded into the kernels.

    All of it trains, as `compile_model` froze layers without updates as a whole.

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
    # Keras folds them when it writes a file; there is no other public way.
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/merged.weights.h5"
        model.save_weights(file)
        plain.load_weights(file)
    plain.trainable = True
    return plain
