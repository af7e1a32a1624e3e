"""Depth: a positive number for every pixel, such as a distance, a height above ground, biomass."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops
from PIL import Image

from keras_vit._base.errors import check_above_zero, check_choice, printable
from keras_vit.tasks.answer import Tally, check_finite_answers
from keras_vit.tasks.bilinear import resized_map
from keras_vit.tasks.depth_colors import depth_colors, depth_range
from keras_vit.tasks.depth_losses import CLOSE, CloseShare, SiLog
from keras_vit.tasks.scores import NamedScores
from keras_vit.tasks.splitting import quantile_bins
from keras_vit.tasks.target import as_array
from keras_vit.tasks.task import Task

KEPT = 128  # numbers that are kept of an image's depths: quantiles
_MOST_PIXELS = 2**18  # of an image, from which its quantiles are
_MOST_ROWS, _TRIED = 1000, 64  # images by which a constant is chosen, and how many are tried
_LARGEST = 30.0  # of an output: its exponential, 1e13, is still far from the largest float32
INVERSE = "inverse"
_MEDIANS = ("answered", "present")  # of the measured pixels


@keras.saving.register_keras_serializable(package="keras_vit")
@dataclass(frozen=True)
class Depth(Task):
    """A positive number for every pixel; the answers are the exponentials of the outputs.

    Of released models of metric depth they are the outputs themselves, depths in meters.

    Outputs and answers are `(examples, height, width, 1)` at the size of the model's images, and
    answers in the unit of the targets. Targets are numbers `(examples, height, width)`; NaN,
    infinity, 0 and negative numbers are pixels without a measurement, which neither train nor
    score. Where the maps themselves are not at hand, a target is a row `(1 + 128,)` of float64: how
    many pixels were measured, and quantiles of their depths.

    Attributes:
        names: Of the number; `("depth",)` by default.
        unit: Such as `"m"`; an empty text where there is none.
        depth_scale: What 1 in a file of labels is worth in the unit, such as 0.001 for millimeters
            in meters; `"inverse"` where files hold inverse depths, such as disparities, larger
            where nearer; None for 1 in files of floats, and an error in files of integers.
        typical: The geometric mean of the training images' depths, by which exported files are
            compared; 1 by default. `fitted` computes it.
        form: What outputs are: `"log"`, logarithms of depths; `"depth"`, as of released models,
            which answer and are not trained: give them a new head for that.

    Unit, scale and typical depth do not change what outputs mean: tasks that differ in them alone
    are equal.

    Raises:
        ValueError: `depth_scale` is neither "inverse" nor a finite number above 0, `typical` is not
            the latter, there are several names, or the form is unknown.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks import Depth
    >>> task = Depth(unit="m")
    >>> answer, = task.answers(np.log([[[[1.0], [2.0]], [[3.0], [4.0]]]]))
    >>> task.to_text(answer)
    'depth 1 to 4 m, median 2.5 m'
    >>> scores = task.scores([[[1.0, 2.0], [3.0, np.nan]]], answer[None])
    >>> round(scores["abs_rel"].value, 6), scores["delta1"].value
    (0.0, 1.0)
    """

    kind = "depth"
    nouns = ("number", "numbers")
    most = 1
    head = "map"
    per_pixel = True
    pixel_dtype = "float32"
    unknown_pixel = 0.0
    mixes = False
    keeps_in_mirror = True
    keeps_in_crop = False
    losses: ClassVar = {"silog": SiLog}
    distillation: ClassVar = {}
    tensor_names = ("depth",)
    forms: ClassVar[tuple[str, ...]] = ("log", "depth")
    score_names: ClassVar[tuple[str, ...]] = ("delta1", "abs_rel", "rmse")

    names: tuple[str, ...] = ("depth",)
    unit: str = field(default="", compare=False)
    depth_scale: float | str | None = field(default=None, compare=False)
    typical: float = field(default=1.0, compare=False)
    form: str = "log"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.form, "form", self.forms)
        check_above_zero(typical=self.typical)
        scale = self.depth_scale
        if scale is not None and scale != INVERSE:
            check_above_zero(depth_scale=scale)  # type: ignore[arg-type]

    @property
    def kind_and_size(self) -> str:
        return self.kind

    @property
    def activations(self) -> tuple[str, ...]:
        return ("linear",) if self.form == "log" else ("linear", "relu", "sigmoid")

    def check_targets(self, targets: Any) -> np.ndarray:
        """Return maps as float32, 0 where nothing was measured, or rows of quantiles as float64."""
        array = as_array(targets)
        if array.ndim == 2 and array.shape[1] == 1 + KEPT and array.dtype.kind == "f":
            return array.astype(np.float64)
        if array.ndim != 3 or array.dtype.kind not in "iuf":
            raise ValueError(
                f"Targets of {array.dtype} and shape {array.shape} do not fit depth: give numbers "
                "(examples, height, width)."
            )
        with np.errstate(over="ignore", invalid="ignore"):  # of what is not a measurement
            depths = array.astype(np.float32)
            return np.where((depths > 0) & (depths < np.inf), depths, np.float32(0))

    def summary(self, targets: Any) -> np.ndarray:
        """Return how many pixels of each image are measured, and quantiles of their depths.

        float64 `(images, 1 + 128)`; quantiles are 0 where nothing is measured.
        """
        checked = self.check_targets(targets)
        if checked.ndim == 2:
            return checked
        rows = np.zeros((len(checked), 1 + KEPT))
        for row, depths in zip(rows, checked, strict=True):
            measured = depths[depths > 0]
            row[0] = measured.size
            if measured.size:
                some = np.sort(measured[:: -(-measured.size // _MOST_PIXELS)])
                row[1:] = some[((np.arange(KEPT) + 0.5) / KEPT * some.size).astype(int)]
        return rows

    def _quantiles(self, targets: Any) -> np.ndarray:
        """Return the quantiles of the images with a measured pixel, `(images, 128)`."""
        rows = self.summary(targets)
        measured = rows[rows[:, 0] > 0, 1:]
        if not len(measured):
            raise ValueError(
                f"Not one pixel of {len(rows):,} maps of depth is measured: give numbers above 0."
            )
        return measured

    def _strata(self, targets: Any, fraction: float) -> np.ndarray:
        return quantile_bins(self.summary(targets)[:, 1 + KEPT // 2], fraction)

    def fitted(self, targets: Any) -> Self:
        """Return the task whose `typical` is the targets' geometric mean."""
        return replace(self, typical=float(np.exp(self.initial_bias(targets)[0])))

    def unfitted(self) -> Self:
        return replace(self, typical=1.0)

    def initial_bias(self, targets: Any) -> np.ndarray:
        """Return the mean logarithm of the depths, of each image the same part."""
        return np.log(self._quantiles(targets)).mean(keepdims=True)[0].astype(np.float32)

    def loss(self, name: str | None = None, **options: Any) -> keras.losses.Loss:
        """Return a loss of this task's outputs.

        Raises:
            ValueError: They are depths themselves, or as for any task.
        """
        if self.form == "depth":
            raise ValueError(
                "A model whose outputs are 'depth', as released ones, answers and is not "
                "trained: give it a head of logarithms, model.with_classifier(task=splits.task), "
                "or load it as keras_vit.load(file, task=splits.task)."
            )
        return super().loss(name, **options)

    def metrics(self) -> list[keras.metrics.Metric]:
        return [CloseShare()]

    def answer_shape(self, image_size: tuple[int, int]) -> tuple[int, ...]:
        return (*image_size, 1)

    @property
    def answer_scale(self) -> np.ndarray:
        return np.full(1, self.typical, np.float32)

    def answers(self, outputs: Any) -> np.ndarray:
        numbers = np.asarray(outputs, np.float32)
        if numbers.ndim != 4 or numbers.shape[-1] != 1:
            raise ValueError(
                f"Outputs {numbers.shape} do not fit depth: give (examples, height, width, 1)."
            )
        return np.exp(np.clip(numbers, -_LARGEST, _LARGEST)) if self.form == "log" else numbers

    def answers_in_graph(self, outputs: Any) -> Any:
        numbers = ops.cast(outputs, "float32")
        return ops.exp(ops.clip(numbers, -_LARGEST, _LARGEST)) if self.form == "log" else numbers

    def outputs_in_graph(self, answers: Any) -> Any:
        if self.form != "log":
            return answers
        return ops.log(ops.maximum(answers, float(np.exp(-_LARGEST))))

    def graph_answers(self, answers: Any, top_k: int = 5) -> dict[str, Any]:
        return {self.answer_names[0]: answers}

    def describe(self, answer: Any, top: int = 5) -> dict[str, Any]:
        """Return the minimum, the median and the maximum of the map as rows of `predictions`."""
        unit = {"unit": self.unit} if self.unit else {}
        functions: dict[str, Any] = {"minimum": np.min, "median": np.median, "maximum": np.max}
        rows = [{"name": n, "value": float(f(answer)), **unit} for n, f in functions.items()]
        return {"predictions": rows}

    def to_text(self, answer: Any, top: int = 5) -> str:
        low, median, high = (row["value"] for row in self.describe(answer)["predictions"])
        name, middle = self.shown_names[0], self._in_unit(median)
        return printable(f"{name} {low:.4g} to {self._in_unit(high)}, median {middle}")

    def _in_unit(self, depth: float) -> str:
        return printable(f"{depth:.4g} {self.unit}".strip())

    def answer_map(self, answer: Any, size: tuple[int, int]) -> np.ndarray:
        """Return the depth of each pixel of an image, bilinear, float32 `(height, width)`."""
        return resized_map(np.asarray(answer, np.float32), size, self.decided)

    def decided(self, answers: Any) -> np.ndarray:
        return np.asarray(answers, np.float32)[..., 0]

    def answer_files(self, answer: Any, size: tuple[int, int]) -> dict[str, bytes]:
        """Return a TIFF file of float32, the depths themselves, and a PNG file of their colors."""
        depths = self.answer_map(answer, size)
        tiff, png = BytesIO(), BytesIO()
        Image.fromarray(depths).save(tiff, "TIFF", compression="tiff_adobe_deflate")
        shown = self.shown(depths)
        Image.fromarray(depth_colors(shown, *depth_range(shown))).save(png, "PNG")
        return {".tiff": tiff.getvalue(), ".color.png": png.getvalue()}

    @staticmethod
    def shown(answered: np.ndarray) -> np.ndarray:
        """Return numbers above 0 of a map that is answered, larger where farther, for colors."""
        return np.maximum(answered, np.finfo(np.float32).tiny)  # 0 is not unmeasured

    def tally(self, targets: Any, answers: Any) -> Tally:
        """Return the scores of each image, and the medians of its measured pixels: `(images,)`."""
        depths, numbers = self.check_targets(targets), np.asarray(answers)
        numbers = numbers[..., None] if numbers.shape == depths.shape else numbers
        if (*depths.shape, 1) != numbers.shape:
            raise ValueError(
                f"Targets {depths.shape} do not match answers {numbers.shape}: give maps of one "
                "size, and one number for each pixel."
            )
        check_finite_answers(numbers)
        number = len(self.score_names)
        columns = np.full((number + 2, len(depths)), np.nan)
        for column, y, x in zip(columns.T, depths, numbers[..., 0], strict=True):
            if (measured := y > 0).any():
                column[:number] = self.image_scores(y[measured], x[measured])
                column[number:] = np.median(x[measured]), np.median(y[measured])
        return dict(zip((*self.score_names, *_MEDIANS), columns, strict=True))

    def _scores(self, tally: Tally) -> NamedScores:
        """Return the mean of each image's scores: no image weighs more for its pixels."""
        rows = np.stack([tally[name] for name in self.score_names], axis=1)
        known = np.isfinite(rows).all(axis=1)

        def score(weights: np.ndarray) -> list[float]:
            total = weights[known].sum()
            return (weights[known] @ rows[known] / (total or np.nan)).tolist()

        return self.score_names, score

    def main_score(self, targets: Any) -> str:
        return self.score_names[0]

    def best_constants(self, targets: Any) -> Mapping[str, Any]:
        """Return of some quantiles of all depths those that score best, of up to 1,000 images."""
        rows = self._quantiles(targets)
        rows = rows[:: -(-len(rows) // _MOST_ROWS)]
        tried = np.quantile(rows, (np.arange(_TRIED) + 0.5) / _TRIED)
        errors = np.array([self.image_scores(rows, constant).mean(axis=1) for constant in tried])
        errors[:, 0] *= -1  # more is better
        return dict(zip(self.score_names, tried[errors.argmin(axis=0)], strict=True))

    def constant_tally(self, targets: Any, answer: Any) -> Tally:
        """Return the tally by the quantiles of each image: exact to about a hundredth."""
        rows = self.summary(targets)
        number = len(self.score_names)
        measured, columns = rows[:, 0] > 0, np.full((number + 2, len(rows)), np.nan)
        columns[:number, measured] = self.image_scores(rows[measured, 1:], answer)
        columns[number], columns[number + 1] = answer, np.median(rows[:, 1:], axis=1)
        return dict(zip((*self.score_names, *_MEDIANS), columns, strict=True))

    @staticmethod
    def image_scores(depths: np.ndarray, answers: Any) -> np.ndarray:
        """Return the scores of measured depths over the last axis, `(scores, ...)`."""
        y, x = depths.astype(np.float64), np.asarray(answers, np.float64)
        error = np.abs(x - y)
        rmse = np.sqrt((error**2).mean(-1))
        return np.stack([close_share(y, x), (error / y).mean(-1), rmse])

    def distance(self, tally: Tally) -> np.ndarray:
        """Return the mean relative error of each image, 0 where nothing is measured."""
        return np.nan_to_num(tally[self.score_names[1]], nan=0.0)

    def texts(self, tally: Tally, index: int) -> tuple[str, str]:
        names = (self.score_names[1], *_MEDIANS)
        error, answer, truth = (tally[name][index] for name in names)
        median = self._in_unit(answer)
        return f"median {median} (AbsRel {error:.2f})", f"median {self._in_unit(truth)}"

    def explained(self, answers: Any) -> np.ndarray:
        return np.zeros(len(answers), int)

    def evidence(self, outputs: Any, which: Any) -> Any:
        """Return the mean output over the pixels, `(examples,)`."""
        return ops.mean(outputs[..., 0], axis=(1, 2))

    def evidence_text(self, which: int) -> str:
        return f"a larger {self.shown_names[0]}"


def close_share(depths: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return what part of the last axis is within a factor of 1.25; no answer below 0 is."""
    with np.errstate(divide="ignore"):
        factors = np.maximum(answers / depths, depths / answers)
    return ((factors < CLOSE) & (answers > 0)).mean(-1)
