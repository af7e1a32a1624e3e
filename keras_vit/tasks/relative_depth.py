"""Relative depth: which pixels are nearer and by how much, without a unit or a zero."""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import keras
import numpy as np

from keras_vit.tasks.answer import Tally
from keras_vit.tasks.depth import INVERSE, Depth, close_share
from keras_vit.tasks.depth_losses import AffineInvariant, AlignedCloseShare

_OPPOSITE = (
    -0.5
)  # a median correlation of answers and labels below which one of them is upside down


@keras.saving.register_keras_serializable(package="keras_vit")
@dataclass(frozen=True)
class RelativeDepth(Depth):
    """An inverse depth for every pixel, larger where nearer, up to a factor and a shift per image.

    So answer Depth Anything (Yang et al. 2024) and MiDaS (Ranftl et al. 2020): what is learned from
    maps of many cameras, whose units and zeros differ, and what disparities and the answers of
    such models show. Targets are those of `Depth`: depths, or with `depth_scale="inverse"` files
    of inverse depths. Outputs and answers are `(examples, height, width, 1)`.

    Scores compare depths after each image's answers were brought, by a factor of at least 0 and a
    shift, to least squares from its measured inverse depths (Ranftl et al. 2020, section 6); what
    comes out as farther than the farthest measured pixel counts as that far.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks import RelativeDepth
    >>> answer = np.array([[[[10.0], [6.0]], [[4.0], [3.0]]]])  # 8 / depth + 2
    >>> scores = RelativeDepth().scores([[[1.0, 2.0], [4.0, np.nan]]], answer)
    >>> round(scores["aligned_abs_rel"].value, 6), scores["aligned_delta1"].value
    (0.0, 1.0)
    """

    kind = "relative_depth"
    keeps_in_crop = True  # an enlarged part is as far but for a factor
    joins_windows: ClassVar[bool] = False
    losses: ClassVar = {"affine_invariant": AffineInvariant}
    tensor_names = ("inverse_depth",)
    forms: ClassVar[tuple[str, ...]] = (INVERSE,)
    score_names: ClassVar[tuple[str, ...]] = ("aligned_delta1", "aligned_abs_rel")

    names: tuple[str, ...] = ("inverse depth",)
    form: str = INVERSE

    @property
    def activations(self) -> tuple[str, ...]:
        return ("linear", "relu")

    def fitted(self, targets: Any) -> Self:
        """Return the same task, where a pixel is measured: outputs are without a scale."""
        self._quantiles(targets)
        return self

    def initial_bias(self, targets: Any) -> np.ndarray:
        self._quantiles(targets)
        return np.zeros(1, np.float32)

    def metrics(self) -> list[keras.metrics.Metric]:
        return [AlignedCloseShare()]

    @staticmethod
    def image_scores(depths: np.ndarray, answers: Any) -> np.ndarray:
        """Return the scores of measured depths over the last axis, of aligned answers."""
        truth = 1 / depths.astype(np.float64)
        x = np.broadcast_to(np.asarray(answers, np.float64), truth.shape)
        x, away = (v - v.mean(-1, keepdims=True) for v in (x, truth))
        square = np.maximum((x * x).mean(-1, keepdims=True), np.finfo(np.float64).tiny)
        slope = np.maximum((x * away).mean(-1, keepdims=True) / square, 0)
        aligned = slope * x + truth.mean(-1, keepdims=True)
        answered = 1 / np.maximum(aligned, truth.min(-1, keepdims=True))
        error = np.abs(answered - depths) / depths
        return np.stack([close_share(depths, answered), error.mean(-1)])

    @staticmethod
    def shown(answered: np.ndarray) -> np.ndarray:
        return Depth.shown(np.max(answered, initial=0) - answered)

    def tally(self, targets: Any, answers: Any) -> Tally:
        """Return the scores of each image, and the medians of its measured pixels: `(images,)`.

        Warns where most images are answered upside down.
        """
        tally = super().tally(targets, answers)
        maps = zip(self.check_targets(targets), np.asarray(answers), strict=True)
        pairs = [(1 / y[y > 0], x[y > 0].ravel()) for y, x in maps if (y > 0).any()]
        inverse = [np.corrcoef(y, x)[0, 1] for y, x in pairs if np.ptp(y) and np.ptp(x)]
        if inverse and np.median(inverse) < _OPPOSITE:
            warnings.warn(
                "Most images are answered upside down, near where their maps say far. If the maps "
                'are inverse depths, such as disparities, say so: depth_scale="inverse".',
                stacklevel=2,
            )
        return tally

    def texts(self, tally: Tally, index: int) -> tuple[str, str]:
        error = tally[self.score_names[1]][index]
        return f"AbsRel {error:.2f} once aligned", super().texts(tally, index)[1]

    def evidence_text(self, which: int) -> str:
        return "nearer pixels"
