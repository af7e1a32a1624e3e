"""The model that a file is of, read from the shapes of its tensors."""

import re
from math import isqrt
from typing import Any

from keras_vit.checkpoints.adaptation import POSITIONS, Grid, grid_of_positions
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.layout import Checkpoint
from keras_vit.checkpoints.tensors import Shape
from keras_vit.models.geometry import feature_stride
from keras_vit.models.variants import UNNAMED_WIDTHS, WIDTHS

# Width -> heads, where no shape tells: the variants, DeiT III's M, DINOv2's giant and So400m.
HEADS = {row.hidden_dim: row.num_heads for row in (WIDTHS | UNNAMED_WIDTHS).values()} | {1152: 16}
HEAD_DIM = 64
DEFAULT_PIXELS = 224


class Shapes:
    """The shapes of a file's tensors, by canonical name."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._tensors = checkpoint.tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def of(self, name: str, rank: int) -> Shape:
        """The shape of a tensor that must be there, with so many axes."""
        if name not in self._tensors:
            raise CheckpointError(f"The file has no {name!r}: it is incomplete.")
        tensor = self._tensors[name]
        if len(tensor.shape) != rank or 0 in tensor.shape:
            raise CheckpointError(
                f"Tensor {tensor.name!r} has shape {tensor.shape}, which no {name} has."
            )
        return tensor.shape

    def check(self, wanted: dict[str, Shape]) -> None:
        """The model must not be larger than the file, whatever one of its tensors claims."""
        for name, shape in wanted.items():
            if self.of(name, len(shape)) != shape:
                raise CheckpointError(
                    f"Tensor {self._tensors[name].name!r} has shape {self._tensors[name].shape}, "
                    f"where the file's other tensors want {shape}."
                )

    def depth(self) -> int:
        """The number of blocks, of which none may be missing."""
        matches = map(re.compile(r"block_(\d+)/").match, self._tensors)
        blocks = {int(match[1]) for match in matches if match}
        if not blocks or blocks != set(range(len(blocks))):
            missing = sorted(set(range(max(blocks, default=0) + 1)) - blocks)
            raise CheckpointError(f"The file is incomplete: block {missing[0]} is missing.")
        return len(blocks)

    def resnet(self) -> tuple[tuple[int, ...], int, int]:
        """Units of each stage, channels of the stem, and channels of the last stage."""
        matches = map(re.compile(r"stage_(\d+)/unit_(\d+)/").match, self._tensors)
        units = {(int(match[1]), int(match[2])) for match in matches if match}
        depths = tuple(
            max(unit for s, unit in units if s == stage)
            for stage in range(1, 1 + len({stage for stage, _ in units}))
            if any(s == stage for s, _ in units)
        )
        wanted = {(s, u) for s, depth in enumerate(depths, 1) for u in range(1, depth + 1)}
        if units != wanted:
            raise CheckpointError(
                f"The file is incomplete: its units {sorted(units ^ wanted)} stand alone."
            )
        width = channels = self.of("stem/conv/kernel", 4)[3]
        shapes: dict[str, Shape] = {}
        for stage, unit in sorted(units):
            prefix, inside = f"stage_{stage}/unit_{unit}", width * 2 ** (stage - 1)
            shapes[f"{prefix}/conv_1/kernel"] = (1, 1, channels, inside)
            shapes[f"{prefix}/conv_2/kernel"] = (3, 3, inside, inside)
            shapes[f"{prefix}/conv_3/kernel"] = (1, 1, inside, 4 * inside)
            if unit == 1:
                shapes[f"{prefix}/projection/kernel"] = (1, 1, channels, 4 * inside)
            channels = 4 * inside
        self.check(shapes)
        return depths, width, channels

    @property
    def num_classes(self) -> int:
        """Classes of the head; 0 for none."""
        return self.of("head/kernel", 2)[1] if "head/kernel" in self else 0


def bit(checkpoint: Checkpoint, file_grid: Grid | None = None) -> dict[str, Any]:
    """Arguments of the `BiTResNet` that a file holds the weights of.

    Raises:
        CheckpointError: The shapes are of no such ResNet.
    """
    shapes = Shapes(checkpoint)
    depths, width, features = shapes.resnet()
    channels = shapes.of("stem/conv/kernel", 4)[2]
    if shapes.num_classes:
        shapes.check({"head/kernel": (features, shapes.num_classes)})
    size = checkpoint.arguments.get("image_size", (DEFAULT_PIXELS, DEFAULT_PIXELS))
    return {
        "depths": depths,
        "width": width,
        "version": 2 if checkpoint.family == "bit" else 1,
        "num_classes": shapes.num_classes,
        "input_shape": (*size, channels),
        "include_preprocessing": checkpoint.arguments.get(
            "include_preprocessing", checkpoint.origin.include_preprocessing
        ),
    }


def mixer(checkpoint: Checkpoint, file_grid: Grid | None = None) -> dict[str, Any]:
    """Arguments of the `MLPMixer` that a file holds the weights of.

    Raises:
        CheckpointError: The shapes are of no MLP-Mixer.
    """
    shapes = Shapes(checkpoint)
    patch_h, patch_w, channels, dim = shapes.of("patch_embedding/kernel", 4)
    tokens, tokens_dim = shapes.of("block_0/token_mixing/dense_0/kernel", 2)
    channels_dim = shapes.of("block_0/channel_mixing/dense_0/kernel", 2)[1]
    arguments: dict[str, Any] = {
        "patch_size": (patch_h, patch_w),
        "hidden_dim": dim,
        "depth": shapes.depth(),
        "tokens_mlp_dim": tokens_dim,
        "channels_mlp_dim": channels_dim,
        "num_classes": shapes.num_classes,
        "activation": checkpoint.origin.activation,
        "norm_epsilon": checkpoint.origin.norm_epsilon,
        "include_preprocessing": checkpoint.origin.include_preprocessing,
    }
    wanted: dict[str, Shape] = {"head/kernel": (dim, shapes.num_classes)}
    for i in range(arguments["depth"]):
        for part, width, inside in (
            ("token", tokens, tokens_dim),
            ("channel", dim, channels_dim),
        ):
            wanted[f"block_{i}/{part}_mixing/dense_0/kernel"] = (width, inside)
            wanted[f"block_{i}/{part}_mixing/dense_1/kernel"] = (inside, width)
    shapes.check({name: shape for name, shape in wanted.items() if shape[-1]})
    told = dict(checkpoint.arguments)
    size = told.pop("image_size", None)
    told.pop("evaluation", None)
    rows, columns = file_grid or checkpoint.grid or (isqrt(tokens),) * 2
    if size is None and rows * columns == tokens:
        size = (rows * patch_h, columns * patch_w)
    if size is not None:
        arguments["input_shape"] = (*size, channels)
    return arguments | told


def vit(checkpoint: Checkpoint, file_grid: Grid | None = None) -> dict[str, Any]:
    """Arguments of the `VisionTransformer` that a file holds the weights of.

    Everything from the shapes; the number of heads where these tell it, else from what the file
    notes, else that of the variant of this width, else heads of 64.

    Raises:
        CheckpointError: The shapes are of no ViT, or do not tell the size of the images.
    """
    shapes = Shapes(checkpoint)
    shape = shapes.of
    patch_h, patch_w, channels, hidden_dim = shape("patch_embedding/kernel", 4)
    resnet, resnet_width = None, 64
    if "stem/conv/kernel" in shapes:
        resnet, resnet_width, maps = shapes.resnet()
        shapes.check({"patch_embedding/kernel": (patch_h, patch_w, maps, hidden_dim)})
        channels = shape("stem/conv/kernel", 4)[2]
    stride = feature_stride(resnet)
    feed_in, feed_out = (
        shape("block_0/mlp/dense_0/kernel", 2),
        shape("block_0/mlp/dense_1/kernel", 2),
    )
    gated = feed_in[1] == 2 * feed_out[0]
    class_token = "class_token" in shapes
    pooling = "map" if "pooling/probe" in shapes else "token" if class_token else "gap"
    arguments: dict[str, Any] = {
        "patch_size": (patch_h, patch_w),
        "resnet": resnet,
        "resnet_width": resnet_width,
        "hidden_dim": hidden_dim,
        "depth": shapes.depth(),
        "num_heads": HEADS.get(hidden_dim, max(hidden_dim // HEAD_DIM, 1)),
        "mlp_dim": feed_out[0],
        "num_classes": shapes.num_classes,
        "pooling": pooling,
        "class_token": class_token,
        "num_registers": shape("register_tokens", 3)[1] if "register_tokens" in shapes else 0,
        "representation_size": (
            shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in shapes else None
        ),
        # The value is overwritten by the file's: only that there is one counts.
        "layer_scale": 1e-5 if "block_0/scale_0" in shapes else None,
        "activation": "swiglu" if gated else checkpoint.origin.activation,
        "norm_epsilon": checkpoint.origin.norm_epsilon,
        "include_preprocessing": checkpoint.origin.include_preprocessing,
        "position_embedding": "learned" if POSITIONS in shapes else "none",
    }
    shapes.check(_matrices(arguments, shapes))
    told = dict(checkpoint.arguments)
    size = told.pop("image_size", None)
    told.pop("evaluation", None)
    arguments.update(told)
    if gated:
        arguments["activation"] = "swiglu"
    if size is None and POSITIONS in shapes:
        count = shape(POSITIONS, 3)[1]
        known = file_grid or checkpoint.grid
        found = grid_of_positions(count, checkpoint.class_entry, class_token, known, None)
        size = found and (found[1][0] * patch_h * stride, found[1][1] * patch_w * stride)
    elif size is None:
        size = tuple(
            DEFAULT_PIXELS // (patch * stride) * patch * stride for patch in (patch_h, patch_w)
        )
    if size is not None:
        arguments["input_shape"] = (*size, channels)
    return arguments


def _matrices(arguments: dict[str, Any], shapes: Shapes) -> dict[str, Shape]:
    """The shapes that the large tensors of a file must have among each other."""
    dim, mlp_dim = arguments["hidden_dim"], arguments["mlp_dim"]
    gate = 2 if arguments["activation"] == "swiglu" else 1
    features = arguments["representation_size"] or dim
    wanted: dict[str, Shape] = {}
    blocks = [f"block_{i}/" for i in range(arguments["depth"])]
    for block in blocks + ["pooling/"] * ("pooling/probe" in shapes):
        for part in ("query", "key", "value", "output"):
            wanted[f"{block}{part}/kernel"] = (dim, dim)
        wanted[f"{block}mlp/dense_0/kernel"] = (dim, gate * mlp_dim)
        wanted[f"{block}mlp/dense_1/kernel"] = (mlp_dim, dim)
    some = {
        "pre_logits/kernel": (dim, features),
        "head/kernel": (features, arguments["num_classes"]),
        "register_tokens": (1, arguments["num_registers"], dim),
    }
    return wanted | {name: expected for name, expected in some.items() if name in shapes}
