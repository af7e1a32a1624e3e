"""One encoder with the heads of several models: all their answers from one pass of the encoder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import keras
import numpy as np

from keras_vit._base.errors import listed, warn_at_caller, warn_of_data
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.models.answers import HEAD_NAME, head_prefix, several_tasks, task_of
from keras_vit.models.dpt import DPTHead
from keras_vit.models.image_model import ImageModel
from keras_vit.models.shared_model import SharedModel
from keras_vit.ops import whole_values
from keras_vit.tasks import Task
from keras_vit.trainer.compiled_model import CompiledModel

# Arguments that are a head's own, and those that nothing but training reads.
OF_HEADS = (
    *("num_classes", "classifier_activation", "name", "task", "map_head", "pooling"),
    "representation_size",
)
OF_TRAINING = ("dropout", "attention_dropout", "stochastic_depth", "patch_dropout", "remat")
# What another mode of an `EvalTransform` does not keep.
OTHER_MODE: dict[str, Any] = {
    "crop_fraction": EvalTransform.crop_fraction,
    "interpolation": None,
    "views": None,
}
ONE_VIEW = (
    "Train with views='one' in the recipe, or give eval_transform={mode}, which leaves views out, "
    "and evaluate the heads again."
)


@dataclass(frozen=True)
class Head:
    """A head of a `CombinedModel`; has what `keras_vit.models.answers` asks of a model."""

    name: str
    task: Task
    classifier_activation: str | None
    output_shape: tuple[int | None, ...]

    @property
    def prefix(self) -> str:
        """What the names of its outputs begin with."""
        return head_prefix(self.name)


@keras.saving.register_keras_serializable(package="keras_vit")
class CombinedModel(CompiledModel):
    """A model from images to a list of outputs, one per head, with one pass of the encoder.

    `combine` makes one, from models whose encoders it has compared. It predicts and is exported;
    whatever is about one task, such as `keras_vit.evaluate`, takes one of the models.
    """

    novelty = None
    seen_images = None

    def __init__(self, parts: Mapping[str, ImageModel], name: str = "combined") -> None:
        reads = {key: _read_features(part) for key, part in parts.items()}
        names = list(dict.fromkeys(name for each in reads.values() for name in each))
        # A DPT head that reads blocks alone leaves the last norm out.
        whole = next(part for part in parts.values() if {*names} <= {*part.feature_names})
        encoder = SharedModel.of(
            whole, whole.inputs[0], [whole._features[name] for name in names], "encoder"
        )
        images = keras.Input(whole.input_shape[1:], name="images")
        features = dict(zip(names, keras.tree.flatten(encoder(images)), strict=True))
        outputs = []
        for i, (key, part) in enumerate(parts.items()):
            inputs = [part._features[name] for name in reads[key]]
            head = SharedModel.of(part, inputs, part.outputs[0], f"head_{i}")
            outputs.append(head([features[name] for name in reads[key]]))
        super().__init__(images, outputs, name=name)
        self._spec = whole.spec.of_images(name)
        self._dtype_policy = whole.dtype_policy
        self.heads = tuple(
            Head(key, task_of(part), part.classifier_activation, part.output_shape)
            for key, part in parts.items()
        )
        self.image_size, self.channels = whole.image_size, whole.channels
        self.data_format, self.normalization = whole.data_format, whole.normalization
        self.include_preprocessing = whole.include_preprocessing
        self.num_classes = sum(part.num_classes for part in parts.values())
        self.eval_transform = replace(whole.eval_transform, views=None)
        self._parts_config = json.dumps([_part_config(*part) for part in parts.items()])

    @property
    def task(self) -> Task:
        """Raises a ValueError: there are several, of `heads`."""
        raise ValueError(several_tasks(self.name, {head.name: head.task for head in self.heads}))

    def __dir__(self) -> list[str]:
        """Return the names of attributes that have a value: `torch.jit.trace` reads them all."""
        return [name for name in super().__dir__() if name != "task"]

    @property
    def eval_transform(self) -> EvalTransform:
        """How images are prepared, without views."""
        return self._eval_transform

    @eval_transform.setter
    def eval_transform(self, value: EvalTransform) -> None:
        if value.views not in (None, "one"):
            raise ValueError(
                f"{self.name} has several heads, whose answers are those to one view of an image: "
                f"leave views={value.views!r} out."
            )
        self._eval_transform = value

    @property
    def is_calibrated(self) -> bool:
        """Whether a task has prediction sets or intervals."""
        return any(head.task.is_calibrated for head in self.heads)

    @property
    def is_task_unknown(self) -> bool:
        """Whether nobody says what the outputs mean: never."""
        return False

    def copy(self, *, dtype: Any) -> Self:
        """Return a copy of another dtype policy, such as `"float32"`."""
        config = self.get_config()
        parts = json.loads(config["parts"])
        policy = keras.dtype_policies.get(dtype).name
        changed = [[name, kind, {**part, "dtype": policy}] for name, kind, part in parts]
        copy = self.from_config({**config, "parts": json.dumps(changed)})
        copy.set_weights(self.get_weights())
        return copy

    def get_config(self) -> dict[str, Any]:
        transform = self.eval_transform.to_dict()
        return {"name": self.name, "parts": self._parts_config, "evaluation": json.dumps(transform)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        parts = {}
        for name, kind, part in json.loads(config["parts"]):
            model_class = keras.saving.get_registered_object(kind)
            assert isinstance(model_class, type)
            assert issubclass(model_class, ImageModel)
            parts[name] = model_class.from_config(part)
        model = cls(parts, name=config["name"])
        model.eval_transform = EvalTransform.of(json.loads(config["evaluation"]))
        return model


def combine(
    models: Mapping[str, ImageModel],
    *,
    eval_transform: str | None = None,
    name: str = "combined",
) -> CombinedModel:
    """Join the heads of several models on the encoder that they share, frozen, bit for bit.

    The answers are those of each model, from one pass of the encoder. Any tasks go together, also
    several of a kind; heads of every pixel may be `"linear"` or `"dpt"`. The layers are shared with
    the models.

    Args:
        models: Two or more by the names of their heads, of Latin letters, digits and `_`, which
            begin the names of the outputs: `{"photos": ..., "masks": ...}`.
        eval_transform: How images are prepared for all of them: a mode of an `EvalTransform`, such
            as `"stretch"`, without views; None where all do it alike. (Masks need all of an image,
            and a classifier mostly sees its middle: its answers are then those to all of it.)
        name: Of the model.

    Returns:
        The model, whose `predict` returns a list of outputs in the order of the heads.

    Raises:
        ValueError: There is one model alone, or a name is not one; or the models differ in their
            encoder, its weights, or the preparation of images; or a head cannot be joined.

    Example:

    >>> import keras_vit, numpy as np
    >>> from keras_vit.models.combined import combine
    >>> photos = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, num_classes=3,
    ...     input_shape=(16, 16, 3))
    >>> photos.trainable = False
    >>> photos.eval_transform = "stretch"
    >>> masks = photos.with_classifier(task=keras_vit.tasks.Segmentation(("sky", "tree")))
    >>> masks.eval_transform = "stretch"
    >>> both = combine({"photos": photos, "masks": masks})
    >>> [outputs.shape for outputs in both.predict(np.zeros((1, 16, 16, 3)), verbose=0)]
    [(1, 3), (1, 16, 16, 2)]
    """
    if len(models) < 2:
        raise ValueError(
            f"A combined model has two heads or more, and {listed([*models]) or 'none'} was given: "
            "give another model that was trained on the same encoder, or take the one as it is."
        )
    for key, model in models.items():
        if not HEAD_NAME.fullmatch(key):
            raise ValueError(
                f"{key!r} is not the name of a head: give up to 64 Latin letters, digits and _, a "
                "letter first, such as 'photos'."
            )
        _check_part(key, model)
    if scored := [key for key, model in models.items() if model.novelty is not None]:
        warn_at_caller(f"The novelty score of {listed(scored)} is left out: it is of one model.")
        models = {key: model._copy_with({"novelty": None}) for key, model in models.items()}
    _check_names(models)
    (first, reference), *others = models.items()
    for key, model in others:
        _check_arguments(first, reference, key, model)
    transform = _common_transform(models, eval_transform)
    _check_encoders(models)
    combined = CombinedModel(models, name=name)
    combined.eval_transform = transform
    return combined


def _check_names(models: Mapping[str, ImageModel]) -> None:
    """Raise a ValueError where outputs of two heads have one name, as of "a" and "a_top"."""
    owners: dict[str, str] = {}
    for key, model in models.items():
        for output in ("", *task_of(model).answer_names):
            name = head_prefix(key) + output
            if owner := owners.get(name.lower()):  # files are named so, too
                raise ValueError(
                    f"Of {key} and of {owner} something would be called {name}: give one head "
                    "another name."
                )
            owners[name.lower()] = key


def _read_features(model: ImageModel) -> list[str]:
    """Return the features of the encoder that a model's head reads."""
    patches = [] if model.head_kind == "row" else ["patches"]
    head = getattr(model, "map_head", None)
    if not isinstance(head, DPTHead):
        read = ["encoder_norm", *patches, "pre_logits_2d"]  # the last of a ResNet, before its mean
        return [name for name in read if name in model.feature_names]
    assert head.blocks is not None
    # Not the last norm: it is a layer of the head, too, which normalizes all four blocks.
    read = [f"block_{block}" for block in head.blocks]
    return [*dict.fromkeys(read), *patches]


def _check_part(key: str, model: ImageModel) -> None:
    """Raise a ValueError for a model whose head cannot be put on another's encoder."""
    if not isinstance(model, ImageModel):
        raise ValueError(f"{key} is a {type(model).__name__}, and not a model of this package.")
    reason = None
    if not model.num_classes or len(model.output_shape) == 3:
        reason = "returns features: give one with a head"
    elif model.head_kind == "eomt":
        reason = (
            "has an EoMT head, whose queries pass the last blocks of its own encoder: train the "
            'masks with map_head="linear" or "dpt"'
        )
    elif any(getattr(model._config, "merging", ())):
        reason = "merges tokens: give model.with_token_merging(0), or train without"
    elif None in model.image_size:
        reason = "takes images of any size: give model.with_input_shape((224, 224, 3))"
    elif any(layer.quantization_mode for layer in model._flatten_layers()):
        reason = "is quantized by Keras: give the model before that, and export with quantize="
    if reason:
        raise ValueError(f"{key} cannot be combined: it {reason}.")
    task_of(model)  # there is one


def _check_arguments(first: str, model: ImageModel, key: str, other: ImageModel) -> None:
    """Raise a ValueError where two models differ in what makes their encoders and inputs."""
    ours, theirs = model._config, other._config
    if type(ours) is not type(theirs):
        shown = f"they are a {type(model).__name__} and a {type(other).__name__}"
    else:
        names = {field.name for field in fields(ours)} - {*OF_HEADS, *OF_TRAINING, "dtype"}
        differ = sorted(n for n in names if getattr(ours, n) != getattr(theirs, n))
        differ += ["dtype"] * (ours.dtype.name != theirs.dtype.name)
        shown = _shown(differ, ours, theirs)
    if shown:
        raise ValueError(
            f"{first} and {key} do not have one encoder with one input: {shown}. Train both from "
            "the same weights, at the same image_size and precision."
        )


def _common_transform(models: Mapping[str, ImageModel], asked: str | None) -> EvalTransform:
    """Return how images are prepared for all heads, or raise a ValueError."""
    first = next(iter(models))
    common = models[first].eval_transform
    compared, fix = {field.name for field in fields(common)}, "Train both alike."
    if asked is None:
        fix = (
            "Give eval_transform=stretch for both, which masks and depth need, and evaluate the "
            "heads again; or train both alike."
        )
    else:
        common, compared = (
            replace(common, **OTHER_MODE, mode=asked),
            compared - {*OTHER_MODE, "mode"},
        )
    for key, model in models.items():
        two = model.eval_transform
        differ = [name for name in sorted(compared) if getattr(common, name) != getattr(two, name)]
        if differ == ["views"]:
            fix = ONE_VIEW.format(mode=common.mode)
        if differ:
            raise ValueError(
                f"{first} and {key} prepare images otherwise: {_shown(differ, common, two)}. {fix}"
            )
        if model.task is not None and model.task.per_pixel and not common.is_whole:
            raise ValueError(
                f"{key} answers every pixel, and eval_transform={common.mode} leaves the border of "
                "images out: give eval_transform=stretch."
            )
        if model.is_calibrated and two != common:
            warn_of_data(
                f"{key} has prediction sets or intervals that were calibrated on images prepared "
                f"by {two.mode!r}, and now sees them by {common.mode!r}: their coverage may be "
                "another."
            )
    if common.views not in (None, "one"):
        raise ValueError(
            f"The answers of {first} are means over views={common.views!r}, each of which would "
            f"be a pass of the encoder. {ONE_VIEW.format(mode=common.mode)}"
        )
    return common


def _shown(names: Sequence[str], one: Any, two: Any) -> str:
    """Return what attributes of two objects are."""
    pairs = ((name, getattr(one, name), getattr(two, name)) for name in names)
    return "; ".join(f"{name} is {first!r} and {second!r}" for name, first, second in pairs)


def _check_encoders(models: Mapping[str, ImageModel]) -> None:
    """Raise a ValueError that names the first tensor in which two encoders differ."""
    (first, reference), *others = models.items()
    known: dict[str, Any] = {}
    for key, model in ((first, reference), *others):
        with whole_values(model.variables):
            for layer in model.feature_model(_read_features(model)).layers:
                for variable in layer.weights:
                    values = keras.ops.convert_to_numpy(variable)
                    owner, before = known.setdefault(variable.path, (key, values))
                    if before.shape == values.shape and before.tobytes() == values.tobytes():
                        continue
                    off = np.abs(before.astype("float64") - values).max()
                    raise ValueError(
                        f"{owner} and {key} do not have one encoder: {variable.path} is the first "
                        f"tensor that differs, by up to {off:.2g}. Train each head alone on the "
                        "same weights, with model.trainable = False before model.with_classifier, "
                        "and heads of pixels by the recipe linear_pixels or dpt_pixels; LoRA and "
                        "full training change the encoder."
                    )


def _part_config(name: str, part: ImageModel) -> list[Any]:
    """Return what `from_config` makes a model like `part` of, without its weights."""
    kind = keras.saving.get_registered_name(type(part))
    config = {**part.get_config(), "novelty": None, "seen_images": None}
    return [name, kind, config]
