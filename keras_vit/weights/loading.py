"""`load`: whole models from files, folders and runs."""

import inspect
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras

from keras_vit import tasks
from keras_vit._base.errors import check_arguments
from keras_vit.models import ImageModel
from keras_vit.models.geometry import feature_stride, patch_grid
from keras_vit.models.map_heads import head_of_other_outputs, kind_of
from keras_vit.tasks import Segmentation, Task
from keras_vit.tasks.task_words import form_of
from keras_vit.weights.adaptation import Grid
from keras_vit.weights.cache import resolve
from keras_vit.weights.canonical_names import OPTIONS
from keras_vit.weights.catalog import find_for_model, find_named
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.claims import check_claims
from keras_vit.weights.containers.checkpoint_file import (
    file_in_folder,
    holds_weights,
    open_checkpoint,
)
from keras_vit.weights.containers.keras_file import (
    SUFFIXES,
    is_whole_model,
    load_keras_model,
    side_of_images,
)
from keras_vit.weights.containers.sums import check_file, check_file_in_thread, check_regular
from keras_vit.weights.reader import load_checkpoint
from keras_vit.weights.released import RELEASED
from keras_vit.weights.tables.conventions import STORED_FAMILIES
from keras_vit.weights.tables.layout import Checkpoint
from keras_vit.weights.variables import bindings


def load(
    path: str | Path,
    *,
    layout: str | None = None,
    fresh: Sequence[str] = (),
    file_grid: Grid | None = None,
    sha256: str | None = None,
    max_parameters: int | None = None,
    **overrides: Any,
) -> ImageModel:
    """Load the model in a file, a folder or a run, not compiled; the file's claims are all checked.

    A `.keras` or legacy `.h5` file comes back as it was saved, unless an argument asks for another
    model. From other files the model is built: its architecture is read from the shapes, and
    `activation`, `norm_epsilon` and preprocessing follow the authors (released code: tanh GELU,
    1e-6; timm and Hugging Face: erf GELU, and 1e-12 at Hugging Face) unless the file, a
    `config.json` beside it, or the caller sets them.

    Checked before anything is built: the SHA-256 sum that a file of this package carries, the one
    in a `SHA256SUMS` beside it, the sizes in the configuration with those of the tensors. No Python
    object is unpickled, and no class is imported.

    Args:
        path: A `.keras`, `.h5`, `.safetensors`, `.npz`, `.pth`, `.pt` or `.bin` file, the index of
            several (`model.safetensors.index.json`), the folder of a run, a folder of transformers
            or timm, by which the model's `eval_transform` then prepares images, a repository in the
            Hugging Face hub's cache, such as
            `"~/.cache/huggingface/hub/models--google--vit-base-patch16-224"`, or `"MODEL:TAG"` of
            the catalog: `"ViT-B/16:augreg_in21k"`. A `.weights.h5` file does not hold the
            architecture: build the model and use `load_weights`. What `keras_vit.export` wrote is
            opened by `keras_vit.exporting.load_exported`.
        layout, fresh, file_grid, sha256: As for `load_weights`.
        max_parameters: The most parameters that the model may have; None for as many as the file
            holds.
        **overrides: Arguments of the model: `num_classes=5` gives a new zero head, a row of classes
            per image unless `task` is of every pixel,
            `input_shape=(384, 512, 3)` resampled positions, `pooling=None` all tokens of a ViT.

    Returns:
        A `VisionTransformer`, `MLPMixer` or `BiTResNet`; its `load_report` is the `LoadReport`,
        unless it came back as it was saved.

    Raises:
        CheckpointError: The file is damaged, hostile, of something else, or has values that are
            not finite. One line that names the file, and the tensor or the byte.
        FileNotFoundError: There is no such file, or none of a model in the folder.
        ValueError: An override is not an argument of the file's model, or out of range; `sha256` is
            not a sum, or there are no released weights of that name.

    Example:

    >>> import keras_vit, tempfile
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, num_classes=10,
    ...     input_shape=(32, 32, 3))
    >>> file = tempfile.mkdtemp() + "/model.safetensors"
    >>> keras_vit.save_weights(model, file, layout="timm")
    >>> twin = keras_vit.load(file)
    >>> twin.activation, twin.num_heads, twin.input_shape
    ('gelu_tanh', 2, (None, 32, 32, 3))
    """
    if overrides.get("weights") is not None:
        raise ValueError(
            "keras_vit.load(path) takes the weights from the file: leave weights= out."
        )
    path = Path(path).expanduser()
    is_name = ":" in str(path) or any(row.tag == str(path) for row in RELEASED)
    if not is_name and not path.exists():
        raise FileNotFoundError(
            f"There is no model at {path}. Give a .keras or weights file, the folder of a "
            "training run, or MODEL:TAG of released weights, which keras_vit.list_weights() shows."
        )
    if path.is_dir():
        path = file_in_folder(path)
    as_saved = layout is None and file_grid is None and not fresh and not overrides
    if as_saved and path.name.endswith(SUFFIXES):
        check_regular(path)
        if is_whole_model(path):  # else `open_checkpoint` raises what to do with weights alone
            check_file(path, sha256)
            return load_keras_model(path, max_parameters)
    path, layout, released_arguments = resolve(path, layout, find_named)
    overrides = {**released_arguments, **overrides}
    with (
        check_file_in_thread(path, sha256) as wait_for_sum,
        open_checkpoint(path, layout, None, wait_for_sum, max_parameters) as checkpoint,
    ):
        constructor = STORED_FAMILIES[checkpoint.family].model
        check_arguments(constructor, overrides)
        arguments = _arguments(checkpoint, overrides, file_grid, path, max_parameters)
        model = constructor(**arguments)
        report = load_checkpoint(
            model, bindings(model), path, checkpoint, fresh, file_grid, wait_for_sum
        )
    model.load_report = report
    return model


# What a model takes from the file of its weights where its caller sets nothing.
INHERITED_ARGUMENTS = (
    *(option.name for option in OPTIONS if option.name != "classifier_activation"),
    "mlp_dim",
    "tokens_mlp_dim",
    "channels_mlp_dim",
    "version",
)


def stored_model(weights: str | Path) -> tuple[type[ImageModel], dict[str, Any]]:
    """Return the class whose models have such weights, and the arguments that the file determines.

    Raises:
        CheckpointError: The file is damaged or of something else.
    """
    path, layout, _ = resolve(weights, None, find_named)
    with open_checkpoint(path, layout) as checkpoint:
        return STORED_FAMILIES[checkpoint.family].model, _of_file(checkpoint)


def stored_side(weights: str | Path) -> int | None:
    """Return the larger side of the images that the model in a `.keras` file or a run's folder
    takes, of which the configuration alone is read; None for any size, and of other weights."""
    path = Path(weights).expanduser()
    path = file_in_folder(path) if path.is_dir() and holds_weights(path) else path
    return side_of_images(path) if path.suffix == ".keras" and path.is_file() else None


def arguments_for(
    weights: str | Path, /, *, num_classes: int = 1000, **arguments: Any
) -> dict[str, Any]:
    """Return the arguments a model inherits from its weights: numerics, pooling, preprocessing.

    For a constructor with `weights=`: everything that its caller left out.

    Args:
        weights: A file, or the tag of released weights.
        num_classes: Of the model: where the file has as many, its pre-logits layer is inherited
            too, without which its head means nothing; else both are left out, as the released
            code does when it fine-tunes.
        **arguments: The model's other arguments: its sizes show which weights a tag means.

    Raises:
        CheckpointError: As for `load_weights`.

    Example:

    >>> import keras_vit, tempfile
    >>> sizes = dict(patch_size=8, hidden_dim=16, depth=1, num_heads=2)
    >>> model = keras_vit.VisionTransformer(**sizes, pooling="gap", input_shape=(32, 32, 3))
    >>> file = tempfile.mkdtemp() + "/model.npz"
    >>> keras_vit.weights.save_weights(model, file, layout="google")
    >>> keras_vit.weights.arguments_for(file, **sizes)["pooling"]
    'gap'
    """
    model = SimpleNamespace(**arguments)
    path, layout, released = resolve(weights, None, lambda tag: find_for_model(tag, model))
    if path.name.endswith(SUFFIXES) and not is_whole_model(path):
        return {}  # holds weights alone, of a model like the one that is asked for
    with open_checkpoint(path, layout) as checkpoint:
        of_file = {**_of_file(checkpoint), **released}
    inherited = [*INHERITED_ARGUMENTS]
    if None in (arguments.get("input_shape") or ()):  # positions stay on the grid of the file
        inherited.append("position_grid")
    if of_file["num_classes"] == num_classes:
        inherited.append("representation_size")
    return {name: of_file[name] for name in inherited if name in of_file}


def _arguments(
    checkpoint: Checkpoint,
    overrides: dict[str, Any],
    file_grid: Grid | None,
    path: Path,
    max_parameters: int | None,
) -> dict[str, Any]:
    """Return arguments of the model: the file's, then the caller's."""
    arguments = _of_file(checkpoint, file_grid)
    if "keras" not in checkpoint.arguments:  # there the claims were checked before Keras built it
        grid = arguments.pop("position_grid", None)
        claimed = {**arguments, "data_format": "channels_last"}
        if "input_shape" in overrides or "input_shape" not in arguments:
            # A size that the caller sets is not a claim of the file's.
            claimed.pop("input_shape", None)
            if "position_embedding" in arguments:
                claimed["position_grid"] = (1, 1)
            elif "input_shape" in overrides:
                claimed["input_shape"] = overrides["input_shape"]
            if claimed.get("map_head") is not None:  # which needs whole patches
                claimed["input_shape"] = (*arguments["patch_size"], 3)
        shapes = [tensor.shape for tensor in checkpoint.tensors.values()]
        model, values = STORED_FAMILIES[checkpoint.family].model, sum(map(math.prod, shapes))
        check_claims(path, model, claimed, values, len(shapes), max_parameters)
        _settle_input_shape(arguments, overrides, path, grid)
    elif None not in overrides.get("input_shape", (None,)):
        arguments.pop("position_grid", None)  # follows from the shape, but for images of any size
    head = _map_head(arguments.get("map_head"), overrides, arguments.get("task"))
    if {"num_classes", "task", "pooling", "classifier_activation"} & {*overrides}:
        arguments["task"] = None  # that of the file's head
        if "keras" not in checkpoint.arguments:
            arguments.pop("classifier_activation", None)
    if isinstance(overrides.get("task"), Task | Mapping):
        arguments["num_classes"] = tasks.get(overrides["task"]).outputs
    if overrides.get("pooling") == "token":
        arguments["class_token"] = True
    elif "pooling" in overrides:  # a second head is on a second token
        arguments.pop("distilled", None)
    return {**arguments, **overrides, **head}


def _map_head(of_file: Any, overrides: dict[str, Any], task: Any) -> dict[str, Any]:
    """Return the `map_head` that the file's, of a task, becomes; of one with options, the neck or
    the queries stay, and of the same form of a number the last layers, too."""
    is_given, asked = "map_head" in overrides, overrides.get("map_head")
    is_same = isinstance(of_file, Mapping) and asked == kind_of(of_file)
    if of_file is None or (is_given and not is_same):
        return {}
    if not {"num_classes", "task"} & {*overrides}:
        return {"map_head": of_file}
    other = overrides.get("task")
    if other is not None and task is not None and (form := form_of(task := tasks.get(task))):
        meant = tasks.TASKS.get(other) if isinstance(other, str) else tasks.get(other)
        if meant is not None and (meant.kind, form_of(meant)) == (task.kind, form):
            return {"map_head": of_file}
    return {"map_head": head_of_other_outputs(of_file, Segmentation.kind if is_given else other)}


def _settle_input_shape(
    arguments: dict[str, Any], overrides: dict[str, Any], path: Path, grid: Grid | None
) -> None:
    """Brings the file's `input_shape` into the requested data format and grid."""
    if "input_shape" not in arguments:
        if "input_shape" not in overrides:
            raise CheckpointError(
                f"The patches of {path} are not a square, so their number does not determine the "
                "size of the images. Give it: keras_vit.load(file, input_shape=(224, 160, 3))."
            )
        return
    height, width, channels = arguments["input_shape"]
    if (overrides.get("data_format") or keras.config.image_data_format()) == "channels_first":
        arguments["input_shape"] = (channels, height, width)
    if None in overrides.get("input_shape", ()) and "position_embedding" in arguments:
        # Images of any size: positions stay on the grid of the file.
        stride = feature_stride(arguments["resnet"], arguments.get("conv_stem"))
        size, patch = (height, width), arguments["patch_size"]
        arguments["position_grid"] = grid or patch_grid(size, patch, stride)


def _of_file(checkpoint: Checkpoint, file_grid: Grid | None = None) -> dict[str, Any]:
    """Return the arguments of the model's class that the file determines."""
    family = STORED_FAMILIES[checkpoint.family]
    arguments = checkpoint.arguments.get("keras")
    if arguments is None:
        arguments = family.arguments(checkpoint, file_grid)
    else:
        arguments = {**arguments, "dtype": keras.dtype_policies.get(arguments["dtype"])}
    accepted = inspect.signature(family.model).parameters
    arguments = {k: v for k, v in arguments.items() if k in accepted}  # not trainable, frozen, ...
    task = arguments.get("task")
    if task is not None and tasks.get(task).outputs != arguments["num_classes"]:
        arguments["task"] = None
    return arguments
