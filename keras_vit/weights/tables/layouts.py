"""All layouts, and which of them a file is in."""

import re
from typing import Any

from keras_vit._base.errors import did_you_mean
from keras_vit.models.image_model import ImageModel
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.tensors import Container
from keras_vit.weights.tables import (
    big_vision,
    dino_heads,
    google,
    huggingface,
    huggingface_dpt,
    huggingface_eomt,
    mixer_names,
    resnet_names,
    timm,
)
from keras_vit.weights.tables.layout import Layout

# In the order in which a file is tried.
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        google.GOOGLE,
        big_vision.BIG_VISION,
        timm.TIMM_BEIT,
        timm.TIMM_DINOV3,
        timm.TIMM_EVA02,
        timm.TIMM_EVA02_NORM,
        timm.TIMM_CLIP,
        timm.TIMM_DISTILLED,
        timm.DINOV2,
        timm.TIMM_IMAGENET,
        timm.TIMM,
        huggingface_dpt.HUGGINGFACE_DEPTH_ANYTHING,
        huggingface_dpt.HUGGINGFACE_DPT,
        huggingface_eomt.HUGGINGFACE_EOMT_DINOV3,
        huggingface_eomt.HUGGINGFACE_EOMT,
        huggingface.HUGGINGFACE_DINOV3,
        huggingface.HUGGINGFACE_DINOV2_REGISTERS,
        huggingface.HUGGINGFACE_DINOV2,
        huggingface.HUGGINGFACE_DISTILLED,
        huggingface.HUGGINGFACE_BEIT,
        huggingface.HUGGINGFACE,
        huggingface.HUGGINGFACE_CLIP,
        huggingface.HUGGINGFACE_SIGLIP,
        big_vision.FLEXIVIT,
        mixer_names.MIXER,
        resnet_names.BIT,
        resnet_names.BIT_PAPER,
        resnet_names.BIT_V1,
        dino_heads.DINO_LINEAR_HEAD,
    )
}

# The layout that a package's name stands for, for models other than ViTs: (name, family).
OF_FAMILY = {
    ("google", "mixer"): "mixer",
    ("big_vision", "mixer"): "mixer",
    ("google", "bit"): "bit",
    ("google", "bit_v1"): "bit_v1",
    ("big_vision", "bit"): "bit_paper",
    ("big_vision", "bit_v1"): "bit_v1",
}

# Families that the package does not implement, by a tensor name that only they have.
OTHER_FAMILIES = {
    r"^transformer\.layers\.\d+\.0\.(fn\.)?to_qkv|to_patch_embedding": "a ViT of vit-pytorch "
    "(lucidrains), whose blocks compute something else",
    r"^visual\.": "a CLIP of OpenAI or open_clip (take transformers' or timm's file of it)",
    r"^conv_proj\.weight$|encoder\.layers\.encoder_layer_0": "a ViT of torchvision",
}


RELATIVE = ("relative_2d", "relative_2d_shared")
# The layouts that a package's name stands for, for ViTs whose arguments are among these.
OF_ARGUMENTS: dict[str, tuple[tuple[dict[str, tuple[Any, ...]], str], ...]] = {
    "huggingface": (
        ({"head_kind": ("eomt",), "rotary": ("dinov3",)}, "huggingface_eomt_dinov3"),
        ({"head_kind": ("eomt",)}, "huggingface_eomt"),
        ({"head_kind": ("dpt",), "layer_scale": (None,)}, "huggingface_dpt"),
        ({"head_kind": ("dpt",)}, "huggingface_depth_anything"),
        ({"pre_norm": (True,)}, "huggingface_clip"),
        ({"rotary": ("dinov3",)}, "huggingface_dinov3"),
        ({"distilled": (True,)}, "huggingface_distilled"),
        ({"position_embedding": RELATIVE}, "huggingface_beit"),
        ({"norm_after_pooling": (True,)}, "huggingface_beit"),
        ({"class_token": (False,)}, "huggingface_siglip"),
        ({"layer_scale": (None,)}, "huggingface"),
        ({"num_registers": (0,)}, "huggingface_dinov2"),
        ({}, "huggingface_dinov2_registers"),
    ),
    "timm": (
        ({"position_embedding": RELATIVE}, "timm_beit"),
        ({"rotary": ("dinov3",)}, "timm_dinov3"),
        ({"rotary": ("eva02",), "mlp_norm": (True,)}, "timm_eva02_norm"),
        ({"rotary": ("eva02",)}, "timm_eva02"),
        ({}, "timm"),
    ),
}


def layout_for(name: str, model: ImageModel, family: str) -> Layout:
    """Return the layout of a model's weights in a package, or the layout of that name."""
    if family == "vit":
        for arguments, layout in OF_ARGUMENTS.get(name, ()):
            if all(getattr(model, n) in values for n, values in arguments.items()):
                return LAYOUTS[layout]
    return layout_named(name, family)


def layout_named(name: str, family: str = "vit") -> Layout:
    """Return the layout of this name for a family, or a ValueError that proposes the nearest."""
    name = OF_FAMILY.get((name, family), name)
    if name not in LAYOUTS:
        raise ValueError(f"layout={name!r} is not known. {did_you_mean(name, LAYOUTS)}")
    return LAYOUTS[name]


def recognize(container: Container) -> Layout:
    """Return a file's layout by its tensor names; the error for an unknown one lists some."""
    names = list(container.tensors)
    others = (
        f"{family} (tensor {name!r})"
        for name in names
        for pattern, family in OTHER_FAMILIES.items()
        if re.search(pattern, name)
    )
    family = next(others, None)
    if family is None:
        for layout in LAYOUTS.values():
            if layout.recognizes(container.tensors):
                return layout
        shown = ", ".join(map(repr, names[:4])) or "none"
        raise CheckpointError(
            f"{container.path} is in no layout that is known: its first tensors are {shown}. "
            f"Rename them to those of one of these, or add one: {', '.join(LAYOUTS)}."
        )
    raise CheckpointError(
        f"{container.path} is {family}: its weights do not fit a model of this package."
    )
