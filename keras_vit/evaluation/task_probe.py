"""A linear head on frozen features, for any task: by the task's own loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import check_non_negative
from keras_vit.evaluation.probes import STRENGTHS
from keras_vit.ops import gradients
from keras_vit.tasks import Task

HELD_OUT = 0.2  # of the examples, which choose the strength


@dataclass(frozen=True)
class TaskProbe:
    """A linear head on features.

    Attributes:
        strength: The inverse penalty that held-out examples chose, scikit-learn's C.
        kernel: `(dimension, outputs)`, for the features as they are: the standardization is folded
            in.
        bias: `(outputs,)`. `head.set_weights([kernel, bias])` makes the probe a model's head.
    """

    strength: float
    kernel: np.ndarray
    bias: np.ndarray

    def outputs(self, features: Any) -> np.ndarray:
        """Return the head's outputs for features `(n, dimension)`, float32."""
        return (np.asarray(features) @ self.kernel + self.bias).astype(np.float32)


def task_probe(
    task: Task, features: Any, targets: Any, loss: keras.losses.Loss | None = None, seed: int = 0
) -> TaskProbe:
    """Return the linear head whose mean loss on standardized features is least, with an L2 penalty.

    Minimizes `sum(loss) + ||kernel||^2 / (2 strength)` by L-BFGS; the strength is the one of
    `STRENGTHS` with the smallest loss on a fifth of the examples, held out by the task. With a
    classification this is scikit-learn's logistic regression (`linear_probe` is faster then).

    Args:
        task: What the outputs mean.
        features: `(n, dimension)`, as from `keras_vit.evaluation.features`.
        targets: One per row, as `task.check_targets` returns them.
        loss: Of the task's outputs; None for `task.loss()`.
        seed: Which examples are held out.

    Raises:
        ValueError: Shapes do not match, values are not finite, or there are too few examples to
            hold some out.

    Example:

    >>> import numpy as np
    >>> from keras_vit.evaluation.task_probe import task_probe
    >>> from keras_vit.tasks import Regression
    >>> x = np.random.default_rng(0).normal(size=(100, 3))
    >>> task = Regression(("weight",)).fitted(x[:, 0] + 2 * x[:, 1] + 5)
    >>> probe = task_probe(task, x, task.check_targets(x[:, 0] + 2 * x[:, 1] + 5))
    >>> np.abs(task.answers(probe.outputs([[1.0, 1.0, 0.0]])) - 8.0).max() < 0.05
    np.True_
    """
    check_non_negative(seed=seed)
    x, y = np.asarray(features, np.float64), np.asarray(targets)
    if x.ndim != 2 or not x.size or len(x) != len(y):
        raise ValueError(
            f"features {x.shape} and targets {y.shape} do not match. Give (examples, dimension) "
            "and a target per example."
        )
    if not np.isfinite(x).all():
        raise ValueError(
            f"features of example {np.isfinite(x).all(axis=1).argmin()} are not finite. Compute "
            "them in float32."
        )
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale == 0] = 1
    x = (x - mean) / scale
    loss = loss or task.loss()
    held_out = task.split(task.to_targets(y), HELD_OUT, seed)
    unseen = x[held_out], y[held_out]
    start = task.initial_bias(task.to_targets(y))
    zeros = np.zeros((x.shape[1] + 1, task.outputs))
    weights = best = zeros if start is None else np.vstack([zeros[:-1], start])
    losses = []
    for strength in STRENGTHS:  # from the strongest penalty on, each from the last one's weights
        weights = _fit(loss, x[~held_out], y[~held_out], strength, weights)
        losses.append(_objective(loss, *unseen, np.inf)(weights.ravel())[0] / len(unseen[0]))
        best = weights if losses[-1] == min(losses) else best
    strength = STRENGTHS[int(np.argmin(losses))]
    weights = _fit(loss, x, y, strength, best)
    kernel = weights[:-1] / scale[:, None]
    bias = weights[-1] - mean @ kernel
    return TaskProbe(strength, kernel.astype(np.float32), bias.astype(np.float32))


def _fit(
    loss: keras.losses.Loss, x: np.ndarray, y: np.ndarray, strength: float, start: np.ndarray
) -> np.ndarray:
    from scipy.optimize import minimize

    options = {"maxiter": 500, "ftol": 1e-9, "gtol": 1e-6 * len(x)}
    objective = _objective(loss, x, y, strength)
    result = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    return result.x.reshape(start.shape)


def _objective(
    loss: keras.losses.Loss, x: np.ndarray, y: np.ndarray, strength: float
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return a function of flat weights that returns the penalized loss and its gradient."""
    features = ops.convert_to_tensor(np.pad(x, ((0, 0), (0, 1)), constant_values=1), "float32")
    targets = ops.convert_to_tensor(y)

    def mean_loss(inputs: list[Any]) -> tuple[Any, Any]:
        value = loss(targets, ops.matmul(features, inputs[0]))
        return value, value

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(x.shape[1] + 1, -1)
        value, (slope,) = gradients(mean_loss, [weights.astype(np.float32)])
        value, slope = (ops.convert_to_numpy(each).astype(np.float64) for each in (value, slope))
        kernel = np.vstack([weights[:-1], 0 * weights[-1:]])
        penalty = (kernel**2).sum() / (2 * strength)
        return float(value) * len(x) + penalty, (slope * len(x) + kernel / strength).ravel()

    return objective
