"""The model that a file is of, read from the shapes of a few of its tensors.

Whether the other tensors fit is for `claims` to bound before the model is built, and for
`adaptation` to check after.
"""

import re
from math import isqrt
from typing import Any

from keras_vit.models.dpt import STAGES
from keras_vit.models.geometry import DEFAULT_SIZE, feature_stride
from keras_vit.models.variants import UNNAMED_WIDTHS, WIDTHS
from keras_vit.tasks import Depth, RelativeDepth, Segmentation, Task
from keras_vit.weights.adaptation import (
    PATCHES,
    POSITIONS,
    Grid,
    grid_of_offsets,
    grid_of_positions,
)
from keras_vit.weights.canonical_names import OPTIONS
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.tensors import TensorShape
from keras_vit.weights.tables.layout import Checkpoint

# Width -> heads, where no shape shows them: the variants, DeiT III's M, DINOv2's giant, So400m.
NUM_HEADS = {row.hidden_dim: row.num_heads for row in (WIDTHS | UNNAMED_WIDTHS).values()}
HEAD_DIM = 64
DPT, QUERIES = "dpt/reassemble_0/projection/kernel", "eomt/queries"
# By the last activation of a DPT head of one output, what it answers (Yang et al. 2024).
DEPTHS = {
    "relu": RelativeDepth(),
    "sigmoid": Depth(unit="m", form="depth"),
}


class Shapes:
    """The shapes of a file's tensors, by canonical name."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._tensors = checkpoint.tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def of(self, name: str, rank: int) -> TensorShape:
        """Return the shape of a tensor that must be there, with so many axes."""
        if name not in self._tensors:
            raise CheckpointError(f"The file does not have {name!r}: it is incomplete.")
        tensor = self._tensors[name]
        if len(tensor.shape) != rank or 0 in tensor.shape:
            raise CheckpointError(
                f"Tensor {tensor.name!r} has shape {tensor.shape}, which does not fit {name}."
            )
        return tensor.shape

    def depth(self) -> int:
        """Return the number of blocks, of which none may be missing."""
        blocks = {number for (number,) in self._numbers(r"block_(\d+)/")}
        missing = sorted(set(range(max(blocks, default=0) + 1)) - blocks)
        if missing:
            raise CheckpointError(f"The file is incomplete: block {missing[0]} is missing.")
        return len(blocks)

    def resnet(self) -> tuple[tuple[int, ...], int]:
        """Units of each stage, of which none may be missing, and channels of the stem."""
        units = self._numbers(r"stage_(\d+)/unit_(\d+)/")
        depths: list[int] = []
        while in_stage := [unit for stage, unit in units if stage == len(depths) + 1]:
            depths.append(max(in_stage))
        expected = {(s, u) for s, depth in enumerate(depths, 1) for u in range(1, depth + 1)}
        if units != expected:
            raise CheckpointError(
                f"The file is incomplete: its units {sorted(units ^ expected)[:8]} do not form "
                "whole stages."
            )
        return tuple(depths), self.of("stem/conv/kernel", 4)[3]

    def _numbers(self, pattern: str) -> set[tuple[int, ...]]:
        matches = map(re.compile(pattern).match, self._tensors)
        return {tuple(map(int, match.groups())) for match in matches if match}

    @property
    def num_classes(self) -> int:
        """Classes of the head; 0 for none."""
        return self.of("head/kernel", 2)[1] if "head/kernel" in self else 0

    @property
    def num_features(self) -> int:
        """Features that the head takes; 0 without one."""
        return self.of("head/kernel", 2)[0] if "head/kernel" in self else 0


def bit(checkpoint: Checkpoint, file_grid: Grid | None = None) -> dict[str, Any]:
    """Return arguments of the `BiTResNet` that a file holds the weights of."""
    shapes = Shapes(checkpoint)
    depths, width = shapes.resnet()
    size = checkpoint.arguments.get("image_size", (DEFAULT_SIZE, DEFAULT_SIZE))
    return {
        "depths": depths,
        "width": width,
        "version": 2 if checkpoint.family == "bit" else 1,
        "num_classes": shapes.num_classes,
        "input_shape": (*size, shapes.of("stem/conv/kernel", 4)[2]),
        **checkpoint.stated,
    }


def mixer(checkpoint: Checkpoint, file_grid: Grid | None = None) -> dict[str, Any]:
    """Return arguments of the `MLPMixer` that a file holds the weights of."""
    shapes = Shapes(checkpoint)
    patch_h, patch_w, channels, dim = shapes.of(PATCHES, 4)
    tokens, tokens_dim = shapes.of("block_0/token_mixing/dense_0/kernel", 2)
    arguments: dict[str, Any] = {
        "patch_size": (patch_h, patch_w),
        "hidden_dim": dim,
        "depth": shapes.depth(),
        "tokens_mlp_dim": tokens_dim,
        "channels_mlp_dim": shapes.of("block_0/channel_mixing/dense_0/kernel", 2)[1],
        "num_classes": shapes.num_classes,
        **checkpoint.stated,
    }
    size = checkpoint.arguments.get("image_size")
    rows, columns = file_grid or checkpoint.grid or (isqrt(tokens),) * 2
    if size is None and rows * columns == tokens:
        size = (rows * patch_h, columns * patch_w)
    if size is not None:
        arguments["input_shape"] = (*size, channels)
    return arguments


def vit(checkpoint: Checkpoint, file_grid: Grid | None = None) -> dict[str, Any]:
    """Return arguments of the `VisionTransformer` that a file holds the weights of.

    With `position_grid`, the file's, which is for images of any size alone. Everything from the
    shapes; the number of heads where these show it, else what the file states,
    else that of the variant of this width, else heads of 64.
    """
    shapes = Shapes(checkpoint)
    shape = shapes.of
    patch_h, patch_w, channels, hidden_dim = shape(PATCHES, 4)
    resnet, resnet_width = None, 64
    if "stem/conv/kernel" in shapes:
        resnet, resnet_width = shapes.resnet()
        channels = shape("stem/conv/kernel", 4)[2]
    mlp_dim = shape("block_0/mlp/dense_1/kernel", 2)[0]
    is_gated = shape("block_0/mlp/dense_0/kernel", 2)[1] == 2 * mlp_dim
    class_token = "class_token" in shapes
    has_pre_logits = "pre_logits/kernel" in shapes
    arguments: dict[str, Any] = {
        "patch_size": (patch_h, patch_w),
        "resnet": resnet,
        "resnet_width": resnet_width,
        "hidden_dim": hidden_dim,
        "depth": shapes.depth(),
        "num_heads": NUM_HEADS.get(hidden_dim, max(hidden_dim // HEAD_DIM, 1)),
        "mlp_dim": mlp_dim,
        "num_classes": shapes.num_classes,
        "pooling": "map" if "pooling/probe" in shapes else "token" if class_token else "gap",
        "class_token": class_token,
        "num_registers": shape("register_tokens", 3)[1] if "register_tokens" in shapes else 0,
        "representation_size": shape("pre_logits/kernel", 2)[1] if has_pre_logits else None,
        # The value is overwritten by the file's: only whether there is one counts.
        "layer_scale": 1e-5 if "block_0/scale_0" in shapes else None,
        "position_embedding": _positions(shapes),
        **_options(shapes, hidden_dim),
    }
    table = next((n for n in ("relative_table", "block_0/relative_table") if n in shapes), None)
    if table is not None:
        arguments["num_heads"] = shape(table, 2)[1]
    arguments |= checkpoint.stated
    arguments |= _map_head(shapes, arguments["activation"], checkpoint.arguments)
    if is_gated:
        arguments["activation"] = "swiglu"
    size = checkpoint.arguments.get("image_size")
    stride = feature_stride(resnet)
    cell_h, cell_w = patch_h * stride, patch_w * stride
    grid, known_grid = None, file_grid or checkpoint.grid
    if POSITIONS in shapes:
        positions = grid_of_positions(
            shape(POSITIONS, 3)[1],
            checkpoint.has_class_position,
            class_token,
            known_grid,
            is_distilled=arguments["distilled"],
        )
        grid = positions and positions[1]
    elif table is not None:
        grid = grid_of_offsets(shape(table, 2)[0], known_grid)
    if grid is not None:
        arguments["position_grid"] = grid
    if size is None and (POSITIONS in shapes or table is not None):
        size = grid and (grid[0] * cell_h, grid[1] * cell_w)
    elif size is None:
        size = (DEFAULT_SIZE // cell_h * cell_h, DEFAULT_SIZE // cell_w * cell_w)
    if size is not None:
        arguments["input_shape"] = (*size, channels)
    return arguments


def _options(shapes: Shapes, hidden_dim: int) -> dict[str, Any]:
    """Return the options that tensors show by being there, and what follows from them."""
    options: dict[str, Any] = {o.name: o.shown_by in shapes for o in OPTIONS if o.shown_by}
    if options["norm_after_pooling"]:
        options["pooling"] = "gap"
    elif DPT not in shapes and QUERIES not in shapes and shapes.num_features == 2 * hidden_dim:
        options["pooling"] = "token_gap"
    return options


def task_of_maps(checkpoint: Checkpoint) -> Task | None:
    """Return what a DPT or EoMT head in a file answers for every pixel; None where nobody knows."""
    activation = str(checkpoint.stated.get("activation"))
    return _map_head(Shapes(checkpoint), activation, checkpoint.arguments).get("task")


def _map_head(shapes: Shapes, activation: str, stated: dict[str, Any]) -> dict[str, Any]:
    """Return the head for every pixel, and what follows from it; nothing for another head."""
    if DPT in shapes:
        return _maps(shapes, stated.get("dpt", {}))
    if QUERIES in shapes:
        return _queries(shapes, {"activation": activation, **stated.get("eomt", {})})
    return {}


def _maps(shapes: Shapes, stated: dict[str, Any]) -> dict[str, Any]:
    """Return the DPT head, as far as tensors show it and a configuration states it, and its task.

    Maps of any other meaning have that of the file, or none.
    """
    head = _dpt_head(shapes) | stated
    if "head_norm/scale" in shapes and 1 < shapes.num_classes <= Segmentation.most:
        return {"map_head": head, "task": Segmentation(size=shapes.num_classes)}
    if shapes.num_classes == 1 and head["activation"] in DEPTHS:
        return {"map_head": head, "task": DEPTHS[head["activation"]]}
    return {"map_head": head}


def _queries(shapes: Shapes, stated: dict[str, Any]) -> dict[str, Any]:
    """Return the EoMT head, whose classes are one fewer than the outputs of a query, and its task.

    A single class, or very many, do not have a task.
    """
    upscale = 0
    while f"eomt/upscale_{upscale}/norm/scale" in shapes:
        upscale += 1
    queries, classes = shapes.of(QUERIES, 3)[1], shapes.num_classes - 1
    head = {"kind": "eomt", "queries": queries, "upscale_blocks": upscale, **stated}
    has_task = Segmentation.fewest <= classes <= Segmentation.most
    task = {"task": Segmentation(size=classes)} if has_task else {}
    return {"num_classes": classes, "map_head": head, **task}


def _dpt_head(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of the DPT head that tensors show."""
    widths = [shapes.of(f"dpt/reassemble_{i}/projection/kernel", 2)[1] for i in range(STAGES)]
    for_classes = "head_norm/scale" in shapes
    return {
        "channels": widths,
        "width": shapes.of("dpt/reassemble_0/convolution/kernel", 4)[3],
        "readout": "project" if "dpt/reassemble_0/token_projection/kernel" in shapes else "ignore",
        "batch_norm": "dpt/fusion_0/unit/norm_0/scale" in shapes,
        "for_classes": for_classes,
        "activation": "linear" if for_classes else "relu",
        **({} if for_classes else {"depth_width": shapes.of("head_conv_1/kernel", 4)[3]}),
    }


def _positions(shapes: Shapes) -> str:
    """Return the `position_embedding` that tensors are of; rotary positions do not have any."""
    if POSITIONS in shapes and ("relative_table" in shapes or "block_0/relative_table" in shapes):
        raise CheckpointError(
            "The file has learned positions and relative ones, of which this model has either."
        )
    if POSITIONS in shapes:
        return "learned"
    if "relative_table" in shapes:
        return "relative_2d_shared"
    return "relative_2d" if "block_0/relative_table" in shapes else "none"
