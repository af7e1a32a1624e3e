"""Stochastic depth: whole residual branches are dropped at random."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.configured import Shape
from keras_vit.ops import random_rows


@keras.saving.register_keras_serializable(package="keras_vit")
class StochasticDepth(keras.layers.Dropout):
    """Drops the whole residual branch of an example with probability `rate`, in training only.

    Takes and returns `(batch, ...)`. Source: Huang et al. 2016, "Deep Networks with Stochastic
    Depth", per example as in AugReg.

    Args:
        rate: Probability that an example loses the branch.
        seed: Seed of the random numbers, or None.
        rescale: Whether the other branches are scaled by `1 / (1 - rate)`, so that the mean is the
            same.

    Example:

    >>> import keras, keras_vit
    >>> branch = keras.ops.ones((2, 5, 8))
    >>> bool(keras.ops.all(keras_vit.layers.StochasticDepth(0.5)(branch) == branch))
    True
    """

    def __init__(
        self, rate: float, seed: int | None = None, rescale: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(rate, seed=seed, **kwargs)
        self.rescale = rescale

    def build(self, input_shape: Shape) -> None:
        # One draw per example: Dropout shares a draw along the axes of size one.
        self.noise_shape = (None,) + (1,) * (len(input_shape) - 1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or not 0 < self.rate < 1:
            return super().call(inputs, training=training)

        def draw(rows: Any) -> Any:
            ones = ops.ones((rows, *self.noise_shape[1:]), inputs.dtype)
            return super(StochasticDepth, self).call(ones, training=True)

        is_kept = random_rows(draw, ops.shape(inputs)[0]) > 0
        outputs = ops.where(is_kept, inputs, ops.zeros((), inputs.dtype))
        return outputs / (1 - self.rate) if self.rescale else outputs

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "rescale": self.rescale}
        config.pop("noise_shape")  # follows from the input
        return config
