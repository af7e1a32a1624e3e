"""Adapts checkpoint tensors to a model and records what was done to each.

Nothing is read here: tensors carry the change with them, and shapes are known at once.
"""

import fnmatch
import re
from collections.abc import Iterable, Sequence
from functools import partial
from math import isqrt, prod

import numpy as np

from keras_vit._base.errors import did_you_mean, warn_at_caller
from keras_vit.models.image_model import ImageModel
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.tensors import Array, Tensor, TensorShape
from keras_vit.weights.load_report import Entry
from keras_vit.weights.resampling import resample_channels, resample_grid, resample_patches
from keras_vit.weights.tables.layout import Checkpoint, Tensors

Grid = tuple[int, int]
HEAD_NORM, HEAD_CONV = "head_norm/scale", "head_conv_1/kernel"
HEAD_PARTS = ("head", "head_distillation", "head_norm", "head_conv_0", "head_conv_1")
STEM = "stem/conv/kernel"
POSITIONS, PATCHES, CLASS_TOKEN = "position_embedding", "patch_embedding/kernel", "class_token"
RELATIVE_TABLE = "relative_table"
# Layout -> the rule for BEiT's table of offsets, where it is not that of transformers.
RELATIVE_RULES = {"timm_beit": "geometric"}


def adapt(
    checkpoint: Checkpoint,
    expected: dict[str, TensorShape],
    model: ImageModel,
    fresh: Sequence[str] = (),
    file_grid: Grid | None = None,
    why_new_head: str = "",
) -> tuple[Tensors, list[Entry]]:
    """Return the tensors that a model needs, as far as the file has them, and the report's entries.

    Args:
        checkpoint: The file.
        expected: Shape of every canonical tensor of the model.
        model: The model, for its grid of positions and its options.
        fresh: Names that stay as they are in the model: canonical, or a group's
            (`"pre_logits"`), or a shell pattern.
        file_grid: Rows and columns of the file's position embeddings, where they are not a square.
        why_new_head: Why its head is not the model's although the shapes fit.
    """
    allowed = _matching(fresh, expected)
    remaining = dict(checkpoint.tensors)
    adapted: Tensors = {}
    entries: list[Entry] = []

    def ignore(tensor: Tensor, reason: str) -> None:
        entries.append(Entry("ignored", tensor.name, tensor.name, tensor.shape, reason))

    for name, reason in _excluded_by_options(remaining, expected, model).items():
        ignore(remaining.pop(name), reason)
    new_head = _why_new_head(checkpoint.tensors, expected) or why_new_head
    if checkpoint.is_head and (new_head or "head/kernel" not in expected):
        raise CheckpointError(
            f"The head of the file does not fit the model: {new_head or 'it has num_classes=0'}. "
            'Give the model task=keras_vit.tasks.Segmentation(size=CLASSES) and map_head="linear".'
        )
    zeros = _zeros(checkpoint, expected)
    for name, shape in expected.items():
        tensor = remaining.pop(name, None)
        in_head = name.split("/")[0] in HEAD_PARTS
        is_new = tensor is None or (new_head and in_head)
        if name in allowed or (is_new and (in_head or name.startswith(("dpt/", "eomt/")))):
            reason = "as the caller asked" if name in allowed else new_head
            entries.append(Entry("fresh", name, None, shape, reason or "not in the file"))
            if tensor is not None:
                ignore(tensor, reason)
            if in_head and new_head and "conv" not in name:  # zeros in front of ReLU stay zeros
                is_one = name in (HEAD_NORM, "head_norm/variance")
                adapted[name] = _constant(name, shape, int(is_one))
        elif tensor is None and name in zeros:
            adapted[name] = _constant(name, shape, 0)
            entries.append(Entry("adapted", name, None, shape, "zero, which the file leaves out"))
        elif tensor is None:
            raise CheckpointError(
                f"{name!r} of the model is not in the file, and would keep its random values. "
                f"Change the model's options, or pass fresh=({name.split('/')[0]!r},) to train it."
            )
        else:
            adapted[name], entry = _fit(name, tensor, shape, checkpoint, model, file_grid)
            entries.append(entry)
    if remaining:
        name, tensor = next(iter(remaining.items()))
        more = f", nor do {len(remaining) - 1} more" if len(remaining) > 1 else ""
        raise CheckpointError(
            f"Tensor {tensor.name!r} of the file ({name}, {tensor.shape}) does not belong to "
            f"the model{more}: it was built with other options. keras_vit.load builds the model "
            "that the file is of."
        )
    for tensor in checkpoint.ignored:
        ignore(tensor, "not a weight of the model")
    return adapted, entries


def grid_of_positions(
    count: int,
    has_class_position: bool | None,
    has_class_token: bool,
    known_grid: Grid | None,
    target: Grid | None = None,
    is_distilled: bool = False,
) -> tuple[int, Grid] | None:
    """Return how many of `count` positions precede the patches, and the patches' grid, or None.

    The grid is the known one, else a square, else the target's; None when none of them fits.
    """
    options = (1, 0) if has_class_position is None else (int(has_class_position),)
    if is_distilled:
        options = (2,)
    elif not has_class_token:
        options = (0,)
    candidates = [(first, known_grid) for first in options]
    candidates += [(first, (isqrt(max(count - first, 0)),) * 2) for first in options]
    candidates += [(first, target) for first in options]
    for first, grid in candidates:
        if grid is not None and prod(grid) == count - first > 0:
            return first, grid
    return None


def grid_of_offsets(count: int, known_grid: Grid | None, target: Grid | None = None) -> Grid | None:
    """Return the grid (known, square or target) whose offset table has `count` entries, or None."""
    side = (isqrt(max(count - 3, 0)) + 1) // 2
    for grid in (known_grid, (side, side), target):
        if grid is not None and prod(2 * n - 1 for n in grid) + 3 == count and min(grid) > 0:
            return grid
    return None


def _matching(fresh: Sequence[str], expected: Iterable[str]) -> set[str]:
    """Return the names that `fresh` lists, by themselves, by their group or by a pattern."""
    allowed: set[str] = set()
    for pattern in [fresh] if isinstance(fresh, str) else fresh:
        matching = {
            n for n in expected if n.startswith(f"{pattern}/") or fnmatch.fnmatch(n, pattern)
        }
        if not matching:
            groups = {n.split("/")[0] for n in expected} | set(expected)
            raise ValueError(
                f"fresh={pattern!r} does not match a weight of the model. "
                f"{did_you_mean(pattern, groups)}"
            )
        allowed |= matching
    return allowed


def _zeros(checkpoint: Checkpoint, expected: Iterable[str]) -> set[str]:
    """Return the model's weights that are zero, as the file lacks tensors for their pattern."""
    absent = [
        pattern
        for pattern in checkpoint.zeros
        if not any(re.fullmatch(pattern, name) for name in checkpoint.tensors)
    ]
    return {n for n in expected if any(re.fullmatch(pattern, n) for pattern in absent)}


def _constant(name: str, shape: TensorShape, value: int) -> Tensor:
    return Tensor(name, shape, "float32", partial(np.full, shape, value, "float32"))


def _excluded_by_options(
    tensors: Tensors, expected: dict[str, TensorShape], model: ImageModel
) -> dict[str, str]:
    """Tensors of the file that the model's options leave out on purpose, and the reason."""
    pooling = getattr(model, "pooling", "gap")
    reasons = {
        "class_token": f"the model does not have a class token and pools by {pooling!r}",
        "pre_logits": "the model does not have a representation_size",
        "pooling": f"the model pools by {pooling!r}",
        "head": "the model has num_classes=0",
        "head_norm": "the model does not have a norm in its head",
        "dpt": "the model does not have a DPT head",
        "eomt": "the model does not have the queries of an EoMT head",
        "encoder_norm": "the DPT head reads tokens in front of this norm",
        **dict.fromkeys(HEAD_PARTS[-2:], "the model does not have this layer in its head"),
        "head_distillation": "the model has num_classes=0, or distilled=False",
        "distillation_token": "the model has distilled=False",
    }
    groups = {name.split("/")[0] for name in expected}
    return {
        name: reasons[group]
        for name in tensors
        if (group := name.split("/")[0]) in reasons
        and (group not in groups or (group in HEAD_PARTS and name not in expected))
    }


def _why_new_head(tensors: Tensors, expected: dict[str, TensorShape]) -> str:
    """Return why the file's head does not fit the model's features and classes; "" if it does."""
    kernel = "head/kernel"
    if kernel not in tensors or kernel not in expected:
        return ""
    parts = {
        "pre_logits/kernel": "a pre-logits layer",
        "pooling/probe": "MAP",
        HEAD_NORM: "a norm of every patch",
        "dpt/fusion_0/projection/kernel": "a DPT neck",
        "eomt/queries": "queries",
        HEAD_CONV: "the convolutions of depth",
    }
    for name, part in parts.items():
        if (name in tensors) != (name in expected):
            one, other = ("file", "model") if name in tensors else ("model", "file")
            return f"the {one}'s head follows {part}, which the {other} does not have"
    in_file, in_model = tensors[kernel].shape[-1], expected[kernel][-1]
    return "" if in_file == in_model else f"{in_file} classes in the file, {in_model} in the model"


def _fit(
    name: str,
    tensor: Tensor,
    shape: TensorShape,
    checkpoint: Checkpoint,
    model: ImageModel,
    file_grid: Grid | None,
) -> tuple[Tensor, Entry]:
    status, detail = "loaded", ""
    source = tensor.shape
    alike = len(source) == len(shape) and source[-1] == shape[-1] and 0 not in source
    if alike and name == POSITIONS and source[0] == 1:
        tensor, status, detail = _fit_positions(tensor, checkpoint, model, file_grid)
    elif alike and name.endswith(RELATIVE_TABLE):
        tensor, status, detail = _fit_relative_table(tensor, checkpoint, model, file_grid)
    elif alike and (name == PATCHES or (name == STEM and source[:2] == shape[:2])):
        tensor, status, detail = _fit_patches(tensor, shape)
        if name == STEM and shape[2] % source[2]:
            warn_at_caller(
                f"The kernels of the ResNet's stem are brought from {source[2]} channels to "
                f"{shape[2]}, and their spread to 1 again: features are not those of the file, "
                "even of gray images. Train the model, or give it images of "
                f"{source[2]} channels, as gray photographs are decoded to."
            )
    if tensor.shape != shape:
        fix = "the model is of another size. keras_vit.load builds the one that the file is of."
        if checkpoint.is_head:
            fix = "the head was trained on another encoder, or on several of its blocks."
        raise CheckpointError(
            f"Tensor {tensor.name!r} is {name} of shape {source}, where the model has {shape}: "
            + fix
        )
    return tensor, Entry(status, name, tensor.name, shape, detail)


def _fit_positions(
    tensor: Tensor, checkpoint: Checkpoint, model: ImageModel, file_grid: Grid | None
) -> tuple[Tensor, str, str]:
    target, in_model = tuple(model.position_grid), int(model.class_token) + int(model.distilled)
    has_class_token = CLASS_TOKEN in checkpoint.tensors
    count, width = tensor.shape[1:]
    layout = grid_of_positions(
        count,
        checkpoint.has_class_position,
        has_class_token,
        file_grid or checkpoint.grid,
        target,
        "distillation_token" in checkpoint.tensors,
    )
    if layout is None or (file_grid and layout[1] != tuple(file_grid)):
        raise CheckpointError(
            f"Tensor {tensor.name!r} holds {count} position embeddings"
            f"{', one of them the class token`s' if has_class_token else ''}: neither a square nor "
            f"the model's {target[0]} x {target[1]}. Pass their rows and columns: "
            "file_grid=(8, 2)."
        )
    in_front, grid = layout
    rule = checkpoint.conventions.resampling

    def change(x: Array) -> Array:
        patches = x[:, in_front:]
        if grid != target:
            patches = resample_grid(patches.reshape(*grid, width), target, rule)
            patches = patches.reshape(1, -1, width)
        added = np.zeros((1, max(in_model - in_front, 0), width), "float32")
        return np.concatenate([x[:, : min(in_front, in_model)], added, patches], axis=1)

    note = {
        (1, 0): "without the class token's entry",
        (0, 1): "with a zero entry for the class token",
        (1, 2): "with a zero entry for the distillation token",
        (2, 1): "without the distillation token's entry",
    }.get((in_front, in_model), "")
    if grid == target and not note:
        return tensor, "loaded", ""
    tensor = tensor.then(change, (1, in_model + prod(target), width))
    if grid == target:
        return tensor, "adapted", note
    sizes = f"{grid[0]} x {grid[1]} -> {target[0]} x {target[1]}, {rule}"
    return tensor, "resized", f"{sizes}, {note}" if note else sizes


def _fit_relative_table(
    tensor: Tensor, checkpoint: Checkpoint, model: ImageModel, file_grid: Grid | None
) -> tuple[Tensor, str, str]:
    """BEiT's table of offsets, for another grid; the class token's three entries stay."""
    target, (count, heads) = tuple(model.position_grid), tensor.shape
    grid = grid_of_offsets(count, file_grid or checkpoint.grid, target)
    if grid is None:
        raise CheckpointError(
            f"Tensor {tensor.name!r} holds {count} relative positions, which are not those of a "
            f"square nor of the model's {target[0]} x {target[1]} patches. Pass their rows and "
            "columns: file_grid=(8, 2)."
        )
    if grid == target:
        return tensor, "loaded", ""
    rule = RELATIVE_RULES.get(checkpoint.layout, "bilinear")

    def change(x: Array) -> Array:
        offsets = x[:-3].reshape(2 * grid[0] - 1, 2 * grid[1] - 1, heads)
        offsets = resample_grid(offsets, (2 * target[0] - 1, 2 * target[1] - 1), rule)
        return np.concatenate([offsets.reshape(-1, heads), x[-3:]])

    tensor = tensor.then(change, (prod(2 * n - 1 for n in target) + 3, heads))
    sizes = f"{grid[0]} x {grid[1]} -> {target[0]} x {target[1]}, {rule}"
    return tensor, "resized", sizes


def _fit_patches(tensor: Tensor, shape: TensorShape) -> tuple[Tensor, str, str]:
    (*size, channels, _), (*new_size, new_channels, _) = tensor.shape, shape

    def change(x: Array) -> Array:
        if channels != new_channels:
            x = resample_channels(x, new_channels)
        return resample_patches(x, (new_size[0], new_size[1])) if size != new_size else x

    details = []
    if size != new_size:
        details.append(
            f"{size[0]} x {size[1]} -> {new_size[0]} x {new_size[1]} pixels, pseudo-inverse"
        )
    if channels != new_channels:
        details.append(f"{channels} -> {new_channels} channels")
    if not details:
        return tensor, "loaded", ""
    status = "resized" if size != new_size else "adapted"
    return tensor.then(change, shape), status, ", ".join(details)
