"""transformers' DPT and Depth Anything: an encoder, its neck and its head in one file.

Their `config.json` is read and written here, too: what it says of the neck no tensor shows.
"""

from dataclasses import replace
from typing import Any

from keras_vit.data.eval_transform import EvalTransform
from keras_vit.layers.dense_prediction import FACTORS, READOUTS
from keras_vit.models.dpt import STAGES, DPTHead
from keras_vit.models.vit import VisionTransformer
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.tables.huggingface import HUGGINGFACE, HUGGINGFACE_DINOV2
from keras_vit.weights.tables.layout import (
    CONV,
    SAME,
    Codec,
    Row,
    SourceConventions,
    Tensors,
    torch_norm,
    weight_and_bias,
)

Config = dict[str, Any]
# A convolution of one pixel is a dense layer.
PIXEL = Codec(lambda x: x[:, :, 0, 0].T, lambda x, _: x.T[:, :, None, None])
# torch's transposed convolution: (inputs, outputs, height, width).
TRANSPOSED = Codec(lambda x: x.transpose(2, 3, 0, 1), lambda x, _: x.transpose(2, 3, 0, 1))
# By depth, the blocks that Depth Anything reads where the last of each quarter is not meant.
BLOCKS = {24: (4, 11, 17, 23), 40: (9, 19, 29, 39)}


def batch_norm(layer: str, canonical: str) -> tuple[Row, ...]:
    return (
        *torch_norm(layer, canonical),
        (f"{layer}.running_mean", (f"{canonical}/mean",), SAME),
        (f"{layer}.running_var", (f"{canonical}/variance",), SAME),
    )


def _neck_rows() -> tuple[Row, ...]:
    rows: list[Row] = []
    for i, factor in enumerate(FACTORS):
        theirs, ours = f"neck.reassemble_stage.layers.{i}", f"dpt/reassemble_{i}"
        project = f"neck.reassemble_stage.readout_projects.{i}.0"
        rows += weight_and_bias(project, f"{ours}/token_projection")
        rows += weight_and_bias(f"{theirs}.projection", f"{ours}/projection", PIXEL)
        resize = TRANSPOSED if factor > 1 else CONV
        rows += weight_and_bias(f"{theirs}.resize", f"{ours}/resize", resize)
        rows.append((f"neck.convs.{i}.weight", (f"{ours}/convolution/kernel",), CONV))
        theirs, ours = f"neck.fusion_stage.layers.{i}", f"dpt/fusion_{i}"
        rows += weight_and_bias(f"{theirs}.projection", f"{ours}/projection", PIXEL)
        for number, unit in ((1, "skip_unit"), (2, "unit")):
            for j in range(2):
                layer = f"{theirs}.residual_layer{number}"
                rows += weight_and_bias(
                    f"{layer}.convolution{j + 1}", f"{ours}/{unit}/conv_{j}", CONV
                )
                rows += batch_norm(f"{layer}.batch_norm{j + 1}", f"{ours}/{unit}/norm_{j}")
    return tuple(rows)


NECK = _neck_rows()
DEPTH_ANYTHING_ROWS: tuple[Row, ...] = (
    *NECK,
    *weight_and_bias("head.conv1", "head_conv_0", CONV),
    *weight_and_bias("head.conv2", "head_conv_1", CONV),
    *weight_and_bias("head.conv3", "head", PIXEL),
)
DPT_ROWS: tuple[Row, ...] = (
    *NECK,
    *weight_and_bias("head.head.0", "head_conv_0", CONV),
    *batch_norm("head.head.1", "head_norm"),
    *weight_and_bias("head.head.2", "head_conv_1", CONV),
    *weight_and_bias("head.head.4", "head", PIXEL),
)
IGNORED = (
    r"^embeddings\.mask_token$",
    r"^neck\.fusion_stage\.layers\.0\.residual_layer1\.",  # the deepest map is not joined to any
    r"^auxiliary_head\.",  # a second loss of training alone
    r"num_batches_tracked$",
)


def _encoder_rows(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(row for row in rows if not row[0].startswith(("classifier", "pooler")))


def _depth_anything_arguments(tensors: Tensors) -> dict[str, Any]:
    """Without a `config.json`: the relative models."""
    depth = len({name.split(".")[2] for name in tensors if name.startswith("encoder.layer.")})
    return {"dpt": {"blocks": BLOCKS.get(depth)}}


HUGGINGFACE_DEPTH_ANYTHING = replace(
    HUGGINGFACE_DINOV2,
    name="huggingface_depth_anything",
    conventions=SourceConventions(
        "gelu", 1e-6, "imagenet", "bicubic", EvalTransform("stretch_bicubic")
    ),
    signature=r"^neck\.convs\.0\.weight$",
    absent=r"^head\.head\.",
    rows=(*_encoder_rows(HUGGINGFACE_DINOV2.rows), *DEPTH_ANYTHING_ROWS),
    prefix="backbone.",
    unprefixed=tuple(row[0] for row in DEPTH_ANYTHING_ROWS),
    renames=((r"^backbone\.", ""), *HUGGINGFACE_DINOV2.renames),
    ignored=IGNORED,
    arguments=_depth_anything_arguments,
)
HUGGINGFACE_DPT = replace(
    HUGGINGFACE,
    name="huggingface_dpt",
    conventions=SourceConventions(
        "gelu", 1e-12, "inception", "bilinear", EvalTransform("stretch_bicubic")
    ),
    signature=r"^neck\.convs\.0\.weight$",
    rows=(*_encoder_rows(HUGGINGFACE.rows), *DPT_ROWS),
    prefix="dpt.",
    unprefixed=tuple(row[0] for row in DPT_ROWS),
    renames=((r"^dpt\.", ""), *HUGGINGFACE.renames),
    ignored=IGNORED,
    refused={
        r"^backbone\.": "this DPT has an encoder that is not its own ViT. Take Depth Anything, or "
        "a DPT such as Intel/dpt-large.",
        r"^embeddings\.(backbone|projection)\.": "DPT-Hybrid reads maps of its ResNet. Take a DPT "
        "with a plain ViT, such as Intel/dpt-large.",
    },
    arguments=lambda tensors: {"dpt": {"normalized": False}},
)

# What this package computes of the options of both configurations: key -> accepted values.
COMPUTED: dict[str, tuple[Any, ...]] = {
    "reassemble_factors": (list(FACTORS),),
    "head_in_index": (-1, STAGES - 1),
    "readout_type": READOUTS,
    "add_projection": (False,),
    "is_hybrid": (False,),
    "neck_ignore_stages": ([],),
}
# Of transformers' Dinov2Config.
DINOV2_DEFAULTS = {"hidden_size": 768, "num_attention_heads": 12, "image_size": 224}


def read_dpt(config: Config) -> dict[str, Any]:
    """Return the arguments of the DPT head that a `config.json` states, as far as it does.

    Raises:
        CheckpointError: The model computes something else than this package does.
    """
    for key, accepted in COMPUTED.items():
        if key in config and config[key] not in accepted:
            raise CheckpointError(
                f"config.json has {key}={config[key]!r}, which this package does not compute; "
                f"accepted: {' or '.join(map(repr, accepted))}."
            )
    stated: dict[str, Any] = {"normalized": False}
    if config.get("model_type") == "depth_anything":
        encoder = encoder_config(config)
        indices = encoder.get("out_indices")
        if isinstance(indices, list) and all(type(i) is int for i in indices):
            stated["blocks"] = [i - 1 for i in indices]  # 0: what enters the first block
        stated["scale"] = config.get("max_depth") or 1
        stated["normalized"] = encoder.get("apply_layernorm", True)
        if config.get("depth_estimation_type") == "metric":
            stated["activation"] = "sigmoid"
    else:
        _check_dpt_patches(config)
        stated["blocks"] = config.get("backbone_out_indices", [2, 5, 8, 11])
    return {"dpt": stated}


def encoder_config(config: Config) -> Config:
    """Return the configuration of the encoder inside, which leaves out what its class has."""
    encoder = config.get("backbone_config")
    return {**DINOV2_DEFAULTS, **encoder} if isinstance(encoder, dict) else config


def _check_dpt_patches(config: Config) -> None:
    if config.get("patch_size", 16) != 16:
        raise CheckpointError(
            f"config.json has patch_size={config['patch_size']!r}: DPT enlarges its maps by 16, "
            "so that its answer has the size of the image for patches of 16 pixels alone."
        )


def depth_anything_config(model: VisionTransformer, encoder: Config) -> Config:
    """Return the content of `config.json` of a `DepthAnythingForDepthEstimation`.

    Raises:
        CheckpointError: It does not compute what the model computes.
    """
    head = _head(model)
    _check_head(head, readout="ignore", batch_norm=False, for_classes=False)
    if model.num_classes != 1 or head.activation == "linear":
        raise CheckpointError(
            "transformers' Depth Anything has one output after ReLU or a sigmoid; this model has "
            f"num_classes={model.num_classes} and {head.activation!r}. Save it as .keras."
        )
    assert head.blocks is not None
    indices = [block + 1 for block in head.blocks]
    encoder |= {
        "out_indices": indices,
        "out_features": [f"stage{i}" for i in indices],
        "apply_layernorm": head.normalized,
        "reshape_hidden_states": False,
    }
    is_metric = head.activation == "sigmoid"
    return _neck_config(head) | {
        "architectures": ["DepthAnythingForDepthEstimation"],
        "model_type": "depth_anything",
        "backbone_config": encoder,
        "patch_size": model.patch_size[0],
        "reassemble_hidden_size": model.hidden_dim,
        "head_hidden_size": head.depth_width,
        "depth_estimation_type": "metric" if is_metric else "relative",
        "max_depth": int(head.scale) if head.scale == int(head.scale) else head.scale,
    }


def dpt_config(model: VisionTransformer, config: Config) -> Config:
    """Return the content of `config.json` of a `DPTForDepthEstimation`, or of its segmentation.

    Raises:
        CheckpointError: It does not compute what the model computes.
    """
    head = _head(model)
    name = "SemanticSegmentation" if head.for_classes else "DepthEstimation"
    activation = "linear" if head.for_classes else "relu"
    fixed = {} if head.for_classes else {"depth_width": 32}
    _check_head(head, normalized=False, activation=activation, scale=1, **fixed)
    _check_dpt_patches({"patch_size": config["patch_size"]})
    return (
        config
        | _neck_config(head)
        | {
            "architectures": [f"DPTFor{name}"],
            "model_type": "dpt",
            "backbone_out_indices": list(head.blocks or ()),
            "readout_type": head.readout,
            "use_batch_norm_in_fusion_residual": head.batch_norm,
            "use_auxiliary_head": False,
            "is_hybrid": False,
        }
    )


def _head(model: VisionTransformer) -> DPTHead:
    head = model.map_head
    assert isinstance(head, DPTHead)
    return head


def _neck_config(head: DPTHead) -> Config:
    return {
        "neck_hidden_sizes": list(head.channels or ()),
        "reassemble_factors": list(FACTORS),
        "fusion_hidden_size": head.width,
        "head_in_index": -1,
    }


def _check_head(head: DPTHead, **held: Any) -> None:
    for name, value in held.items():
        if getattr(head, name) != value:
            raise CheckpointError(
                f"transformers' model for such weights has {name}={value!r} of its DPT head, and "
                f"this one {getattr(head, name)!r}. Save it as .keras."
            )
