"""The model that a file is of: its architecture from the file, then its weights."""

import inspect
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras

from keras_vit.checkpoints.adaptation import Grid
from keras_vit.checkpoints.binding import bindings
from keras_vit.checkpoints.cache import checked_file
from keras_vit.checkpoints.catalogue import find_for_model, find_named
from keras_vit.checkpoints.claims import check_claims
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import FAMILIES
from keras_vit.checkpoints.layout import Checkpoint
from keras_vit.checkpoints.loading import load_checkpoint
from keras_vit.checkpoints.opening import open_checkpoint
from keras_vit.checkpoints.sums import check_file_in_thread
from keras_vit.errors import check_arguments
from keras_vit.models import ImageModel
from keras_vit.models.geometry import feature_stride, patch_grid


def from_checkpoint(
    file: str | Path,
    *,
    layout: str | None = None,
    fresh: Sequence[str] = (),
    file_grid: Grid | None = None,
    sha256: str | None = None,
    max_parameters: int | None = None,
    **overrides: Any,
) -> ImageModel:
    """The model that a file is of, under its weights.

    The architecture is read from the shapes; `activation`, `norm_epsilon` and preprocessing follow
    the origin (released code: tanh GELU, 1e-6; timm and Hugging Face: erf GELU, and 1e-12 at
    Hugging Face) unless the file, a `config.json` beside it, or the caller says otherwise.

    Args:
        file: As for `load_weights`, or `"MODEL:TAG"` of the catalogue: `"ViT-B/16:augreg_in21k"`.
        layout: As for `load_weights`.
        fresh: As for `load_weights`.
        file_grid: As for `load_weights`.
        sha256: As for `load_weights`.
        max_parameters: The most parameters that the file's model may have; None for as many as the
            file holds.
        **overrides: Arguments of the model: `num_classes=5` gives a new zero head,
            `input_shape=(384, 512, 3)` resampled positions, `pooling=None` all tokens of a ViT.

    Returns:
        A `VisionTransformer`, `MLPMixer` or `BiTResNet`; its `load_report` is the `LoadReport`.

    Raises:
        CheckpointError: As for `load_weights`.
        ValueError: An override is no argument of the file's model, or out of range.

    Example:

    >>> import keras_vit, tempfile
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, num_classes=10,
    ...     input_shape=(32, 32, 3))
    >>> file = tempfile.mkdtemp() + "/model.safetensors"
    >>> keras_vit.checkpoints.save_weights(model, file, layout="timm")
    >>> twin = keras_vit.checkpoints.from_checkpoint(file)
    >>> twin.activation, twin.num_heads, twin.input_shape
    ('gelu_tanh', 2, (None, 32, 32, 3))
    """
    if overrides.get("weights") is not None:
        raise ValueError(
            "from_checkpoint(file) takes the weights from the file: leave weights= out."
        )
    path = Path(file)
    if not path.is_file() and (row := find_named(str(file))) is not None:
        path, layout = checked_file(row), layout or row.layout
        overrides = {**row.arguments, **overrides}
    with (
        check_file_in_thread(path, sha256) as checked,
        open_checkpoint(path, layout, None, checked, max_parameters) as checkpoint,
    ):
        constructor = FAMILIES[checkpoint.family].model
        check_arguments(constructor, overrides)
        arguments = _arguments(checkpoint, overrides, file_grid, path, max_parameters)
        model = constructor(**arguments)
        report = load_checkpoint(
            model, bindings(model), path, checkpoint, fresh, file_grid, checked
        )
    model.load_report = report
    return model


# What a model should follow its weights in, where its caller says nothing.
FOLLOWED = (
    "activation",
    "norm_epsilon",
    "include_preprocessing",
    "pooling",
    "class_token",
    "num_registers",
    "layer_scale",
    "position_embedding",
    "mlp_dim",
    "num_heads",
    "tokens_mlp_dim",
    "channels_mlp_dim",
    "version",
)


def arguments_for(
    weights: str | Path,
    /,
    *,
    num_classes: int = 1000,
    **arguments: Any,
) -> dict[str, Any]:
    """What a model of these sizes should follow its weights in: numerics, pooling, preprocessing.

    For a constructor that is given `weights=`: everything that its caller left out.

    Args:
        weights: A file, or the tag of released weights.
        num_classes: Of the model: where the file has as many, its pre-logits layer is followed
            too, without which its head means nothing; else both are left out, as the released
            code does when it fine-tunes.
        **arguments: The model's other arguments: its sizes tell which weights a tag means.

    Raises:
        CheckpointError: As for `load_weights`.

    Example:

    >>> import keras_vit, tempfile
    >>> sizes = dict(patch_size=8, hidden_dim=16, depth=1, num_heads=2)
    >>> model = keras_vit.VisionTransformer(**sizes, pooling="gap", input_shape=(32, 32, 3))
    >>> file = tempfile.mkdtemp() + "/model.npz"
    >>> keras_vit.checkpoints.save_weights(model, file, layout="google")
    >>> keras_vit.checkpoints.arguments_for(file, **sizes)["pooling"]
    'gap'
    """
    path, layout, told = Path(weights), None, {}
    wanted = SimpleNamespace(**arguments)
    if not path.is_file() and (row := find_for_model(str(weights), wanted)) is not None:
        path, layout, told = checked_file(row), row.layout, row.arguments
    if path.name.endswith(".weights.h5"):
        return {}  # holds weights alone, of a model like the one that is asked for
    with open_checkpoint(path, layout) as checkpoint:
        found = {**_of_file(checkpoint), **told}
    followed = [*FOLLOWED]
    if found["num_classes"] == num_classes:
        followed.append("representation_size")
    return {name: found[name] for name in followed if name in found}


def _arguments(
    checkpoint: Checkpoint,
    overrides: dict[str, Any],
    file_grid: Grid | None,
    path: Path,
    max_parameters: int | None,
) -> dict[str, Any]:
    """Arguments of the model: the file's, then the caller's."""
    arguments = _of_file(checkpoint, file_grid)
    if "keras" not in checkpoint.arguments:  # there it was compared before Keras built it
        # A size that the caller gives is no claim of the file's.
        claimed = {k: v for k, v in arguments.items() if k not in {"input_shape"} & {*overrides}}
        shapes = [tensor.shape for tensor in checkpoint.tensors.values()]
        values = sum(map(math.prod, shapes))
        check_claims(path, claimed, values, len(shapes), max_parameters)
        _settle_input_shape(arguments, overrides, path)
    elif "input_shape" in overrides:
        arguments.pop("position_grid", None)  # follows from the shape
    if overrides.get("pooling") == "token":
        arguments["class_token"] = True
    return {**arguments, **overrides}


def _settle_input_shape(arguments: dict[str, Any], overrides: dict[str, Any], path: Path) -> None:
    """Brings the file's `input_shape` into the data format and the grid that are asked for."""
    if "input_shape" not in arguments:
        if "input_shape" not in overrides:
            raise CheckpointError(
                f"The patches of {path} are no square, so their number does not tell the size of "
                "the images. Give it: from_checkpoint(file, input_shape=(224, 160, 3))."
            )
        return
    height, width, channels = arguments["input_shape"]
    if (overrides.get("data_format") or keras.config.image_data_format()) == "channels_first":
        arguments["input_shape"] = (channels, height, width)
    if None in overrides.get("input_shape", ()) and "position_embedding" in arguments:
        # Images of any size: positions stay on the grid of the file.
        stride = feature_stride(arguments["resnet"])
        size, patch = (height, width), arguments["patch_size"]
        arguments["position_grid"] = patch_grid(size, patch, stride)


def _of_file(checkpoint: Checkpoint, file_grid: Grid | None = None) -> dict[str, Any]:
    """What the file says about the model, as arguments of its class."""
    family = FAMILIES[checkpoint.family]
    config = checkpoint.arguments.get("keras")
    if config is not None:
        config = {**config, "dtype": keras.dtype_policies.get(config["dtype"])}
    found = family.arguments(checkpoint, file_grid) if config is None else config
    known = inspect.signature(family.model).parameters
    return {k: v for k, v in found.items() if k in known}  # not: trainable, class_names, ...
