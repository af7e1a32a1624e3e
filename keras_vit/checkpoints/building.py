"""The model that a file is of: its architecture from the file, then its weights."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras

from keras_vit.checkpoints.adaptation import Grid
from keras_vit.checkpoints.architecture import architecture
from keras_vit.checkpoints.binding import bindings
from keras_vit.checkpoints.cache import checked_file
from keras_vit.checkpoints.catalogue import find_for_model, find_named
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.layout import Checkpoint
from keras_vit.checkpoints.loading import load_checkpoint
from keras_vit.checkpoints.opening import open_checkpoint
from keras_vit.errors import as_pair, known_arguments
from keras_vit.models import VisionTransformer


def from_checkpoint(
    file: str | Path,
    *,
    layout: str | None = None,
    fresh: Sequence[str] = (),
    file_grid: Grid | None = None,
    **overrides: Any,
) -> VisionTransformer:
    """The model that a file is of, under its weights.

    The architecture is read from the shapes; `activation`, `norm_epsilon` and preprocessing follow
    the origin (released code: tanh GELU, 1e-6; timm and Hugging Face: erf GELU, and 1e-12 at
    Hugging Face) unless the file, a `config.json` beside it, or the caller says otherwise.

    Args:
        file: As for `load_weights`, or `"MODEL:TAG"` of the catalogue: `"ViT-B/16:augreg_in21k"`.
        layout: As for `load_weights`.
        fresh: As for `load_weights`.
        file_grid: As for `load_weights`.
        **overrides: Arguments of `VisionTransformer`: `num_classes=5` gives a new zero head,
            `input_shape=(384, 512, 3)` resampled positions, `pooling=None` all tokens.

    Returns:
        A `VisionTransformer`; its `load_report` is the `LoadReport`.

    Raises:
        CheckpointError: As for `load_weights`.
        ValueError: An override is no argument of `VisionTransformer`, or out of range.

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
    known_arguments(VisionTransformer, overrides)
    if overrides.get("weights") is not None:
        raise ValueError(
            "from_checkpoint(file) takes the weights from the file: leave weights= out."
        )
    path = Path(file)
    if not path.is_file() and (row := find_named(str(file))) is not None:
        path, layout = checked_file(row), layout or row.layout
        overrides = {**row.arguments, **overrides}
    with open_checkpoint(path, layout) as checkpoint:
        model = VisionTransformer(**_arguments(checkpoint, overrides, file_grid, path))
        report = load_checkpoint(model, bindings(model), path, checkpoint, fresh, file_grid)
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
)


def arguments_for(
    weights: str | Path,
    /,
    *,
    patch_size: int | tuple[int, int],
    hidden_dim: int,
    depth: int,
    num_classes: int = 1000,
    **_: Any,
) -> dict[str, Any]:
    """What a model of these sizes should follow its weights in: numerics, pooling, preprocessing.

    For a constructor that is given `weights=`: everything that its caller left out.

    Args:
        weights: A file, or the tag of released weights.
        patch_size: Of the model, to tell which weights a tag means.
        hidden_dim: Of the model.
        depth: Of the model.
        num_classes: Of the model: where the file has as many, its pre-logits layer is followed
            too, without which its head means nothing; else both are left out, as the released
            code does when it fine-tunes.
        **_: The model's other arguments, which its constructor checks.

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
    if not path.is_file():
        pair = as_pair(patch_size, "patch_size")
        wanted = SimpleNamespace(patch_size=pair, hidden_dim=hidden_dim, depth=depth)
        if (row := find_for_model(str(weights), wanted)) is not None:
            path, layout, told = checked_file(row), row.layout, row.arguments
    if path.name.endswith(".weights.h5"):
        return {}  # holds weights alone, of a model like the one that is asked for
    with open_checkpoint(path, layout) as checkpoint:
        if "keras" in checkpoint.arguments:
            found = _of_keras(checkpoint.arguments["keras"])
        else:
            found = {**architecture(checkpoint), **told}
    followed = [*FOLLOWED]
    if found["num_classes"] == num_classes:
        followed.append("representation_size")
    return {name: found[name] for name in followed if name in found}


def _arguments(
    checkpoint: Checkpoint, overrides: dict[str, Any], file_grid: Grid | None, path: Path
) -> dict[str, Any]:
    """Arguments of the model: the file's, then the caller's."""
    if "keras" in checkpoint.arguments:
        arguments = _of_keras(checkpoint.arguments["keras"])
        if "input_shape" in overrides:
            arguments.pop("position_grid")  # follows from the shape
    else:
        arguments = architecture(checkpoint, file_grid)
        _settle_input_shape(arguments, overrides, path)
    if overrides.get("pooling") == "token":
        arguments["class_token"] = True
    return {**arguments, **overrides}


def _settle_input_shape(arguments: dict[str, Any], overrides: dict[str, Any], path: Path) -> None:
    """Brings the file's `input_shape` into the data format and the grid that are asked for."""
    if "input_shape" not in arguments:
        if "input_shape" not in overrides:
            raise CheckpointError(
                f"The position embeddings of {path} are no square, so they do not tell the size "
                "of the images. Give it: from_checkpoint(file, input_shape=(224, 160, 3))."
            )
        return
    height, width, channels = arguments["input_shape"]
    if (overrides.get("data_format") or keras.config.image_data_format()) == "channels_first":
        arguments["input_shape"] = (channels, height, width)
    if None in overrides.get("input_shape", ()):
        # Images of any size: positions stay on the grid of the file.
        patch_h, patch_w = arguments["patch_size"]
        arguments["position_grid"] = (height // patch_h, width // patch_w)


def _of_keras(config: dict[str, Any]) -> dict[str, Any]:
    known = inspect.signature(VisionTransformer).parameters
    arguments = {k: v for k, v in config.items() if k in known}  # not: trainable, class_names, ...
    return {**arguments, "dtype": keras.dtype_policies.get(arguments["dtype"])}
