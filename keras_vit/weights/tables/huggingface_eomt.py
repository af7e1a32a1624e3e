"""transformers' EoMT, on DINOv2 and on DINOv3: an encoder and its queries in one file.

The published files of DINOv3 hold differences from Meta's weights, and not yet a model: their
repositories describe how both are added.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from keras_vit.data.eval_transform import EvalTransform
from keras_vit.models.eomt import MOST_UPSCALE_BLOCKS, EoMTHead
from keras_vit.models.vit import VisionTransformer
from keras_vit.tasks.query_losses import NO_OBJECT_WEIGHT
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.tensors import Array
from keras_vit.weights.tables.huggingface import (
    HUGGINGFACE_DINOV2,
    HUGGINGFACE_DINOV3,
    without_empty_registers,
)
from keras_vit.weights.tables.huggingface_dpt import TRANSPOSED
from keras_vit.weights.tables.layout import (
    BATCH,
    CONV,
    SAME,
    Layout,
    Row,
    SourceConventions,
    Tensors,
    torch_norm,
    weight_and_bias,
)

Config = dict[str, Any]
MASK_PROBABILITIES, EMPTY_WEIGHT = "attn_mask_probs", "criterion.empty_weight"


def _head_rows() -> tuple[Row, ...]:
    rows: list[Row] = [
        ("query.weight", ("eomt/queries",), BATCH),
        *weight_and_bias("class_predictor", "head"),
    ]
    for i in range(3):
        rows += weight_and_bias(f"mask_head.fc{i + 1}", f"eomt/masks/dense_{i}")
    for i in range(MOST_UPSCALE_BLOCKS):
        theirs, ours = f"upscale_block.block.{i}", f"eomt/upscale_{i}"
        rows += weight_and_bias(f"{theirs}.conv1", f"{ours}/upsample", TRANSPOSED)
        rows.append((f"{theirs}.conv2.weight", (f"{ours}/convolution/kernel",), TRANSPOSED))
        rows += torch_norm(f"{theirs}.layernorm2d", f"{ours}/norm")
    return tuple(rows)


COMMON: tuple[Row, ...] = (
    ("embeddings.cls_token", ("class_token",), SAME),
    ("embeddings.register_tokens", ("register_tokens",), SAME),
    *torch_norm("layernorm", "encoder_norm"),
    *_head_rows(),
    # Buffers of training, which `complete` adds to written files.
    (MASK_PROBABILITIES, ("eomt/mask_probabilities",), SAME),
    (EMPTY_WEIGHT, ("eomt/empty_weight",), SAME),
)
IGNORED = (rf"^{MASK_PROBABILITIES}$", r"^criterion\.", r"^embeddings\.mask_token$")
# Images are stretched to the model's size, where transformers pads or cuts them.
CONVENTIONS = SourceConventions(
    "gelu",
    1e-6,
    "imagenet",
    "bicubic",
    EvalTransform("huggingface_stretch", 1.0, interpolation="bilinear", decoder="pillow"),
)


def _arguments(tensors: Tensors) -> dict[str, Any]:
    """Return through how many blocks the queries pass, and whether they are masked in there."""
    if MASK_PROBABILITIES not in tensors:
        raise CheckpointError(
            f"The file does not have {MASK_PROBABILITIES!r}, of which there is one for each block "
            "that the queries pass: save it with transformers 4.53 or later."
        )
    probabilities = tensors[MASK_PROBABILITIES].read()
    if probabilities.ndim != 1 or set(probabilities.tolist()) not in ({0.0}, {1.0}):
        raise CheckpointError(
            f"{MASK_PROBABILITIES} of the file is {probabilities.tolist()}: its training was not "
            "finished, and transformers would mask queries at random. Accepted are all 0, as after "
            "the training, or all 1: set model.attn_mask_probs before you save it there."
        )
    return {"eomt": {"blocks": len(probabilities), "masked": bool(probabilities[0])}}


def _complete(values: Mapping[str, Array], model: VisionTransformer) -> dict[str, Array]:
    """Add the buffers of training, without which transformers would mask every query."""
    head = eomt_head(model)
    assert head.blocks is not None
    weights = np.ones(model.num_classes + 1, "float32")
    weights[-1] = NO_OBJECT_WEIGHT
    added = {"eomt/empty_weight": weights}
    added["eomt/mask_probabilities"] = np.full(head.blocks, head.masked, "float32")
    return {**values, **added}


_PLAIN_MLP = (
    *weight_and_bias("mlp.fc1", "mlp/dense_0"),
    *weight_and_bias("mlp.fc2", "mlp/dense_1"),
)
HUGGINGFACE_EOMT = Layout(
    name="huggingface_eomt",
    suffix=".safetensors",
    conventions=CONVENTIONS,
    signature=r"^query\.weight$",
    rows=(
        ("embeddings.position_embeddings.weight", ("position_embedding",), BATCH),
        *weight_and_bias("embeddings.patch_embeddings.projection", "patch_embedding", CONV),
        *COMMON,
    ),
    block="layers.{}.",
    block_rows=(
        *_PLAIN_MLP,
        *(
            (name.replace("o_proj", "out_proj"), parts, codec)
            for name, parts, codec in HUGGINGFACE_DINOV3.block_rows
            if "mlp/dense_0" not in parts[0]
        ),
    ),
    # SwiGLU of the giant: before transformers 5, gate and value in one.
    renames=((r"\.mlp\.weights_in\.", ".mlp.fc1."), (r"\.mlp\.weights_out\.", ".mlp.fc2.")),
    gated=((r"\.mlp\.fc2\.", ".mlp.down_proj."),),
    ignored=IGNORED,
    prepare=without_empty_registers,
    arguments=_arguments,
    has_class_position=lambda tensors: False,
    positions_first=True,
    zeros=HUGGINGFACE_DINOV2.zeros,
    complete=_complete,
)
HUGGINGFACE_EOMT_DINOV3 = replace(
    HUGGINGFACE_DINOV3,
    name="huggingface_eomt_dinov3",
    conventions=CONVENTIONS,
    signature=HUGGINGFACE_EOMT.signature,
    absent=r"^embeddings\.position_embeddings",
    rows=(*weight_and_bias("embeddings.patch_embeddings", "patch_embedding", CONV), *COMMON),
    block="layers.{}.",
    renames=(),
    ignored=IGNORED,
    arguments=lambda tensors: {**HUGGINGFACE_DINOV3.arguments(tensors), **_arguments(tensors)},
    complete=_complete,
)


def eomt_head(model: VisionTransformer) -> EoMTHead:
    """Return the options of a model's head, which is that of EoMT."""
    assert isinstance(model.map_head, EoMTHead)
    return model.map_head


def eomt_config(model: VisionTransformer, config: Config) -> Config:
    """Return the content of `config.json` of an `EomtForUniversalSegmentation`, or of DINOv3's.

    Raises:
        CheckpointError: It does not compute what the model computes.
    """
    head = eomt_head(model)
    is_gated, is_dinov3 = model.activation == "swiglu", model.rotary is not None
    inside = model.activation if not is_gated else "silu" if is_dinov3 else head.activation
    size, patch = config["image_size"], config["patch_size"]
    held = {
        "class_token": (model.class_token, True),
        "layer_scale": (model.layer_scale or 0, model.layer_scale),
        "activation": (inside, head.activation),
        "input_shape": (size, size[0] if isinstance(size, list) else size),
        "patch_size": (patch, patch[0] if isinstance(patch, list) else patch),
    }
    for name, (ours, theirs) in held.items():
        if ours != theirs:
            raise CheckpointError(
                f"transformers' EoMT has a class token, learned scales, one activation in encoder "
                f"and head, square images and patches; this model has {name}="
                f"{getattr(model, name)!r}, and {head.activation!r} in its head. Save it as .keras."
            )
    name = "EomtDinov3" if is_dinov3 else "Eomt"
    return config | {
        "architectures": [f"{name}ForUniversalSegmentation"],
        "model_type": "eomt_dinov3" if is_dinov3 else "eomt",
        "num_queries": head.queries,
        "num_blocks": head.blocks,
        "num_upscale_blocks": head.upscale_blocks,
        "no_object_weight": NO_OBJECT_WEIGHT,
    }
