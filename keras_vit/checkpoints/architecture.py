"""The model that a file is of, read from the shapes of its tensors."""

import re
from typing import Any

from keras_vit.checkpoints.adaptation import POSITIONS, Grid, grid_of_positions
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.layout import Checkpoint
from keras_vit.checkpoints.released import OTHER_WIDTHS
from keras_vit.checkpoints.tensors import Shape
from keras_vit.models.variants import WIDTHS

# Width -> heads, where no shape tells: the variants, DeiT III's M, DINOv2's giant and So400m.
HEADS = {row.hidden_dim: row.num_heads for row in (WIDTHS | OTHER_WIDTHS).values()} | {1152: 16}
HEAD_DIM = 64
DEFAULT_PIXELS = 224


def architecture(checkpoint: Checkpoint, file_grid: Grid | None = None) -> dict[str, Any]:
    """Arguments of the `VisionTransformer` that a file holds the weights of.

    Everything from the shapes; the number of heads where these tell it, else from what the file
    notes, else that of the variant of this width, else heads of 64.

    Raises:
        CheckpointError: The shapes are of no ViT, or do not tell the size of the images.
    """
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    names = {key: tensor.name for key, tensor in checkpoint.tensors.items()}

    def shape(name: str, rank: int) -> Shape:
        if name not in shapes:
            raise CheckpointError(f"The file has no {name!r}: it is incomplete.")
        if len(shapes[name]) != rank or 0 in shapes[name]:
            raise CheckpointError(
                f"Tensor {names[name]!r} has shape {shapes[name]}, which no {name} of a ViT has."
            )
        return shapes[name]

    patch_h, patch_w, channels, hidden_dim = shape("patch_embedding/kernel", 4)
    feed_in, feed_out = (
        shape("block_0/mlp/dense_0/kernel", 2),
        shape("block_0/mlp/dense_1/kernel", 2),
    )
    gated = feed_in[1] == 2 * feed_out[0]
    class_token = "class_token" in shapes
    pooling = "map" if "pooling/probe" in shapes else "token" if class_token else "gap"
    arguments: dict[str, Any] = {
        "patch_size": (patch_h, patch_w),
        "hidden_dim": hidden_dim,
        "depth": _depth(shapes),
        "num_heads": HEADS.get(hidden_dim, max(hidden_dim // HEAD_DIM, 1)),
        "mlp_dim": feed_out[0],
        "num_classes": shape("head/kernel", 2)[1] if "head/kernel" in shapes else 0,
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
    # The model must not be larger than the file, whatever one of its tensors claims.
    for name, wanted in _matrices(arguments, shapes).items():
        if shape(name, len(wanted)) != wanted:
            raise CheckpointError(
                f"Tensor {names[name]!r} has shape {shapes[name]}, where the width of the tokens "
                f"({hidden_dim}) and the MLP ({feed_out[0]}) want {wanted}."
            )
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
        size = None if found is None else (found[1][0] * patch_h, found[1][1] * patch_w)
    elif size is None:
        size = (DEFAULT_PIXELS // patch_h * patch_h, DEFAULT_PIXELS // patch_w * patch_w)
    if size is not None:
        arguments["input_shape"] = (*size, channels)
    return arguments


def _matrices(arguments: dict[str, Any], shapes: dict[str, Shape]) -> dict[str, Shape]:
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


def _depth(shapes: dict[str, Shape]) -> int:
    blocks = {int(match[1]) for match in map(re.compile(r"block_(\d+)/").match, shapes) if match}
    depth = len(blocks)
    if depth == 0 or blocks != set(range(depth)):
        missing = sorted(set(range(max(blocks, default=0) + 1)) - blocks)
        raise CheckpointError(f"The file is incomplete: encoder block {missing[0]} is missing.")
    return depth
