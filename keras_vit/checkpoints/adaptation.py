"""From what a file holds to what a model needs, and a word on each tensor.

Nothing is read here: tensors carry the change with them, and shapes are known at once.
"""

import fnmatch
from collections.abc import Iterable, Sequence
from math import isqrt, prod
from typing import Any

import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.layout import Checkpoint, Tensors
from keras_vit.checkpoints.report import Entry
from keras_vit.checkpoints.resampling import resample_channels, resample_grid, resample_patches
from keras_vit.checkpoints.tensors import Array, Shape, Tensor
from keras_vit.errors import did_you_mean

Grid = tuple[int, int]
HEAD = ("head/kernel", "head/bias")
STEM = "stem/conv/kernel"
POSITIONS, PATCHES, CLASS_TOKEN = "position_embedding", "patch_embedding/kernel", "class_token"


def adapt(
    checkpoint: Checkpoint,
    expected: dict[str, Shape],
    model: Any,
    fresh: Sequence[str] = (),
    file_grid: Grid | None = None,
) -> tuple[Tensors, list[Entry]]:
    """The tensors that a model needs, as far as the file has them, and the report's entries.

    Args:
        checkpoint: The file.
        expected: Shape of every canonical tensor of the model.
        model: The model, for its grid of positions and its options.
        fresh: Names that may stay as they are in the model: canonical, or a group's
            (`"pre_logits"`), or a shell pattern.
        file_grid: Rows and columns of the file's position embeddings, where they are no square.

    Raises:
        CheckpointError: A weight would stay fresh that the caller did not name, a tensor has no
            place in the model, or a shape cannot be adapted.
    """
    allowed = _named(fresh, expected)
    given = dict(checkpoint.tensors)
    found: Tensors = {}
    entries: list[Entry] = []

    for name, reason in _not_for_this_model(given, expected, model).items():
        tensor = given.pop(name)
        entries.append(Entry("ignored", tensor.name, tensor.name, tensor.shape, reason))
    new_head = _why_new_head(checkpoint.tensors, expected)
    for name in HEAD:
        if new_head and name in given:
            tensor = given.pop(name)
            entries.append(Entry("ignored", tensor.name, tensor.name, tensor.shape, new_head))

    for name, shape in expected.items():
        own = given.pop(name, None)
        if name in allowed or (name in HEAD and (own is None or new_head)):
            reason = "as the caller asked" if name in allowed else new_head
            entries.append(Entry("fresh", name, None, shape, reason or "not in the file"))
            if own is not None:
                entries.append(Entry("ignored", own.name, own.name, own.shape, reason))
            if name in HEAD and new_head:
                found[name] = _zeros(name, shape)
        elif own is None:
            raise CheckpointError(
                f"{name!r} of the model is not in the file, and would keep its random values. "
                f"Change the model's options, or give fresh=({name.split('/')[0]!r},) to train it."
            )
        else:
            found[name], entry = _fit(name, own, shape, checkpoint, model, file_grid)
            entries.append(entry)
    if given:
        name, tensor = next(iter(given.items()))
        raise CheckpointError(
            f"Tensor {tensor.name!r} of the file ({name}, {tensor.shape}) has no place in the "
            f"model{_more(given)}: it was built with other options. from_checkpoint builds the "
            "model that the file is of."
        )
    entries += [
        Entry("ignored", t.name, t.name, t.shape, "no weight of the model")
        for t in checkpoint.ignored
    ]
    return found, entries


def grid_of_positions(
    count: int,
    class_entry: bool | None,
    has_class_token: bool,
    known_grid: Grid | None,
    target: Grid | None,
) -> tuple[bool, Grid] | None:
    """Whether the first of `count` position embeddings is the class token's, and their grid.

    The grid is the known one, else a square, else the target's; None when none of them fits.
    """
    entries = (True, False) if class_entry is None else (class_entry,)
    if not has_class_token:
        entries = (False,)
    squares = {entry: (isqrt(max(count - entry, 0)),) * 2 for entry in entries}
    candidates = [(entry, known_grid) for entry in entries]
    candidates += squares.items()
    candidates += [(entry, target) for entry in entries]
    for entry, grid in candidates:
        if grid is not None and prod(grid) == count - entry > 0:
            return entry, grid
    return None


def _named(fresh: Sequence[str], expected: Iterable[str]) -> set[str]:
    names = [fresh] if isinstance(fresh, str) else list(fresh)
    allowed: set[str] = set()
    for pattern in names:
        matching = {
            n for n in expected if n.startswith(f"{pattern}/") or fnmatch.fnmatch(n, pattern)
        }
        if not matching:
            groups = {n.split("/")[0] for n in expected} | set(expected)
            raise ValueError(
                f"fresh={pattern!r} names no weight of the model. {did_you_mean(pattern, groups)}"
            )
        allowed |= matching
    return allowed


def _not_for_this_model(given: Tensors, expected: dict[str, Shape], model: Any) -> dict[str, str]:
    """Tensors of the file that the model's options leave out on purpose, and the reason."""
    pooling = getattr(model, "pooling", "gap")
    reasons = {
        "class_token": f"the model has no class token and pools by {pooling!r}",
        "pre_logits": "the model has no representation_size",
        "pooling": f"the model pools by {pooling!r}",
        "head": "the model has num_classes=0",
    }
    return {
        name: reasons[group]
        for name in given
        if (group := name.split("/")[0]) in reasons
        and not any(own == group or own.startswith(f"{group}/") for own in expected)
    }


def _why_new_head(given: Tensors, expected: dict[str, Shape]) -> str:
    """Why the file's head does not fit the model's features and classes; empty when it does."""
    kernel = "head/kernel"
    if kernel not in given or kernel not in expected:
        return ""
    for group, what in (("pre_logits/kernel", "a pre-logits layer"), ("pooling/probe", "MAP")):
        if (group in given) != (group in expected):
            has, lacks = ("file", "model") if group in given else ("model", "file")
            return f"the {has}'s head stands on {what}, which the {lacks} has not"
    classes, wanted = given[kernel].shape[-1], expected[kernel][-1]
    return "" if classes == wanted else f"{classes} classes in the file, {wanted} in the model"


def _zeros(name: str, shape: Shape) -> Tensor:
    return Tensor(name, shape, "float32", lambda: np.zeros(shape, "float32"))


def _fit(
    name: str,
    tensor: Tensor,
    shape: Shape,
    checkpoint: Checkpoint,
    model: Any,
    file_grid: Grid | None,
) -> tuple[Tensor, Entry]:
    status, detail = "loaded", ""
    source = tensor.shape
    alike = len(source) == len(shape) and source[-1] == shape[-1] and 0 not in source
    if alike and name == POSITIONS and source[0] == 1:
        tensor, status, detail = _positions(tensor, checkpoint, model, file_grid)
    elif alike and (name == PATCHES or (name == STEM and source[:2] == shape[:2])):
        tensor, status, detail = _patches(tensor, shape)
    if tensor.shape != shape:
        raise CheckpointError(
            f"Tensor {tensor.name!r} is {name} of shape {source}, where the model has {shape}: "
            "the model is of another size. from_checkpoint builds the one that the file is of."
        )
    return tensor, Entry(status, name, tensor.name, shape, detail)


def _positions(
    tensor: Tensor, checkpoint: Checkpoint, model: Any, file_grid: Grid | None
) -> tuple[Tensor, str, str]:
    target, wants_entry = tuple(model.position_grid), bool(model.class_token)
    has_class_token = CLASS_TOKEN in checkpoint.tensors
    count, width = tensor.shape[1:]
    known = file_grid or checkpoint.grid
    found = grid_of_positions(count, checkpoint.class_entry, has_class_token, known, target)
    if found is None or (file_grid and found[1] != tuple(file_grid)):
        raise CheckpointError(
            f"Tensor {tensor.name!r} holds {count} position embeddings"
            f"{', one of them the class token`s' if has_class_token else ''}: neither a square nor "
            f"the model's {target[0]} x {target[1]}. Say their rows and columns: file_grid=(8, 2)."
        )
    entry, grid = found
    rule = checkpoint.origin.resampling

    def change(x: Array) -> Array:
        patches = x[:, int(entry) :]
        if grid != target:
            patches = resample_grid(patches.reshape(*grid, width), target, rule)
            patches = patches.reshape(1, -1, width)
        if not wants_entry:
            return patches
        first = x[:, :1] if entry else np.zeros((1, 1, width), "float32")
        return np.concatenate([first, patches], axis=1)

    entry_note = {
        (True, False): "without the class token's entry",
        (False, True): "with a zero entry for the class token",
    }.get((entry, wants_entry), "")
    shape = (1, int(wants_entry) + prod(target), width)
    if grid != target:
        sizes = f"{grid[0]} x {grid[1]} -> {target[0]} x {target[1]}, {rule}"
        return tensor.then(change, shape), "resized", ", ".join(filter(None, (sizes, entry_note)))
    if entry_note:
        return tensor.then(change, shape), "adapted", entry_note
    return tensor, "loaded", ""


def _patches(tensor: Tensor, shape: Shape) -> tuple[Tensor, str, str]:
    (*size, channels, _), (new_h, new_w, new_channels, _) = tensor.shape, shape

    def change(x: Array) -> Array:
        if channels != new_channels:
            x = resample_channels(x, new_channels)
        return resample_patches(x, (new_h, new_w)) if tuple(size) != (new_h, new_w) else x

    words = []
    if tuple(size) != (new_h, new_w):
        words.append(f"{size[0]} x {size[1]} -> {new_h} x {new_w} pixels, pseudo-inverse")
    if channels != new_channels:
        words.append(f"{channels} -> {new_channels} channels")
    if not words:
        return tensor, "loaded", ""
    status = "resized" if tuple(size) != (new_h, new_w) else "adapted"
    return tensor.then(change, shape), status, ", ".join(words)


def _more(given: Tensors) -> str:
    return f", as have {len(given) - 1} more" if len(given) > 1 else ""
