"""Averages of weights: with those that training started from, and across runs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from keras_vit._base.errors import check_finite, listed, printable, warn_at_caller
from keras_vit.data.seen_images import SeenImages
from keras_vit.models.head import DENSE_HEADS
from keras_vit.models.normalization import own_statistics
from keras_vit.tasks import Multilabel, Regression, Task
from keras_vit.tasks.task_words import in_words, scale_of

Arrays = list[np.ndarray]
UNRELATED = 0.1  # cosine: of random weights it is near 0, of fine-tunings of one model near 1


def average_weights(models: Sequence[Any], shares: Sequence[float] | None = None) -> Any:
    """Average the weights of several models into one, a "soup" (Wortsman et al. 2022).

    The models must descend from one set of weights, such as fine-tunings of one pretrained model
    with several seeds. The mean is one model of the same size and speed, often more accurate than
    each. With the shares `(1 - alpha, alpha)` of the pretrained and the fine-tuned model, it is
    WiSE-FT ("Robust fine-tuning of zero-shot models", Wortsman et al. 2022, equation 1).

    Args:
        models: Models of this package of one architecture; they stay as they are.
        shares: How much each counts; None for all alike. Their sum must be 1.

    Returns:
        A copy of the first one, not compiled, with the mean of the weights, and without what was
        calibrated for one of them: see `uncalibrated`.

    Raises:
        ValueError: There is no model, they answer something else or in other units, their weights
            have different names or shapes, or the shares do not sum to 1.

    Example:

    >>> import keras_vit, numpy as np
    >>> options = dict(patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
    >>> first, second = (keras_vit.VisionTransformer(**options) for _ in range(2))
    >>> second.get_layer("head").set_weights([np.zeros((16, 1000)), np.ones(1000)])
    >>> soup = keras_vit.training.average_weights([first, second])
    >>> float(soup.get_layer("head").bias[0])
    0.5
    """
    # Sets, intervals and novelty are of the answers of one.
    models = _of_one_task([model.uncalibrated() for model in models])
    _check_alike(models)
    if any(model.eval_transform != models[0].eval_transform for model in models):
        warn_at_caller(
            "The models prepare images in other ways (eval_transform), and the average has the "
            "first one's: what it answers may be less certain."
        )
    if shares is None:
        shares = [1 / len(models)] * len(models)
    check_finite(**{f"shares[{i}]": share for i, share in enumerate(shares)})
    if len(shares) != len(models) or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"shares={tuple(shares)!r} for {len(models)} models: give one number per model, with "
            "the sum 1."
        )
    average = models[0].copy()
    average.set_weights(mean_of([model.get_weights() for model in models], shares))
    average.seen_images = _seen_by(models)
    return average


def model_stock(start: Any, models: Sequence[Any]) -> Any:
    """Return the mean of fine-tuned models, drawn toward the weights they started from.

    How far follows, per tensor, from the angle between the changes (Jang et al. 2024, "Model
    Stock", equation 5): where two runs changed a tensor in unrelated directions, most of the change
    is noise. Two runs are enough, where a soup takes many. A new head starts from zeros, and stays
    as the mean has it, like other tensors that were all zeros.

    Args:
        start: The model that all of them started from, under the same number of classes.
        models: Two or more fine-tuned models.

    Returns:
        A copy of the first one, not compiled nor calibrated, with the average.

    Raises:
        ValueError: There are fewer than two models, or they or their weights differ, as for
            `average_weights`.

    Example:

    >>> import keras_vit
    >>> options = dict(patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
    >>> start, first, second = (keras_vit.VisionTransformer(**options) for _ in range(3))
    >>> stock = keras_vit.training.model_stock(start, [first, second])
    >>> stock.count_params() == start.count_params()
    True
    """
    if len(models) < 2:
        raise ValueError(f"Model Stock needs two or more fine-tuned models, not {len(models)}.")
    start, *models = (model.uncalibrated() for model in (start, *models))
    models = _of_one_task(models)
    _check_alike([start, *models])
    stock = models[0].copy()
    stock.seen_images = _seen_by([start, *models])
    tuned = [model.get_weights() for model in models]
    stock.set_weights(
        [
            _stock(origin, weights)
            for origin, *weights in zip(start.get_weights(), *tuned, strict=True)
        ]
    )
    return stock


def _of_one_task(models: Sequence[Any]) -> list[Any]:
    """Return models whose outputs mean the same: numbers in the scale of the first model.

    Labels are predicted from 0.5 on: thresholds were chosen for the answers of one model.
    """
    if not models or models[0].task is None:
        return [*models]
    first, alike = models[0].task, []
    for number, model in enumerate(models, 1):
        task = model.task or first
        has_names = not (task.names and first.names) or task.names == first.names
        if not has_names or _kind_and_unit(task) != _kind_and_unit(first):
            here, there = (in_words(each) + _kind_and_unit(each)[1] for each in (task, first))
            raise ValueError(
                f"Model {number} answers {here}, and the first one {there}: average fine-tunings "
                "of one model, with the same kind of labels, names and units."
            )
        if isinstance(first, Regression) and scale_of(task) != scale_of(first):
            model = model.copy()
            for layer in (layer for layer in model.layers if layer.name in DENSE_HEADS):
                layer.set_weights(first.head_of(task, *layer.get_weights()))
            model.task = first
        alike.append(model)
    if isinstance(first, Multilabel):
        plain = replace(first, thresholds=(), positives=())
        if any(model.task != plain for model in models):
            warn_at_caller(
                "The average predicts each label from 0.5 on, as thresholds were chosen for the "
                "answers of one model: model.task.calibrated(targets, answers) chooses new ones "
                "on images that none of them was trained on."
            )
        alike[0] = alike[0].copy()
        alike[0].task = plain
    return alike


def _kind_and_unit(task: Task) -> tuple[str, str]:
    units = [unit for unit in (*getattr(task, "units", ()), getattr(task, "unit", "")) if unit]
    return task.kind, f" in {printable(listed(units))}" if units else ""


def _seen_by(models: Sequence[Any]) -> SeenImages | None:
    """Return the images that any of the models was made with; None if none has a record."""
    known = [model.seen_images for model in models if model.seen_images is not None]
    return reduce(or_, known) if known else None


def mean_of(weights: Sequence[Arrays], shares: Sequence[float]) -> Arrays:
    """Return the mean of several models' weights, tensor by tensor, each in its dtype."""
    return [
        sum(
            share * tensor.astype(np.float64) for share, tensor in zip(shares, tensors, strict=True)
        ).astype(tensors[0].dtype)
        for tensors in zip(*weights, strict=True)
    ]


def toward_start(start: Arrays, tuned: Arrays, share: float) -> Arrays:
    """WiSE-FT's average of fine-tuned weights, which count `share`, with those before.

    A new head starts from zeros, and stays as it was trained, like other tensors that were all
    zeros: a share of it would be the same head with less confidence.
    """
    shares = (1 - share, share)
    averages = mean_of([start, tuned], shares)
    return [
        average if before.any() else after
        for before, after, average in zip(start, tuned, averages, strict=True)
    ]


def _stock(origin: np.ndarray, tuned: Sequence[np.ndarray]) -> np.ndarray:
    mean = np.mean([tensor.astype(np.float64) for tensor in tuned], axis=0)
    if not origin.any():
        return mean.astype(origin.dtype)
    changes = np.stack([(tensor - origin).astype(np.float64).ravel() for tensor in tuned])
    lengths = np.linalg.norm(changes, axis=1)
    count, cosines = len(tuned), changes @ changes.T
    pairs = np.outer(lengths, lengths)
    upper = np.triu_indices(count, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.nan_to_num((cosines / pairs)[upper]).mean()
    cosine = max(cosine, 0.0)  # runs that oppose each other: back to the start
    ratio = count * cosine / (1 + (count - 1) * cosine)
    return (ratio * mean + (1 - ratio) * origin).astype(origin.dtype)


def _check_alike(models: Sequence[Any]) -> None:
    if not models:
        raise ValueError("There is no model to average: give one or more.")
    shapes = [
        {variable.path: tuple(variable.shape) for variable in model.weights} for model in models
    ]
    for number, other in enumerate(shapes[1:], 2):
        if other != shapes[0]:
            names = sorted(
                name
                for name in shapes[0].keys() | other.keys()
                if shapes[0].get(name) != other.get(name)
            )
            raise ValueError(
                f"Model {number} differs from the first one in {len(names)} tensors, such as "
                f"{names[0]!r} ({shapes[0].get(names[0])} and {other.get(names[0])}): average "
                "fine-tunings of one model, with the same classes and image size."
            )
    first = models[0].get_weights()
    # Statistics of bands are of the training images, which differ from seed to seed.
    inputs = [(m.eval_transform.bands, own_statistics(m) is not None) for m in models]
    if len({*inputs}) > 1:
        bands = ", ".join(str(of_model) for of_model, _ in inputs)
        raise ValueError(
            f"The models do not take the same channels: bands {bands}, where None is photographs. "
            "Average models of images of one kind."
        )
    for number, other in enumerate(models[1:], 2):
        if (cosine := _likeness(first, other.get_weights())) < UNRELATED:
            warn_at_caller(
                f"Model {number} and the first one do not descend from the same weights (the "
                f"median cosine of their tensors is {cosine:.2f}): their average knows less than "
                "each of them. Average fine-tunings of one model."
            )


def _likeness(first: Arrays, other: Arrays) -> float:
    """Return the median cosine of two models' tensors, but for vectors; 1 without any."""
    pairs = [(a.ravel(), b.ravel()) for a, b in zip(first, other, strict=True) if a.ndim > 1]
    norms = [float(np.linalg.norm(a) * np.linalg.norm(b)) for a, b in pairs]
    cosines = [float(a @ b) / n for (a, b), n in zip(pairs, norms, strict=True) if n]
    return float(np.median(cosines)) if cosines else 1.0
