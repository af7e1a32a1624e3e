"""Folders for transformers and timm, run by these on the images that the folder carries."""

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_vit._base.errors import printable
from keras_vit._base.files import atomic_write
from keras_vit._base.manifest import sha256
from keras_vit.data import MAX_PIXELS
from keras_vit.exporting.contract import DESCRIPTION, Contract, Run
from keras_vit.exporting.executorch_file import quietly
from keras_vit.exporting.format_table import FOLDERS
from keras_vit.exporting.proof import MOST_BYTES, PROOF_FILE, Proof, run_proof
from keras_vit.models import VisionTransformer
from keras_vit.models.answers import answers_of
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression
from keras_vit.weights import CheckpointError, folder_transform
from keras_vit.weights.containers.metadata import stated_image_size
from keras_vit.weights.folders.folder_writer import CONFIG_FILES, WEIGHTS, folder_layout

# (The README is its owner's to fill in.)
_SUMMED = (WEIGHTS, *CONFIG_FILES, DESCRIPTION)
# The tasks whose answers a folder proves.
PROVEN = (Classification, Multilabel, Regression, Ordinal)


def prove_folder(model: VisionTransformer, folder: str | os.PathLike[str]) -> None:
    """Adds to a folder for transformers or timm what `keras_vit.exporting.check` compares it by.

    Images, and the model's answers to them, in two files; the other package is run once, which
    measures how far it is off.

    Args:
        model: That the folder was written from: a model of RGB images whose task is classes,
            labels, numbers or grades.
        folder: What `keras_vit.weights.save_weights` wrote.

    Raises:
        ValueError: It is not such a folder or model.
        ImportError: The package that reads the folder is not installed.
        RuntimeError: The package answers otherwise than the model.

    Example:

    >>> import keras_vit, tempfile
    >>> model = keras_vit.VisionTransformer(num_classes=2, patch_size=8, hidden_dim=16, depth=1,
    ...                                     num_heads=2, input_shape=(32, 32, 3))
    >>> keras_vit.weights.save_weights(model, folder := tempfile.mkdtemp(), "huggingface")
    >>> keras_vit.exporting.prove_folder(model, folder)
    >>> keras_vit.exporting.check(folder).ok
    True
    """
    path, layout = Path(folder), folder_layout(Path(folder))
    if layout is None:
        raise ValueError(f"{printable(path)} is not a folder that save_weights wrote: give one.")
    if not isinstance(model.task, PROVEN) or model.channels != 3:
        raise ValueError(
            f"{model.name} has {model.channels} channels and the task "
            f"{model.task and model.task.kind}: a folder proves the answers of a model of RGB "
            "images that predicts classes, labels, numbers or grades."
        )
    row = FOLDERS[layout]
    row.require(row.runs_with)
    task = model.task
    network: Any = model.copy(dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as when the folder was written
        evaluation = replace(folder_transform(model, layout), views=None)
    height, width = stated_image_size(model) or (0, 0)
    contract = Contract(
        format=layout,
        task=task,
        image_size=(height, width),
        channels=model.channels,
        evaluation=evaluation,
        top_k=min(5, task.size),
        max_pixels=MAX_PIXELS,
    )

    def answer(images: np.ndarray) -> dict[str, np.ndarray]:
        return {contract.outputs[0]: answers_of(model, network.predict(images, verbose=0))}

    with atomic_write(path / DESCRIPTION) as file:
        file.write_text(contract.to_text(), "utf-8")
    proof = Proof.of(contract, answer)
    proof = proof.measured(run_proof(path, contract, proof), contract)
    with atomic_write(path / PROOF_FILE) as file:
        file.write_text(proof.to_text(read_proof(path)[1]), "utf-8")


def read_contract(path: Path) -> Contract:
    """Return the contract in a file of the folder."""
    if not (path / DESCRIPTION).exists():
        raise CheckpointError(
            f"{path} does not carry images to check it by: convert the model again where "
            f"{FOLDERS[str(folder_layout(path))].name} is installed."
        )
    return Contract.from_text((path / DESCRIPTION).read_bytes())


def read_proof(path: Path) -> tuple[str | None, str]:
    """Return the proof in a file of the folder, or None, and the sum of the others."""
    file, sums = path / PROOF_FILE, hashlib.sha256()
    for name in _SUMMED:
        if (path / name).exists():
            sums.update(f"{name} {sha256(path / name)}\n".encode())
    text = None
    if file.exists():
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"its proof is damaged: {file.stat().st_size:,} bytes are too many")
        text = file.read_text("utf-8")
    return text, sums.hexdigest()


def runner(path: Path, outputs: Sequence[str], dtype: str = "uint8") -> Run:
    """Return a function from pixels of the model's size to the answers."""
    answers, _, normalize = _opened(path)
    return lambda images: answers(normalize(images))


def file_runner(
    path: Path, outputs: Sequence[str]
) -> Callable[[Sequence[bytes]], list[np.ndarray]]:
    """Return a function from image files, which the package prepares, to the answers."""
    answers, prepare, _ = _opened(path)

    def run(files: Sequence[bytes]) -> list[np.ndarray]:
        images = [Image.open(io.BytesIO(content)).convert("RGB") for content in files]
        return answers(np.concatenate([prepare(image) for image in images]))

    return run


def _opened(path: Path) -> tuple[Run, Callable[[Any], np.ndarray], Any]:
    """Return the model, what prepares an image file, and what normalizes pixels."""
    import torch

    task = read_contract(path).task
    with quietly():
        opened = _of_timm if folder_layout(path) == "timm" else _of_transformers
        network, prepare, normalize = opened(path)
    network.eval()

    def run(images: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            outputs = network(torch.from_numpy(np.asarray(images, "float32")))
        logits = getattr(outputs, "logits", outputs).numpy()
        assert task is not None
        # Numbers are in their units: the folder's head has the scale.
        return [logits if isinstance(task, Regression) else task.answers(logits)]

    return run, prepare, normalize


def _of_transformers(path: Path) -> tuple[Any, Any, Any]:
    import transformers

    # Of the two that it has, the one that does not depend on torchvision.
    processor = transformers.AutoImageProcessor.from_pretrained(path, backend="pil")
    network = transformers.AutoModelForImageClassification.from_pretrained(path)
    alone = {"do_resize": False, "do_center_crop": False, "input_data_format": "channels_last"}
    return (
        network,
        lambda image: processor(image, return_tensors="np")["pixel_values"],
        lambda images: processor(list(images), return_tensors="np", **alone)["pixel_values"],
    )


def _of_timm(path: Path) -> tuple[Any, Any, Any]:
    import timm

    network = timm.create_model(f"local-dir:{path}", pretrained=True)
    config = timm.data.resolve_model_data_config(network)
    transform, mean, std = timm.data.create_transform(**config), config["mean"], config["std"]
    return (
        network,
        lambda image: transform(image)[None].numpy(),
        lambda images: ((images / 255 - mean) / std).transpose(0, 3, 1, 2),
    )
