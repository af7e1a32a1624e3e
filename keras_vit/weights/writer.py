"""`save_weights`: writes the weights of a model in any layout."""

import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import keras

from keras_vit._base.errors import printable, warn_at_caller
from keras_vit._base.files import atomic_write, irregular_type
from keras_vit.models.answers import unknown_task
from keras_vit.models.head import DENSE_HEADS
from keras_vit.models.image_model import ImageModel
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.checkpoint_file import open_container
from keras_vit.weights.containers.keras_file import SUFFIXES
from keras_vit.weights.containers.metadata import model_metadata
from keras_vit.weights.containers.npz import save_npz
from keras_vit.weights.containers.safetensors_file import save_safetensors
from keras_vit.weights.containers.sums import TRAILER, carries_sum, write_seal
from keras_vit.weights.containers.tensors import Array
from keras_vit.weights.folders.configs import lacks_class_position
from keras_vit.weights.folders.folder_writer import CONFIGS, check_folder, write_folder
from keras_vit.weights.tables.conventions import stored_family
from keras_vit.weights.tables.layout import Layout
from keras_vit.weights.tables.layouts import layout_for
from keras_vit.weights.variables import canonical_values

WRITERS = {".npz": save_npz, ".safetensors": save_safetensors}


def save_weights(
    model: keras.Model, file: str | Path, layout: str | None = None, *, overwrite: bool = True
) -> None:
    """Writes the weights of a model for this or another package.

    The file appears whole or not at all: it is written beside its place and moved there.

    Args:
        model: A `VisionTransformer`, `MLPMixer` or `BiTResNet`.
        file: `.npz` for `"google"` and `"big_vision"`, `.safetensors` for the others. A folder, or
            a name without a suffix, is for `"huggingface"` and `"timm"` a folder that transformers
            or timm opens (docs/folders.md): the weights, `config.json` with class names and sizes,
            how images are prepared, and a `README.md`. `.keras` and `.weights.h5` are Keras's
            formats and need no layout.
        layout: `"google"` or `"big_vision"`; and for a ViT `"timm"` or `"huggingface"`, in which
            CLIP, SigLIP, DINOv2 and 3, BEiT, EVA-02 and the distilled DeiT have the names that
            these packages give them; `"dino_linear_head"` for a linear head of masks alone.
        overwrite: Replace a file that this function wrote. Others are never replaced, such as the
            released file that the weights came from.

    Raises:
        FileExistsError: There is a file that this function did not write, or any file and
            `overwrite` is False.
        CheckpointError: The layout cannot hold a weight of the model, or the other package does not
            have what the model computes.
        ValueError: The layout is unknown, or has another suffix; or neither `model.task` nor the
            compiled loss says what the outputs mean, and others would take them for classes.

    Example:

    >>> import keras_vit, numpy as np, tempfile
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
    >>> file = tempfile.mkdtemp() + "/model.npz"
    >>> keras_vit.weights.save_weights(model, file, layout="google")
    >>> np.load(file)["cls"].shape
    (1, 1, 16)
    """
    path = Path(file)
    if path.name.endswith(SUFFIXES) and not path.name.endswith((".keras", ".weights.h5")):
        raise ValueError(
            f"{path.name!r} is in Keras's legacy format, which is only read here: give "
            f"{path.with_suffix('.keras').name!r}."
        )
    if path.name.endswith(SUFFIXES):
        _check_target(path, overwrite)
        _save_keras(model, path, layout)
        return
    if layout is None:
        raise ValueError(
            f"Choose the layout in which {str(path)!r} names its tensors: "
            "layout='google', 'big_vision', 'timm', 'huggingface' or 'dino_linear_head'."
        )
    chosen = layout_for(layout, model, stored_family(model))
    is_folder = layout in CONFIGS and (
        not path.suffix or (path.is_dir() and path.suffix not in WRITERS)
    )
    if model.is_task_unknown and (is_folder or model.num_classes > 1):
        raise ValueError(unknown_task(model))  # it would be read as classes
    if is_folder:
        check_folder(path, layout, overwrite)
        _warn_of_novelty(model, path)
        if (views := model.eval_transform.views) not in (None, "one"):
            warn_at_caller(
                f"{model.name} answers by the mean of several views, {views!r}, and other packages "
                f"look once: answers by {printable(path)} are of one view, and less accurate. "
                "keras_vit.export writes files that keep the views."
            )
        model = _in_units(model)

        def write_weights(file: Path, stack: ExitStack) -> None:
            _write(model, stack.enter_context(_replacing(file)), chosen, in_folder=True)

        write_folder(model, path, layout, write_weights)
        return
    _check_target(path, overwrite)
    if path.suffix != chosen.suffix:
        raise ValueError(
            f"{str(file)!r} should end in {chosen.suffix!r} for the {chosen.name!r} layout."
        )
    _warn_of_novelty(model, path)
    with _replacing(path) as temporary:
        _write(model, temporary, chosen)


def _warn_of_novelty(model: ImageModel, path: Path) -> None:
    if model.novelty is not None:
        warn_at_caller(
            f"{model.name} has a novelty score, which weights in the layouts of other packages do "
            f"not have: {printable(path)} is without it. Keep the .keras file too, or export the "
            "model by keras_vit.export."
        )


def _in_units(model: ImageModel) -> Any:
    """Return a model whose outputs are in units, as other packages do not know of a scale."""
    if model.task is None:
        return model
    heads = [layer for layer in model.layers if layer.name in DENSE_HEADS]
    changed = [model.task.in_units(*layer.get_weights()) for layer in heads]
    if all(task == model.task for task, _, _ in changed):
        return model
    copy = model.copy()
    for layer, (task, kernel, bias) in zip(heads, changed, strict=True):
        copy.get_layer(layer.name).set_weights([kernel, bias])
        copy.task = task
    return copy


def _check_target(path: Path, overwrite: bool) -> None:
    """Refuses to replace a file without the sum that `save_weights` writes into it."""
    if not path.exists() or not path.suffix:
        return
    if irregular_type(path) is None and not carries_sum(path):
        raise FileExistsError(
            f"{printable(path)} exists and was not written by keras_vit: it is not replaced. "
            "Give another name."
        )
    if not overwrite:
        raise FileExistsError(f"{printable(path)} exists. Give another name, or overwrite=True.")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which gets its checksum and replaces `path` when written."""
    if path.exists() and (file_type := irregular_type(path)):
        raise ValueError(f"{str(path)!r} is {file_type}: give the name of a file to write.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        yield temporary
        write_seal(temporary)


def _write(model: ImageModel, path: Path, layout: Layout, in_folder: bool = False) -> None:
    if layout.suffix not in WRITERS:
        raise ValueError(f"The {layout.name!r} layout is only read. Give 'timm' or 'huggingface'.")
    values: Mapping[str, Array] = canonical_values(model)
    # timm has a position for each token in front of the patches, registers too, or for none.
    is_timm = layout.name.startswith("timm")
    folds = is_timm and (lacks_class_position(model) or (in_folder and model.num_registers))
    if layout.positions_first or folds:
        values = _without_class_position(values)
    values = layout.complete(values, model)
    # Only attention keeps heads apart.
    tensors = list(layout.from_canonical(values, getattr(model, "num_heads", 1)))
    metadata = model_metadata(model)
    if in_folder and (model.task is None or model.task.output_names == model.task.shown_names):
        # Its config.json has the names.
        metadata["class_names"] = None
    WRITERS[layout.suffix](path, tensors, metadata)
    try:
        with open_container(path):
            pass
    except CheckpointError as error:
        raise CheckpointError(
            f"{model.name} has more and smaller tensors than are read from a {layout.suffix} file: "
            f"save it as .keras. (The reader says: {str(error).replace(path.name, 'the file')})"
        ) from error


def _without_class_position(values: Mapping[str, Array]) -> Mapping[str, Array]:
    """Add the class token's position to the token itself, so that only patches have one."""
    if "class_token" not in values or "position_embedding" not in values:
        return values
    positions = values["position_embedding"]
    return {
        **values,
        "class_token": values["class_token"] + positions[:, :1],
        "position_embedding": positions[:, 1:],
    }


def _save_keras(model: keras.Model, path: Path, layout: str | None) -> None:
    if layout is not None:
        raise ValueError(f"{path.name!r} is a format of Keras: leave layout={layout!r} out.")
    with _replacing(path) as temporary:
        if path.suffix == ".keras":
            model.save(temporary)
            with zipfile.ZipFile(temporary, "a") as archive:
                archive.comment = TRAILER
        else:
            # Keras looks at the whole of the suffix, the temporary name has its last part.
            whole = temporary.with_suffix(".weights.h5")
            try:
                model.save_weights(whole)
                with whole.open("ab") as file:
                    file.write(TRAILER)
                os.replace(whole, temporary)
            finally:
                whole.unlink(missing_ok=True)
