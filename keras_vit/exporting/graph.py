"""The model as a TensorFlow graph from pixels to answers, which the formats are made from."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from keras_vit.exporting.contract import IMAGES, Contract
from keras_vit.inspection.forward_pass import RolloutRecorder
from keras_vit.layers.observation import observed_by
from keras_vit.models import ImageModel
from keras_vit.models.answers import named_answers

# What a page calls the attention rollout, float32 `(batch, rows, columns)` of the patches.
ATTENTION = "attention"


def pixels_to_answers(
    model: ImageModel, contract: Contract, name: str = IMAGES, *, attention: bool = False
) -> Any:
    """Return a `tf.function` that returns the outputs of the contract by name.

    Args:
        name: Of the input: `"images"` of the contract's dtype, or `"pixels"` of float32.
        attention: Return the attention rollout over the patches, too, where the model has one.
    """
    import tensorflow as tf

    def answer(images: Any) -> dict[str, Any]:
        recorder = RolloutRecorder()
        with observed_by(recorder) if attention else nullcontext():
            outputs = model(tf.cast(images, tf.float32), training=False)
        named = named_answers(model, outputs, contract.top_k)
        seen = recorder.rollout() if attention else None
        return named if seen is None else {**named, ATTENTION: seen}

    shape = (None, *contract.image_size, contract.channels)
    dtype = contract.dtype if name == IMAGES else "float32"
    return tf.function(answer, input_signature=[tf.TensorSpec(shape, dtype, name)])


def save_signatures(
    model: ImageModel, path: Path, signatures: dict[str, Callable[..., Any]]
) -> None:
    """Save a SavedModel with these signatures, which holds every weight once.

    (`keras.export.ExportArchive` tracks Keras's variables and TensorFlow's, and writes both.)
    """
    import tensorflow as tf

    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    try:
        tf.saved_model.save(module, str(path), signatures=signatures)
    except tf.errors.OpError as error:  # such as a full disk
        raise OSError(f"{path} cannot be written: {error.message}") from error
