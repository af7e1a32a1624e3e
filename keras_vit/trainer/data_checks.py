"""Checks losses, labels and images against a model, before training would diverge silently.

Shapes are read from arrays and from a data set's `element_spec`. Values are checked on the host, at
no cost for a step: the labels of arrays before the first one, integer labels of other data batch by
batch as they are read, and pixels and rows of labels in the first batch (`pixel_ranges`).

Unnecessary from Keras: none yet. It trains labels of the wrong kind to NaN, without a word.
"""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import keras
import numpy as np

from keras_vit._base.errors import counted
from keras_vit.ops import is_tensorflow
from keras_vit.tasks import TASKS, Task
from keras_vit.tasks.loss_kinds import Crossentropy, crossentropy_of, kind_of_loss
from keras_vit.tasks.target import Seen
from keras_vit.trainer.compile_checks import logits_as_probabilities
from keras_vit.trainer.pixel_ranges import MOST_IMAGES, check_label_rows, check_pixels
from keras_vit.trainer.spec import Spec
from keras_vit.trainer.strategies import strategy_replicas
from keras_vit.trainer.target_checks import check_class_weight, check_numbers, check_several

USUAL_SIZE = 224  # pixels, proposed where a model takes any


class DataCheck:
    """What a model expects of images and labels, as plain values: worker processes get a copy.

    Args:
        model: A model whose `spec` says what it takes; any other one is not checked.
        labels: Whether labels are looked at: not for `predict`.
        warned: What was warned of before, in the same call: not again.
    """

    def __init__(
        self, model: keras.Model, labels: bool = True, warned: set[str] | None = None
    ) -> None:
        self.error: Exception | None = None  # TensorFlow raises another in its place
        self.warned: set[str] = set() if warned is None else warned
        self.is_for_fit = labels  # or for `evaluate`
        self.seen: Seen = ()  # of the first batch of numbers
        spec: Spec | None = getattr(model, "spec", None)
        self.off = spec is None
        self.looks = not self.off  # until a batch has shown its range
        self.classes = 0
        self.loss: Crossentropy | None = None
        if spec is None:
            return
        self.spec = spec
        self.output_rank = len(spec.output_shape)
        self.classes = spec.outputs
        self.trained: type[Task] | None = None  # the task of the loss; where it is any, the spec's
        self.of_loss: type[Task] | None = None  # the task of the loss alone
        if labels and spec.outputs:
            loss = getattr(model, "loss", None)
            kind = kind_of_loss(loss)
            self.loss, self.trained = crossentropy_of(loss), spec.trained_task(kind)
            self.of_loss = TASKS[kind] if kind else None
            self.classes += self.of_loss.names_without_output if self.of_loss else 0
        self.replicas = strategy_replicas(model)

    def data(self, x: Any, y: Any = None) -> Any:
        """Checks what can be seen now; returns `x`, with checks of what is read later.

        Raises:
            ValueError: Images or labels do not fit the model or the loss; the message proposes a
                fix.
        """
        if _is_a(x, "keras_vit", "GrainBatches") and x.num_batches is not None:
            return _InOrder(x, self)  # of any model, as of one that is pretrained
        if self.off or x is None:
            return x
        if isinstance(x, types.GeneratorType):
            return (self.batch(batch) for batch in x)
        if isinstance(x, keras.utils.PyDataset):
            return _CheckedDataset(x, self)
        if _is_a(x, "tensorflow", "DatasetV2"):
            return self._tensorflow_dataset(x)
        if _is_a(x, "torch", "DataLoader"):
            return _checked_loader(x, self)
        if _is_a(x, "grain", "MapDataset"):  # whose threads may make the second batch first
            return x.map_with_index(self._batch_by_index)
        if _is_a(x, "grain", "IterDataset"):
            return x.map(self.batch)
        images = _leaf(x)
        if images is not None and len(images.shape) and images.shape[0] == 0:
            self._fail(f"There are no images: their shape is {tuple(images.shape)}.")
        self._check_kind_of_labels(y)
        self.arrays(x, y)
        return x

    def batch(self, batch: Any, is_first: bool = True) -> Any:
        """Checks a batch as `fit` takes it, the pixels of the first one alone; returns it."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        self._check_kind_of_labels(y)
        self.shapes(x, y)
        self.labels(y)
        if is_first:
            self.first(x, y)
        self.sample_weight(weights)
        return batch

    def _batch_by_index(self, index: int, batch: Any) -> Any:
        return self.batch(batch, index == 0)

    def arrays(self, x: Any, y: Any = None) -> None:
        """Checks images and labels, and the pixels of the first ones."""
        self.shapes(x, y)
        self.labels(y)
        self.first(x, y)

    def shapes(self, x: Any, y: Any) -> None:
        """Checks what the shapes say of images and labels."""
        if self.off:
            return
        self._check_is_batch(x)
        images, labels = _leaf(x), _leaf(y)
        if images is not None and images.shape is not None:
            self._check_image_shape(tuple(images.shape))
        if labels is not None and labels.shape is not None:
            self._check_label_shape(tuple(labels.shape))

    def _check_is_batch(self, x: Any) -> None:
        """Refuses images of several sizes, and lists of images, which are inputs to Keras."""
        is_array_of_objects = isinstance(x, np.ndarray) and x.dtype == object
        listed = x if isinstance(x, list | tuple) or is_array_of_objects else []
        shapes = [tuple(one.shape) for one in listed if hasattr(one, "shape")]
        if len(shapes) < len(listed) or any(len(shape) != 3 for shape in shapes):
            shapes = []  # the inputs of a model
        height, width = self._resized()
        is_ragged = _is_a(_leaf(x), "tensorflow", "RaggedTensor", "RaggedTensorSpec")
        if len(set(shapes)) > 1 or is_ragged:
            sizes = ", ".join(map(str, sorted(set(shapes))[:3]))
            self._fail(
                f"The images have several sizes{f', such as {sizes}' if sizes else ''}, and "
                f"{self.spec.name} takes batches of one, {self.spec.input_shape}. Resize each "
                f"image before it is batched: tf.image.resize(image, ({height}, {width})) in the "
                "map of a tf.data.Dataset, before its batch; np.stack([keras.ops.image.resize("
                f"image, ({height}, {width})) for image in images]) of a list."
            )
        if shapes:
            self._fail(
                f"{len(shapes)} images in a list or an array of objects are {len(shapes)} inputs "
                f"to Keras, and {self.spec.name} takes one array, {self.spec.input_shape}. Give "
                "np.stack(images)."
            )

    def _resized(self) -> tuple[int, int]:
        """Return a height and width to propose."""
        rows, columns = (2, 3) if self.spec.channels_axis == 1 else (1, 2)
        return self.spec.input_shape[rows] or USUAL_SIZE, self.spec.input_shape[
            columns
        ] or USUAL_SIZE

    def _check_image_shape(self, shape: tuple[int | None, ...]) -> None:
        if len(shape) != 4:
            channels = self.spec.input_shape[self.spec.channels_axis]
            if len(shape) == 3 and channels == 1:  # to which Keras adds the axis
                return
            self._fail(
                f"Images of shape {shape} are not a batch, and {self.spec.name} takes "
                f"{self.spec.input_shape}. Of one image, give image[None]; of gray images without "
                f"an axis of channels, np.stack([images] * {channels}, {self.spec.channels_axis})."
            )
        wrong = [
            axis
            for axis in (1, 2, 3)
            if None not in (self.spec.input_shape[axis], shape[axis])
            and self.spec.input_shape[axis] != shape[axis]
        ]
        if not wrong:
            return
        axis = self.spec.channels_axis
        expected, channels = self.spec.input_shape[axis], shape[axis]
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
            f"Images of shape {shape} do not fit {self.spec.name}, which takes "
            f"{self.spec.input_shape}. {fix}"
        )

    def _check_label_shape(self, shape: tuple[int | None, ...]) -> None:
        loss, classes = self.loss, self.classes
        if self.of_loss is not None and self.of_loss.are_numbers:
            self._check_numbers_shape(shape)
        if loss is None or classes == 1:
            return
        rows = len(shape) == self.output_rank and shape[-1] != 1
        subject = f"Labels of shape {shape}"
        if loss.labels == "integer" and rows and shape[-1] is not None:
            other = f"keras.losses.CategoricalCrossentropy(from_logits={loss.from_logits})"
            other = (
                f", or compile with {other}" if self.trained is None or self.trained.mixes else ""
            )
            self._fail(
                f"{subject} are one-hot rows, and {loss.name} expects integers. Give "
                f"labels.argmax(-1){other}."
            )
        if loss.labels in ("one-hot", "binary") and not rows:
            if self.spec.task is not None and self.spec.task.names_without_output:
                self._fail(
                    f"{subject} are grades: compile with model.task.loss(), which takes them."
                )
            self._fail(
                f"{subject} are integers, and {loss.name} expects rows of {classes} classes. Give "
                f"keras.utils.to_categorical(labels, {classes}), or compile with "
                f"keras.losses.SparseCategoricalCrossentropy(from_logits={loss.from_logits})."
            )
        if rows and shape[-1] not in (None, classes):
            self._fail(
                f"{subject} have {shape[-1]} classes, and {self.spec.name} has "
                f"num_classes={classes}. Give rows of {classes}, or a model of {shape[-1]} "
                f"classes, such as model.with_classifier({shape[-1]})."
            )

    def _check_numbers_shape(self, shape: tuple[int | None, ...]) -> None:
        """Refuses another number of numbers than of outputs, which Keras would repeat."""
        numbers = shape[-1] if len(shape) >= self.output_rank else 1
        if numbers not in (None, self.classes):
            self._fail(
                f"Targets of shape {shape} are {counted(numbers, 'number')} per image, and "
                f"{self.spec.name} returns {self.classes}. Give rows of {self.classes}, or "
                f"model.with_classifier(task=keras_vit.tasks.Regression(size={numbers}))."
            )

    def _check_kind_of_labels(self, y: Any) -> None:
        """Refuses no labels, text, and a list of numbers, which are as many outputs to Keras."""
        if self.off or (self.loss is None and self.of_loss is None):
            return
        if y is None:
            self._fail("There are images and no labels. Give both: (images, labels).")
        if isinstance(y, list | tuple) and y and not getattr(y[0], "shape", ()):
            self._fail("The labels are a list. Give an array: np.array(labels).")
        dtype = getattr(_leaf(y), "dtype", None)
        if getattr(dtype, "name", "").startswith(("str", "object")):
            self._fail(
                "The labels are text or objects, and a model learns numbers: give those of the "
                "classes, as np.unique(labels, return_inverse=True)[1] has them."
            )

    def sample_weight(self, weights: Any) -> None:
        """Refuses weights that are not finite, or more of them per image than answers."""
        if weights is None or self.off or not self.classes:
            return
        if isinstance(weights, list | tuple):
            self._fail("sample_weight is a list. Give an array: np.array(sample_weight).")
        weights = _to_numpy(weights)
        if weights.dtype.kind == "f" and not np.isfinite(weights).all():
            self._fail(
                f"sample_weight holds {weights[~np.isfinite(weights)][0]}: training would destroy "
                "the weights of the model. Give 0 for examples that do not count."
            )
        if weights.ndim >= self.output_rank and weights.shape[-1] != 1:
            self._fail(
                f"sample_weight of shape {weights.shape} is not a weight per answer. Give one "
                f"number per {'image' if self.output_rank == 2 else 'pixel'}."
            )

    def class_weight(self, class_weight: Any) -> None:
        """Checks the argument of `fit` and `train_on_batch`."""
        if class_weight is not None and not self.off and self.classes:
            check_class_weight(class_weight, self.trained, self.classes, self.spec.class_names)

    def loss_of_logits(self, model: keras.Model) -> None:
        """Refuses to train by a loss that takes logits for probabilities."""
        wrong = "" if self.off else logits_as_probabilities(self.spec, getattr(model, "loss", None))
        if wrong:
            self._fail(wrong)

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
            ignored = self.loss and self.loss.ignore_class
            more = "" if ignored is None else f", and {ignored} where none is known"
            self._fail(
                f"Label {outside.flat[0]} is not a class of {self.spec.name}: with "
                f"{self.classes} classes, labels are integers from 0 to {self.classes - 1}{more}. "
                "Number the classes from 0, or build the model with more classes."
            )

    def _integers(self, labels: Any) -> bool:
        """Return whether labels are the numbers of classes."""
        if self.classes < 2 or self.loss is None or self.loss.labels not in ("integer", "any"):
            return False
        return len(labels.shape) < self.output_rank or labels.shape[-1] == 1

    def _outside(self, labels: Any) -> Any:
        """Return where labels are not classes, for arrays of NumPy or TensorFlow."""
        inside = (labels >= 0) & (labels < self.classes)
        if "float" in str(labels.dtype):  # Keras would cut 1.5 to 1
            inside &= labels % 1 == 0
        ignored = None if self.loss is None else self.loss.ignore_class
        return ~(inside if ignored is None else inside | (labels == ignored))

    def _rows(self, labels: Any) -> bool:
        """Return whether labels are a number from 0 to 1 for each class."""
        if self.loss is None or self.loss.labels == "integer":
            return False
        rows = len(labels.shape) == self.output_rank and labels.shape[-1] != 1
        return rows or self.loss.labels == "binary"

    def first(self, x: Any, y: Any = None) -> None:
        """Warns of pixels, and of labels in rows, as the first batch shows them."""
        if self.off or not self.looks:
            return
        images, labels = _leaf(x), _leaf(y)
        try:
            if labels is not None and self._is_looked_at(labels):
                self._first_targets(_to_numpy(labels))
            if images is None or len(images.shape) != 4:
                return
            pixels = _to_numpy(images[:MOST_IMAGES])
            self.looks = not check_pixels(
                pixels,
                self.spec.name,
                not self.spec.takes_pixels,
                self.warned,
                self.spec.statistics,
                self.spec.channels_axis,
            )
        except (ValueError, Warning) as error:  # a warning that the user has made an error
            self.error = self.error or error
            raise

    def _learns_numbers(self) -> bool:
        return self.trained is not None and self.trained.are_numbers

    def _is_looked_at(self, labels: Any) -> bool:
        """Return whether labels are numbers, or rows with a number for each output."""
        rows = len(labels.shape) == self.output_rank and labels.shape[-1] == self.classes > 1
        return self._learns_numbers() or rows or self._rows(labels)

    def _first_targets(self, targets: np.ndarray) -> None:
        """Looks at numbers, or at rows of labels."""
        if self._learns_numbers():
            self.seen = check_numbers(targets, self.spec.task, self.warned)
        elif self.loss is not None and self._rows(targets):
            check_label_rows(targets, self.loss.name, self.warned)
        one_class = any(t and t.is_one_name and t.mixes for t in (self.trained, self.spec.task))
        if one_class and targets.ndim > 1:
            check_several(targets, self.warned)

    def _tensorflow_dataset(self, dataset: Any) -> Any:
        """Return the data set with the checks in its pipeline: nothing is read ahead, or twice."""
        import tensorflow as tf

        x, y, _ = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
        self._check_is_batch(x)
        self._check_kind_of_labels(y)
        images, labels = (
            spec if isinstance(spec, tf.TensorSpec) else None for spec in (_leaf(x), _leaf(y))
        )
        self._check_rank(images, labels)
        known = [s for s in (images, labels) if s is not None and s.shape.rank is not None]
        self.shapes(images if images in known else None, labels if labels in known else None)
        of_labels = labels in known and self._integers(labels)
        # Of bytes, nothing can be said but to a model of other images.
        of_others = not self.spec.takes_pixels or self.spec.statistics is not None
        of_pixels = images is not None and (of_others or images.dtype != tf.uint8)
        of_rows = labels is not None and (labels not in known or self._is_looked_at(labels))
        # A strategy reads from the end of the pipeline how to cut batches for its devices.
        if not (of_labels or of_rows or of_pixels) or self.replicas > 1:
            return dataset

        def look(x: Any, y: Any) -> Any:
            self.arrays(x if of_pixels else None, y if of_labels or of_rows else None)
            return True

        def check(number: Any, element: Any) -> Any:
            x, y, _ = keras.utils.unpack_x_y_sample_weight(element)
            x = _leaf(x) if of_pixels else 0
            y = _leaf(y) if of_labels or of_rows else 0
            to_look = number == 0
            if of_labels:
                to_look |= tf.reduce_any(self._outside(y))
            # Python is asked in the first batch, and where a label is wrong.
            tf.cond(to_look, lambda: tf.py_function(look, [x, y], tf.bool), lambda: True)
            return element

        return dataset.enumerate().map(tf.autograph.experimental.do_not_convert(check))

    def _check_rank(self, images: Any, labels: Any) -> None:
        """Refuses a `tf.data.Dataset` of batches of an unknown rank, or without batches."""
        shape = ", ".join(map(str, (None, *self.spec.input_shape[1:])))
        if images is None:
            return
        if self.is_for_fit and is_tensorflow() and images.shape.rank is None:
            self._fail(
                "The batches of this tf.data.Dataset have an unknown number of dimensions, as "
                "tf.py_function and from_generator leave it. Set it, and resize and batch where "
                "that was not done: dataset.map(lambda images, labels: (tf.ensure_shape(images, "
                f"({shape})), labels))."
            )
        if self.is_for_fit and is_tensorflow() and labels is not None and labels.shape.rank is None:
            self._fail(
                "The labels of this tf.data.Dataset have an unknown number of dimensions. Set it: "
                "dataset.map(lambda images, labels: (images, tf.ensure_shape(labels, (None,))))."
            )
        if images.shape.rank == 3 and self.spec.input_shape[-1] != 1:
            self._fail(
                f"The images of this tf.data.Dataset have the shape {tuple(images.shape)}, and "
                f"{self.spec.name} takes batches ({shape}). Give dataset.batch(32)."
            )


@contextmanager
def checked_data(model: keras.Model, function: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Check the data of `fit`, `evaluate` or `predict` before and while they are read.

    The arguments of the method are changed in place.

    Raises:
        ValueError: Images or labels do not fit the model or the loss, or the loss its outputs; the
            message proposes a fix.
    """
    training = DataCheck(model, labels=function != "predict_function")
    validation = DataCheck(model, training.is_for_fit, training.warned)
    if function == "train_function":
        training.loss_of_logits(model)
    training.class_weight(arguments.get("class_weight"))
    training.sample_weight(arguments.get("sample_weight"))
    arguments["x"] = training.data(arguments.get("x"), arguments.get("y"))
    in_order = isinstance(arguments["x"], _InOrder) or _is_a(arguments["x"], "grain", "IterDataset")
    if in_order and function == "train_function":
        arguments.setdefault("shuffle", False)  # Keras warns that it does not shuffle them
    held_out = arguments.get("validation_data")
    if isinstance(held_out, tuple | list):
        x, *rest = held_out
        arguments["validation_data"] = (validation.data(x, rest[0] if rest else None), *rest)
    elif held_out is not None:
        arguments["validation_data"] = validation.data(held_out)
    try:
        yield
    except Exception as error:
        cause = training.error or validation.error
        if cause in (None, error):
            raise
        raise cause from None  # TensorFlow reports it as an error of its own
    finally:
        if function == "train_function" and training.seen:
            model._targets_seen = training.seen


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


class _InOrder(keras.utils.PyDataset):
    """Checked batches of one pass of Grain's, asked for one after the other, beginning with 0.

    Keras's own adapter makes the first batches twice, and warns at the end of each pass. Batches
    without an end are its: a run that is resumed within an epoch would break this one.
    """

    def __init__(self, batches: Any, check: DataCheck) -> None:
        super().__init__()
        self.batches, self.check = batches, check
        self.iterator, self.next = iter(()), 0

    @property
    def num_batches(self) -> int | None:
        return self.batches.num_batches

    def __getitem__(self, index: int) -> Any:
        if index == 0:  # another pass, or TensorFlow after a look at the first batches
            self.iterator, self.next = iter(self.batches), 0
        if index != self.next:
            raise ValueError(
                f"Batch {index} was asked for and batch {self.next} is the next one: the batches "
                "of data.pipeline have their order. Leave shuffle out, or give shuffle=False."
            )
        batch, self.next = self.check.batch(next(self.iterator)), index + 1
        if self.next == self.num_batches:
            next(self.iterator, None)  # to the end of the pass: the next one begins
        return batch


def _checked_loader(loader: Any, check: DataCheck) -> Any:
    """Return a loader of the batches of a `DataLoader`, checked here and not in its workers."""

    def batches(self: Any) -> Any:
        return map(check.batch, iter(loader))

    # Keras asks a loader for its length, batch size and data set: this one has the other's.
    kind = type("CheckedLoader", (type(loader),), {"__iter__": batches})
    checked: Any = object.__new__(kind)
    vars(checked).update(vars(loader))
    return checked


def _is_a(x: Any, package: str, *names: str) -> bool:
    """Return whether `x` is of one of these classes, without an import of their package."""
    return any(
        kind.__name__ in names and kind.__module__.split(".")[0] == package
        for kind in type(x).__mro__
    )


def _leaf(structure: Any) -> Any:
    """Return the only array of a structure; None for structures of no or several arrays."""
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
