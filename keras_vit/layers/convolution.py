"""Convolution with weight standardization (Qiao et al. 2019), which goes with group norm."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class StandardizedConv2D(keras.layers.Conv2D):
    """A convolution whose kernel has mean 0 and standard deviation 1 in every output channel.

    Takes `(batch, height, width, channels)`, returns `(batch, new_height, new_width, filters)`. It
    does not have a bias: a norm follows. The two epsilons are those of the released code bases: the
    kernel is divided by `sqrt(variance + variance_epsilon) + deviation_epsilon`.

    Args:
        filters: Channels of the output.
        kernel_size: Height and width of the kernel.
        strides: Step of the kernel.
        padding: `"valid"`, or `"same"` with TensorFlow's rule: an odd row or column is added at the
            end.
        variance_epsilon: 1e-10 in big_vision's BiT of the paper, else 0.
        deviation_epsilon: 1e-5 in vision_transformer's hybrids and big_vision's `bit`, else 0.
        **kwargs: As for `keras.layers.Conv2D`.

    Example:

    >>> import keras, keras_vit
    >>> convolution = keras_vit.layers.StandardizedConv2D(8, 3, strides=2)
    >>> tuple(convolution(keras.ops.ones((2, 32, 24, 3))).shape[1:])
    (16, 12, 8)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        strides: int | tuple[int, int] = 1,
        padding: str = "same",
        variance_epsilon: float = 0.0,
        deviation_epsilon: float = 1e-5,
        **kwargs: Any,
    ) -> None:
        defaults = {
            "use_bias": False,
            "kernel_initializer": "lecun_normal",
            "data_format": "channels_last",
        }
        super().__init__(filters, kernel_size, strides, padding, **{**defaults, **kwargs})
        self.variance_epsilon = variance_epsilon
        self.deviation_epsilon = deviation_epsilon

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        # Mean and standard deviation of thousands of values need float32 under every policy.
        kernel = ops.cast(kernel, "float32")
        kernel = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
        variance = ops.mean(ops.square(kernel), axis=(0, 1, 2), keepdims=True)
        kernel = kernel / (ops.sqrt(variance + self.variance_epsilon) + self.deviation_epsilon)
        return super().convolution_op(inputs, ops.cast(kernel, inputs.dtype))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "variance_epsilon": self.variance_epsilon,
            "deviation_epsilon": self.deviation_epsilon,
        }
