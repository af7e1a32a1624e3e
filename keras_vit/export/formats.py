"""`export_model`: checks its arguments and writes all or nothing, in this or another process."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit import backend
from keras_vit.data import MAX_PIXELS
from keras_vit.errors import as_pair, check_choice, check_positive
from keras_vit.files import atomic_write, write_text
from keras_vit.models import ImageModel
from keras_vit.output_folder import OutputFolder
from keras_vit.version import install_command

FORMATS = ("tf_saved_model",)
SAVED_MODEL_FILES = ("saved_model.pb", "fingerprint.pb", "variables/*", "assets/*")
# What the second process reads, where the backend is not TensorFlow.
MODEL_FILE, OPTIONS_FILE = "model.keras", "options.json"


def export_model(
    model: ImageModel,
    path: str | os.PathLike[str],
    format: str = "tf_saved_model",
    *,
    class_names: Sequence[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    top_k: int = 5,
    max_pixels: int = MAX_PIXELS,
    overwrite: bool = False,
) -> Path:
    """Writes a classifier as a SavedModel that can be served without keras_vit.

    Two signatures. `serving_default` takes `contents`, the bytes of JPEG, PNG, BMP, GIF or WebP
    files, strings `(batch,)`; decoding, resizing and normalising are in the graph and are those
    of the evaluation pipeline. `images` takes `images`, float32 pixels 0..255
    `(batch, height, width, 3)` of any size. Both return

    - `probabilities`: float32 `(batch, classes)`,
    - `top_classes`, `top_probabilities`: strings and float32 `(batch, top_k)`, best first,
    - `valid`: bool `(batch,)`; False marks a file that cannot be decoded: its probabilities are
      0 and its classes empty, and the rest of the batch is served.

    On the JAX and torch backends a second process with TensorFlow writes the file.

    Args:
        model: A classifier of this package, with `include_preprocessing=True`.
        path: Folder to write, in the layout of TensorFlow Serving: `saved_models/NAME/VERSION`.
        format: `"tf_saved_model"`.
        class_names: The name of every class; None for `model.class_names`, or numbers.
        image_size: Height and width that images are resized to; None for the model's. Required for
            a model of any size.
        top_k: How many classes to return, best first.
        max_pixels: Height times width that is accepted; a larger image is not `valid`.
        overwrite: Replace a model that was exported there; never other files.

    Returns:
        The folder.

    Raises:
        ValueError: The model does not have a head or takes normalised pixels, names do not match
            the classes, or the image size is missing; or the folder is a link, a mount point, a
            home or the working directory.
        FileExistsError: The folder exists, and `overwrite` is False or it holds other files than
            an exported model's.
        BlockingIOError: Another process is writing it.
        ImportError: TensorFlow is not installed.
        RuntimeError: The TensorFlow process failed; the message ends with its error.

    Example:

    >>> import keras_vit, tempfile
    >>> model = keras_vit.VisionTransformer(num_classes=2, patch_size=8, hidden_dim=16, depth=1,
    ...                                     num_heads=2, input_shape=(32, 32, 3))
    >>> folder = tempfile.mkdtemp()
    >>> keras_vit.export_model(model, folder + "/pets/1", class_names=["cat", "dog"]).name
    '1'
    """
    check_choice(format, "format", FORMATS)
    check_positive(top_k=top_k, max_pixels=max_pixels)
    path = Path(path)
    options = {
        "class_names": _class_names(model, class_names),
        "image_size": _image_size(model, image_size),
        "top_k": min(top_k, model.num_classes),
        "max_pixels": max_pixels,
        "evaluation": dict(model.eval_transform),
    }
    # A server that watches the folder never sees half of it.
    output = OutputFolder(
        path,
        "SavedModel",
        f".{path.absolute().name}.partial",
        results=SAVED_MODEL_FILES,
        scratch=(MODEL_FILE, OPTIONS_FILE),
        option="path",
        replace="overwrite=True",
    )
    with output.opened(overwrite=overwrite) as workspace:
        if backend.is_tensorflow():
            from keras_vit.export.saved_model import write_saved_model

            write_saved_model(model, workspace, **options)
        else:
            _write_in_tensorflow_process(model, workspace, options)
        output.finish()
        output.publish()
    return path


def _class_names(model: ImageModel, class_names: Sequence[str] | None) -> list[str]:
    if model.num_classes == 0 or len(model.output_shape) != 2:
        raise ValueError(
            f"{model.name} returns {model.output_shape}, not one score per class. "
            "Give a model with num_classes and pooling, such as model.with_classifier(5)."
        )
    if not model.include_preprocessing:
        raise ValueError(
            f"{model.name} takes normalised pixels, so the exported file could be fed the wrong "
            "range. Build it with include_preprocessing=True; the weights stay the same."
        )
    names = class_names or model.class_names or list(map(str, range(model.num_classes)))
    if len(names) != model.num_classes:
        raise ValueError(
            f"{len(names)} class names for {model.num_classes} classes: give one for each."
        )
    return [str(name) for name in names]


def _image_size(model: ImageModel, image_size: int | tuple[int, int] | None) -> tuple[int, int]:
    if model.data_format != "channels_last":
        raise ValueError("A channels_first model cannot be served. Rebuild it as channels_last.")
    height, width = model.image_size
    if image_size is None:
        if height is None or width is None:
            raise ValueError(
                f"{model.name} takes images of any size, but the SavedModel resizes them to one: "
                "give image_size=224, for example."
            )
        return height, width
    size = as_pair(image_size, "image_size")
    if (height or size[0], width or size[1]) != size:
        raise ValueError(
            f"image_size={image_size!r} does not fit {model.name}, which takes images of "
            f"{height} x {width} pixels. Leave image_size out, or export "
            f"model.with_input_shape({(*size, model.channels)})."
        )
    return size


def _write_in_tensorflow_process(
    model: ImageModel, workspace: Path, options: dict[str, Any]
) -> None:
    """Keras cannot write it from JAX (sizes are dynamic) nor, with PyTorch 2.13, from torch."""
    with atomic_write(workspace / MODEL_FILE) as temporary:
        keras.saving.save_model(model.copy(), temporary)
    write_text(workspace / OPTIONS_FILE, json.dumps(options))
    python, environment = backend.tensorflow_process()
    command = [*python, "-m", "keras_vit.export.saved_model", str(workspace)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        if "No module named 'tensorflow'" in done.stderr:
            raise ImportError(
                f"A SavedModel needs TensorFlow: {install_command('tensorflow')}", name="tensorflow"
            )
        raise RuntimeError(f"The TensorFlow process that writes the SavedModel: {reason[0]}")
