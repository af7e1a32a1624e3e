"""LiteRT, once TensorFlow Lite: for phones and small processors."""

import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.processors import available_processors
from keras_vit.exporting.contract import IMAGES, PIXELS, Contract, Run, append, read_appended
from keras_vit.exporting.graph import pixels_to_answers, save_signatures
from keras_vit.exporting.proof import add_to_zip, read_from_zip
from keras_vit.models import ImageModel

# As TensorFlow's own metadata, they stand in a zip archive behind the model's bytes.
LABELS = "labels.txt"


def write(
    model: ImageModel, path: Path, contract: Contract, calibration: np.ndarray | None = None
) -> None:
    """Writes a `.tflite` file.

    int8 is weights in eight bits, and activations quantized image by image while the products are
    computed ("dynamic range"): full int8 has one scale for a whole tensor of activations, and
    does not predict at all.
    """
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        # They share the weights; the first is what runs without a name.
        names = [IMAGES, PIXELS]
        signatures = {name: pixels_to_answers(model, contract, name) for name in names}
        save_signatures(model, Path(folder), signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=names)
        if contract.quantize:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if contract.quantize == "float16":  # weights alone: it computes in float32
            converter.target_spec.supported_types = [tf.float16]
        path.write_bytes(converter.convert())
    append(path, contract)
    if contract.task and contract.task.names:
        labels = "\n".join(" ".join(name.split()) for name in contract.task.names)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(LABELS, labels.encode("utf-8", "replace"))


read_contract = read_appended
# The proof stands behind the contract, and its sum is of all before it.
add_proof, read_proof = add_to_zip, read_from_zip


def runner(path: Path, outputs: Sequence[str], dtype: str = "uint8") -> Run:
    """Return a function from pixels of a dtype to the named outputs."""
    from ai_edge_litert.interpreter import Interpreter

    return interpreted(Interpreter, path, outputs, dtype)


def interpreted(make: Callable[..., Any], path: Path, outputs: Sequence[str], dtype: str) -> Run:
    """Return what `runner` does, by LiteRT's `Interpreter` or TensorFlow's."""
    # Its own default is one thread.
    interpreter = make(str(path), num_threads=available_processors())
    name = PIXELS if dtype == "float32" else IMAGES
    signature = interpreter.get_signature_runner(name)
    size = interpreter.get_input_details()[0]["shape"][1:]

    def run(images: np.ndarray) -> list[np.ndarray]:
        if images.shape[1:] != tuple(size):  # or it would take them for a new size
            raise ValueError(f"images {images.shape} must be (batch, {', '.join(map(str, size))})")
        named = signature(**{name: images})
        return [np.asarray(named[output]) for output in outputs]

    return run
