"""Folders that transformers and timm open: weights, configuration and a model card."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from keras_vit._base.errors import printable
from keras_vit._base.files import atomic_write, irregular_type
from keras_vit._base.version import __version__
from keras_vit.models.vit import VisionTransformer
from keras_vit.trainer.saved_file import LONGEST_CONFIG
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.metadata import stated_image_size
from keras_vit.weights.containers.sums import carries_sum
from keras_vit.weights.folders.configs import MARK, Files, huggingface_configs, timm_configs

WEIGHTS, CARD = "model.safetensors", "README.md"
PROOFS = ("keras_vit.json", "keras_vit_proof.json")  # as `keras_vit.exporting.prove_folder` writes
CONFIGS: dict[str, Callable[[Any], Files]] = {
    "huggingface": huggingface_configs,
    "timm": timm_configs,
}
CONFIG_FILES = ("config.json", "preprocessor_config.json")
LIBRARIES = {"huggingface": "transformers", "timm": "timm"}
USAGE = {
    "huggingface": """\
from transformers import pipeline

answer = pipeline("$tag", "path/to/this/folder")
print(answer("photo.jpg"$options))""",
    "timm": """\
import timm
from PIL import Image

model = timm.create_model("local-dir:path/to/this/folder", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
outputs = model(transform(Image.open("photo.jpg").convert("RGB"))[None])
print($answers)""",
}


# What timm's outputs are, by transformers' name of the problem.
TIMM_ANSWERS = {
    None: "outputs.softmax(-1).topk(min(5, outputs.shape[-1]))",
    "multi_label_classification": "outputs.sigmoid()",
    "regression": "outputs",
}


_PIPELINES = {
    "segmentation": "image-segmentation",
    "depth": "depth-estimation",
    "relative_depth": "depth-estimation",
}
# A pipeline would ask for the classes of stuff and things, which a task does not have.
_OF_QUERIES = """\
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForUniversalSegmentation

model = AutoModelForUniversalSegmentation.from_pretrained("path/to/this/folder")
processor = AutoImageProcessor.from_pretrained("path/to/this/folder")
outputs = model(**processor(Image.open("photo.jpg").convert("RGB"), return_tensors="pt"))
print(outputs.class_queries_logits.shape, outputs.masks_queries_logits.shape)"""


def check_folder(folder: Path, layout: str, overwrite: bool) -> None:
    """Refuses to replace a file of a folder that `save_weights` did not write.

    Raises:
        FileExistsError: There is such a file; or a file that it wrote, and `overwrite` is False or
            the folder is for another package.
        ValueError: The path is not that of a folder.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is {irregular_type(folder) or 'a file'}: give a folder.")
    present = [folder / name for name in (WEIGHTS, *CONFIG_FILES) if (folder / name).exists()]
    for file in present:
        mark = {} if file.name == WEIGHTS else _mark(file)
        if irregular_type(file) or not (carries_sum(file) if file.name == WEIGHTS else mark):
            raise FileExistsError(
                f"{printable(file)} exists and was not written by keras_vit: it is not replaced. "
                "Give another name."
            )
        if mark.get("layout", layout) != layout:
            raise FileExistsError(
                f"{printable(folder)} is a folder for {LIBRARIES[mark['layout']]}. Give another "
                f"one for {LIBRARIES[layout]}."
            )
    if present and not overwrite:
        raise FileExistsError(
            f"{printable(present[0])} exists. Give another name, or overwrite=True."
        )


def write_folder(
    model: VisionTransformer,
    folder: Path,
    layout: str,
    write_weights: Callable[[Path, ExitStack], None],
) -> None:
    """Writes files of which each appears whole, and none before all of them are written.

    A model card that is there stays: its owner may have filled it in.

    Args:
        model: A `VisionTransformer`.
        folder: Where to write; see `check_folder`.
        layout: A key of `CONFIGS`.
        write_weights: Writes the weights to a path, which is replaced when the stack is closed.

    Raises:
        CheckpointError: No reader would accept the names of the classes.
    """
    texts = {name: json.dumps(file, indent=1) for name, file in CONFIGS[layout](model).items()}
    for name, text in texts.items():
        if len(text) > LONGEST_CONFIG:
            raise CheckpointError(
                f"{name}, with the names of {model.num_classes:,} classes, has {len(text):,} "
                f"bytes; at most {LONGEST_CONFIG:,} are accepted when the folder is read. Give "
                "shorter model.class_names."
            )
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROOFS:  # of the former weights
        (folder / name).unlink(missing_ok=True)
    with ExitStack() as stack:
        if not os.path.lexists(folder / CARD):
            stack.enter_context(atomic_write(folder / CARD)).write_text(
                _card(model, layout), "utf-8"
            )
        for name, text in texts.items():
            stack.enter_context(atomic_write(folder / name)).write_text(text, "utf-8")
        # Entered last, and so moved first: it is the one that may not fit on the disk.
        write_weights(folder / WEIGHTS, stack)


def _card(model: VisionTransformer, layout: str) -> str:
    """Return the model card, without anything that a user named: it needs no escapes."""
    height, width = stated_image_size(model) or (0, 0)
    problem = model.task.problem_type if model.task is not None else None
    tag = _PIPELINES.get(model.task.kind if model.task is not None else "", "image-classification")
    is_of_queries = layout == "huggingface" and tag == "image-segmentation"
    usage = Template(_OF_QUERIES if is_of_queries else USAGE[layout]).safe_substitute(
        answers=TIMM_ANSWERS[problem],
        tag=tag,
        # Of numbers the pipeline would take a sigmoid.
        options=', function_to_apply="none"' if problem == "regression" else "",
    )
    template = files("keras_vit.weights.folders").joinpath("card.md").read_text("utf-8")
    return Template(template).substitute(
        library=LIBRARIES[layout],
        outputs=_counted_outputs(model),
        parameters=f"{model.count_params():,}",
        height=height,
        width=width,
        tag=tag,
        usage=usage,
        version=__version__,
    )


def _counted_outputs(model: VisionTransformer) -> str:
    if model.task is not None and model.task.per_pixel:
        return f"{model.task.kind} of every pixel"
    if model.task is None or not model.task.problem_type:
        return f"{model.num_classes} classes"
    return f"{model.task.kind} of {model.task.size}"


def folder_layout(folder: Path) -> str | None:
    """Return the layout of a folder that this package wrote; None for another folder."""
    layout = _mark(folder / "config.json").get("layout")
    return layout if layout in CONFIGS else None


def _mark(file: Path) -> Mapping[str, Any]:
    """Return what this package wrote into a JSON file about itself; empty for a file of others."""
    try:
        is_short = file.stat().st_size <= LONGEST_CONFIG
        content = json.loads(file.read_text("utf-8")) if is_short else None
    except (OSError, ValueError, RecursionError):
        content = None
    mark = content.get(MARK) if isinstance(content, dict) else None
    return mark if isinstance(mark, dict) else {}
