"""Opens any file of weights as a `Checkpoint`: container by suffix, layout by tensor names."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from keras_vit._base.errors import naming_file
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.keras_file import SUFFIXES, read_keras_file
from keras_vit.weights.containers.metadata import with_metadata
from keras_vit.weights.containers.npz import open_npz
from keras_vit.weights.containers.safetensors_file import open_safetensors
from keras_vit.weights.containers.shards import open_shards
from keras_vit.weights.containers.sums import INDEX_SUFFIX, check_regular
from keras_vit.weights.containers.tensors import Container
from keras_vit.weights.containers.torch_bin import open_torch
from keras_vit.weights.folders.hub_cache import SNAPSHOTS, snapshot_folder
from keras_vit.weights.folders.sidecars import read_sidecar_configs
from keras_vit.weights.tables.conventions import STORED_FAMILIES
from keras_vit.weights.tables.layout import Checkpoint
from keras_vit.weights.tables.layouts import layout_named, recognize
from keras_vit.weights.tables.registers import with_positions_in_registers

OPENERS = {
    ".npz": open_npz,
    ".safetensors": open_safetensors,
    ".pth": open_torch,
    ".pt": open_torch,
    ".bin": open_torch,
}


# What a training run, `save_weights`, transformers and timm write into a folder.
FILES_IN_FOLDER = (
    "model.keras",
    "model.safetensors",
    f"model.safetensors{INDEX_SUFFIX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX_SUFFIX}",
)


# What the folder of a combined model has: the names of its heads, each of which is a file.
COMBINED = "combined.json"


def file_in_folder(folder: Path) -> Path:
    """Return the weights file in a folder of a training, `save_weights`, transformers or timm.

    Of weights in several files it is the index. In a folder of the Hugging Face hub's cache, it is
    that of the snapshot that was downloaded last.

    Raises:
        FileNotFoundError: There is none.
    """
    snapshot = snapshot_folder(folder)
    for name in FILES_IN_FOLDER:
        file = snapshot / name
        if file.exists():
            return file
        if file.is_symlink():
            raise FileNotFoundError(
                f"{file} is a link to {file.readlink()}, which is not there: download it again."
            )
    if (snapshot / COMBINED).exists():
        heads = " or ".join(repr(str(file)) for file in sorted(snapshot.glob("*.keras")))
        raise FileNotFoundError(
            f"{str(snapshot)!r} holds a combined model, whose heads predict and are exported "
            f"together. All else takes one of them: give {heads}."
        )
    if (best := snapshot / "best.keras").exists():  # of `fit`, or of a run that has not ended
        raise FileNotFoundError(
            f"{str(snapshot)!r} has the best model of a training so far, and none of one that has "
            f"ended: give {str(best)!r} for that, or resume the run."
        )
    raise FileNotFoundError(
        f"There is no {' or '.join(FILES_IN_FOLDER)} in {str(snapshot)!r}. Give a file of a "
        "model, or the folder of a training run, of transformers or of timm; that of "
        "keras_vit.export to keras_vit.exporting.load_exported."
    )


def holds_weights(folder: Path) -> bool:
    """Return whether a folder seems to hold weights, so that `file_in_folder` has to look."""
    is_repository = (folder / SNAPSHOTS).is_dir()
    return is_repository or any(os.path.lexists(folder / name) for name in FILES_IN_FOLDER)


def open_container(path: Path) -> AbstractContextManager[Container]:
    """Return the arrays of a file, or of all files of an index, by the names in them."""
    if path.name.endswith(INDEX_SUFFIX):
        return open_shards(path)
    if path.suffix not in OPENERS:
        raise CheckpointError(
            f"{str(path)!r} does not have the suffix of a file of weights: give one that ends in "
            f"{', '.join([*OPENERS, INDEX_SUFFIX, *SUFFIXES])}; what keras_vit.export wrote, to "
            "keras_vit.exporting.load_exported."
        )
    return OPENERS[path.suffix](path)


@contextmanager
def open_checkpoint(
    path: Path,
    layout: str | None = None,
    model: keras.Model | None = None,
    check: Callable[[], Any] = lambda: None,
    max_parameters: int | None = None,
) -> Iterator[Checkpoint]:
    """Yield a file's tensors under canonical names, readable while the context is open.

    Args:
        layout: Name of its layout; None recognizes it.
        model: A model like the one whose weights a `.weights.h5` file holds.
        check: Called before Keras reads a file: raises where its sum is wrong.
    """
    check_regular(path)
    with naming_file(path, CheckpointError):  # also what the caller finds wrong with its tensors
        if path.name.endswith(SUFFIXES):
            check()
            yield read_keras_file(path, model, max_parameters)
            return
        with open_container(path) as container:
            checkpoint = _checkpoint(path, container, layout)
            if checkpoint.is_head and model is None:
                raise CheckpointError(
                    f"{path} has a head alone: load the encoder's file with task=keras_vit.tasks."
                    "Segmentation(size=CLASSES), and then this file by "
                    "keras_vit.load_weights(model, file)."
                )
            yield checkpoint


def _checkpoint(path: Path, container: Container, layout: str | None) -> Checkpoint:
    """Return the tensors of a container, with what is known beside them."""
    chosen = layout_named(layout) if layout else recognize(container)
    checkpoint = chosen.to_canonical(container.tensors)
    if checkpoint.is_head:
        return checkpoint
    root = STORED_FAMILIES[checkpoint.family].root
    if root not in checkpoint.tensors:
        raise CheckpointError(
            f"{path} has names of the {chosen.name!r} layout but no {root!r}: it is "
            "incomplete, or one of several files, which are opened by their folder."
        )
    written = container.metadata.get("arguments")
    is_known = isinstance(written, dict) and "normalization" in written
    arguments, names = read_sidecar_configs(path, checkpoint.tensors[root].shape, is_known)
    grid = arguments.pop("grid", None)
    checkpoint = replace(
        checkpoint,
        arguments={**checkpoint.arguments, **arguments},
        class_names=names or checkpoint.class_names,
        grid=grid or checkpoint.grid,
    )
    return with_positions_in_registers(with_metadata(checkpoint, container.metadata))
