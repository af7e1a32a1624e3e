"""What every model of the package shares: pixels in, logits out, features between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_vit.errors import known_arguments, nearest, one_of
from keras_vit.layers import TokensToGrid, UnmergeTokens
from keras_vit.models.compiled import CompiledModel

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

Arguments = dict[str, Any]


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
        known_arguments(cls, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def _assemble(self, arguments: Arguments, images: Any, features: dict[str, Any]) -> None:
        """Builds the functional model from `images` to the last of `features`."""
        super().__init__(images, list(features.values())[-1], name=arguments["name"])
        self._arguments = {**arguments, "name": self.name}
        self._features = features
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

    def __getattr__(self, name: str) -> Any:
        # Reads like an attribute, lives in one place: model.hidden_dim, model.num_classes, ...
        arguments = self.__dict__.get("_arguments", {})
        if name in arguments:
            return arguments[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get_config(self) -> Arguments:
        # Weights are in the saved file itself: a reloaded model must not look for the first one.
        return {
            **self._arguments,
            "weights": None,
            "dtype": _policy_config(self._policy),
            "frozen": [layer.name for layer in self.layers if not layer.trainable],
            "class_names": self.class_names,
            "evaluation": dict(self.evaluation),
        }

    @classmethod
    def from_config(cls, config: Arguments, custom_objects: Any = None) -> Self:
        config = dict(config)
        frozen = config.pop("frozen", ())
        class_names = config.pop("class_names", None)
        evaluation = config.pop("evaluation", {})
        for key in ("input_shape", "patch_size", "position_grid", "resnet", "depths"):
            if isinstance(config.get(key), list):
                config[key] = tuple(config[key])
        if isinstance(config.get("dtype"), dict):
            config["dtype"] = keras.dtype_policies.deserialize(config["dtype"])
        model = cls(**config)
        for name in frozen:
            model.get_layer(name).trainable = False
        model.class_names = None if class_names is None else tuple(class_names)
        model.evaluation = dict(evaluation)
        return model

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
        """
        if format not in ("tokens", "grid"):
            raise ValueError(f'format={format!r} is not known. Give "tokens" or "grid".')
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        for name in names:
            if name not in self._features:
                raise ValueError(f"No feature {name!r}. {nearest(name, self._features)}")
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

    def with_classifier(self, num_classes: int, **overrides: Any) -> Self:
        """A copy with the same backbone under a new, zero-initialised head.

        Args:
            num_classes: Classes of the new head; 0 for features.
            **overrides: Other arguments that leave the backbone's weights as they are, such as
                `dropout`.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
        >>> model.with_classifier(5).output_shape
        (None, 5)
        """
        changes = {**overrides, "num_classes": num_classes, "class_names": None}
        return self._copy_with(changes, fresh=("head",))

    def copy(self, **overrides: Any) -> Self:
        """The same model and weights, not compiled: without the optimizer, a third of the file.

        Args:
            **overrides: Arguments that leave the weights as they are: `dropout`, or another `dtype`
                policy, such as `"mixed_bfloat16"` for predictions on processors and GPUs that
                multiply in bfloat16.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
        >>> model.copy(dtype="mixed_bfloat16").get_layer("block_0").compute_dtype
        'bfloat16'
        """
        return self._copy_with(overrides)

    def _copy_with(self, changes: Arguments, fresh: Sequence[str] = ()) -> Self:
        """A model with other arguments, and the weights of this one except the `fresh` layers'."""
        copy = type(self).from_config({**self.get_config(), **changes})
        for layer in copy.layers:
            if layer.weights and layer.name not in fresh:
                self._copy_layer(self.get_layer(layer.name), layer)
        return copy

    def _copy_layer(self, own: keras.layers.Layer, new: keras.layers.Layer) -> None:
        new.set_weights(own.get_weights())


# Mean and deviation of pixels 0..1, by name; True is the released code's [-1, 1].
NORMALISATIONS: dict[bool | str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    True: ((0.5,), (0.5,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def normalise(images: Any, include_preprocessing: bool | str, data_format: str) -> Any:
    """Pixels 0..255 as the weights know them, in float32 under every policy."""
    if include_preprocessing is False:
        return images
    one_of(include_preprocessing, "include_preprocessing", [False, *NORMALISATIONS])
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


def _policy_config(policy: keras.DTypePolicy) -> Any:
    # A name where a name says all: Keras's serializer imports TensorFlow wherever it can.
    plain = type(policy) is keras.DTypePolicy
    return policy.name if plain else keras.dtype_policies.serialize(policy)


def classify(features: Any, num_classes: int, activation: str | None) -> Any:
    """The zero-initialised head, in float32 under every policy: bfloat16 logits lose ties."""
    if num_classes == 0:
        return keras.layers.Activation("linear", dtype="float32", name="features")(features)
    return keras.layers.Dense(
        num_classes,
        activation=activation,
        kernel_initializer="zeros",
        dtype="float32",
        name="head",
    )(features)


def image_size(
    input_shape: tuple[int | None, ...], data_format: str
) -> tuple[int | None, int | None]:
    """Height and width of an `input_shape`, or a ValueError when it is none."""
    last = data_format == "channels_last"
    if len(input_shape) != 3 or input_shape[2 if last else 0] is None:
        layout = "(height, width, channels)" if last else "(channels, height, width)"
        raise ValueError(
            f"input_shape={input_shape!r} is not {layout} without the batch. Give for example "
            f"{(224, 224, 3) if last else (3, 224, 224)}; height and width may be None."
        )
    return (input_shape[0], input_shape[1]) if last else (input_shape[1], input_shape[2])
