"""Models on the layers of another model: its features, or the mean of several views."""

from typing import Any, Self

import keras

from keras_vit.layers import StandardizedConv2D
from keras_vit.models.layer_state import policy_config
from keras_vit.trainer.compiled_model import CompiledModel


@keras.saving.register_keras_serializable(package="keras_vit")
class SharedModel(CompiledModel):
    """A functional model whose layers are those of another one, under the policy of that one.

    Unlike a plain `keras.Model`, it takes turns with the other model in threads, and leaves the
    weights on their layers after an error.
    """

    @classmethod
    def of(cls, model: keras.Model, inputs: Any, outputs: Any, name: str) -> Self:
        """Return the model from `inputs` to `outputs`, which are computed by layers of `model`."""
        shared = cls(inputs, outputs, name=name)
        shared._dtype_policy = model.dtype_policy
        spec = getattr(model, "spec", None)
        if spec is not None and getattr(inputs, "name", "") == model.inputs[0].name:
            shared._spec = spec.of_images(name)
        return shared

    @property
    def _convolves(self) -> bool:
        return any(isinstance(layer, StandardizedConv2D) for layer in self._flatten_layers())

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dtype": policy_config(self.dtype_policy)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        config = dict(config)
        policy = keras.dtype_policies.get(config.pop("dtype"))
        model = super().from_config(config, custom_objects)
        model._dtype_policy = policy
        return model
