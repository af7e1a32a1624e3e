"""VISReg: views of an image are alike, and those of a batch are spread as a normal distribution.

    views of images ──► model, up to pre_logits ──► projector ──► (views, images, 512) ──► loss

The loss (Wu et al. 2026, 2606.02572) needs sort, erfinv and matmul alone: no second network, queue
or moving average, so that besides weights a training step depends on a seed and its number.
"""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import check_above_zero
from keras_vit.data.random_numbers import generator
from keras_vit.models.shared_model import SharedModel
from keras_vit.ops import current_processes

VIEWS = 4  # of an image: the authors' number for thousands of images, all of one size
WEIGHT = 0.6  # of the regularizers beside the invariance: the paper's for small data
SLICES = 1024
_WIDTHS = (512, 2048, 2048, 512)  # of the projector, the last of which the loss sees
_TINY = 1e-12  # a root does not have a gradient at 0, where all images are alike


def unit_slices(size: int, count: int, seed: int | keras.random.SeedGenerator) -> Any:
    """Draw directions of length 1, on which projections are compared with a normal distribution.

    Args:
        size: Of a projection.
        count: How many directions.
        seed: An integer; or a `SeedGenerator`, whose state is a seed and the number of its draws:
            they alone decide, so that a step that is computed again has the same directions.

    Returns:
        float32 `(size, count)`.

    Example:

    >>> import keras
    >>> from keras_vit.training import unit_slices
    >>> slices = unit_slices(8, 3, seed=0)
    >>> tuple(slices.shape), round(float(keras.ops.sum(slices**2)), 4)
    ((8, 3), 3.0)
    """
    normal = keras.random.normal((size, count), dtype="float32", seed=seed)
    return normal / ops.sqrt(ops.sum(ops.square(normal), axis=0))


def visreg_loss(
    projections: Any,
    slices: Any,
    weight: float = WEIGHT,
    num_global: int | None = None,
    epsilon: float = 1e-4,
) -> Any:
    """Return the loss of VISReg: invariance between views, and center, scale and shape of each.

    All views of an image are drawn to the mean of the global ones. In each view, means over the
    images are drawn to 0, standard deviations to 1, and the images, sorted along each slice, to the
    quantiles of a normal distribution.

    Args:
        projections: `(views, images, size)`; computed in float32.
        slices: Directions of length 1, `(size, slices)`, such as `unit_slices` draws.
        weight: Of the three regularizers, in [0, 1]; the invariance has the rest. The paper's 0.6
            is for small data, and 0.9 for ImageNet.
        num_global: How many views, the first ones, are global; None for all.
        epsilon: What is added to the standard deviation that the shape is divided by.

    Returns:
        float32 scalar.

    Raises:
        ValueError: Projections are not `(views, images, size)`, the slices are of another size, or
            a number is out of range.

    Source: Wu et al. 2026, 2606.02572, algorithm 1.

    Example:

    >>> import numpy as np
    >>> from keras_vit.training import unit_slices, visreg_loss
    >>> collapsed = np.ones((4, 16, 8), "float32")
    >>> round(float(visreg_loss(collapsed, unit_slices(8, 64, seed=0))), 2)  # 0.6 * (1 + 1 + 0.72)
    1.63
    """
    z = ops.cast(projections, "float32")
    if len(z.shape) != 3 or len(slices.shape) != 2 or slices.shape[0] != z.shape[2]:
        raise ValueError(
            f"projections {tuple(z.shape)} and slices {tuple(slices.shape)} must be (views, "
            "images, size) and (size, slices): give visreg_loss such arrays."
        )
    if not 0 <= weight <= 1:
        raise ValueError(f"weight={weight!r} must be in [0, 1], such as 0.6.")
    check_above_zero(epsilon=epsilon)
    if num_global is not None and not 1 <= num_global <= z.shape[0]:
        raise ValueError(f"num_global={num_global!r} must be from 1 to the {z.shape[0]} views.")
    invariance = ops.mean(ops.square(z - ops.mean(z[:num_global], axis=0)))
    mean = ops.mean(z, axis=1, keepdims=True)
    std = ops.sqrt(ops.mean(ops.square(z - mean), axis=1, keepdims=True) + _TINY)
    unit = (z - mean) / (ops.stop_gradient(std) + epsilon)
    count = ops.shape(z)[1]
    places = ops.cast(ops.arange(1, count + 1), "float32") / ops.cast(count + 1, "float32")
    quantiles = math.sqrt(2) * ops.erfinv(2 * places - 1)
    sketch = ops.sort(ops.matmul(unit, slices), axis=1) - quantiles[:, None]
    regularizers = (ops.mean(ops.square(term)) for term in (mean, 1 - std, sketch))
    return (1 - weight) * invariance + weight * sum(regularizers)


@keras.saving.register_keras_serializable(package="keras_vit")
class ViewsModel(SharedModel):
    """The model and a projector; each image of a training batch comes as so many views in a row.

    Labels are ignored. In validation an image is its only view, and the regularizers are the loss.
    """

    _rows_are_independent = False  # batch normalization
    training_views = VIEWS

    @classmethod
    def on(cls, model: keras.Model, backbone: keras.Model, views: int, seed: int) -> ViewsModel:
        """Return the network that trains `model`, of which `backbone` has the features.

        Raises:
            ValueError: There are fewer than two views, or several processes.
        """
        if views < 2:
            raise ValueError(f"views={views!r} must be 2 or more: views of an image are compared.")
        if current_processes():
            raise ValueError(
                'method="visreg" normalizes over a batch, of which each of several processes has a '
                'part: run one process, or give method="diet".'
            )
        outputs = _projector(seed)(backbone.output)
        network = cls.of(model, backbone.input, outputs, f"{model.name}_views")
        network.training_views = views
        # Where a backend adds the seed and the number of the draw, seeds 0 and 1 must be far apart.
        start = int(generator(seed, "slices", 0).integers(2**30))
        network.slice_seed = keras.random.SeedGenerator(start)
        return network

    def compile(
        self, optimizer: Any, loss: Any = None, metrics: Any = None, **options: Any
    ) -> None:
        """Compile without the loss and the metrics, which are of labels."""
        super().compile(optimizer, **options)

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return `visreg_loss`; only in training the slices are new ones."""
        size = y_pred.shape[-1]
        rows = ops.reshape(y_pred, (-1, self.training_views if training else 1, size))
        slices = unit_slices(size, SLICES, self.slice_seed if training else 0)
        return visreg_loss(ops.transpose(rows, (1, 0, 2)), slices)


def _projector(seed: int) -> keras.Sequential:
    """Return the projector, linear layers with batch normalization, as torch would begin them."""
    seeds = generator(seed, "projector", 0).integers(2**30, size=len(_WIDTHS)).tolist()
    layers: list[keras.layers.Layer] = []
    for i, width in enumerate(_WIDTHS):
        initial = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", seed=seeds[i])
        layers.append(keras.layers.Dense(width, kernel_initializer=initial, dtype="float32"))
        if 0 < i < len(_WIDTHS) - 1:
            layers.append(keras.layers.BatchNormalization(-1, 0.9, 1e-5, dtype="float32"))
            layers.append(keras.layers.ReLU(dtype="float32"))
    return keras.Sequential(layers, name="head")
