"""What every model of the package shares: pixels in, logits out, features between."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import keras
import numpy as np

from keras_vit.errors import check_arguments, check_choice, did_you_mean
from keras_vit.layers import TokensToGrid, UnmergeTokens
from keras_vit.models.compiled import CompiledModel
from keras_vit.models.layer_state import (
    Policy,
    copy_weights,
    layers_beside,
    map_names,
    policy_map,
    set_trainable,
    settle_policies,
    trainable_changes,
)

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

Arguments = dict[str, Any]
DATA_FORMATS = ("channels_last", "channels_first")
# Of images that may have any size, where one is needed.
ANY_SIZE = 224


class ImageModel(CompiledModel):
    """Base class of the models: a functional `keras.Model` that is described by its arguments.

    A subclass calls `_assemble` with the constructor's arguments, the input, and every
    intermediate by name.

    Attributes:
        class_names: The name of each class, or None. Saved with the model.
        evaluation: How photographs are brought to the model's size, as keyword arguments of
            `keras_vit.data.evaluation_image`; empty for its defaults. Saved with the model, so
            that `keras-vit predict` and `export_model` cannot use another way by mistake.
        load_report: What became of every tensor of `weights`, or None.
    """

    class_names: tuple[str, ...] | None
    evaluation: dict[str, Any]
    load_report: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        check_arguments(cls, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def _assemble(self, arguments: Arguments, images: Any, features: dict[str, Any]) -> None:
        """Builds the functional model from `images` to the last of `features`."""
        super().__init__(images, list(features.values())[-1], name=arguments["name"])
        self._arguments = {**arguments, "name": self.name}
        self._features = features
        settle_policies(self)
        self.class_names = None
        self.evaluation = {}
        self.load_report = None
        if arguments["weights"] is not None:
            # The one arrow back: the readers know the models, and are asked for only here.
            from keras_vit.checkpoints import load_weights

            self.load_report = load_weights(self, arguments["weights"])

    @property
    def _convolves(self) -> bool:
        return "stem" in self._features

    def get_config(self) -> Arguments:
        # Weights are in the saved file itself: a reloaded model must not look for the first one.
        config = {
            **self._arguments,
            "weights": None,
            "dtype": self._policy_config(),
            "class_names": self.class_names,
            "evaluation": dict(self.evaluation),
            "frozen": [path for path, trainable in trainable_changes(self) if not trainable],
        }
        optional = {
            "thawed": [path for path, trainable in trainable_changes(self) if trainable],
            "trainable": None if self.trainable else False,
            "quantizers": self._quantizers_config(),
        }
        return {**config, **{key: value for key, value in optional.items() if value not in EMPTY}}

    def _policy_config(self, new_head: bool = False) -> Any:
        """The dtype policy; with quantized layers, a map from their paths to theirs."""
        quantized = {
            layer.path: layer.dtype_policy
            for layer in self._flatten_layers(include_self=False)
            if layer.quantization_mode is not None
        }
        if new_head and "head" in quantized:
            quantized["head"] = keras.DTypePolicy("float32")
        policy = self._policy
        if quantized or isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            policy = policy_map(policy, quantized)
        # A name where a name says all: Keras's serializer imports TensorFlow wherever it can.
        plain = type(policy) is keras.DTypePolicy
        return policy.name if plain else keras.dtype_policies.serialize(policy)

    def _quantizers_config(self) -> Arguments:
        """The `quantize(config=...)` of layers by path, where it is not the mode's default."""
        configs = {}
        for layer in self._flatten_layers():
            config = getattr(layer, "quantization_config", None)
            if layer.quantization_mode not in ("int8", "int4") or config is None:
                continue
            serialized = keras.saving.serialize_keras_object(config)
            if serialized != keras.saving.serialize_keras_object(type(config)()):
                configs[layer.path] = serialized
        return configs

    @classmethod
    def from_config(cls, config: Arguments, custom_objects: Any = None) -> Self:
        config = dict(config)
        state = {key: config.pop(key) for key in STATE if key in config}
        for key in ("input_shape", "patch_size", "position_grid", "resnet", "depths"):
            if isinstance(config.get(key), list):
                config[key] = tuple(config[key])
        if isinstance(config.get("dtype"), dict):
            config["dtype"] = keras.dtype_policies.deserialize(config["dtype"])
        model = cls(**config)
        model.trainable = state.get("trainable", True)
        set_trainable(model, state.get("frozen", ()), state.get("thawed", ()))
        quantizers = state.get("quantizers", {})
        for layer in model._flatten_layers():
            if layer.path in quantizers:
                quantizer = keras.saving.deserialize_keras_object(quantizers[layer.path])
                layer.quantization_config = quantizer
                layer.inputs_quantizer = quantizer.activation_quantizer
        class_names = state.get("class_names")
        model.class_names = None if class_names is None else tuple(class_names)
        model.evaluation = dict(state.get("evaluation", {}))
        return model

    def quantize(self, mode: str | None = None, *args: Any, **options: Any) -> None:
        """As `keras.Model.quantize`: "int8", "int4" and "float8" for all dense layers.

        Saved files, `copy` and `with_classifier` keep what is quantized; the new head of
        `with_classifier` is not, so that it can be trained.

        Raises:
            ValueError: The mode is "gptq" or "awq". Keras calibrates both on windows of token
                ids, which images do not have.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
        >>> model.quantize("int8")
        >>> model.copy().get_layer("head").quantization_mode
        'int8'
        """
        config = options.get("config", args[0] if args else None)
        calibrated = mode or getattr(config, "mode", None)
        if calibrated in ("gptq", "awq") and not getattr(
            config, "quantization_layer_structure", None
        ):
            raise ValueError(
                f"quantize({calibrated!r}) calibrates on text in Keras: it cuts its data set into "
                "windows of token ids, which images do not have. "
                'Give "int8", "int4" or "float8".'
            )
        super().quantize(mode, *args, **options)

    def export(self, *args: Any, **options: Any) -> Any:
        """As `keras.Model.export`, for models that were only loaded, too."""
        # Keras refuses to export to ONNX what was never called.
        shape = [ANY_SIZE if side is None else side for side in self._arguments["input_shape"]]
        self(np.zeros((1, *shape), "float32"))
        return super().export(*args, **options)

    @property
    def image_size(self) -> tuple[int | None, int | None]:
        """Height and width of the images in pixels, whatever the data format; None: any.

        >>> import keras_vit
        >>> model = keras_vit.BiTResNet(
        ...     depths=(1,), width=32, input_shape=(3, 24, None), data_format="channels_first")
        >>> model.image_size, model.channels
        ((24, None), 3)
        """
        return image_size(self._arguments["input_shape"], self._arguments["data_format"])

    @property
    def channels(self) -> int:
        """Channels of the images, whatever the data format."""
        last = self._arguments["data_format"] == "channels_last"
        return self._arguments["input_shape"][-1 if last else 0]

    @property
    def _policy(self) -> keras.DTypePolicy:
        return keras.dtype_policies.get(self._arguments["dtype"])

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the intermediates that `feature_model` gives, in the order of the data."""
        return tuple(self._features)

    def feature_model(self, outputs: str | Sequence[str], format: str = "tokens") -> keras.Model:
        """A model from the same images to intermediates; it shares the weights.

        Args:
            outputs: One of `feature_names`, or several.
            format: `"tokens"`: sequences as they are, `(batch, tokens, hidden_dim)`; `"grid"`:
                without class token and registers, laid on the grid of patches, as backbones of
                detectors and segmenters want them: `(batch, grid_h, grid_w, hidden_dim)`. Maps
                of a ResNet lie on a grid either way.

        Returns:
            A `keras.Model` that gives one array for one name, and a dictionary for several.

        Raises:
            ValueError: A name or the format is unknown.

        Example:

        >>> import keras_vit, numpy as np
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=2, num_heads=2, input_shape=(32, 32, 3))
        >>> features = model.feature_model(["block_0", "pre_logits"], format="grid")
        >>> tuple(features(np.ones((1, 32, 32, 3)))["block_0"].shape)
        (1, 4, 4, 16)

        A grid of one feature is a backbone for KerasHub's tasks, which pool over it: pass
        `backbone=model.feature_model("encoder_norm", format="grid")` to
        `keras_hub.models.ImageClassifier`; of a `BiTResNet`, the feature is `"pre_logits_2d"`.

        >>> model.feature_model("encoder_norm", format="grid").output_shape
        (None, 4, 4, 16)
        """
        if format not in ("tokens", "grid"):
            raise ValueError(f'format={format!r} is not known. Give "tokens" or "grid".')
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        for name in names:
            if name not in self._features:
                raise ValueError(f"No feature {name!r}. {did_you_mean(name, self._features)}")
        found = {name: self._features[name] for name in names}
        if format == "grid":
            found = {name: self._on_grid(name, feature) for name, feature in found.items()}
        return keras.Model(
            self.inputs[0],
            found[outputs] if isinstance(outputs, str) else found,
            name=f"{self.name}_features",
        )

    def _on_grid(self, name: str, feature: Any) -> Any:
        if len(feature.shape) == 4 and name != "images":
            if self._arguments["data_format"] == "channels_last":
                return feature
            return keras.layers.Permute((3, 1, 2), dtype=self._policy, name=f"{name}_grid")(feature)
        if len(feature.shape) != 3 or "patches" not in self._features:
            return feature
        sources = self._feature_sources(name)
        if sources is not None:
            unmerge = UnmergeTokens(dtype=self._policy, name=f"{name}_unmerged")
            feature = unmerge(feature, sources)
        layer = TokensToGrid(
            self.num_prefix_tokens,
            self._arguments["data_format"],
            dtype=self._policy,
            name=f"{name}_grid",
        )
        return layer(feature, self._features["patches"])

    def _feature_sources(self, name: str) -> Any:
        """Where the tokens of the input are in the feature `name`; None: all in their places."""
        return None

    def _other_shape(
        self, input_shape: tuple[int | None, int | None, int | None]
    ) -> tuple[int | None, int | None, int | None]:
        """An `input_shape` that the weights fit, or a ValueError."""
        data_format = self._arguments["data_format"]
        shape, _ = image_layout(input_shape, data_format)
        channels = shape[-1 if data_format == "channels_last" else 0]
        if channels != self.channels:
            raise ValueError(
                f"input_shape={input_shape!r} has {channels} channels, and the weights of "
                f"{self.name} are for {self.channels}. Give {self.channels} channels."
            )
        return shape

    def with_classifier(self, num_classes: int, **overrides: Any) -> Self:
        """A copy with the same backbone under a new, zero-initialised head.

        What is frozen stays frozen, but the new head is trained.

        Args:
            num_classes: Classes of the new head; 0 for features.
            **overrides: Other arguments that leave the backbone's weights as they are, such as
                `dropout`.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
        >>> model.trainable = False
        >>> [v.path for v in model.with_classifier(5).trainable_variables]
        ['head/kernel', 'head/bias']
        """
        config = self.get_config()
        changes = {
            "num_classes": num_classes,
            "class_names": None,
            "trainable": True,
            "frozen": [path for path in config["frozen"] if path.split("/")[0] != "head"],
            "dtype": self._policy_config(new_head=True),
        }
        self._check_overrides(overrides)
        return self._copy_with({**changes, **overrides}, fresh=("head",))

    def copy(self, **overrides: Any) -> Self:
        """The same model and weights, not compiled: without the optimizer, a third of the file.

        Args:
            **overrides: Arguments that leave the weights as they are: `dropout`, or another `dtype`
                policy, such as `"mixed_bfloat16"` for predictions on processors and GPUs that
                multiply in bfloat16.

        Raises:
            ValueError: The model is quantized, and `dtype` is given.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
        >>> model.copy(dtype="mixed_bfloat16").get_layer("block_0").compute_dtype
        'bfloat16'
        """
        self._check_overrides(overrides)
        return self._copy_with(overrides)

    def _check_overrides(self, overrides: Arguments) -> None:
        modes = {layer.quantization_mode for layer in self._flatten_layers()} - {None}
        if "dtype" in overrides and modes:
            raise ValueError(
                f"dtype={overrides['dtype']!r} does not fit a model that is quantized to "
                f"{', '.join(map(str, modes))}. Leave dtype out, or copy before you quantize."
            )

    def _copy_with(self, changes: Arguments, fresh: Collection[str] = ()) -> Self:
        """A model with other arguments, and the weights of this one except the `fresh` layers'."""
        copy = type(self).from_config({**self.get_config(), **changes})
        new = {layer.name: layer for layer in copy.layers if layer.name not in fresh}
        pairs = [(self.get_layer(name), layer) for name, layer in new.items() if layer.weights]
        # Those that a subclass has beside the graph, whose names Keras may have counted up.
        pairs += zip(layers_beside(self), layers_beside(copy), strict=False)
        for own, layer in pairs:
            copy_weights(own, layer)
        return copy


Model = TypeVar("Model", bound=ImageModel)
# What `get_config` has beside the constructor's arguments.
STATE = ("frozen", "thawed", "trainable", "quantizers", "class_names", "evaluation")
EMPTY: tuple[Any, ...] = (None, [], {})
# Parameters of a constructor whose names Keras has taken.
OF_KERAS = ("self", "name", "input_shape")


def expose_arguments(model: type[Model]) -> type[Model]:
    """Makes the arguments of a model's constructor its read-only properties: `model.hidden_dim`."""
    for name in inspect.signature(model.__init__).parameters:
        if name not in OF_KERAS and not hasattr(model, name):
            setattr(model, name, _argument(name))
    return model


def _argument(name: str) -> property:
    return property(lambda self: self._arguments[name], doc=f"The argument `{name}`.")


# Mean and deviation of pixels 0..1, by name; True is the released code's [-1, 1].
NORMALISATIONS: dict[bool | str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    True: ((0.5,), (0.5,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def normalise(images: Any, include_preprocessing: bool | str, data_format: str) -> Any:
    """Pixels 0..255 as the weights know them, in float32 under every policy."""
    if include_preprocessing is False:
        return images
    check_choice(include_preprocessing, "include_preprocessing", [False, *NORMALISATIONS])
    means, deviations = NORMALISATIONS[include_preprocessing]
    channels = images.shape[-1 if data_format == "channels_last" else 1]
    if len(means) not in (1, channels):
        raise ValueError(
            f"include_preprocessing={include_preprocessing!r} is for {len(means)} channels, "
            f"not {channels}. Give True for [-1, 1] with any number of channels."
        )
    per_channel = zip(means, deviations, strict=True)
    scale, offset = np.array([(1 / (255 * std), -mean / std) for mean, std in per_channel]).T
    if data_format == "channels_first":
        # Rescaling would ask Keras's global configuration which axis the channels are.
        scale, offset = scale[:, None, None], offset[:, None, None]
    return keras.layers.Rescaling(scale, offset, dtype="float32", name="normalise")(images)


def classify(features: Any, num_classes: int, activation: str | None, dtype: Policy) -> Any:
    """The zero-initialised head, in float32 under every policy: bfloat16 logits lose ties.

    Only a `DTypePolicyMap` that names the head gives it another one.
    """
    if num_classes == 0:
        return keras.layers.Activation("linear", dtype="float32", name="features")(features)
    return keras.layers.Dense(
        num_classes,
        activation=activation,
        kernel_initializer="zeros",
        dtype=dtype if map_names(dtype, "head") else "float32",
        name="head",
    )(features)


Size = tuple[int | None, int | None]


def image_layout(
    input_shape: Sequence[int | None] | None, data_format: str | None
) -> tuple[tuple[int | None, int | None, int | None], str]:
    """The `input_shape` and the data format of a model, with the defaults of Keras.

    Raises:
        ValueError: The data format is unknown, or the shape is not one of images in it.
    """
    data_format = check_choice(
        data_format or keras.config.image_data_format(), "data_format", DATA_FORMATS
    )
    last = data_format == "channels_last"
    default = (224, 224, 3) if last else (3, 224, 224)
    if input_shape is None:
        return default, data_format
    shape = tuple(input_shape) if isinstance(input_shape, Sequence) else ()
    if (
        len(shape) != 3
        or shape[2 if last else 0] is None
        or not all(side is None or (isinstance(side, int) and side > 0) for side in shape)
    ):
        layout = "(height, width, channels)" if last else "(channels, height, width)"
        raise ValueError(
            f"input_shape={input_shape!r} is not {layout} without the batch, in positive integers. "
            f"Give for example {default}; height and width may be None."
        )
    return shape, data_format


def image_size(input_shape: tuple[int | None, ...], data_format: str) -> Size:
    """Height and width of an `input_shape`."""
    height, width = input_shape[:2] if data_format == "channels_last" else input_shape[1:]
    return height, width
