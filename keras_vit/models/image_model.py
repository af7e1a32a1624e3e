"""What every model of the package shares: its arguments, features, copies and saved state."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import Any, Self

import keras
import numpy as np

from keras_vit import tasks
from keras_vit._base.errors import (
    check_arguments,
    check_choice,
    did_you_mean,
    listed,
    warn_at_caller,
    warn_of_data,
)
from keras_vit.data.band_statistics import Statistics
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.data.seen_images import SeenImages
from keras_vit.layers import TokensToGrid, UnmergeTokens
from keras_vit.layers.novelty_score import NoveltyScore
from keras_vit.models.config import ModelConfig
from keras_vit.models.geometry import DEFAULT_SIZE, ImageShape, Size, image_layout
from keras_vit.models.head import HEAD_LAYERS, OUTPUT_LAYERS
from keras_vit.models.layer_state import (
    copy_weights,
    layers_beside,
    policy_config,
    policy_map,
    set_trainable,
    settle_policies,
    trainable_changes,
)
from keras_vit.models.map_heads import head_of_other_outputs
from keras_vit.models.normalization import own_statistics
from keras_vit.models.shared_model import SharedModel
from keras_vit.models.views import mean_of_views
from keras_vit.ops import whole_values
from keras_vit.tasks import TASKS, Task
from keras_vit.tasks.loss_kinds import kind_of_loss
from keras_vit.tasks.query_losses import query_loss
from keras_vit.tasks.target import Seen
from keras_vit.trainer.compiled_model import CompiledModel
from keras_vit.trainer.spec import Spec

Arguments = dict[str, Any]


class ImageModel(CompiledModel):
    """Base class of the models: a functional `keras.Model` that is defined by its configuration.

    A subclass names its `config_class`, and calls `_assemble` with a function from images to every
    intermediate by name. The fields of the configuration are read-only attributes of the model.

    Attributes:
        task: What the outputs mean, a `keras_vit.tasks.Task`; saved with the model. Where nobody
            gave one, what the compiled loss is for, as `BinaryCrossentropy` is for labels; before
            `compile`, classification of several classes. None where it is not known, as under a
            loss of your own: set it, to a task, a kind such as `"multilabel"`, or None for raw
            outputs.
        class_names: The task's names, or None; may be assigned.
        eval_transform: How images are resized for evaluation: a `keras_vit.data.EvalTransform`, to
            which its mode or its arguments as a dictionary may be assigned. Saved with the model,
            so that predictions and exported files resize as the evaluation of the training did.
        novelty: How far features are from those of the training images, a
            `keras_vit.layers.novelty_score.NoveltyScore` of `keras_vit.evaluation.fit_novelty`, or
            None; `set_novelty` gives it one. Saved with the model.
        seen_images: Which images it was made with, a `keras_vit.data.seen_images.SeenImages`, so
            that a score leaves them out; None where nobody noted them. Saved with the model.
        load_report: How each tensor of the weights that it was made with was handled, or None.
    """

    config_class: type[ModelConfig] = ModelConfig
    load_report: Any
    num_classes: int
    classifier_activation: str | None
    include_preprocessing: bool
    normalization: str | Statistics
    data_format: str

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for field in fields(cls.config_class):
            if field.name not in OF_KERAS and not hasattr(cls, field.name):
                setattr(cls, field.name, _argument(field.name))

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if kwargs.get("weights") is not None:
            raise ValueError(
                f"{cls.__name__}(weights={kwargs['weights']!r}) has random weights: build it, then "
                "keras_vit.load_weights(model, file). A named model takes them at once, as "
                "keras_vit.ViTB16(weights=...) does, and keras_vit.load(file) reads the "
                "sizes from the file."
            )
        check_arguments(cls, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def _assemble(self, config: Any, intermediates: Callable[[Any, Any], dict[str, Any]]) -> None:
        """Builds the functional model from its images to the last of the intermediates."""
        images = keras.Input(config.input_shape, name="images")
        features = intermediates(images, config)
        super().__init__(images, features["logits"], name=config.name)
        self._config = config
        self._features = features
        settle_policies(self)
        # After the graph: Keras does not pass a policy on to functional models. What they take is
        # converted to the dtype of `images`, float32, whatever the policy.
        self._dtype_policy = config.dtype
        self._task, self._task_from = config.task, config.task_from
        self._targets_seen: Seen = ()  # in training: see `Task.not_scaled`
        # A crop would leave the border without an answer.
        self.eval_transform = EvalTransform("crop" if config.head == "row" else "stretch")
        self.seen_images: SeenImages | None = None
        self.load_report = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "task":  # TensorFlow would leave out what is there already, such as None
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def spec(self) -> Spec:
        """What data, losses and metrics are compared with."""
        return Spec(
            self.name,
            self.input_shape,
            self.output_shape,
            self.num_classes,
            1 if self.data_format == "channels_first" else 3,
            self.include_preprocessing,
            own_statistics(self),
            self.task,
            self.class_names,
            self.classifier_activation,
        )

    @property
    def task(self) -> Task | None:
        return None if self._task_from == "nothing" else self._task

    @task.setter
    def task(self, task: Task | str | Mapping[str, Any] | None) -> None:
        if task is not None:
            task = self._task_of_kind(task) if isinstance(task, str) else tasks.get(task)
            fits = task.outputs == self.num_classes and task.head == self._config.head
            if not fits or not self._config.is_pooled:
                raise ValueError(
                    f"{task.kind} of {task.size} does not fit {self.name}, which returns "
                    f"{self.output_shape}: give model.with_classifier(task=...) for a new head."
                )
            self._config.check_activation(task)
            if wrong := task.not_scaled(self._targets_seen):
                warn_of_data(f"{self.name} was trained on targets with {wrong}")
        self._task, self._task_from = task, "user"

    def _task_of_kind(self, kind: str) -> Task:
        """Return the task of a kind that fits the head, with the names where there are as many."""
        size = self.num_classes + TASKS[kind].names_without_output
        names = self._task.names if self._task is not None else ()
        if len(set(names)) == size:
            return tasks.get(kind, names=names)
        return tasks.get(kind, size=size)

    def _compile(self, *args: Any, **options: Any) -> Arguments:
        """Compile as `CompiledModel`; where the user gave no task, infer it from the loss."""
        arguments = super()._compile(*args, **options)
        query_loss(self.loss, self.head_kind)
        has_head = self.num_classes and self._config.is_pooled
        if self._task_from != "user" and has_head and self.loss is not None:
            kind = self._trained_kind()
            self._task_from = "nothing" if kind is None else "loss"
            if kind is not None:
                self._task = self._task_of_kind(kind)
        return arguments

    def _trained_kind(self) -> str | None:
        """Return the kind of task that the loss is for, by the head's activation; None for any."""
        activation = keras.activations.get(self.classifier_activation)
        kind = kind_of_loss(self.loss)
        if activation is keras.activations.softmax:
            kind = "classification"
        elif activation is not keras.activations.linear:
            is_sigmoid = activation is keras.activations.sigmoid
            kind = kind if kind == "regression" or (is_sigmoid and kind == "multilabel") else None
        return None if kind == "classification" and self.num_classes == 1 else kind

    @property
    def is_task_unknown(self) -> bool:
        """Whether neither the user nor the loss says what the outputs of the head mean."""
        has_head = bool(self.num_classes) and self._config.is_pooled
        return has_head and self.task is None and self._task_from != "user"

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return (self._task.names or None) if self._task is not None else None

    @class_names.setter
    def class_names(self, names: Sequence[str] | None) -> None:
        if self._task is not None:
            self._task = self._task.with_names(names or ())
        elif names:
            raise ValueError(
                f"{self.name} does not have a task that the names {listed(names)} could be of: "
                "set model.task, such as keras_vit.tasks.Regression(names)."
            )

    @property
    def novelty(self) -> NoveltyScore | None:
        # Not set before there is one: on torch an attribute that was None would hide the layer.
        return getattr(self, "_novelty", None)

    def set_novelty(self, layer: NoveltyScore) -> None:
        """Gives the model the novelty score that `keras_vit.evaluation.fit_novelty` returned.

        Its weights are copied. (A property would not do: Keras and torch keep every layer that is
        assigned to a model, whatever its setter does.)

        Raises:
            ValueError: It is of features of another length, or the model does not pool its tokens.
        """
        shape = self._features["pre_logits"].shape
        fits = len(shape) == 2 and layer.mean.shape == shape[1:]
        if not fits or layer.classes not in (0, self.num_classes):
            raise ValueError(
                f"{self.name} has features of shape {tuple(shape[1:])} per image and "
                f"{self.num_classes} classes, which a novelty of {tuple(layer.mean.shape)} and "
                f"{layer.classes} does not fit: fit it on features of this model."
            )
        if self.novelty is None:
            self._novelty = NoveltyScore(layer.classes, name="novelty")
            self._novelty.build(shape)
        elif self.novelty.classes != layer.classes:
            raise ValueError(
                f"{self.name} has a novelty of {self.novelty.classes} classes, and the new one is "
                f"of {layer.classes}: give the new one to model.uncalibrated()."
            )
        self._novelty.set_weights(layer.get_weights())

    def uncalibrated(self) -> Self:
        """Return a copy without its calibration; the model itself if it was not calibrated.

        That is the prediction sets or intervals of its task, and `novelty`.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
        >>> model.uncalibrated() is model
        True
        """
        if not self.is_calibrated:
            return self
        copy = self._copy_with({"novelty": None})
        if copy._task is not None:
            copy._task = copy._task.uncalibrated()
        if copy.seen_images is not None:
            copy.seen_images = copy.seen_images.uncalibrated()
        return copy

    @property
    def is_calibrated(self) -> bool:
        """Whether the task has prediction sets or intervals, or the model has `novelty`."""
        promises = self._task is not None and self._task.is_calibrated
        return promises or self.novelty is not None

    def _before_fit(self) -> None:
        if self.is_calibrated:
            warn_at_caller(
                f"{self.name} has prediction sets, intervals or a novelty score, which hold for "
                "the weights that they were calibrated with. Train model.uncalibrated(), and "
                "calibrate again with images that it was not trained on."
            )

    @property
    def eval_transform(self) -> EvalTransform:
        transform, statistics = self._eval_transform, self.normalization
        if transform.bands is None or transform.nodata != "mean" or isinstance(statistics, str):
            return transform
        return replace(transform, nodata=statistics[0])

    @eval_transform.setter
    def eval_transform(self, value: EvalTransform | str | Mapping[str, Any]) -> None:
        transform = EvalTransform.of(value)
        if transform.bands is not None and len(transform.bands) != self.channels:
            raise ValueError(
                f"eval_transform reads {len(transform.bands)} bands, {transform.bands}, and "
                f"{self.name} takes {self.channels} channels: give one band for each."
            )
        self._eval_transform = transform

    @property
    def head_kind(self) -> str:
        """How outputs follow from features, `"row"`, or a key of `HEADS` for every pixel."""
        return self._config.head_kind

    @property
    def _convolves(self) -> bool:
        return "stem" in self._features

    def get_config(self) -> Arguments:
        of_argument = "head" if self._task is None else "user"
        layers = self._flatten_layers()
        # A file has LoRA's updates folded in, and of what they froze all trains.
        is_lora = any(getattr(layer, "lora_enabled", False) for layer in layers)
        changes = {} if is_lora else dict(trainable_changes(self))
        config = {
            **self._config.get_config(),
            "name": self.name,
            "dtype": self._policy_config(),
            "task": self._task and self._task.get_config(),
            "evaluation": self._eval_transform.to_dict(),
            "frozen": [path for path, trainable in changes.items() if not trainable],
        }
        optional = {
            "thawed": [path for path, trainable in changes.items() if trainable],
            "trainable": None if self.trainable else False,
            "quantizers": self._quantizers_config(),
            "novelty": self.novelty and ("energy" if self.novelty.classes else "distance"),
            "seen_images": self.seen_images and self.seen_images.to_dict(),
            # Where the argument `task` does not say it.
            "task_from": None if self._task_from == of_argument else self._task_from,
            "targets_seen": list(self._targets_seen),
        }
        return {**config, **{key: value for key, value in optional.items() if value not in EMPTY}}

    def _policy_config(self, new_head: bool = False) -> Any:
        """Return the dtype policy; with quantized layers, a map from their paths to theirs."""
        quantized = {
            layer.path: layer.dtype_policy
            for layer in self._flatten_layers(include_self=False)
            if layer.quantization_mode is not None
        }
        for head in quantized.keys() & set(HEAD_LAYERS if new_head else ()):
            quantized[head] = keras.DTypePolicy("float32")
        policy = self._config.dtype
        if quantized or isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            policy = policy_map(policy, quantized)
        return policy_config(policy)

    def _quantizers_config(self) -> Arguments:
        """Return the `quantize(config=...)` of layers by path, where it is not the default."""
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
        config.pop("weights", None)  # an argument of the class before `keras_vit.create` had it
        state = {key: config.pop(key) for key in STATE if key in config}
        if isinstance(config.get("dtype"), dict):
            config["dtype"] = keras.dtype_policies.deserialize(config["dtype"])
        model = cls(**config)
        if not state.get("trainable", True):
            model.trainable = False
        set_trainable(model, state.get("frozen", ()), state.get("thawed", ()))
        quantizers = state.get("quantizers", {})
        for layer in model._flatten_layers():
            if layer.path in quantizers:
                quantizer = keras.saving.deserialize_keras_object(quantizers[layer.path])
                layer.quantization_config = quantizer
                layer.inputs_quantizer = quantizer.activation_quantizer
        if state.get("class_names") and model.task is not None:  # of a file before there were tasks
            model.class_names = state["class_names"]
        if state.get("task_from"):
            model._task, model._task_from = config.get("task") and model._task, state["task_from"]
        model._targets_seen = tuple(state.get("targets_seen") or ())
        model.eval_transform = EvalTransform.of(state.get("evaluation"))
        model.seen_images = SeenImages.from_dict(state.get("seen_images"))
        if state.get("novelty"):  # its weights follow
            classes = model.num_classes if state["novelty"] == "energy" else 0
            layer = NoveltyScore(classes, name="novelty")
            layer.build(model._features["pre_logits"].shape)
            model.set_novelty(layer)
        return model

    def quantize(self, mode: str | None = None, *args: Any, **options: Any) -> Any:
        """Quantize as `keras.Model.quantize`: "int8", "int4" and "float8" for all dense layers.

        Saved files, `copy` and `with_classifier` stay quantized; the new head of `with_classifier`
        is not, so that it can be trained. Returns what Keras returns: from 3.16 on, a report.

        Raises:
            ValueError: The mode is "gptq" or "awq". Keras calibrates both on windows of token
                ids, which images do not have.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
        >>> report = model.quantize("int8")
        >>> model.copy().get_layer("head").quantization_mode
        'int8'
        """
        config = options.get("config", args[0] if args else None)
        calibrated = mode or getattr(config, "mode", None)
        structure = getattr(config, "quantization_layer_structure", None)
        if calibrated in ("gptq", "awq") and not structure:
            raise ValueError(
                f"quantize({calibrated!r}) calibrates on text in Keras: it cuts its data set into "
                "windows of token ids, which images do not have. "
                'Give "int8", "int4" or "float8".'
            )
        return super().quantize(mode, *args, **options)

    def export(self, *args: Any, **options: Any) -> Any:
        """Export as `keras.Model.export`, also models that were only loaded.

        Raises:
            RuntimeError: Keras cannot write the format on its backend, such as a SavedModel or ONNX
                on torch, where `keras_vit.export` can.
        """
        # Keras refuses to export to ONNX what was never called.
        shape = [DEFAULT_SIZE if side is None else side for side in self._config.input_shape]
        self(np.zeros((1, *shape), "float32"))
        try:
            return super().export(*args, **options)
        except (ValueError, ImportError, OSError):  # about arguments, packages and disks
            raise
        except Exception as error:
            format = options.get("format", args[1] if len(args) > 1 else "tf_saved_model")
            lines = str(error).splitlines() or [""]
            raise RuntimeError(
                f"Keras on {keras.backend.backend()} does not export {self.name} as {format!r}: "
                f"{type(error).__name__}: {lines[0]} Write it by keras_vit.export(model, "
                f"path, {format!r}), which does on every backend, and checks the file."
            ) from error

    def load_weights(self, filepath: Any, *args: Any, **options: Any) -> None:
        """Load weights that Keras wrote of a model of the same sizes: `keras.Model.load_weights`.

        `keras_vit.load_weights(model, file)` reads these files, too, and those of Google, timm and
        Hugging Face, adapts them to the model's sizes, and returns a report. It is a function
        because models do not know files.

        Raises:
            ValueError: Keras did not write the file, or wrote it of another model.

        Example:

        >>> import keras_vit, tempfile
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
        >>> folder = tempfile.mkdtemp()
        >>> model.save_weights(folder + "/model.weights.h5")
        >>> model.load_weights(folder + "/model.weights.h5")
        """
        try:
            super().load_weights(filepath, *args, **options)
        except ValueError as error:
            if "format not supported" not in str(error):
                raise
            raise ValueError(
                f"model.load_weights reads files that Keras wrote, and {filepath} is not one: give "
                f"keras_vit.load_weights(model, {str(filepath)!r}), which reads those of Google, "
                "timm and Hugging Face as well, adapts them, and returns a report."
            ) from error

    @property
    def image_size(self) -> Size:
        """Height and width of the images in pixels, whatever the data format; None for any.

        >>> import keras_vit
        >>> model = keras_vit.models.BiTResNet(
        ...     depths=(1,), width=32, input_shape=(3, 24, None), data_format="channels_first")
        >>> model.image_size, model.channels
        ((24, None), 3)
        """
        return self._config.image_size

    @property
    def channels(self) -> int:
        """Channels of the images, whatever the data format."""
        return self._config.input_shape[-1 if self.data_format == "channels_last" else 0]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the intermediates that `feature_model` gives, in the order of the data."""
        return tuple(self._features)

    def feature_model(self, outputs: str | Sequence[str], format: str = "tokens") -> keras.Model:
        """Return a model from the same images to intermediates; it shares the weights.

        Args:
            outputs: One of `feature_names`, or several.
            format: `"tokens"`: sequences as they are, `(batch, tokens, hidden_dim)`; `"grid"`:
                the patches on their grid, without class token and registers, as detectors and
                segmenters need them: `(batch, grid_h, grid_w, hidden_dim)`. Feature maps of a
                ResNet are on a grid either way.

        Returns:
            A `keras.Model` that returns one array for one name, and a dictionary for several.

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
        check_choice(format, "format", ("tokens", "grid"))
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        for name in names:
            if name not in self._features:
                raise ValueError(f"No feature {name!r}. {did_you_mean(name, self._features)}")
        features = {name: self._features[name] for name in names}
        if format == "grid":
            features = {name: self._on_grid(name, feature) for name, feature in features.items()}
        return SharedModel.of(
            self,
            self.inputs[0],
            features[outputs] if isinstance(outputs, str) else features,
            f"{self.name}_features",
        )

    def only_pooled_tokens(self) -> AbstractContextManager[None]:
        """Return a context in which the last block encodes only the tokens that the pooling takes.

        For a forward pass that returns nothing of the others, such as the model's own, or that of
        its `feature_model("pre_logits")`: the same numbers from fewer operations.
        """
        return nullcontext()

    def _on_grid(self, name: str, feature: Any) -> Any:
        dtype = self._config.dtype
        if len(feature.shape) == 4 and name != "images":
            if self.data_format == "channels_last":
                return feature
            return keras.layers.Permute((3, 1, 2), dtype=dtype, name=f"{name}_grid")(feature)
        if len(feature.shape) != 3 or "patches" not in self._features:
            return feature
        token_index = self._token_index(name)
        if token_index is not None:
            feature = UnmergeTokens(dtype=dtype, name=f"{name}_unmerged")(feature, token_index)
        name = f"{name}_grid"
        layer = TokensToGrid(self.num_prefix_tokens, self.data_format, dtype=dtype, name=name)
        return layer(feature, self._features["patches"])

    def _token_index(self, feature: str) -> Any:
        """Return a feature's `token_index` after token merging; None: nothing was merged."""
        return None

    def _other_shape(self, input_shape: ImageShape) -> ImageShape:
        """Return an `input_shape` that the weights fit, or a ValueError."""
        shape, _ = image_layout(input_shape, self.data_format)
        channels = shape[-1 if self.data_format == "channels_last" else 0]
        if channels != self.channels:
            raise ValueError(
                f"input_shape={input_shape!r} has {channels} channels, and the weights of "
                f"{self.name} are for {self.channels}. Give {self.channels} channels."
            )
        return shape

    def with_views(self, views: str | None = None) -> keras.Model:
        """Build a model from the same images to the mean of the answers to several views.

        Takes what this one takes, `(batch, height, width, channels)` of a fixed size, and returns
        what it returns: the outputs that mean the mean of the answers by its task, such as
        probabilities. The weights are shared; it takes as many times longer as there are views.

        Args:
            views: `"flip"`: the image and its mirror image; `"crops"`: those of the image and of
                its four corners; `"one"`; None for the `views` of `eval_transform`.

        Returns:
            A `keras.Model`; the model itself for one view.

        Raises:
            ValueError: The name is unknown, or the model takes images of any size.

        Example:

        >>> import keras_vit, numpy as np
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, num_classes=3,
        ...     input_shape=(32, 32, 3))
        >>> both = model.with_views("flip")
        >>> images = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 3))
        >>> one, other = (both.predict(x, verbose=0) for x in (images, images[:, :, ::-1]))
        >>> np.allclose(one, other, atol=1e-5)
        True
        """
        return mean_of_views(self, views)

    def with_classifier(
        self, num_classes: int | None = None, *, task: Any = None, **overrides: Any
    ) -> Self:
        """Return a copy with the same backbone and a new, zero-initialized head.

        Frozen layers stay frozen, but the new head is trainable. Of a DPT head for another task of
        every pixel, the maps of four blocks are fused as before, and the layers after that are new;
        of an EoMT head for other classes, queries and masks stay.

        Args:
            num_classes: Number of classes of the new head; 0 for features. None for what the task
                needs.
            task: What the new head's outputs mean; None for classification: see the argument of
                the model.
            **overrides: Other arguments that do not change the backbone's weights, such as
                `dropout`.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
        >>> model.trainable = False
        >>> [v.path for v in model.with_classifier(5).trainable_variables]
        ['head/kernel', 'head/bias']
        """
        if num_classes is None:
            if task is None or isinstance(task, str):
                raise ValueError(
                    f"task={task!r} does not say how wide the new head is: give num_classes too, "
                    'or a task with names, such as keras_vit.tasks.get("multilabel", names=[...]).'
                )
            num_classes = tasks.get(task).outputs
        config = self.get_config()
        changes = {
            "num_classes": num_classes,
            "task": task,
            "trainable": True,
            "frozen": [path for path in config["frozen"] if path.split("/")[0] not in HEAD_LAYERS],
            "dtype": self._policy_config(new_head=True),
            **dict.fromkeys(("novelty", "task_from", "targets_seen")),  # of other training images
        }
        if config.get("map_head") is not None:
            changes["map_head"] = head_of_other_outputs(config["map_head"], task)
        self._check_overrides(overrides)
        names = {layer.name for layer in self.layers}
        neck = names.intersection(HEAD_LAYERS) - set(OUTPUT_LAYERS)
        fresh = set(HEAD_LAYERS) - (set() if "map_head" in overrides else neck)
        copy = self._copy_with({**changes, **overrides}, fresh)
        if copy.head_kind != "row" and not copy._eval_transform.is_whole:  # as in `_assemble`
            whole = replace(copy._eval_transform, mode="stretch", interpolation=None)
            copy.eval_transform = whole
        return copy

    def copy(self, **overrides: Any) -> Self:
        """Return a copy that is not compiled: without optimizer state, a third of the file.

        Args:
            **overrides: Arguments that do not change the weights: `dropout`, or another `dtype`
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
        """Return a model with other arguments and these weights, except in `fresh` layers."""
        copy = type(self).from_config({**self.get_config(), **changes})
        new = {layer.name: layer for layer in copy.layers if layer.name not in fresh}
        pairs = [(self.get_layer(name), layer) for name, layer in new.items() if layer.weights]
        # And layers of a subclass outside of the graph, whose names Keras may have numbered.
        pairs += zip(layers_beside(self), layers_beside(copy), strict=False)
        with whole_values(self.variables):
            for source, target in pairs:
                copy_weights(source, target)
        return copy


# What `get_config` has besides the constructor's arguments.
STATE = (
    *("frozen", "thawed", "trainable", "quantizers", "class_names", "evaluation", "novelty"),
    *("seen_images", "task_from", "targets_seen"),
)
EMPTY: tuple[Any, ...] = (None, [], {})
# Arguments whose names are attributes of every functional model.
OF_KERAS = ("name", "input_shape", "task")


def _argument(name: str) -> property:
    return property(lambda self: getattr(self._config, name), doc=f"The argument `{name}`.")
