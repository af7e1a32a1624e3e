"""Who reads images and makes their batches: TensorFlow, or Pillow with Grain."""

from importlib.util import find_spec
from typing import Any

from keras_vit._base.errors import check_choice
from keras_vit._base.version import install_command
from keras_vit.ops import is_tensorflow

# "tensorflow" reads with tf.data, in a graph; "grain" with Pillow and NumPy, in Grain's threads.
READERS = ("tensorflow", "grain")


def resolve_reader(reader: str | None = None, bands: Any = None) -> str:
    """Return the reader of this name; None for TensorFlow where it is installed, otherwise Grain.

    Raises:
        ValueError: an unknown name, or TensorFlow for bands.
        ImportError: neither is installed, or not the one that bands need.
    """
    if bands is not None:
        if reader == "tensorflow":
            raise ValueError("Grain reads bands, not reader='tensorflow': leave reader out.")
        if find_spec("grain") is None:
            raise ImportError(f"Bands are read by Grain: {install_command('bands')}")
        reader = "grain"
    if reader is not None:
        return check_choice(reader, "reader", READERS)
    if is_tensorflow() or find_spec("tensorflow") is not None:
        return "tensorflow"
    if find_spec("grain") is not None:
        return "grain"
    raise ImportError(
        "keras_vit.data reads images with Grain or with TensorFlow, and neither is installed: "
        f"{install_command('grain')}, or {install_command('tensorflow')}"
    )
