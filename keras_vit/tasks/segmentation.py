"""Segmentation: one of several classes for every pixel."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops
from PIL import Image

from keras_vit._base.errors import listed, printable
from keras_vit.tasks.answer import Columns, Tally, check_finite_answers
from keras_vit.tasks.bilinear import resized_map
from keras_vit.tasks.class_colors import Color, color_table
from keras_vit.tasks.classification import softmax
from keras_vit.tasks.mask_scores import near_boundary
from keras_vit.tasks.pixel_losses import (
    IGNORED,
    CrossentropyDice,
    CrossentropyLovasz,
    MeanIoU,
    PixelCrossentropy,
    pixel_counts,
)
from keras_vit.tasks.query_losses import QueryLoss
from keras_vit.tasks.scores import NamedScores, shares
from keras_vit.tasks.target import as_array
from keras_vit.tasks.task import Task

# What a tally counts, of all pixels and of those near a boundary.
COUNTED = tuple(f"{of}{name}" for of in ("", "near_") for name in ("right", "present", "answered"))


@keras.saving.register_keras_serializable(package="keras_vit")
@dataclass(frozen=True)
class Segmentation(Task):
    """A class for every pixel; the answers are probabilities, the softmax of the outputs.

    Outputs and answers are `(examples, height, width, classes)` at the size of the model's images.
    Targets are integers `(examples, height, width)`, and 255 for a pixel whose class is not known,
    which neither trains nor scores. Where the maps themselves are not at hand, a target is a row
    `(classes,)` of floats: how many of the image's pixels have each class.

    Attributes:
        colors: Red, green and blue, 0 to 255, of each class; empty for those of `color_table`. They
            mean nothing: tasks that differ in them alone are equal.

    Raises:
        ValueError: There are colors, and not one of three such numbers for each class.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks import Segmentation
    >>> task = Segmentation(("sky", "tree"))
    >>> answer, = task.answers(np.array([[[[2.0, 0.0], [2.0, 0.0]], [[0.0, 2.0], [3.0, 0.0]]]]))
    >>> task.to_text(answer)
    'sky 75.00%, tree 25.00%'
    >>> task.scores([[[0, 0], [1, 255]]], answer[None])["mean_iou"].value
    1.0
    """

    kind = "segmentation"
    nouns = ("class", "classes")
    fewest = 2
    most = IGNORED  # whose number is that of unknown pixels
    head = "map"
    per_pixel = True
    mixes = False
    keeps_in_mirror = True
    losses: ClassVar = {
        "pixel_crossentropy": PixelCrossentropy,
        "crossentropy_dice": CrossentropyDice,
        "crossentropy_lovasz": CrossentropyLovasz,
        "queries": QueryLoss,
    }
    distillation: ClassVar = {}
    unbalanced = "an image has pixels of several"
    tensor_names = ("probabilities", "classes")

    colors: tuple[Color, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.colors:
            return
        colors = np.array(self.colors)
        levels = colors if colors.dtype.kind in "iu" else np.full(1, -1)
        if colors.shape != (self.size, 3) or levels.min() < 0 or levels.max() > 255:
            raise ValueError(
                f"colors of shape {colors.shape} do not fit {self.size} classes: give three "
                "integers from 0 to 255 for each, or leave them out."
            )
        self._set(colors=tuple(tuple(map(int, color)) for color in self.colors))

    def unfitted(self) -> Self:
        return replace(self, colors=())  # without names, the number of classes stays

    def check_targets(self, targets: Any) -> np.ndarray:
        """Return maps as int32, or rows of counts as float64."""
        array = as_array(targets)
        if array.ndim == 2 and array.shape[1] == self.size and array.dtype.kind == "f":
            return array.astype(np.float64)
        if array.ndim != 3 or array.dtype.kind not in "biu":
            raise ValueError(
                f"Targets of {array.dtype} and shape {array.shape} do not fit segmentation: give "
                "integers (examples, height, width)."
            )
        outside = (array != IGNORED) & ((array < 0) | (array >= self.size))
        if outside.any():
            row = int(outside.any(axis=(1, 2)).argmax())
            raise ValueError(
                f"The target of row {row} has the class {array[row][outside[row]][0]}: give "
                f"integers from 0 to {self.size - 1}, and {IGNORED} for pixels of no known class."
            )
        return array.astype(np.int32)

    def summary(self, targets: Any) -> np.ndarray:
        """Return how many pixels of each image have each class, float64 `(images, size)`."""
        checked = self.check_targets(targets)
        return checked if checked.ndim == 2 else pixel_counts(checked, self.size).astype(float)

    def _parts(self, targets: Any) -> np.ndarray:
        """Return what part of an image's labeled pixels each class has, `(images, size)`."""
        counts = self.summary(targets)
        return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

    def _strata(self, targets: Any, fraction: float) -> np.ndarray:
        return self.summary(targets) > 0

    def counts(self, targets: Any) -> np.ndarray:
        """Return how many images have each class."""
        return (self.summary(targets) > 0).sum(axis=0)

    def initial_bias(self, targets: Any) -> np.ndarray:
        """Return the logarithm of each class's part of all pixels, as if one more image had all."""
        counts = self._parts(targets).sum(axis=0)
        return np.log((counts + 1 / self.size) / (counts.sum() + 1)).astype(np.float32)

    def metrics(self) -> list[keras.metrics.Metric]:
        return [MeanIoU(self.size)]

    def answer_shape(self, image_size: tuple[int, int]) -> tuple[int, ...]:
        return (*image_size, self.size)

    def answers(self, outputs: Any) -> np.ndarray:
        logits = np.asarray(outputs, np.float32)
        if logits.ndim != 4 or logits.shape[-1] != self.size:
            raise ValueError(
                f"Outputs {logits.shape} do not fit segmentation of {self.size}: give (examples, "
                f"height, width, {self.size})."
            )
        return softmax(logits)

    def answers_in_graph(self, outputs: Any) -> Any:
        return ops.softmax(ops.cast(outputs, "float32"))

    def outputs_in_graph(self, answers: Any) -> Any:
        return ops.log(ops.maximum(answers, keras.config.epsilon()))

    def graph_answers(self, answers: Any, top_k: int = 5) -> dict[str, Any]:
        # On TensorFlow `ops.argmax` looks at the bits of zeros, which ONNX and LiteRT do not have.
        classes = ops.cast(ops.top_k(answers, 1)[1][..., 0], "int32")
        return dict(zip(self.answer_names, (answers, classes), strict=True))

    def describe(self, answer: Any, top: int = 5) -> dict[str, Any]:
        """Return the largest classes, `predictions`: what part of the pixels each of them has."""
        parts = self._parts(self.decided(answer)[None])[0]
        order, names = np.argsort(-parts, kind="stable")[:top], self.shown_names
        return {"predictions": [{"class": names[i], "part": float(parts[i])} for i in order]}

    def to_text(self, answer: Any, top: int = 5) -> str:
        rows = self.describe(answer, top)["predictions"]
        seen = (f"{row['class']} {row['part']:.2%}" for row in rows if row["part"])
        return printable(", ".join(seen))

    def answer_map(self, answer: Any, size: tuple[int, int]) -> np.ndarray:
        """Return the number of the class in each pixel of an image, uint8 `(height, width)`.

        Of the class that is the most probable once probabilities have that size, bilinear.

        Args:
            answer: An entry of `answers`.
            size: Height and width of the image.
        """
        return resized_map(np.asarray(answer), size, self.decided)

    def decided(self, answers: Any) -> np.ndarray:
        """Return the most probable class of each pixel, uint8; what is classes already as it is."""
        array = np.asarray(answers)
        is_map = array.dtype.kind in "iu"
        return array if is_map else array.argmax(axis=-1).astype(np.uint8)

    def answer_files(self, answer: Any, size: tuple[int, int]) -> dict[str, bytes]:
        """Return a PNG file of `answer_map`, with the colors of the classes as its palette."""
        shown = Image.fromarray(self.answer_map(answer, size), "P")
        shown.putpalette(color_table(self.colors).ravel().tolist())
        file = BytesIO()
        shown.save(file, "PNG")
        return {".png": file.getvalue()}

    def tally(self, targets: Any, answers: Any) -> Tally:
        """Return the right, present and answered pixels of each class, `(images, size)` each.

        Of all pixels, and of those near a boundary: of the class that an image has, of the one that
        is answered, or of both for what is right. Pixels of no known class are of another class
        there, and are not counted.
        """
        labels, predictions = self.check_targets(targets), np.asarray(answers)
        of_each = () if predictions.dtype.kind in "iu" else (self.size,)
        if predictions.shape != (*labels.shape, *of_each):
            raise ValueError(
                f"Targets {labels.shape} do not match answers {predictions.shape}: give maps of "
                f"one size, and {self.size} probabilities of each pixel, or its class."
            )
        check_finite_answers(predictions)
        labels, decided = labels.astype(np.uint8), self.decided(predictions)
        predicted = np.where(labels == IGNORED, labels, decided)
        right = np.where(predicted == labels, labels, IGNORED)
        present, answered = near_boundary(labels), near_boundary(decided)
        near = (
            np.where(where, values, IGNORED)
            for where, values in (
                (present & answered, right),
                (present, labels),
                (answered, predicted),
            )
        )
        maps = dict(zip(COUNTED, (right, labels, predicted, *near), strict=True))
        return {name: pixel_counts(values, self.size) for name, values in maps.items()}

    def _scores(self, tally: Tally) -> NamedScores:
        counts = [tally[name].astype(np.float64) for name in COUNTED if name in tally]

        def score(weights: np.ndarray) -> list[float]:
            right, present, answered, *near = (weights @ rows for rows in counts)
            total = present.sum()
            accuracy = right.sum() / total if total else np.nan
            return [_mean_iou(right, present, answered), _mean_iou(*near), accuracy]

        return ("mean_iou", "boundary_iou", "pixel_accuracy"), score

    def main_score(self, targets: Any) -> str:
        return "mean_iou"

    def best_constants(self, targets: Any) -> Mapping[str, Any]:
        """Return the class of the most pixels, for every pixel."""
        most = np.eye(self.size)[self.summary(targets).sum(axis=0).argmax()]
        return dict.fromkeys(("mean_iou", "pixel_accuracy"), most)

    def constant_tally(self, targets: Any, answer: Any) -> Tally:
        """Return the tally of one answer for all pixels, of which no boundaries are known."""
        present = self.summary(targets)
        answered = np.asarray(answer) * present.sum(axis=1, keepdims=True)
        return {"right": present * np.asarray(answer), "present": present, "answered": answered}

    def name_scores(self, tally: Tally) -> Columns:
        """Return IoU, precision and recall of each class, its part of all pixels, and images."""
        right, present, answered, *near = (tally[n].sum(axis=0) for n in COUNTED)
        return {
            "IoU": shares(right, present + answered - right),
            "precision": shares(right, answered),
            "recall": shares(right, present),
            "boundary IoU": shares(near[0], near[1] + near[2] - near[0]),
            "part": present / max(present.sum(), 1),
            "images": (tally["present"] > 0).sum(axis=0),
        }

    def distance(self, tally: Tally) -> np.ndarray:
        """Return 1 - the mean IoU of the classes that an image has or is taken to have."""
        right, present, answered = (tally[name] for name in ("right", "present", "answered"))
        union = present + answered - right
        occurs = (union > 0).sum(axis=1)
        return shares(occurs - (right / np.maximum(union, 1)).sum(axis=1), occurs)

    def texts(self, tally: Tally, index: int) -> tuple[str, str]:
        answer, truth = (self._largest(tally[n][index]) for n in ("answered", "present"))
        return f"{answer} (mean IoU {1 - self.distance(tally)[index]:.2f})", truth

    def _largest(self, counts: np.ndarray) -> str:
        places = [i for i in np.argsort(-counts, kind="stable")[:3] if counts[i]]
        return printable(listed([self.shown_names[i] for i in places]))

    def explained(self, answers: Any) -> np.ndarray:
        """Return the class of the most pixels of each image, int `(examples,)`."""
        return pixel_counts(np.asarray(answers).argmax(axis=-1), self.size).argmax(axis=1)

    def evidence(self, outputs: Any, which: Any) -> Any:
        """Return the mean output of a class over the pixels, `(examples,)`."""
        chosen = ops.one_hot(which, self.outputs, dtype="float32")[:, None, None]
        return ops.mean(ops.sum(outputs * chosen, axis=-1), axis=(1, 2))

    def evidence_text(self, which: int) -> str:
        return self.shown_names[which]


def _mean_iou(*counts: np.ndarray) -> float:
    """Return the mean IoU of the classes that occur, of right, present and answered pixels."""
    if not counts:
        return np.nan
    right, present, answered = counts
    union = present + answered - right
    occurs = union > 0
    return float((right[occurs] / union[occurs]).mean()) if occurs.any() else np.nan
