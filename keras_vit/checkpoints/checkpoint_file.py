"""Opens any file of weights as a `Checkpoint`: container by suffix, layout by tensor names."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import FAMILIES
from keras_vit.checkpoints.keras_file import SUFFIXES, read_keras_file
from keras_vit.checkpoints.layout import Checkpoint
from keras_vit.checkpoints.layouts import layout_named, recognise
from keras_vit.checkpoints.metadata import with_metadata
from keras_vit.checkpoints.npz import open_npz
from keras_vit.checkpoints.registers import with_positions_in_registers
from keras_vit.checkpoints.safetensors_file import open_safetensors
from keras_vit.checkpoints.sidecar_configs import read_sidecar_configs
from keras_vit.checkpoints.sums import check_regular
from keras_vit.checkpoints.tensors import Container
from keras_vit.checkpoints.torch_file import open_torch

OPENERS = {
    ".npz": open_npz,
    ".safetensors": open_safetensors,
    ".pth": open_torch,
    ".pt": open_torch,
    ".bin": open_torch,
}


# What `keras-vit train`, `save_weights`, transformers and timm write into a folder.
FILES_IN_FOLDER = ("model.keras", "model.safetensors", "pytorch_model.bin")


def file_in_folder(folder: Path) -> Path:
    """The file of weights in a folder that a training, `save_weights`, transformers or timm wrote.

    Raises:
        FileNotFoundError: There is none.
    """
    for name in FILES_IN_FOLDER:
        if (folder / name).exists():
            return folder / name
    shards = " Its weights are in several files: write them as one, in transformers by "
    shards += "model.save_pretrained(folder, max_shard_size='100GB')."
    raise FileNotFoundError(
        f"There is no {' or '.join(FILES_IN_FOLDER)} in {str(folder)!r}. Give a file of a "
        "model, or a folder that keras-vit train wrote."
        + (shards if any(folder.glob("*.index.json")) else "")
    )


def open_container(path: Path) -> AbstractContextManager[Container]:
    """The arrays of a file by the names in it."""
    if path.suffix not in OPENERS:
        raise CheckpointError(
            f"{str(path)!r} does not have the suffix of a file of weights: give one that ends in "
            f"{', '.join([*OPENERS, *SUFFIXES])}."
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
    """The tensors of a file under canonical names, readable while the context is open.

    Args:
        path: The file.
        layout: Name of its layout; None recognises it.
        model: A model like the one whose weights a `.weights.h5` file holds.
        check: Called before Keras reads a file: raises where its sum is wrong.
        max_parameters: As for `load_model`, of a `.keras` file.
    """
    check_regular(path)
    if path.name.endswith(SUFFIXES):
        check()
        yield read_keras_file(path, model, max_parameters)
        return
    with open_container(path) as container:
        chosen = layout_named(layout) if layout else recognise(container)
        checkpoint = chosen.to_canonical(container.tensors)
        root = FAMILIES[checkpoint.family].root
        if root not in checkpoint.tensors:
            raise CheckpointError(
                f"{path} has names of the {chosen.name!r} layout but no {root!r}: it is "
                "incomplete, or one shard of several."
            )
        arguments, names = read_sidecar_configs(path, checkpoint.tensors[root].shape)
        grid = arguments.pop("grid", None)
        checkpoint = replace(
            checkpoint,
            arguments={**checkpoint.arguments, **arguments},
            class_names=names or checkpoint.class_names,
            grid=grid or checkpoint.grid,
        )
        yield with_positions_in_registers(with_metadata(checkpoint, container.metadata))
