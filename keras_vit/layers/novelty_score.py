"""How far features are from those of training images: above 1, an image is of another kind."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import check_non_negative
from keras_vit.layers.configured import ConfiguredLayer, Shape

EPSILON = 1e-12  # of the length of features
LARGEST = 50.0  # logarithm of an energy, whose exponential float32 has


@keras.saving.register_keras_serializable(package="keras_vit")
class NoveltyScore(ConfiguredLayer):
    """How far features are from training features, in parts of a threshold: the larger of two.

    The label-free Mahalanobis distance finds images of another kind: features `(batch, dimension)`
    are divided by their length (Mueller and Hein 2025, "Mahalanobis++"), and it is
    `|(x - mean) @ factor|^2`, where `factor @ factor.T` is the inverse of the covariance of all
    training images together, whatever their classes, divided by the threshold.

    The energy finds images that are like the training images and of none of the classes (Liu et al.
    2020, "Energy-based Out-of-distribution Detection"): `exp(-sharpness * logsumexp(x @ kernel +
    bias))`, with the head of a classifier, from whose bias the threshold is taken.

    `keras_vit.evaluation.fit_novelty` computes them. The score is `(batch,)`. The weights are not
    trainable; those of a new layer are 0.

    Args:
        classes: Of the classifier; 0 for the distance alone.
    """

    mean: Any
    factor: Any
    kernel: Any
    bias: Any
    sharpness: Any

    def __init__(self, classes: int = 0, **kwargs: Any) -> None:
        super().__init__(**{"dtype": "float32", **kwargs})
        check_non_negative(classes=classes)
        self.classes = int(classes)

    def build(self, shape: Shape) -> None:
        dimension = shape[-1]
        shapes = {"mean": (dimension,), "factor": (dimension, dimension)}
        if self.classes:
            shapes |= {"kernel": (dimension, self.classes), "bias": (self.classes,)}
            shapes |= {"sharpness": ()}
        for name, size in shapes.items():
            setattr(self, name, self.add_weight(size, "zeros", trainable=False, name=name))
        self.built = True

    def call(self, features: Any) -> Any:
        length = ops.sqrt(ops.sum(ops.square(features), axis=-1, keepdims=True))
        centered = features / ops.maximum(length, EPSILON) - self.mean
        distance = ops.sum(ops.square(ops.matmul(centered, self.factor)), axis=-1)
        if not self.classes:
            return distance
        sums = ops.logsumexp(ops.matmul(features, self.kernel) + self.bias, axis=-1)
        return ops.maximum(distance, ops.exp(ops.minimum(-self.sharpness * sums, LARGEST)))

    def compute_output_shape(self, shape: Shape) -> Shape:
        return shape[:-1]

    def scores(self, features: Any) -> np.ndarray:
        """`call` in NumPy, where JAX would compile for each number of images; float64 `(images,)`.

        Args:
            features: `(images, dimension)`.
        """
        arrays = [ops.convert_to_numpy(w).astype(np.float64) for w in self.weights]
        mean, factor, *head = arrays
        distance = np.square((unit_rows(features) - mean) @ factor).sum(axis=1)
        if not head:
            return distance
        kernel, bias, sharpness = head
        logits = np.asarray(features, np.float64) @ kernel + bias
        largest = logits.max(axis=1)
        sums = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
        return np.maximum(distance, np.exp(np.minimum(-sharpness * sums, LARGEST)))


def unit_rows(features: Any) -> np.ndarray:
    """Return rows `(images, dimension)` divided by their lengths, float64."""
    rows = np.asarray(features, np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), EPSILON)
