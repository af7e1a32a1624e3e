"""From a file into a model, in two steps: everything is checked and computed, then assigned."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit.checkpoints.adaptation import Grid, adapt
from keras_vit.checkpoints.binding import Binding, bindings
from keras_vit.checkpoints.cache import checked_file
from keras_vit.checkpoints.catalogue import find_for_model
from keras_vit.checkpoints.class_names import names_of_head
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import FAMILIES, family_of
from keras_vit.checkpoints.layout import Checkpoint, Tensors
from keras_vit.checkpoints.opening import open_checkpoint
from keras_vit.checkpoints.report import LoadReport
from keras_vit.checkpoints.sums import check_file_in_thread
from keras_vit.checkpoints.tensors import Array, Shape, side_by_side


def load_weights(
    model: keras.Model,
    file: str | Path,
    *,
    fresh: Sequence[str] = (),
    layout: str | None = None,
    file_grid: Grid | None = None,
    sha256: str | None = None,
) -> LoadReport:
    """Loads released or own weights into a model, adapted to its sizes.

    Another number of classes gives a new zero head; position embeddings are resampled by the rule
    of the file's origin; the patch kernel is fitted to other patches (FlexiViT's pseudo-inverse)
    and channels (repeated or summed, so that grey images keep their embeddings); a class token's
    position is dropped or added as zero.

    Args:
        model: A `VisionTransformer`, `MLPMixer` or `BiTResNet`.
        file: A `.npz`, `.safetensors`, `.pth`, `.pt`, `.bin`, `.keras` or `.weights.h5` file, or
            the tag of released weights that fit the model (see `list_weights`).
        fresh: Weights that may keep the model's values where the file has none for them: names
            as the error and the report give them, groups such as `"pre_logits"`, or patterns.
            The classifier always may; another number of classes than the file's sets it to zero.
        layout: Its name (`keras_vit.checkpoints.layouts.LAYOUTS`), such as `"google"`, `"timm"`
            or `"flexivit"`; None recognises it by the names in the file.
        file_grid: Rows and columns of the file's position embeddings, where they are no square.
        sha256: The SHA-256 sum that the file must have. What `save_weights` wrote carries its own,
            which is always compared; of other files the report has the sum.

    Returns:
        A `LoadReport`: what became of every tensor.

    Raises:
        CheckpointError: The file is damaged, hostile or of something else, or would leave a
            weight fresh that the caller did not name. The model is then as it was.
        FileNotFoundError: There is no such file, nor such a tag.
        ValueError: `sha256` is not a sum.

    Example:

    >>> import keras_vit, tempfile
    >>> sizes = dict(patch_size=8, hidden_dim=16, depth=1, num_heads=2)
    >>> model = keras_vit.VisionTransformer(**sizes, num_classes=10, input_shape=(32, 32, 3))
    >>> file = tempfile.mkdtemp() + "/model.npz"
    >>> keras_vit.checkpoints.save_weights(model, file, layout="google")
    >>> larger = keras_vit.VisionTransformer(**sizes, num_classes=5, input_shape=(48, 64, 3))
    >>> print(keras_vit.checkpoints.load_weights(larger, file))
    model.npz (google): 21 loaded, 1 resized, 2 fresh, 2 ignored
      resized  position_embedding  1 x 49 x 16  4 x 4 -> 6 x 8, zoom
      fresh    head/kernel         16 x 5       10 classes in the file, 5 in the model
      fresh    head/bias           5            10 classes in the file, 5 in the model
      ignored  head/kernel         16 x 10      10 classes in the file, 5 in the model
      ignored  head/bias           10           10 classes in the file, 5 in the model
    """
    bound = bindings(model)
    path = Path(file)
    if not path.is_file() and (row := find_for_model(str(file), model)) is not None:
        path, layout = checked_file(row), layout or row.layout
    with (
        check_file_in_thread(path, sha256) as checked,
        open_checkpoint(path, layout, model, checked) as checkpoint,
    ):
        return load_checkpoint(model, bound, path, checkpoint, fresh, file_grid, checked)


def load_checkpoint(
    model: Any,
    bound: list[Binding],
    path: Path,
    checkpoint: Checkpoint,
    fresh: Sequence[str],
    file_grid: Grid | None,
    checked: Callable[[], str],
) -> LoadReport:
    """Computes everything, then assigns it: see `load_weights`."""
    if checkpoint.family != family_of(model):
        raise CheckpointError(
            f"{path} holds the weights of {FAMILIES[checkpoint.family].model.__name__}, and the "
            f"model is {type(model).__name__}. from_checkpoint builds the one the file is of."
        )
    expected: dict[str, Shape] = {}
    for binding in bound:
        expected.update(binding.shapes())
    tensors, entries = adapt(checkpoint, expected, model, fresh, file_grid)
    new_values = [
        (b.variable, values) for b in bound if (values := _values(b, tensors)) is not None
    ]
    sha256 = checked()
    # Nothing has changed so far, and nothing below can fail.
    new_values.reverse()
    while new_values:
        variable, values = new_values.pop()
        variable.assign(values)
        del values  # one copy less at the peak
    notes = tuple(_differences(model, checkpoint))
    report = LoadReport(str(path), checkpoint.layout, tuple(entries), notes, sha256)
    _describe(model, checkpoint, report)
    return report


def _values(binding: Binding, tensors: Tensors) -> Array | None:
    """What a variable will hold; None where it keeps its values."""
    present = [name in tensors for name in binding.names]
    if not any(present):
        return None
    if all(present):
        parts = [tensors[name].read() for name in binding.names]
    else:  # some parts are fresh by the caller's wish
        own = binding.values()
        parts = [tensors[n].read() if n in tensors else own[n] for n in binding.names]
    return side_by_side(parts)


def _describe(model: Any, checkpoint: Checkpoint, report: LoadReport) -> None:
    """Names of the classes and the way to bring photographs to size, with their weights."""
    if "head/kernel" in report.loaded:
        names = checkpoint.class_names or names_of_head(model.num_classes)
        if names is not None and len(names) == model.num_classes:
            model.class_names = names
    evaluation = checkpoint.arguments.get("evaluation", checkpoint.origin.evaluation)
    if evaluation and not model.eval_transform:
        model.eval_transform = dict(evaluation)


def _differences(model: Any, checkpoint: Checkpoint) -> list[str]:
    """Options of the model that are not the origin's, of which no shape warns."""
    told = {**vars(checkpoint.origin), **checkpoint.arguments}
    if "keras" in told:
        told = {**told, **told["keras"]}
    notes = []
    config = model.get_config()
    for name in ("activation", "norm_epsilon", "include_preprocessing", "num_heads"):
        own = config.get(name, told.get(name))
        is_free = own == "swiglu" or own is False  # follows from shapes, or is asked for
        if name in told and told[name] != own and not is_free:
            notes.append(f"the weights are for {name}={told[name]!r}, the model has {own!r}")
    return notes
