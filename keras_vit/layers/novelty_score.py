"""How far features are from those of training images: above 1, an image is of another kind."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.configured import ConfiguredLayer, Shape

EPSILON = 1e-12  # of the length of features


@keras.saving.register_keras_serializable(package="keras_vit")
class NoveltyScore(ConfiguredLayer):
    """The label-free Mahalanobis distance of features, in parts of a threshold.

    Features `(batch, dimension)` are divided by their length (Mueller and Hein 2025,
    "Mahalanobis++"); the score `(batch,)` is `|(x - mean) @ factor|^2`, where `factor @ factor.T`
    is the inverse of the covariance of all training images together, whatever their classes,
    divided by the threshold. `keras_vit.evaluation.fit_novelty` computes both. The weights are not
    trainable; those of a new layer are 0, and so is its score.

    Args:
        **kwargs: `name`, `dtype` and so on, as Keras takes them; computes in float32 by default.

    Example:

    >>> import keras
    >>> from keras_vit.layers.novelty_score import NoveltyScore
    >>> NoveltyScore()(keras.ops.ones((2, 4))).shape == (2,)
    True
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"dtype": "float32", **kwargs})

    def build(self, shape: Shape) -> None:
        dimension = shape[-1]
        self.mean = self.add_weight((dimension,), "zeros", trainable=False, name="mean")
        self.factor = self.add_weight(
            (dimension, dimension), "zeros", trainable=False, name="factor"
        )
        self.built = True

    def call(self, features: Any) -> Any:
        length = ops.sqrt(ops.sum(ops.square(features), axis=-1, keepdims=True))
        centered = features / ops.maximum(length, EPSILON) - self.mean
        return ops.sum(ops.square(ops.matmul(centered, self.factor)), axis=-1)

    def compute_output_shape(self, shape: Shape) -> Shape:
        return shape[:-1]

    def scores(self, features: Any) -> np.ndarray:
        """`call` in NumPy, where JAX would compile for each number of images; float64 `(images,)`.

        Args:
            features: `(images, dimension)`.
        """
        mean, factor = (
            ops.convert_to_numpy(w).astype(np.float64) for w in (self.mean, self.factor)
        )
        return np.square((unit_rows(features) - mean) @ factor).sum(axis=1)


def unit_rows(features: Any) -> np.ndarray:
    """Rows `(images, dimension)` divided by their lengths, float64."""
    rows = np.asarray(features, np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), EPSILON)
