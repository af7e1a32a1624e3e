"""`load_weights`: everything is checked and computed first, then assigned."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import keras

from keras_vit._base.errors import warn_at_caller
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.models.image_model import ImageModel
from keras_vit.tasks import Task
from keras_vit.tasks.task_words import form_of, in_words, scale_of
from keras_vit.weights.adaptation import HEAD_PARTS, Grid, adapt
from keras_vit.weights.architecture import NUM_HEADS, task_of_maps
from keras_vit.weights.cache import resolve
from keras_vit.weights.catalog import find_for_model
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.class_names import names_of_head
from keras_vit.weights.containers.checkpoint_file import open_checkpoint
from keras_vit.weights.containers.sums import check_file_in_thread
from keras_vit.weights.containers.tensors import Array, join_columns
from keras_vit.weights.load_report import LoadReport
from keras_vit.weights.tables.conventions import STORED_FAMILIES, stored_family
from keras_vit.weights.tables.layout import Checkpoint, Tensors
from keras_vit.weights.variables import Binding, bindings


def load_weights(
    model: keras.Model,
    file: str | Path,
    *,
    fresh: Sequence[str] = (),
    layout: str | None = None,
    file_grid: Grid | None = None,
    sha256: str | None = None,
) -> LoadReport:
    """Loads released or your own weights into a model, adapted to its sizes.

    Another number of classes gives a new zero head; position embeddings are resampled by the rule
    of the file's authors; the patch kernel is fitted to other patches (FlexiViT's pseudo-inverse)
    and channels (repeated or summed, so that gray images keep their embeddings, but in a ResNet's
    stem, as a warning says); a class token's position is dropped or added as zero.

    Keras's `model.load_weights(file)` reads what Keras wrote of a model of the same sizes, as it
    is, and does not return anything.

    Args:
        model: A `VisionTransformer`, `MLPMixer` or `BiTResNet`.
        file: A `.npz`, `.safetensors`, `.pth`, `.pt`, `.bin`, `.keras`, `.weights.h5` or legacy
            `.h5` file, a `.index.json` of several files, a folder with one of these that a
            training, transformers or timm wrote, a repository in the Hugging Face hub's cache, or
            the tag of released weights that fit the model (see `list_weights`).
        fresh: Weights that keep the model's values, whether the file has them or not: names
            as the error and the report show them, groups such as `"pre_logits"`, or patterns.
            The classifier does where the file lacks it; another number of classes sets it to zero.
        layout: Its name (`keras_vit.weights.tables.layouts.LAYOUTS`), such as `"google"`, `"timm"`
            or `"flexivit"`; None recognizes it by the names in the file.
        file_grid: Rows and columns of the file's position embeddings, where they are not a square.
        sha256: The SHA-256 sum that the file must have; not with several files. What `save_weights`
            wrote carries its sum, which is always compared; of other files the report has the sum.

    Returns:
        A `LoadReport`, which says how each tensor was handled.

    Raises:
        CheckpointError: The file is damaged, hostile or of something else, or would leave a
            weight fresh that `fresh` does not name. The model is then as it was.
        FileNotFoundError: There is no such file, nor such a tag.
        ValueError: `sha256` is not a sum.

    Example:

    >>> import keras_vit, tempfile
    >>> sizes = dict(patch_size=8, hidden_dim=16, depth=1, num_heads=2)
    >>> model = keras_vit.VisionTransformer(**sizes, num_classes=10, input_shape=(32, 32, 3))
    >>> file = tempfile.mkdtemp() + "/model.npz"
    >>> keras_vit.weights.save_weights(model, file, layout="google")
    >>> larger = keras_vit.VisionTransformer(**sizes, num_classes=5, input_shape=(48, 64, 3))
    >>> print(keras_vit.weights.load_weights(larger, file))
    model.npz (google): 21 loaded, 1 resized, 2 fresh, 2 ignored
      resized  position_embedding  1 x 49 x 16  4 x 4 -> 6 x 8, zoom
      fresh    head/kernel         16 x 5       10 classes in the file, 5 in the model
      fresh    head/bias           5            10 classes in the file, 5 in the model
      ignored  head/kernel         16 x 10      10 classes in the file, 5 in the model
      ignored  head/bias           10           10 classes in the file, 5 in the model
    """
    bound = bindings(model)
    path, layout, _ = resolve(file, layout, lambda tag: find_for_model(tag, model))
    with (
        check_file_in_thread(path, sha256) as wait_for_sum,
        open_checkpoint(path, layout, model, wait_for_sum) as checkpoint,
    ):
        return load_checkpoint(model, bound, path, checkpoint, fresh, file_grid, wait_for_sum)


def load_checkpoint(
    model: ImageModel,
    bound: list[Binding],
    path: Path,
    checkpoint: Checkpoint,
    fresh: Sequence[str],
    file_grid: Grid | None,
    wait_for_sum: Callable[[], str],
) -> LoadReport:
    """Computes everything, then assigns it: see `load_weights`."""
    if checkpoint.family != stored_family(model):
        held = STORED_FAMILIES[checkpoint.family].model.__name__
        raise CheckpointError(
            f"{path} holds the weights of {held}, and the model is {type(model).__name__}. "
            "Leave its name out: keras_vit.load(file) builds the one that the file is of."
        )
    expected = {name: shape for b in bound for name, shape in b.shapes().items()}
    if checkpoint.is_head:
        expected = {n: s for n, s in expected.items() if n.split("/")[0] in HEAD_PARTS}
    tensors, entries = adapt(
        checkpoint, expected, model, fresh, file_grid, _why_of_maps(model, checkpoint)
    )
    new_values = [
        (b.variable, values) for b in bound if (values := _new_value(b, tensors)) is not None
    ]
    sha256 = wait_for_sum()
    # Nothing has changed so far, and nothing below can fail.
    new_values.reverse()
    while new_values:
        variable, values = new_values.pop()
        variable.assign(values)
        del values  # one copy less at the peak
    has_head = any((e.name, e.status) == ("head/kernel", "loaded") for e in entries)
    notes = () if checkpoint.is_head else tuple(_differences(model, checkpoint, has_head))
    report = LoadReport(str(path), checkpoint.layout, tuple(entries), notes, sha256)
    if checkpoint.is_head:
        return report
    if "head/kernel" in report.loaded:
        _take_task(model, checkpoint, path)
        _take_novelty(model, checkpoint)
    eval_transform = checkpoint.arguments.get("evaluation", checkpoint.conventions.eval_transform)
    is_of_maps = model.head_kind != "row" and "head/kernel" in report.loaded
    if is_of_maps or model.eval_transform == EvalTransform():
        model.eval_transform = eval_transform
    seen = checkpoint.arguments.get("seen_images")
    model.seen_images = seen if model.seen_images is None else model.seen_images | seen
    return report


def _why_of_maps(model: ImageModel, checkpoint: Checkpoint) -> str:
    """Return what the file's outputs of every pixel are, where those of the model's task are other
    numbers, which need a new head; else ""."""
    task = checkpoint.arguments.get("task") or task_of_maps(checkpoint)
    asked = model.task if model._task_from == "user" else None
    if task is None or asked is None or not (task.per_pixel and asked.per_pixel):
        return ""
    is_same = (task.kind, form_of(task)) == (asked.kind, form_of(asked))
    return "" if is_same else f"the file's are {in_words(task)}"


def _take_task(model: ImageModel, checkpoint: Checkpoint, path: str | Path) -> None:
    """Gives the model the task of its new head, and the names."""
    task, names = checkpoint.arguments.get("task"), checkpoint.class_names
    task_from = checkpoint.arguments.get("keras", {}).get("task_from")  # None: the user
    before = model.task if model._task_from == "user" else None
    fits = len(model.output_shape) != 3 and (
        task is None
        or (task.outputs == model.num_classes and task.per_pixel == (model.head_kind != "row"))
    )
    if fits and (task is not None or task_from is not None):
        model.task = task
        model._task_from = task_from or "user"
    if model.task is None:
        return
    unnamed = model.task.kind == "classification" and not model.task.names
    if names is None and unnamed and "keras" not in checkpoint.arguments:  # those have their names
        names = names_of_head(model.num_classes)
    if names is not None and len(names) == model.task.size:
        model.class_names = names
    if before is not None and _means_other(before, model.task):
        warn_at_caller(
            f"{path} has a head for {in_words(model.task)}, and {model.name} was for "
            f"{in_words(before)}: with this head it is for {model.task.kind}, as its outputs mean "
            "that. For the other task train a new head: model.with_classifier(task=...). Where "
            "only the names differ, model.class_names = (...) renames its outputs."
        )


def _take_novelty(model: ImageModel, checkpoint: Checkpoint) -> None:
    """Gives the model the novelty score of a file whose features it has."""
    novelty, of_file = checkpoint.arguments.get("novelty"), checkpoint.arguments.get("keras", {})
    is_same = of_file.get("pooling") == getattr(model, "pooling", None)
    if novelty is not None and is_same and model.novelty is None:
        model.set_novelty(novelty)


def _means_other(before: Task, task: Task) -> bool:
    """Return whether two tasks differ in more than names or a scale that `before` lacks."""
    differs = before.kind != task.kind or bool(before.names and before.names != task.names)
    not_fitted = scale_of(type(before)(size=before.size))
    return differs or scale_of(before) not in (not_fitted, scale_of(task))


def _new_value(binding: Binding, tensors: Tensors) -> Array | None:
    """Return the value to assign to a variable; None where it keeps its own."""
    present = [name in tensors for name in binding.names]
    if not any(present):
        return None
    # Some parts may be fresh at the caller's request.
    old = {} if all(present) else binding.values()
    return join_columns([tensors[n].read() if n in tensors else old[n] for n in binding.names])


def _differences(model: ImageModel, checkpoint: Checkpoint, has_head: bool) -> list[str]:
    """Return notes on options that differ from those of the weights without changing a shape."""
    arguments = {**checkpoint.stated, **checkpoint.arguments.get("keras", {})}
    config = model.get_config()
    notes = []
    of_head = ("pooling",) if has_head else ()  # a new head may be on other features
    for name in ("activation", "norm_epsilon", "normalization", "num_heads", *of_head):
        value = config.get(name, arguments.get(name))
        # Follows from shapes; or is the business of whoever normalizes the images.
        is_free = value == "swiglu" or (
            name == "normalization" and not config["include_preprocessing"]
        )
        # As JSON, whose lists are the model's tuples.
        is_same = name not in arguments or json.dumps(arguments[name]) == json.dumps(value)
        if not is_same and not is_free:
            notes.append(f"the weights are for {name}={arguments[name]!r}, the model has {value!r}")
    heads = config.get("num_heads")
    is_known = "num_heads" in arguments or config.get("hidden_dim") in NUM_HEADS
    if heads and not is_known and "relative" not in config["position_embedding"]:
        # The columns of relative positions are the heads; otherwise no tensor shows them.
        notes.append(f"the file does not state num_heads: {heads} is not checked")
    return notes
