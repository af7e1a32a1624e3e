"""What defines a model: every argument, its default and its range, one dataclass per family."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

import keras

from keras_vit import tasks
from keras_vit._base.errors import (
    as_pair,
    check_above_zero,
    check_choice,
    check_non_negative,
    check_positive,
    check_rate,
    counted,
)
from keras_vit.data.band_statistics import Statistics
from keras_vit.layers.attention import check_heads
from keras_vit.layers.conv_stem import conv_stages
from keras_vit.layers.encoder import BlockConfig
from keras_vit.layers.merging import merging_schedule
from keras_vit.layers.residual import VERSIONS
from keras_vit.models.dpt import DPTHead
from keras_vit.models.eomt import EoMTHead
from keras_vit.models.geometry import (
    ImageShape,
    Size,
    feature_stride,
    image_layout,
    image_size,
    mixer_grid,
    patch_grid,
    stages,
)
from keras_vit.models.map_heads import MapHead, map_head_of
from keras_vit.tasks import Segmentation, Task
from keras_vit.tasks.task_words import in_words

POOLINGS = ("token", "gap", "map", "token_gap", None)
POSITION_EMBEDDINGS = (
    *("learned", "learned_2d", "relative", "sincos2d", "none"),
    *("relative_2d", "relative_2d_shared"),
)


def check_statistics(statistics: Any, channels: int | None) -> Statistics:
    """Means and standard deviations as they are stored; a ValueError for what cannot be some."""
    try:
        means, stds = (tuple(float(value) for value in values) for values in statistics)
        fits = len(means) == len(stds) == channels and min(stds) > 0
    except (TypeError, ValueError):
        fits = False
    if not fits or not all(map(math.isfinite, (*means, *stds))):
        raise ValueError(
            f"normalization={statistics!r} must be a name, such as 'inception', or the means and "
            f"the standard deviations, above 0, of {channels} channels: two lists, as "
            "keras_vit.data.band_statistics(splits.train) returns."
        )
    return means, stds


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Arguments of every model.

    Args:
        num_classes: Number of classes of the zero-initialized head; 0: no head, the model returns
            the features.
        input_shape: `(height, width, channels)`; with `data_format="channels_first"`:
            `(channels, height, width)`. None: 224 x 224 RGB. A `VisionTransformer` and a
            `BiTResNet` take `(None, None, channels)` for images of any size; a ViT then resamples
            its position embeddings inside the graph.
        classifier_activation: None for logits, or an activation such as `"softmax"`.
        include_preprocessing: Whether the model takes pixels 0..255 and normalizes them itself;
            False: it takes normalized images, as the authors' code does.
        normalization: The mean and standard deviation of the pixels that the weights are for:
            `"inception"`, 0.5 and 0.5, which scales to [-1, 1]; `"imagenet"` or `"clip"`, by which
            a single channel is normalized as RGB. Or the means and the standard deviations of the
            channels in a range of their own, such as 16 bits: what
            `keras_vit.data.band_statistics` returns.
        data_format: `"channels_last"`, `"channels_first"`, or None for Keras's configuration.
        name: Name of the model.
        dtype: Dtype policy of all layers but normalization and head, such as `"mixed_bfloat16"`.
        task: What the outputs mean: a `keras_vit.tasks.Task`, whose width of the head replaces
            `num_classes`, or a kind such as `"multilabel"` of `num_classes`. None: classification
            of several classes; a single output, or an activation other than softmax, is
            ambiguous: give `task`. Where it is None, `compile` takes the task of its loss.
    """

    num_classes: int = 1000
    input_shape: ImageShape | None = None
    classifier_activation: str | None = None
    include_preprocessing: bool = True
    normalization: str | Statistics = "inception"
    data_format: str | None = None
    name: str | None = None
    dtype: Any = None
    task: Task | str | Mapping[str, Any] | None = None
    # Who says what the outputs mean: the "user", or the "head" alone, as `tasks.of_head` reads it.
    task_from: ClassVar[str] = "user"
    # A family whose encoder has blocks makes it an argument: see `ViTConfig`.
    map_head: ClassVar[Any] = None

    def __post_init__(self) -> None:
        check_non_negative(num_classes=self.num_classes)
        input_shape, data_format = image_layout(self.input_shape, self.data_format)
        dtype = keras.dtype_policies.get(self.dtype)
        self._set(input_shape=input_shape, data_format=data_format, dtype=dtype)
        self._check_preprocessing()
        self._set_task()
        self._check_head()

    def _check_preprocessing(self) -> None:
        kind = self.include_preprocessing
        if not isinstance(kind, bool):
            raise ValueError(
                f"include_preprocessing={kind!r} must be True, for pixels 0..255, or False, for "
                "normalized images."
            )
        if not isinstance(self.normalization, str):
            assert self.input_shape is not None
            channels = self.input_shape[-1 if self.data_format == "channels_last" else 0]
            self._set(normalization=check_statistics(self.normalization, channels))

    def _set_task(self) -> None:
        """Brings `task` and `num_classes` in line."""
        size, task = self.num_classes, self.task
        if task is None and self.map_head is not None:
            return  # maps of any meaning
        if task is None:
            head = tasks.of_head(size, self.classifier_activation) if self.is_pooled else None
            self._set(task=head, task_from="head")
            return
        task = tasks.get(task, size=size) if isinstance(task, str) else tasks.get(task)
        if not self.is_pooled or size not in (task.outputs, task.size, ModelConfig.num_classes):
            raise ValueError(
                f"num_classes={size} does not fit {task.kind} of {task.size}, whose head has "
                f"{counted(task.outputs, 'output')}: leave num_classes out."
                if self.is_pooled
                else "pooling=None returns all tokens, which a task does not fit: leave it out."
            )
        self._set(task=task, num_classes=task.outputs)

    def _check_head(self) -> None:
        if self.head == "row":
            if self.map_head is not None:
                raise ValueError(
                    "map_head is for an answer to every pixel, and the task, "
                    f"{self.task.kind if isinstance(self.task, Task) else None}, is of one row per "
                    'image: give map_head=None, or a task of maps, such as "segmentation".'
                )
            return
        kind = self.task.kind if isinstance(self.task, Task) else "a head for every pixel"
        if None in self.image_size:
            raise ValueError(
                f"input_shape={self.input_shape!r} is of any size, and {kind} returns a "
                "map of the size of the images: give it in numbers, such as (224, 224, 3)."
            )
        if self.classifier_activation is not None:
            raise ValueError(
                f"classifier_activation={self.classifier_activation!r} is for one row per image, "
                f"and {kind} takes logits: leave it out."
            )

    def check_activation(self, task: Task) -> None:
        """Raise a ValueError where outputs are not what a task takes for its answers."""
        head = self.map_head
        activation = head.activation if isinstance(head, DPTHead) else "linear"
        if activation not in task.activations:
            raise ValueError(
                f"The DPT head ends with activation={activation!r}, as those of released depth "
                f"models, and the outputs for {in_words(task)} are "
                f"{' or '.join(task.activations)}: leave it out, or give "
                "model.with_classifier(task=...) for a new head."
            )

    @property
    def head(self) -> str:
        """What outputs are for: the `head` of the task, `"row"` per image or `"map"` of pixels."""
        if isinstance(self.task, Task):
            return self.task.head
        return "row" if self.map_head is None else "map"

    @property
    def head_kind(self) -> str:
        """How outputs follow from features, a key of `keras_vit.models.head.HEADS`."""
        if self.head == "row":
            return "row"
        return getattr(self.map_head, "kind", "linear")

    @property
    def is_pooled(self) -> bool:
        """Whether the model has pooled features, of which a task can be."""
        return True

    def _set(self, **values: Any) -> None:
        """Replaces arguments by what they stand for, before anyone sees this frozen object."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def image_size(self) -> Size:
        """Height and width of the images in pixels; None: any."""
        assert self.input_shape is not None
        assert self.data_format is not None
        return image_size(self.input_shape, self.data_format)

    def get_config(self) -> dict[str, Any]:
        """Return every argument by name, the task as plain values."""
        config = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**config, "task": self.task and tasks.get(self.task).get_config()}


@dataclass(frozen=True, kw_only=True)
class ViTConfig(BlockConfig, ModelConfig):
    """Arguments of a `VisionTransformer`; the defaults are ViT-B/16 as its authors released it.

    Those of `BlockConfig` are of all its blocks.

    Args:
        patch_size: Height and width of a patch in pixels: one number, or a pair.
            In a hybrid: of the ResNet's feature map.
        resnet: None, or for a hybrid the number of units per stage of the ResNet whose feature map
            is cut into patches; () for its stem alone. `remat` applies to its units as well.
        resnet_width: Channels of that ResNet's stem: 64, or another multiple of 32.
        conv_stem: None, or channels and stride of each 3 x 3 convolution in front of the patches,
            such as `((32, 2), (64, 1))`, for training from scratch on little data (Xiao et al.
            2021; see `keras_vit.layers.ConvStemStage`). `patch_size` is that on its feature map.
        hidden_dim: Width of the tokens.
        depth: Number of encoder blocks.
        mlp_dim: Width of the MLPs; None for four times `hidden_dim`.
        pooling: `"token"`: the class token; `"gap"`: mean over the patches; `"map"`: attention
            pooling; `"token_gap"`: class token and mean side by side, as DINOv2's linear
            classifiers take them; None: all tokens after the last norm.
        class_token: Whether there is a class token; None for no if `pooling` is `"gap"` or `"map"`.
        num_registers: Number of register tokens after the class token.
        distilled: Whether there is a distillation token after the class token, with a position and
            a head of its own; the logits are the mean of both heads (DeiT, section 4).
        representation_size: Width of the tanh layer before the head; None for none.
        position_embedding: `"learned"`, `"learned_2d"`, `"relative"`, `"sincos2d"` or `"none"`;
            `"relative_2d"`, `"relative_2d_shared"`: BEiT's bias on attention logits, one per block
            or one for all.
        position_grid: Rows and columns that positions are learned for; None for the grid of
            `input_shape`, and that of 224 pixels where it says None.
        pre_norm: Whether a norm stands in front of the first block, and patches are projected
            without a bias (CLIP).
        norm_after_pooling: Whether the last norm stands behind the mean instead of in front of it,
            as in BEiT and in MAE's fine-tuned models. With `pooling="gap"`.
        token_merging: Number of patches that each block merges with similar ones, in training and
            inference (ToMe's `r`, such as 8 for ViT-Ti/16): one integer, or one per block; 0 is the
            plain model. Attention maps and grid features are restored to all patches.
        patch_dropout: Fraction of the patches dropped from every training step (PatchDropout).
        map_head: How a task of every pixel, such as segmentation, is answered: None or `"linear"`
            for a batch norm and a linear layer on each patch (DINOv3's); `"dpt"` for the DPT
            head, which fuses the maps of four blocks; `"eomt"` for queries that pass the last
            blocks and become masks, of classes alone; or its options, a
            `keras_vit.models.dpt.DPTHead`, a `keras_vit.models.eomt.EoMTHead` (with
            `"kind": "eomt"`), or a dictionary of its arguments. Without a task, the
            model then returns maps of `num_classes` channels, such as relative depth.
    """

    patch_size: int | tuple[int, int] = 16
    resnet: Sequence[int] | None = None
    resnet_width: int = 64
    conv_stem: Sequence[Sequence[int]] | None = None
    hidden_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_dim: int | None = None  # type: ignore[assignment]  # an integer once it is checked
    pooling: str | None = "token"
    class_token: bool | None = None
    num_registers: int = 0
    distilled: bool = False
    representation_size: int | None = None
    position_embedding: str = "learned"
    position_grid: tuple[int, int] | None = None
    pre_norm: bool = False
    norm_after_pooling: bool = False
    token_merging: int | Sequence[int] = 0
    patch_dropout: float = 0.0
    map_head: Any = None  # type: ignore[misc]  # an argument of this family alone

    def __post_init__(self) -> None:
        if self.map_head not in (None, "linear"):
            self._set(map_head=map_head_of(self.map_head))
        ModelConfig.__post_init__(self)
        if self.mlp_dim is None:
            self._set(mlp_dim=4 * self.hidden_dim)
        self._check_ranges()
        self._check_combinations()
        patch_size = as_pair(self.patch_size, "patch_size")
        resnet = None if self.resnet is None else stages(self.resnet, "resnet")
        stem = None if self.conv_stem is None else conv_stages(self.conv_stem)
        grid = (
            patch_grid(self.image_size, patch_size, feature_stride(resnet, stem))
            if self.position_grid is None
            else as_pair(self.position_grid, "position_grid")
        )
        merging = self.token_merging
        self._set(
            patch_size=patch_size,
            resnet=resnet,
            conv_stem=stem,
            position_grid=grid,
            token_merging=merging if isinstance(merging, int) else self.merging,
            class_token=self.has_class_token,
        )
        if isinstance(self.map_head, MapHead):
            self._set_map_head(self.map_head)

    def _set_map_head(self, head: MapHead) -> None:
        """Brings the options of a head in line with the encoder."""
        patch, stride = (
            as_pair(self.patch_size, "patch_size"),
            feature_stride(self.resnet, self.conv_stem),
        )
        pixels = (patch[0] * stride, patch[1] * stride)
        head = head.resolved(self.hidden_dim, self.depth, self.num_classes, patch_size=pixels)
        self._set(map_head=head)
        cells = list(zip(self.image_size, pixels, strict=True))
        if any(side % cell for side, cell in cells if side is not None):
            fits = tuple(max(round((side or cell) / cell), 1) * cell for side, cell in cells)
            raise ValueError(
                f"Images of {self.image_size} pixels are not whole patches of "
                f"{pixels}, which the {head.title} head needs: give {fits}."
            )
        if any(self.merging):
            raise ValueError(
                f"token_merging={self.token_merging!r} leaves blocks without a map for map_head="
                f'"{head.kind}": leave it out, or give map_head="linear".'
            )
        if isinstance(head, DPTHead):
            self._check_dpt_head(head)
        else:
            self._check_eomt_head()

    def _check_eomt_head(self) -> None:
        if isinstance(self.task, Task) and self.task.kind != Segmentation.kind:
            raise ValueError(
                f'map_head="{EoMTHead.kind}" answers with one of several classes, and the task is '
                f'{self.task.kind}: give map_head="dpt" or "linear", or a task of segmentation.'
            )
        if self.is_relative or self.norm_after_pooling:
            name = "position_embedding" if self.is_relative else "norm_after_pooling"
            raise ValueError(
                f"{name}={getattr(self, name)!r} does not fit the EoMT head, whose queries do not "
                'have a place and read the last norm: leave it out, or give map_head="linear".'
            )

    def _check_dpt_head(self, head: DPTHead) -> None:
        if isinstance(self.task, Task):
            self.check_activation(self.task)
        if head.readout == "project" and not self.has_class_token:
            raise ValueError(
                'readout="project" of the DPT head joins the class token to every patch, and the '
                'model does not have one: give class_token=True, or readout="ignore".'
            )
        if head.normalized and self.norm_after_pooling:
            raise ValueError(
                "norm_after_pooling=True leaves the encoder without a norm for the DPT head: give "
                'map_head={"normalized": False}.'
            )

    def get_config(self) -> dict[str, Any]:
        head = self.map_head
        return super().get_config() | {
            "map_head": head.get_config() if isinstance(head, MapHead) else head
        }

    def _check_ranges(self) -> None:
        check_positive(hidden_dim=self.hidden_dim, depth=self.depth)
        BlockConfig.__post_init__(self)
        check_non_negative(num_registers=self.num_registers)
        check_heads(self.hidden_dim, self.num_heads)
        check_choice(self.pooling, "pooling", POOLINGS)
        check_choice(self.position_embedding, "position_embedding", POSITION_EMBEDDINGS)
        check_rate(patch_dropout=self.patch_dropout)
        if self.representation_size is not None:
            check_positive(representation_size=self.representation_size)

    def _check_combinations(self) -> None:
        in_attention = self.position_embedding if self.is_relative else self.rotary
        if in_attention and (any(self.merging) or self.patch_dropout):
            name = "position_embedding" if self.is_relative else "rotary"
            raise ValueError(
                f'{name}="{in_attention}" needs every patch at its position. Give '
                f'position_embedding="learned", or 0 for token_merging={self.token_merging!r} and '
                f"patch_dropout={self.patch_dropout!r}."
            )
        if self.is_relative_to_grid and (None in self.image_size or self.num_prefix_tokens != 1):
            raise ValueError(
                f'position_embedding="{self.position_embedding}" is a table for one image size and '
                "one class token: give input_shape in numbers, class_token=True, num_registers=0 "
                "and distilled=False."
            )
        if self.resnet is not None and self.conv_stem is not None:
            raise ValueError(
                f"resnet={self.resnet!r} and conv_stem={self.conv_stem!r} both stand in front of "
                "the patches: give one of them."
            )
        if self.patch_dropout and self.head == "map":
            raise ValueError(
                f"patch_dropout={self.patch_dropout!r} leaves patches out, and the task is of all "
                "pixels: leave it out."
            )
        if self.norm_after_pooling and self.pooling != "gap":
            raise ValueError(
                f'norm_after_pooling=True is for pooling="gap", not {self.pooling!r}: give that, '
                "or leave it out."
            )
        if self.distilled and self.pooling != "token":
            raise ValueError(
                f'distilled=True has heads on two tokens: give pooling="token", not '
                f"{self.pooling!r}, or leave it out."
            )
        if self.pooling in ("token", "token_gap") and not self.has_class_token:
            raise ValueError(
                f'pooling="{self.pooling}" needs the class token. Leave class_token out, or give '
                'pooling="gap".'
            )

    @property
    def is_pooled(self) -> bool:
        """Whether the model returns one row of outputs per image."""
        return self.pooling is not None

    @property
    def has_class_token(self) -> bool:
        """The argument `class_token`, or its default under this `pooling`."""
        default = self.pooling not in ("gap", "map")
        return default if self.class_token is None else self.class_token

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens in front of the patches: class token, distillation token and registers."""
        return self.num_prefix_positions + self.num_registers

    @property
    def num_prefix_positions(self) -> int:
        """Tokens in front of the patches that have a learned position: all but registers."""
        return int(self.has_class_token) + self.distilled

    @property
    def is_relative(self) -> bool:
        """Whether positions are a bias on attention logits."""
        return self.position_embedding.startswith("relative")

    @property
    def is_relative_to_grid(self) -> bool:
        """Whether positions are BEiT's bias on logits, by offsets of rows and columns."""
        return self.position_embedding.startswith("relative_2d")

    @property
    def merging(self) -> tuple[int, ...]:
        """Number of patches that each block merges."""
        return merging_schedule(self.token_merging, self.depth)

    def block(self, i: int) -> BlockConfig:
        """Return the options of encoder block `i`: the model's, with its own stochastic depth."""
        options = {f.name: getattr(self, f.name) for f in fields(BlockConfig)}
        rate = self.stochastic_depth * i / max(self.depth - 1, 1)
        return BlockConfig(**{**options, "stochastic_depth": rate})

    @property
    def relative(self) -> dict[str, Any]:
        """The sizes for which each block learns relative positions, as arguments of the block."""
        assert self.position_grid is not None
        if self.position_embedding == "relative":
            return {"relative_length": math.prod(self.position_grid) + self.num_prefix_tokens}
        is_grid = self.position_embedding == "relative_2d"
        return {"relative_grid": self.position_grid} if is_grid else {}


if TYPE_CHECKING:
    _Arguments = ViTConfig
else:
    _Arguments = object


class ViTAttributes(_Arguments):
    """The attributes that a model takes from its `ViTConfig`, for editors and type checkers.

    It lists the fields with one type here whose argument may be given in several types.
    """

    patch_size: tuple[int, int]
    resnet: tuple[int, ...] | None
    conv_stem: tuple[tuple[int, int], ...] | None
    mlp_dim: int
    class_token: bool
    position_grid: tuple[int, int]
    token_merging: int | tuple[int, ...]
    map_head: str | DPTHead | EoMTHead | None  # type: ignore[misc]  # as above


@dataclass(frozen=True, kw_only=True)
class MixerConfig(ModelConfig):
    """Arguments of an `MLPMixer`; the defaults are Mixer-B/16 as its authors released it.

    Args:
        patch_size: Height and width of a patch in pixels: one number, or a pair. Patches at the
            border are padded with zeros.
        hidden_dim: Width of the tokens.
        depth: Number of blocks.
        tokens_mlp_dim: Width of the MLPs across tokens; None for half of `hidden_dim`.
        channels_mlp_dim: Width of the MLPs across channels; None for four times `hidden_dim`.
        stochastic_depth: Rate of stochastic depth at the last block; it rises linearly from 0.
        activation: `"gelu_tanh"` (the released code's), `"gelu"` or another of Keras's.
        norm_epsilon: Epsilon of the layer norms.
        remat: Recompute a block's activations in the backward pass instead of keeping them.
    """

    patch_size: int | tuple[int, int] = 16
    hidden_dim: int = 768
    depth: int = 12
    tokens_mlp_dim: int | None = None
    channels_mlp_dim: int | None = None
    stochastic_depth: float = 0.0
    activation: str = "gelu_tanh"
    norm_epsilon: float = 1e-6
    remat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(hidden_dim=self.hidden_dim, depth=self.depth)
        check_above_zero(norm_epsilon=self.norm_epsilon)
        check_rate(stochastic_depth=self.stochastic_depth)
        tokens, channels = self.tokens_mlp_dim, self.channels_mlp_dim
        self._set(
            patch_size=as_pair(self.patch_size, "patch_size"),
            tokens_mlp_dim=self.hidden_dim // 2 if tokens is None else tokens,
            channels_mlp_dim=4 * self.hidden_dim if channels is None else channels,
        )
        _ = self.position_grid  # images of any size are an error

    @property
    def position_grid(self) -> tuple[int, int]:
        """Rows and columns of the patches."""
        patch_size = as_pair(self.patch_size, "patch_size")
        assert self.input_shape is not None
        assert self.data_format is not None
        return mixer_grid(self.input_shape, patch_size, self.data_format)

    def block(self, i: int) -> dict[str, Any]:
        """Return the arguments of block `i`."""
        return {
            "tokens_mlp_dim": self.tokens_mlp_dim,
            "channels_mlp_dim": self.channels_mlp_dim,
            "stochastic_depth": self.stochastic_depth * i / max(self.depth - 1, 1),
            "activation": self.activation,
            "norm_epsilon": self.norm_epsilon,
            "remat": self.remat,
            "dtype": self.dtype,
            "name": f"block_{i}",
        }


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(ModelConfig):
    """Arguments of a `BiTResNet`; the defaults are those of BiT-R50x1.

    Args:
        depths: Number of units per stage: (3, 4, 6, 3) is R50, (3, 4, 23, 3) R101, (3, 8, 36, 3)
            R152.
        width: Channels of the stem, a multiple of 32: 64 is x1, 192 is x3. A stage has four times
            as many, and each later one twice those of the one before.
        version: 2: BiT's, norm and ReLU before each convolution; 1: big_vision's `bit`, after it.
        remat: Recompute a unit's activations in the backward pass instead of keeping them.
    """

    depths: Sequence[int] = (3, 4, 6, 3)
    width: int = 64
    version: int = 2
    remat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(depths=stages(self.depths, "depths"))
        if not self.depths:
            raise ValueError(
                "depths=() is empty. Give the number of units per stage, such as (3, 4, 6, 3)."
            )
        check_choice(self.version, "version", VERSIONS)


P = ParamSpec("P")
C = TypeVar("C", bound=ModelConfig)


def arguments_of(
    config: Callable[P, C],
) -> Callable[[Callable[[Any, C], None]], Callable[Concatenate[Any, P], None]]:
    """Makes a constructor of one configuration a constructor of the configuration's arguments."""

    def decorate(build: Callable[[Any, C], None]) -> Any:
        # Documentation and editors see what is wrapped: the arguments of the configuration.
        @functools.wraps(config.__init__)  # type: ignore[misc]
        # Not keywords alone: to Keras before 3.14 that is the constructor of a plain functional
        # model, and `clone_model` would call it with inputs and outputs.
        def constructor(self: Any, num_classes: int = 1000, **arguments: Any) -> None:
            build(self, config(num_classes=num_classes, **arguments))  # type: ignore[arg-type,call-arg]

        constructor.__qualname__, constructor.__module__ = build.__qualname__, build.__module__
        parts = [c for c in config.__mro__ if is_dataclass(c)]  # type: ignore[attr-defined]
        constructor.__doc__ = "\n    ".join(str(part.__doc__) for part in parts)
        return constructor

    return decorate
