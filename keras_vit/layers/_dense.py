"""The dense layer of all models: tokens as one matrix, the bias added by the product itself."""

from typing import Any

import keras
from keras import ops
from keras.dtype_policies import DTypePolicyMap

from keras_vit.ops import joins_rows, multiply_add


@keras.saving.register_keras_serializable(package="keras_vit")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense`, faster on tokens.

    Takes `(..., features)` and returns `(..., units)`. In training, all tokens of all images are
    the rows of one matrix: gradients of the weights sum over images and tokens, which XLA's CPU
    compiler on JAX does more slowly over two axes than over one, by a tenth of a training step.
    (Not on TPUs, where joining the axes copies the array.) torch's fused operator for product and
    bias is used there.

    Args:
        units: Width of the outputs; this and all other arguments as in `keras.layers.Dense`.

    Example:

    >>> import keras
    >>> from keras_vit.layers._dense import Dense
    >>> tuple(Dense(8)(keras.ops.ones((2, 17, 32))).shape)
    (2, 17, 8)
    """

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        # In inference the batch remains a separate axis: exported graphs need it dynamic.
        join = training and joins_rows()
        rows = ops.reshape(inputs, (-1, inputs.shape[-1])) if join else inputs
        outputs = multiply_add(rows, self.kernel, self.bias)
        if self.activation is not None:
            outputs = self.activation(outputs)
        return ops.reshape(outputs, (*ops.shape(inputs)[:-1], self.units)) if join else outputs

    def enable_lora(self, rank: int, lora_alpha: Any = None, **options: Any) -> None:
        # Keras's `build` forgets the constructor's alpha.
        super().enable_lora(rank, self.lora_alpha if lora_alpha is None else lora_alpha, **options)

    def quantize(self, mode: Any = None, type_check: bool = True, **options: Any) -> None:
        policy: Any = self.dtype_policy
        if isinstance(policy, DTypePolicyMap):
            # Keras cannot derive a quantized policy from a map: use this layer's entry.
            self._dtype_policy: Any = policy[self.path]
        # By default Keras does not quantize subclasses: their `call` may differ.
        super().quantize(mode, type_check=False, **options)
