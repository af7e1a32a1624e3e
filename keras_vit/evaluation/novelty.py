"""Novelty: how far an image is from the training images, by its features."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops
from scipy.special import logsumexp

from keras_vit._base.errors import counted
from keras_vit.layers.novelty_score import NoveltyScore, unit_rows
from keras_vit.models.head import DENSE_HEADS
from keras_vit.tasks.conformal import conformal_rank, fewest_examples

FALSE_ALARMS = 0.05
SLACK = 1e-4  # of a threshold
MOST_CLASSES = 2048  # whose head is stored once more: 6 MB for ViT-B


def fit_novelty(
    features: Any, held_out: Any, false_alarms: float = FALSE_ALARMS, head: Any = None
) -> NoveltyScore:
    """Fit the score of how far images are from the training images; above 1, they count as novel.

    Labels are not needed. With the `head` of a classifier it is the larger of the distance of the
    features and the energy of the logits, each above its threshold for half of the false alarms: it
    finds more of the images that are like the training images and of none of their classes, and as
    many of other ones (docs/coverage.md). Of new images like those held out, at most the given part
    is above 1 (split conformal prediction, as for `keras_vit.tasks.PredictionSets`).

    Args:
        features: Of training images `(images, dimension)`, as `keras_vit.evaluation.features`
            returns them.
        held_out: Of images that neither the model nor the score was fitted on.
        false_alarms: That part, in (0, 1).
        head: Kernel `(dimension, classes)` and bias `(classes,)` from features to logits, as
            `classifier_head` returns them; None, or too few held-out images for half of the false
            alarms: the distance alone.

    Returns:
        A layer from features `(batch, dimension)` to scores `(batch,)`, for a model's graph;
        its method `scores` computes them in NumPy.

    Raises:
        ValueError: Shapes do not match, features are not finite or all the same, or there are too
            few of them.

    Example:

    >>> import numpy as np
    >>> from keras_vit.evaluation import fit_novelty
    >>> rng = np.random.default_rng(0)
    >>> near, far = rng.normal(5, 1, (500, 4)), rng.normal(-5, 1, (100, 4))
    >>> novelty = fit_novelty(near[:300], near[300:])
    >>> bool((novelty.scores(near[300:]) > 1).mean() <= 0.05)
    True
    >>> bool((novelty.scores(far) > 1).all())
    True
    """
    if not 0 < false_alarms < 1:
        raise ValueError(f"false_alarms={false_alarms!r} must lie in (0, 1), such as 0.05.")
    train, others = _feature_rows(features, "features"), _feature_rows(held_out, "held_out")
    if train.shape[1] != others.shape[1]:
        raise ValueError(
            f"features {train.shape} and held_out {others.shape} are not of one model: give rows "
            "of the same length."
        )
    least = fewest_examples(1 - false_alarms)
    if len(others) < least:
        raise ValueError(
            f"A false alarm for {false_alarms:.4g} of new images takes at least {least} held-out "
            f"images, and there are {len(others)}: give more, or another false_alarms."
        )
    half = false_alarms / 2
    if len(others) < fewest_examples(1 - half):
        head = None
    rows = unit_rows(train)
    mean, factor = rows.mean(axis=0), _inverse_factor(shrunk_covariance(rows))
    distances = np.square((unit_rows(others) - mean) @ factor).sum(axis=1)
    threshold = _threshold(distances, false_alarms if head is None else half)
    weights = [mean, factor / np.sqrt(threshold)]
    if head is not None:
        kernel, bias = (np.asarray(array, np.float64) for array in head)
        energies = energy_scores(others @ kernel + bias)
        limit, middle = _threshold(energies, half), np.median(energies)
        # Between the middle of the held-out images and the threshold, both scores rise alike.
        rise = np.log(threshold / np.median(distances)) / max(limit - middle, 1e-6)
        weights += [kernel, bias + limit, rise]
    layer = NoveltyScore(0 if head is None else len(bias), name="novelty")
    layer.build((None, train.shape[1]))
    layer.set_weights(weights)
    return layer


def _threshold(scores: np.ndarray, false_alarms: float) -> float:
    """Return the score that the given part of new images is above."""
    value = np.sort(scores)[conformal_rank(len(scores), 1 - false_alarms) - 1]
    # The image that sets it stays below where another engine rounds it differently.
    return float(value + SLACK * abs(value))


def classifier_head(model: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the kernel and bias from a classifier's features to its logits, for `fit_novelty`.

    None for a model of another task, with two heads, a quantized one, or very many classes.

    Example:

    >>> import keras_vit
    >>> from keras_vit.evaluation.novelty import classifier_head
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
    >>> kernel, bias = classifier_head(model)
    >>> kernel.shape == (16, model.num_classes), bias.shape == (model.num_classes,)
    (True, True)
    """
    task = getattr(model, "task", None)
    heads = [layer for layer in model.layers if layer.name in DENSE_HEADS]
    if task is None or task.kind != "classification" or task.size > MOST_CLASSES:
        return None
    if len(heads) != 1 or heads[0].quantization_mode is not None:
        return None
    kernel, bias = (ops.convert_to_numpy(w) for w in (heads[0].kernel, heads[0].bias))
    return kernel, bias


@dataclass(frozen=True)
class NoveltyReport:
    """How many images are novel: "none of these"; prints as a sentence.

    Attributes:
        images: How many there are.
        novel: How many of them have a novelty above 1.
    """

    images: int
    novel: int

    def __str__(self) -> str:
        return (
            f"Novel, unlike the training images: {self.novel / self.images:.2%} of "
            f"{counted(self.images, 'image')}."
        )


def shrunk_covariance(rows: np.ndarray) -> np.ndarray:
    """Return the covariance of rows `(examples, dimension)`, shrunk to a multiple of the identity.

    So that it can be inverted with fewer rows than dimensions: Ledoit and Wolf 2004, "A
    well-conditioned estimator for large-dimensional covariance matrices", with their optimal part.

    Raises:
        ValueError: All rows are the same.
    """
    from sklearn.covariance import ledoit_wolf

    covariance, _ = ledoit_wolf(rows)
    if not np.trace(covariance) > np.finfo(np.float64).eps * np.square(rows).sum(axis=1).mean():
        raise ValueError("The features of all training images are the same: the model is damaged.")
    return covariance


def _inverse_factor(covariance: np.ndarray) -> np.ndarray:
    """Return a matrix whose product with its transpose is the inverse of a covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors / np.sqrt(np.maximum(values, 1e-12 * values.max()))


def energy_scores(logits: Any) -> np.ndarray:
    """Minus the log of the sum of exponentials of logits `(images, classes)`, float64 `(images,)`.

    Liu et al. 2020, "Energy-based Out-of-distribution Detection".
    """
    return -logsumexp(np.asarray(logits, np.float64), axis=1)


def _feature_rows(values: Any, what: str) -> np.ndarray:
    rows = np.asarray(values, np.float64)
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"{what} {rows.shape} are not (images, dimension) of at least two images.")
    if not np.isfinite(rows).all():
        raise ValueError(f"{what} are not finite: the model's weights are damaged.")
    return rows
