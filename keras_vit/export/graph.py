"""The classifier as a TensorFlow graph from pixels to classes, which the formats are made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_vit.export.contract import IMAGES, Contract
from keras_vit.models import ImageModel


def most_probable(model: ImageModel, images: Any, top_k: int) -> tuple[Any, Any, Any]:
    """Probabilities of all classes, and values and numbers of the largest, in a graph."""
    import tensorflow as tf

    scores = tf.cast(model(images, training=False), tf.float32)
    probabilities = tf.nn.softmax(scores) if model.classifier_activation is None else scores
    return probabilities, *tf.math.top_k(probabilities, top_k)


def pixels_to_classes(model: ImageModel, contract: Contract, name: str = IMAGES) -> Any:
    """A `tf.function` that returns what the contract says, `top_classes` as int32.

    Args:
        model: The classifier.
        contract: What the file takes and returns.
        name: Of the input: `"images"` of uint8, or `"pixels"` of float32.
    """
    import tensorflow as tf

    def classify(images: Any) -> dict[str, Any]:
        pixels = tf.cast(images, tf.float32)
        probabilities, values, indices = most_probable(model, pixels, contract.top_k)
        return {
            "probabilities": probabilities,
            "top_classes": indices,
            "top_probabilities": values,
        }

    shape = (None, *contract.image_size, contract.channels)
    dtype = tf.uint8 if name == IMAGES else tf.float32
    return tf.function(classify, input_signature=[tf.TensorSpec(shape, dtype, name)])


def save_signatures(
    model: ImageModel, path: Path, signatures: dict[str, Callable[..., Any]]
) -> None:
    """A SavedModel with these signatures, which holds every weight once.

    (`keras.export.ExportArchive` tracks Keras's variables and TensorFlow's, and writes both.)
    """
    import tensorflow as tf

    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    try:
        tf.saved_model.save(module, str(path), signatures=signatures)
    except tf.errors.OpError as error:  # such as a full disk
        raise OSError(f"{path} cannot be written: {error.message}") from error
