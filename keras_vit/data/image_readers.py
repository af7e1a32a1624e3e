"""Who reads images and makes their batches: TensorFlow, or Pillow with Grain."""

from __future__ import annotations

from importlib.util import find_spec

from keras_vit._base.errors import check_choice
from keras_vit._base.version import install_command
from keras_vit.ops import is_tensorflow

# "tensorflow" reads with tf.data, in a graph; "grain" with Pillow and NumPy, in Grain's threads.
READERS = ("tensorflow", "grain")


def resolve_reader(reader: str | None = None) -> str:
    """The reader of this name; None for TensorFlow where it is installed, otherwise Grain.

    Raises:
        ValueError: an unknown name.
        ImportError: neither is installed.
    """
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
