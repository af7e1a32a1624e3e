"""Sharpness-aware minimization: the gradient at the worst weights nearby updates the weights.

    gradient g at w ──► w' = w + rho g / |g| ──► gradient g' at w' ──► the optimizer steps from w

SAM (Foret et al. 2021) steps along g'. GSAM (Zhuang et al. 2022) subtracts alpha times the part of
g that is orthogonal to g', which reduces the gap between both losses, and lets rho fall with the
learning rate.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.trainer.two_pass_step import two_pass_step

Rho = float | Callable[[Any], Any]
Gradients = list[Any]


def sharpness_aware(model: keras.Model, rho: Rho | None = 0.05, alpha: float = 0.0) -> None:
    """Makes `fit` of any model, under any optimizer, take sharpness-aware steps.

    The training step computes two gradients instead of one; type, methods and file of the model
    stay the same. Loss and metrics that `fit` reports are those of the unperturbed weights. Works
    before and after `compile`, compiled or not, with mixed precision, and with gradient
    accumulation, where every batch is perturbed along its own gradient, as on every device in the
    papers. The switch is not saved: set it again after loading a model. In the scope of a
    `tf.distribute` strategy with several replicas, `fit` raises a ValueError.

    Args:
        model: Any Keras model.
        rho: Size of the neighborhood; see `SAM_RHO` in `recipes` for the paper's. Or a function
            of the optimizer's iterations, such as `gsam_rho` returns. None: plain steps again.
        alpha: GSAM's alpha; 0 for SAM.

    Raises:
        ValueError: A number is out of range.

    Source: big_vision's `gsam.py`, which with one rho and alpha 0 is SAM.

    Example:

    >>> import keras_vit, numpy as np
    >>> from keras_vit.training.sam import sharpness_aware
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, num_classes=2,
    ...     input_shape=(16, 16, 3))
    >>> sharpness_aware(model, rho=0.05)
    >>> model.compile("sgd", "mse")
    >>> history = model.fit(np.ones((4, 16, 16, 3)), np.ones((4, 2)), verbose=0)
    """
    if rho is None:
        model.__dict__.pop("train_step", None)
        model.train_function = None
        return
    if not callable(rho) and not 0 < rho < math.inf:
        raise ValueError(f"rho={rho!r} must be above 0, for instance 0.05; None switches SAM off.")
    if not 0 <= alpha < math.inf:
        raise ValueError(f"alpha={alpha!r} must be 0 or more, for instance 0.6; 0 is SAM.")

    def perturbed(weights: list[Any], gradients: Gradients, iterations: Any) -> list[Any]:
        return _perturbed(weights, gradients, rho(iterations) if callable(rho) else rho)

    def combined(clean: Gradients, robust: Gradients) -> Gradients:
        return _without_gap(clean, robust, alpha) if alpha else robust

    model.train_step = two_pass_step(model, perturbed, combined)
    model.train_function = None  # discards a step that is compiled already


def gsam_rho(
    learning_rate: Callable[[Any], Any],
    rho_max: float,
    rho_min: float,
    rate_max: float,
    rate_min: float = 0.0,
) -> Callable[[Any], Any]:
    """GSAM's rho: from `rho_max` to `rho_min` as the learning rate goes from its peak to its end.

    As in big_vision's trainer, the schedule is read one step ahead of the optimizer.

    Args:
        learning_rate: The optimizer's schedule.
        rho_max: Rho at the peak of the schedule, where the learning rate is `rate_max`.
        rho_min: Rho at its end, where the learning rate is `rate_min`.

    Raises:
        ValueError: The rates are not in order.

    >>> from keras_vit.training.schedules import make_schedule
    >>> rho = gsam_rho(make_schedule("linear", 0.01, total_steps=100), 0.6, 0.1, 0.01)
    >>> round(float(rho(0)), 3), round(float(rho(99)), 3)
    (0.595, 0.1)
    """
    if not rate_min < rate_max:
        raise ValueError(f"rate_max={rate_max!r} must be above rate_min={rate_min!r}.")

    def rho(iterations: Any) -> Any:
        fraction = (learning_rate(iterations + 1) - rate_min) / (rate_max - rate_min)
        return rho_min + (rho_max - rho_min) * fraction

    return rho


def _norm(gradients: Gradients) -> Any:
    squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients if g is not None]
    return ops.sqrt(sum(squares))


def _perturbed(weights: list[Any], gradients: Gradients, rho: Any) -> list[Any]:
    # A gradient of zero perturbs nothing. A loss scale (float16) cancels out.
    scale = rho / (_norm(gradients) + 1e-12)
    return [
        weight if gradient is None else weight + ops.cast(scale * gradient, weight.dtype)
        for weight, gradient in zip(weights, gradients, strict=True)
    ]


def _without_gap(clean: Gradients, robust: Gradients, alpha: float) -> Gradients:
    """robust - alpha * (the part of clean that is orthogonal to robust): GSAM, algorithm 1."""
    pairs = [(c, r) for c, r in zip(clean, robust, strict=True) if r is not None]
    projection = sum(ops.sum(c * r) for c, r in pairs) / (_norm(robust) ** 2 + 1e-24)
    return [
        None if r is None else r - alpha * (c - projection * r)
        for c, r in zip(clean, robust, strict=True)
    ]
