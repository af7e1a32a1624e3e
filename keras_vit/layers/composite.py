"""The base of layers made of layers: `get_config` records later changes to a sublayer.

Its precision, quantization and frozen state survive saving, loading and cloning.
"""

from typing import Any

import keras
from keras import dtype_policies, ops
from keras.dtype_policies import DTypePolicyMap

from keras_vit.layers._dense import Dense
from keras_vit.layers.configured import ConfiguredLayer
from keras_vit.layers.inside import set_trainable_inside
from keras_vit.ops import track_variables_anew


class CompositeLayer(ConfiguredLayer):
    """A layer made of sublayers.

    Subclasses create every sublayer by `sublayer`, in `__init__` or in `build`. Later changes to
    one are part of `get_config`: `block.mlp.trainable = False`,
    `block.attention.quantize("int8")`, a sublayer's `dtype_policy`. A `DTypePolicyMap` reaches all
    sublayers, under the paths `block/mlp/dense_0` and so on. Under a quantized policy the dense
    sublayers are quantized and the others compute in the policy it was made from.
    """

    def __init__(self, sublayers: dict[str, dict[str, Any]] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # A tuple: Keras would track a dictionary, and names of what it tracks are saved.
        self._sublayer_arguments = tuple((sublayers or {}).items())

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "trainable":
            set_trainable_inside(self, value)
        else:
            super().__setattr__(name, value)

    def sublayer(self, cls: Any, *args: Any, name: str, **kwargs: Any) -> Any:
        """Creates a sublayer with this layer's policy, or with its entry of `sublayers`."""
        changed = dict(dict(self._sublayer_arguments).get(name, {}))
        if config := changed.pop("quantization_config", None):
            changed["quantization_config"] = keras.saving.deserialize_keras_object(config)
        arguments = {"dtype": self._policy_for(cls), "trainable": self.trainable, **changed}
        return cls(*args, name=name, **arguments, **kwargs)

    def cast(self, outputs: Any) -> Any:
        """Casts outputs of sublayers, whose dtype a `DTypePolicyMap` may change, to this layer's.

        TensorFlow does not add two dtypes, and a layer's outputs have the dtype of its policy.
        """
        return ops.cast(outputs, self.compute_dtype)

    def _policy_for(self, cls: Any) -> Any:
        policy = self.dtype_policy
        quantizable = isinstance(cls, type) and issubclass(cls, Dense | CompositeLayer)
        if isinstance(policy, DTypePolicyMap) or policy.quantization_mode is None or quantizable:
            return policy
        return dtype_policies.get(policy.name.split("_from_")[-1])

    def _changed_sublayers(self) -> dict[str, dict[str, Any]]:
        """Return the arguments with which `sublayer` creates each sublayer as it is now."""
        changed = dict(self._sublayer_arguments)  # including those that `build` has yet to create
        for layer in self._flatten_layers(include_self=False, recursive=False):
            arguments: dict[str, Any] = {}
            policy = dtype_policies.serialize(layer.dtype_policy)
            if policy != dtype_policies.serialize(self._policy_for(type(layer))):
                arguments["dtype"] = policy
            if layer.trainable != self.trainable:
                arguments["trainable"] = layer.trainable
            if config := getattr(layer, "quantization_config", None):
                arguments["quantization_config"] = keras.saving.serialize_keras_object(config)
            if isinstance(layer, CompositeLayer) and (sublayers := layer._changed_sublayers()):
                arguments["sublayers"] = sublayers
            changed.pop(layer.name, None)
            if arguments:
                changed[layer.name] = arguments
        return changed

    def quantize(
        self, mode: Any = None, type_check: bool | None = None, config: Any = None
    ) -> None:
        """Quantizes all dense sublayers, as `keras.layers.Dense.quantize` does each.

        Args:
            mode: `"int8"`, `"int4"` or `"float8"`.
            type_check: What `keras.Model.quantize` passes to every layer of a model; leave it out.
            config: A `keras.quantizers.QuantizationConfig`, or None for the mode's default.

        Raises:
            NotImplementedError: There is no dense sublayer, the mode needs calibration data, or
                `type_check` is given.
        """
        if type_check is not None:
            # From 3.16 on, Keras calls layers that are made of layers, too. Their sublayers follow,
            # some of which its `filters` may leave out.
            raise NotImplementedError(
                f"keras.Model.quantize quantizes the dense sublayers of {self.name} one by one. "
                "To quantize this layer alone, leave type_check out."
            )
        if mode in ("gptq", "awq"):
            raise NotImplementedError(
                f"{type(self).__name__} cannot be quantized to mode={mode!r} alone: it is "
                "calibrated on the inputs of a whole model. Call model.quantize with a "
                'configuration, or give one of "int8", "int4", "float8".'
            )
        dense = [layer for layer in self._flatten_layers() if isinstance(layer, Dense)]
        # If all are quantized already, the first of them raises the error.
        dense = [layer for layer in dense if layer.quantization_mode is None] or dense
        if not dense:
            raise NotImplementedError(
                f"{type(self).__name__} does not have a dense sublayer, the only kind that Keras "
                "quantizes. Quantize the layers that have one, or the whole model: model.quantize."
            )
        options = {} if config is None else {"config": config}  # not in Keras before 3.12
        for layer in dense:
            layer.quantize(mode, **options)
        track_variables_anew(self)

    def quantized_call(self, *args: Any, **kwargs: Any) -> Any:
        # Under a quantized policy Keras calls this: here it is the dense sublayers that differ.
        return self.call(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        config, changed = super().get_config(), self._changed_sublayers()
        return {**config, "sublayers": changed} if changed else config
