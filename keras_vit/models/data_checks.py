"""Checks losses, labels and images against a model, before training would diverge silently.

Shapes are read from arrays and from a data set's `element_spec`. Values are checked on the host, at
no cost for a step: the labels of arrays before the first one, the labels of other data batch by
batch as they are read, and pixels in the first batch.
"""

import copy
import functools
import types
import warnings
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import keras
import numpy as np

_NUM_CHECKED_IMAGES = 32  # of an array, whose range represents that of all


@dataclass(frozen=True)
class Crossentropy:
    """What a loss expects of labels and predictions.

    Attributes:
        name: The name used in messages.
        kind: The class in `keras.losses`, or the one to propose instead.
        labels: `"integer"`, `"one-hot"`, `"binary"` (a 0 or 1 per class), or `"any"`.
        from_logits: Whether it takes logits; otherwise probabilities.
        ignore_class: The label that it ignores, or None.
    """

    name: str
    kind: str = "SparseCategoricalCrossentropy"
    labels: str = "any"
    from_logits: bool = False
    ignore_class: int | None = None


# Keras's classes and their functions, with the labels that they take.
_LABELS = {
    ("SparseCategoricalCrossentropy", "sparse_categorical_crossentropy"): "integer",
    ("CategoricalCrossentropy", "categorical_crossentropy"): "one-hot",
    ("CategoricalFocalCrossentropy", "categorical_focal_crossentropy"): "one-hot",
    ("BinaryCrossentropy", "binary_crossentropy"): "binary",
    ("BinaryFocalCrossentropy", "binary_focal_crossentropy"): "binary",
}


def crossentropy_of(loss: Any) -> Crossentropy | None:
    """What a loss, as `compile` takes it, expects; None unless it is a single crossentropy.

    Raises:
        ValueError: Keras does not have a loss of that name.

    Example:

    >>> from keras_vit.models.data_checks import crossentropy_of
    >>> crossentropy_of(["sparse_categorical_crossentropy"]).labels
    'integer'
    >>> crossentropy_of("mse") is None
    True
    """
    losses = [one for one in keras.tree.flatten(loss) if one is not None]
    if len(losses) != 1:
        return None
    loss, options = losses[0], {}
    if isinstance(loss, functools.partial):
        loss, options = loss.func, loss.keywords
    class_name = getattr(loss, "__name__", type(loss).__name__)
    name = f"loss={loss!r}" if isinstance(loss, str) else f"The loss {class_name}"
    if loss in ("crossentropy", "ce"):  # Keras chooses among three, by the shape of the labels
        return Crossentropy(name)
    loss = keras.losses.get(loss)
    row = next((row for row in _LABELS if _is_crossentropy(loss, *row)), None)
    if row is not None and isinstance(loss, keras.losses.Loss):
        # That of Keras's class: a subclass may leave options out of its own.
        options = getattr(keras.losses, row[0]).get_config(loss)
    from_logits = bool(getattr(loss, "from_logits", options.get("from_logits")))
    known = Crossentropy(name, from_logits=from_logits, ignore_class=options.get("ignore_class"))
    if getattr(loss, "takes_integer_labels", False):
        return known
    return None if row is None else replace(known, kind=row[0], labels=_LABELS[row])


def _is_crossentropy(loss: Any, kind: str, function: str) -> bool:
    """Whether a loss is Keras's class of that name, a subclass of it, or the function."""
    return isinstance(loss, getattr(keras.losses, kind)) or loss is getattr(keras.losses, function)


class DataCheck:
    """What a model expects of images and labels, as plain values: worker processes get a copy.

    Args:
        model: A model of this package; any other one is not checked.
        labels: Whether labels are looked at: not for `predict`.
    """

    def __init__(self, model: Any, labels: bool = True) -> None:
        self.error: Exception | None = None  # TensorFlow raises another in its place
        self.model_name = model.name
        classes = getattr(model, "num_classes", None)
        self.off = classes is None
        self.classes: int = classes or 0
        if self.off:
            return
        self.axis = 1 if model.data_format == "channels_first" else 3
        self.input_shape = model.input_shape
        self.output_rank = len(model.output_shape)
        self.loss = None
        if labels and self.classes:
            self.loss = crossentropy_of(getattr(model, "loss", None))
        self.wants_pixels = bool(getattr(model, "include_preprocessing", False))

    def data(self, x: Any, y: Any = None) -> Any:
        """Checks what can be seen now; returns `x`, with checks of what is read later.

        Raises:
            ValueError: Images or labels do not fit the model or the loss; the message proposes a
                fix.
        """
        if self.off or x is None:
            return x
        if isinstance(x, types.GeneratorType):
            return (self.batch(batch) for batch in x)
        if isinstance(x, keras.utils.PyDataset):
            return _CheckedDataset(x, self)
        if _is_a(x, "tensorflow", "DatasetV2"):
            return self._tensorflow_dataset(x)
        if _is_a(x, "torch", "DataLoader"):
            loader = copy.copy(x)
            loader.collate_fn = functools.partial(self._collate, x.collate_fn)
            return loader
        self.shapes(x, y)
        self.labels(y)
        self.pixels(x)
        return x

    def batch(self, batch: Any) -> Any:
        """Checks a batch as `fit` takes it, the pixels of the first one alone; returns it."""
        x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        self.shapes(x, y)
        self.labels(y)
        self.pixels(x)
        return batch

    def shapes(self, x: Any, y: Any) -> None:
        """Checks what the shapes say of images and labels."""
        if self.off:
            return
        images, labels = _leaf(x), _leaf(y)
        if images is not None and len(images.shape) == 4:
            self._check_image_shape(tuple(images.shape))
        if labels is not None and labels.shape is not None:
            self._check_label_shape(tuple(labels.shape))

    def _check_image_shape(self, shape: tuple[int | None, ...]) -> None:
        wrong = [
            axis
            for axis in (1, 2, 3)
            if None not in (self.input_shape[axis], shape[axis])
            and self.input_shape[axis] != shape[axis]
        ]
        if not wrong:
            return
        axis = self.axis
        expected, channels = self.input_shape[axis], shape[axis]
        if axis not in wrong:
            fix = "Resize them, or build the model for their size: model.with_input_shape."
        elif shape[4 - axis] == expected:  # the other layout
            order = (0, 2, 3, 1) if axis == 3 else (0, 3, 1, 2)
            fix = f"Give keras.ops.transpose(images, {order})."
        elif (channels, expected) == (1, 3):
            fix = (
                f"Give keras.ops.repeat(images, 3, axis={axis}), or build the model for 1 channel."
            )
        else:
            fix = f"Convert them to {expected} channels, or build the model for {channels}."
        self._fail(
            f"Images of shape {shape} do not fit {self.model_name}, which takes "
            f"{self.input_shape}. {fix}"
        )

    def _check_label_shape(self, shape: tuple[int | None, ...]) -> None:
        loss, classes = self.loss, self.classes
        if loss is None or classes == 1:
            return
        rows = len(shape) == self.output_rank and shape[-1] != 1
        subject = f"Labels of shape {shape}"
        if loss.labels == "integer" and rows and shape[-1] is not None:
            self._fail(
                f"{subject} are one-hot rows, and {loss.name} expects integers. Give "
                "labels.argmax(-1), or compile with "
                f"keras.losses.CategoricalCrossentropy(from_logits={loss.from_logits})."
            )
        if loss.labels in ("one-hot", "binary") and not rows:
            self._fail(
                f"{subject} are integers, and {loss.name} expects rows of {classes} classes. Give "
                f"keras.utils.to_categorical(labels, {classes}), or compile with "
                f"keras.losses.SparseCategoricalCrossentropy(from_logits={loss.from_logits})."
            )
        if rows and shape[-1] not in (None, classes):
            self._fail(
                f"{subject} have {shape[-1]} classes, and {self.model_name} has "
                f"num_classes={classes}. Give rows of {classes}, or a model of {shape[-1]} "
                f"classes, such as model.with_classifier({shape[-1]})."
            )

    def _fail(self, message: str) -> NoReturn:
        self.error = self.error or ValueError(message)  # the first: batches are read ahead
        raise self.error

    def labels(self, y: Any) -> None:
        """Checks that integer labels are classes of the model."""
        labels = _leaf(y)
        if labels is None or not self._integers(labels):
            return
        values = _to_numpy(labels)
        if values.dtype.kind not in "biuf":
            return  # Keras's own error names the dtype
        outside = values[self._outside(values)]
        if outside.size:
            self._fail(
                f"Label {outside.flat[0]} is not a class of {self.model_name}: with "
                f"num_classes={self.classes}, labels are integers from 0 to {self.classes - 1}. "
                "Number the classes from 0, or build the model with more classes."
            )

    def _integers(self, labels: Any) -> bool:
        """Whether labels are the numbers of classes."""
        if self.classes < 2 or self.loss is None or self.loss.labels not in ("integer", "any"):
            return False
        return len(labels.shape) < self.output_rank or labels.shape[-1] == 1

    def _outside(self, labels: Any) -> Any:
        """Where labels are not classes; of NumPy's and TensorFlow's arrays alike."""
        inside = (labels >= 0) & (labels < self.classes)
        ignored = None if self.loss is None else self.loss.ignore_class
        return ~(inside if ignored is None else inside | (labels == ignored))

    def pixels(self, x: Any) -> None:
        """Warns, of the first batch, when a model that takes pixels 0..255 is given others."""
        images = _leaf(x)
        if images is None or not self._wants_range(images):
            return
        self.wants_pixels = False
        values = _to_numpy(images[:_NUM_CHECKED_IMAGES])
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
        if low < high <= 1:  # nothing but zeros or ones is a black image, or a test
            warnings.warn(
                f"The images range from {low:.3g} to {high:.3g}, and {self.model_name} takes "
                "pixels from 0 to 255: multiply them by 255, or build the model with "
                "include_preprocessing=False, which takes [-1, 1].",
                UserWarning,
                stacklevel=4,
            )

    def _wants_range(self, images: Any) -> bool:
        return self.wants_pixels and "float" in str(images.dtype) and len(images.shape) == 4

    def _collate(self, collate: Any, examples: Any) -> Any:
        return self.batch(collate(examples))

    def _tensorflow_dataset(self, dataset: Any) -> Any:
        """The data set with the checks in its pipeline: nothing is read ahead, or twice."""
        import tensorflow as tf

        x, y, _ = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
        images, labels = (
            spec if isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None else None
            for spec in (_leaf(x), _leaf(y))
        )
        self.shapes(images, labels)
        of_labels = labels is not None and self._integers(labels)
        of_pixels = images is not None and self._wants_range(images)
        # A strategy reads from the end of the pipeline how to cut batches for its devices.
        if not (of_labels or of_pixels) or tf.distribute.has_strategy():
            return dataset

        def look(x: Any, y: Any) -> Any:
            self.labels(y if of_labels else None)
            self.pixels(x if of_pixels else None)
            return True

        def check(number: Any, element: Any) -> Any:
            x, y, _ = keras.utils.unpack_x_y_sample_weight(element)
            x, y = (_leaf(x) if of_pixels else 0), (_leaf(y) if of_labels else 0)
            to_look = number == 0
            if of_labels:
                to_look |= tf.reduce_any(self._outside(y))
            # Python is asked in the first batch, and where a label is wrong.
            tf.cond(to_look, lambda: tf.py_function(look, [x, y], tf.bool), lambda: True)
            return element

        return dataset.enumerate().map(tf.autograph.experimental.do_not_convert(check))


class _CheckedDataset(keras.utils.PyDataset):
    """A `PyDataset` whose batches are checked as they are made."""

    def __init__(self, dataset: keras.utils.PyDataset, check: DataCheck) -> None:
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self.dataset, self.check = dataset, check

    @property
    def num_batches(self) -> int | None:
        return self.dataset.num_batches

    def __getitem__(self, index: int) -> Any:
        return self.check.batch(self.dataset[index])

    def on_epoch_begin(self) -> None:
        self.dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.dataset.on_epoch_end()


def _is_a(x: Any, package: str, name: str) -> bool:
    """Whether `x` is of that class, without an import of its package."""
    return any(
        kind.__name__ == name and kind.__module__.split(".")[0] == package
        for kind in type(x).__mro__
    )


def _leaf(structure: Any) -> Any:
    """The one array of a structure; None when there is none, or are several."""
    leaves = [one for one in keras.tree.flatten(structure) if hasattr(one, "shape")]
    return leaves[0] if len(leaves) == 1 else None


def _to_numpy(array: Any) -> np.ndarray:
    if hasattr(array, "numpy"):  # a tensor of TensorFlow or torch, whatever Keras runs on
        if _is_a(array, "torch", "Tensor"):
            array = array.detach().cpu()
            if array.is_floating_point():
                array = array.float()  # NumPy does not know bfloat16
        return array.numpy()
    return np.asarray(array)
