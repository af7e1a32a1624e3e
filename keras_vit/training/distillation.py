"""Distillation: a small model learns from labels and from the predictions of a trained one.

    labels ────────────────────────────────► crossentropy ── 1 - weight ──┐
    images ──┬──► student ──► logits ──┬──────────▲                       ├──► loss
             └──► teacher ──► logits ──┴──► distillation loss ── weight ──┘

The teacher sees every crop and mixture that the student sees ("consistent teaching", Beyer et al.
2022), in the step itself: nothing is precomputed.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from operator import attrgetter
from typing import Any, Self

import keras
from keras import ops

from keras_vit._base.errors import check_above_zero, check_choice
from keras_vit.models.answers import task_of
from keras_vit.models.head import DENSE_HEADS
from keras_vit.models.image_model import ImageModel
from keras_vit.models.normalization import own_statistics
from keras_vit.ops import without_gradient
from keras_vit.tasks import Task
from keras_vit.trainer.compiled_model import CompiledModel
from keras_vit.trainer.spec import Spec
from keras_vit.weights.resampling import RULES

_LAST, _FIRST = "channels_last", "channels_first"


@keras.saving.register_keras_serializable(package="keras_vit")
class Distillation(CompiledModel):
    """Trains a student with `fit` on labels and on the predictions of a teacher.

    The loss of a batch, with the teacher's logits t and the student's s:

        soft:  (1 - weight) compiled loss(labels, s) + weight T^2 KL(softmax(t/T) || softmax(s/T))
        hard:  (1 - weight) compiled loss(labels, s) + weight crossentropy(argmax t, s)

    These are for classes. Several labels and grades learn softly, too, each yes or no by its own
    sigmoid; numbers learn the teacher's by their squared difference, without a temperature. See
    `keras_vit.tasks.distillation_losses`.

    A student with a distillation token (`distilled=True`) has two heads: the labels teach the head
    of the class token, the teacher that of the distillation token, and the logits are the mean of
    both (DeiT).

    Takes images and labels as the student does, and returns the student's logits. `evaluate`,
    `predict`, the metrics and the validation loss are the student's on the labels, without the
    teacher; only the `loss` of `fit` has both parts. It shares the student's layers: after `fit`,
    `student` is trained. The teacher computes as at inference, in its own dtype policy; it gets no
    gradients and keeps its weights, whatever its `trainable` says. Compile with the student's loss,
    or with `compile_model(task, recipe, total_steps)`.

    Args:
        student: A model of this package with a head, for a fixed image size.
        teacher: A trained Keras model of the same classes, labels, numbers or grades that returns
            logits, of numbers on any scale. Its image size may be another one: images then come at
            the larger of both sizes, and each model resizes them to its own (linearly,
            antialiased).
        kind: `"soft"`: learn the teacher's probabilities; `"hard"`: the class it predicts.
        weight: Weight of the teacher, in (0, 1]; with 1 the labels do not count.
        temperature: T of `"soft"`, above 0; None for 3, as in DeiT.
        name: Name of the task.

    Attributes:
        student: The student, or a copy of it when loaded from a file.
        teacher: The teacher, or likewise.

    Raises:
        ValueError: A model does not return logits, the student takes images of any size, the two
            do not fit together (task, number or names of classes, channels, normalization), they
            share weights, nobody said what the student's outputs mean, or an argument is unknown or
            out of range.

    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network"; Touvron et al. 2021,
    "Training data-efficient image transformers", equations 2 and 3; Beyer et al. 2022, "Knowledge
    distillation: A good teacher is patient and consistent".

    Example:

    >>> import keras, keras_vit, numpy as np
    >>> sizes = {"patch_size": 8, "depth": 1, "num_heads": 2, "num_classes": 5}
    >>> teacher = keras_vit.VisionTransformer(hidden_dim=32, input_shape=(32, 32, 3), **sizes)
    >>> student = keras_vit.VisionTransformer(hidden_dim=16, input_shape=(16, 16, 3), **sizes)
    >>> task = keras_vit.training.Distillation(student, teacher, weight=0.9, temperature=2.0)
    >>> task.input_shape
    (None, 32, 32, 3)
    >>> task.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3))
    >>> history = task.fit(images, np.arange(8) % 5, verbose=0)
    >>> student(images[:, ::2, ::2]).shape == (8, 5)
    True
    """

    # What the recipes and the pipelines ask of a model.
    num_classes = property(attrgetter("student.num_classes"))
    class_names = property(attrgetter("student.class_names"))
    task = property(attrgetter("student.task"))
    classifier_activation = property(attrgetter("student.classifier_activation"))
    include_preprocessing = property(attrgetter("student.include_preprocessing"))
    data_format = property(attrgetter("student.data_format"))
    eval_transform = property(attrgetter("student.eval_transform"))

    @property
    def spec(self) -> Spec:
        """What data, losses and metrics are compared with: the student's, at the larger size."""
        shapes = {"input_shape": self.input_shape, "output_shape": self.output_shape}
        return replace(self.student.spec, name=self.name, **shapes)

    def __init__(
        self,
        student: ImageModel,
        teacher: keras.Model,
        kind: str = "soft",
        weight: float = 0.5,
        temperature: float | None = None,
        name: str | None = None,
    ) -> None:
        check_classifier(student, "student")
        check_classifier(teacher, "teacher")
        _check_arguments(task_of(student), kind, weight, temperature)
        _check_pair(student, teacher)
        (ours, channels), (theirs, _) = _image_layout(student), _image_layout(teacher)
        height, width = (max(a or 0, b or 0) for a, b in zip(ours, theirs, strict=True))
        is_first = student.data_format == _FIRST
        shape = (channels, height, width) if is_first else (height, width, channels)
        images = keras.Input(shape, name="images")
        self.__dict__.update(student=student, teacher=teacher)  # torch reads the variables below
        super().__init__(images, student(_images_for(student, images, is_first)), name=name)
        # Tracked, both: torch finds parameters by their paths, which the two have in common, and
        # would not clear the gradients of a student that is in the graph alone.
        self.student, self.teacher = student, teacher
        # Hidden from Keras's tracking, as its layers are the student's.
        self.__dict__["_heads"] = keras.Model(student.inputs[0], _outputs_by_source(student))
        self.kind, self.weight, self.temperature = kind, weight, temperature
        options = {} if temperature is None else {"temperature": temperature}
        self._distillation_loss = _MeanOfImages(task_of(student).distillation[kind], options)

    @property
    def _convolves(self) -> bool:
        return self.student._convolves

    @property
    def constant_variables(self) -> list[keras.Variable]:
        """The teacher's variables, which no step changes: checkpoints and copies leave them out."""
        return self.teacher.variables

    # Explicit, as Keras 3.11 does not count layers outside of the graph, and as the teacher's own
    # `trainable` must not count.
    @property
    def variables(self) -> list[keras.Variable]:
        return [*self.student.variables, *self.teacher.variables]

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        return self.student.trainable_variables

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        return [*self.student.non_trainable_variables, *self.teacher.variables]

    @property
    def weights(self) -> list[keras.Variable]:
        return [*self.student.weights, *self.teacher.weights]

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        return self.student.trainable_weights

    @property
    def non_trainable_weights(self) -> list[keras.Variable]:
        return [*self.student.non_trainable_weights, *self.teacher.weights]

    def _forward(self, inputs: Any, training: Any = None, mask: Any = None, **options: Any) -> Any:
        """Return the student's logits; in training a dictionary of what the loss compares."""
        if not training:
            return super()._forward(inputs, training, mask, **options)
        images = ops.cast(inputs, "float32")  # as `keras.Input` does; integers would be rounded
        is_first = self.data_format == _FIRST
        outputs = self._heads(_images_for(self.student, images, is_first), training=True)
        resized = _images_for(self.teacher, images, is_first)
        taught = without_gradient(self.teacher, resized, training=False)
        if (theirs := getattr(self.teacher, "task", None)) is not None:
            taught = self.task.outputs_like(theirs, taught)
        return {**outputs, "teacher": taught}

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the loss of labels and teacher in training, and that of the labels otherwise."""
        if not isinstance(y_pred, dict):
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        labels = super().compute_loss(x, y, y_pred["from_labels"], sample_weight, training)
        distilled = self._distillation_loss(
            y_pred["teacher"], y_pred["from_teacher"], sample_weight
        )
        return (1 - self.weight) * labels + self.weight * distilled

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the compiled metrics of the student's logits."""
        logits = y_pred["logits"] if isinstance(y_pred, dict) else y_pred
        return super().compute_metrics(x, y, logits, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {
            "student": keras.saving.serialize_keras_object(self.student),
            "teacher": keras.saving.serialize_keras_object(self.teacher),
            "kind": self.kind,
            "weight": self.weight,
            "temperature": self.temperature,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Self":
        models = {
            part: keras.saving.deserialize_keras_object(config[part], custom_objects)
            for part in ("student", "teacher")
        }
        return cls(**{**config, **models})


class _MeanOfImages(keras.losses.Loss):
    """A function of the teacher's and the student's logits, averaged over a batch as Keras does.

    That is: with weights of the images, and on several devices.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(name="distillation", dtype="float32")
        self.function, self.options = function, options

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.function(y_true, y_pred, **self.options)


def _outputs_by_source(student: ImageModel) -> dict[str, Any]:
    """Return the logits, and which outputs learn from the labels and which from the teacher."""
    of_labels = of_teacher = student.output
    if {layer.name for layer in student.layers} >= set(DENSE_HEADS):
        of_labels, of_teacher = (student.get_layer(name).output for name in DENSE_HEADS)
    return {"logits": student.output, "from_labels": of_labels, "from_teacher": of_teacher}


def _images_for(model: keras.Model, images: Any, is_first: bool) -> Any:
    """Return images `(batch, height, width, channels)` in a model's size and data format.

    Linear with antialiasing, as `keras.ops.image.resize(antialias=True)`, but as two products of
    matrices: XLA does not have TensorFlow's operator.
    """
    size, _ = _image_layout(model)
    takes_first = _data_format(model) == _FIRST
    height, width = images.shape[2:] if is_first else images.shape[1:3]
    axes = "bchw" if is_first else "bhwc"
    for axis, new, old in zip("hw", size, (height, width), strict=True):
        if new not in (None, old):
            matrix = RULES["linear_antialias"](new, old).astype("float32")
            images = ops.einsum(f"n{axis},{axes}->{axes.replace(axis, 'n')}", matrix, images)
    if is_first == takes_first:
        return images
    return ops.transpose(images, (0, 3, 1, 2) if takes_first else (0, 2, 3, 1))


def _image_layout(model: keras.Model) -> tuple[tuple[int | None, int | None], int]:
    """Return height and width, None for any, and the number of channels."""
    shape = model.input_shape[1:]
    channels, *size = shape if _data_format(model) == _FIRST else (shape[-1], *shape[:-1])
    return (size[0], size[1]), channels


def _data_format(model: keras.Model) -> str:
    return getattr(model, "data_format", _LAST)


def _check_arguments(task: Task, kind: str, weight: float, temperature: float | None) -> None:
    check_choice(kind, "kind", task.distillation)
    if not isinstance(weight, Real) or not 0 < weight <= 1:
        raise ValueError(f"weight={weight!r} must be in (0, 1], such as 0.5.")
    if temperature is None:
        return
    if "temperature" not in inspect.signature(task.distillation[kind]).parameters:
        soft = ', or give kind="soft"' if kind != "soft" else ""
        raise ValueError(
            f'temperature={temperature!r} has no effect with kind="{kind}" of {task.kind}, which '
            f"takes what the teacher predicts. Leave it out{soft}."
        )
    check_above_zero(temperature=temperature)


def check_classifier(model: Any, role: str) -> None:
    """Raises a ValueError for a model that does not return one logit per class."""
    kind = ImageModel if role == "student" else keras.Model
    if not isinstance(model, kind):
        what = "a model of keras_vit" if role == "student" else "a Keras model"
        raise ValueError(f"The {role} is a {type(model).__name__}. Give {what}.")
    inputs, outputs = (keras.tree.flatten(getattr(model, n, None)) for n in ("inputs", "outputs"))
    shapes = [getattr(one, "shape", ()) for one in (*inputs, *outputs)]
    if [len(shape) for shape in shapes] != [4, 2] or getattr(model, "num_classes", None) == 0:
        raise ValueError(
            f"The {role} {model.name} does not map images to one score per class. Give a model "
            "with num_classes and pooling, such as model.with_classifier(5)."
        )
    activation = getattr(model, "classifier_activation", getattr(model.layers[-1], "activation", 0))
    if activation and keras.activations.get(activation) is not keras.activations.linear:
        raise ValueError(
            f"The {role} {model.name} returns probabilities (its head has the activation "
            f"{activation!r}), and distillation needs logits. Build it with "
            "classifier_activation=None; the weights stay the same."
        )
    if role == "student" and None in model.input_shape[1:]:
        raise ValueError(
            f"The student {model.name} takes images of any size, {model.input_shape[1:]}. Give "
            "one for a fixed size, such as model.with_input_shape((224, 224, 3))."
        )


def _check_pair(student: ImageModel, teacher: keras.Model) -> None:
    """Raises a ValueError where a teacher cannot teach a student."""
    taught, taken = teacher.output_shape[-1], student.num_classes
    if taught != taken:
        raise ValueError(
            f"The teacher {teacher.name} has {taught} classes, and the student {student.name} "
            f"{taken}. Train the teacher on the student's classes, for instance "
            f"teacher.with_classifier({taken})."
        )
    task, kind = getattr(teacher, "task", None), task_of(student).kind
    if task is not None and task.kind != kind:
        raise ValueError(
            f"The teacher {teacher.name} answers {task.kind}, and the student {student.name} "
            f"{kind}. Train both for the same task."
        )
    theirs, ours = tuple(getattr(teacher, "class_names", None) or ()), student.class_names or ()
    if theirs and ours and theirs != ours:
        i = next(i for i in range(taken) if theirs[i] != ours[i])
        order = " in another order" if sorted(theirs) == sorted(ours) else ""
        raise ValueError(
            f"The teacher's classes are not the student's{order}: class {i} is {theirs[i]!r} to "
            f"the teacher {teacher.name} and {ours[i]!r} to the student {student.name}. Train "
            "both on the same data, with the same names of classes."
        )
    channels = _image_layout(teacher)[1], _image_layout(student)[1]
    if channels[0] != channels[1]:
        raise ValueError(
            f"The teacher {teacher.name} takes images of {channels[0]} channels, and the student "
            f"{student.name} of {channels[1]}. Give models of the same number."
        )
    kinds = getattr(teacher, "include_preprocessing", None), student.include_preprocessing
    if kinds[0] is not None and kinds[0] != kinds[1]:
        raise ValueError(
            f"The teacher has include_preprocessing={kinds[0]!r} and the student {kinds[1]!r}: one "
            "takes pixels, the other normalized images. Build both to take pixels; the weights "
            "stay the same."
        )
    bands = [getattr(getattr(m, "eval_transform", None), "bands", None) for m in (teacher, student)]
    ranges = [own_statistics(model) is not None for model in (teacher, student)]
    if ranges[0] != ranges[1] or (all(bands) and bands[0] != bands[1]):
        raise ValueError(
            f"The teacher {teacher.name} and the student {student.name} do not take the same "
            f"channels: bands {bands[0]} and {bands[1]}, a range of their own {ranges[0]} and "
            f"{ranges[1]}. Train the teacher on the student's images."
        )
    if {id(v) for v in teacher.variables} & {id(v) for v in student.variables}:
        raise ValueError(
            f"The teacher {teacher.name} and the student {student.name} share weights, so that the "
            "teacher would change. Give teacher.copy() as one of them."
        )
