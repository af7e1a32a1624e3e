"""The names that timm and Hugging Face give to models of this package.

One rule per family takes a name apart; the image size is the number at its end. What the model of
that name computes otherwise than ours by default follows as arguments. Sources: timm 1.0
(`vision_transformer.py`, `vision_transformer_hybrid.py`, `deit.py`, `mlp_mixer.py`, `resnetv2.py`)
and the `config.json` of the repositories.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_vit._base.errors import did_you_mean
from keras_vit.models.variants import BIT_NAMES, HYBRIDS, size_arguments

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class NamedModel:
    """What a model's name stands for.

    Attributes:
        variant: A name that `size_arguments` takes, such as `"ViT-B/16"`.
        image_size: Height and width that the name is for; None where it does not show them.
        arguments: Of the model's class, beside the sizes of the variant.
    """

    variant: str
    image_size: int | None = None
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """The names of one family at timm or Hugging Face.

    Attributes:
        pattern: Its groups are the parts of the name: `size`, `patch`, `layers`, `width`, and
            `pixels`, the image size.
        variant: The name of ours that these parts make, as a template.
        arguments: Of every model of the family.
        sizes: The letter of each `size`.
        image_size: Where the name does not have `pixels`.
        has_pooler: Whether there is a tanh layer as wide as the tokens behind the class token.
        tags: What may follow a dot, and the arguments that differ there; `"image_size"` too.
        examples: Names to propose for one that is not known.
    """

    pattern: str
    variant: str
    arguments: Arguments
    sizes: Mapping[str, str]
    image_size: int | None = None
    has_pooler: bool = False
    tags: Mapping[str, Arguments] = field(default_factory=dict)
    examples: tuple[str, ...] = ()


VIT = {
    **{"tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H"},
    **{"giant": "g", "gigantic": "G"},
}
DINOV2 = {"small": "S", "base": "B", "large": "L", "giant": "giant"}
MIXER = {"s": "S", "b": "B", "l": "L"}

# Arguments in which models of these packages differ from ours by default.
TIMM = {"activation": "gelu"}
HUGGINGFACE = {"activation": "gelu", "norm_epsilon": 1e-12}
IMAGENET = {"normalization": "imagenet"}
FEATURES = {"num_classes": 0}
IN21K = {"num_classes": 21_843}
# DINOv2's giant has a gated MLP: 4096 is the width behind the gate.
OF_VARIANT: dict[str, Arguments] = {"ViT-giant/14": {"mlp_dim": 4096, "activation": "swiglu"}}

VIT_TAGS: dict[str, Arguments] = {
    **{"augreg_in21k_ft_in1k": {}, "augreg2_in21k_ft_in1k": {}, "augreg_in1k": {}},
    **{"augreg_in21k": IN21K, "orig_in21k": FEATURES, "orig_in21k_ft_in1k": {}},
    **{"sam_in1k": {}, "untrained": {}},
    **{"dino": {**IMAGENET, **FEATURES}, "mae": {**IMAGENET, **FEATURES}},
}
# Options of models that differ from a plain ViT, as `ViTConfig` explains them.
CLIP = {
    **{"normalization": "clip", "pre_norm": True},
    **{"activation": "quick_gelu", "norm_epsilon": 1e-5},
}
SIGLIP = {**FEATURES, "pooling": "map", "class_token": False}
DINOV3 = {
    **{"rotary": "dinov3", "position_embedding": "none", "num_registers": 4, "key_bias": False},
    **{"layer_scale": 1e-5, "norm_epsilon": 1e-5, "pooling": "gap", "class_token": True},
}
MEAN_THEN_NORM = {"pooling": "gap", "class_token": True, "norm_after_pooling": True}
BEIT = {**MEAN_THEN_NORM, "position_embedding": "relative_2d", "key_bias": False}
EVA02 = {**MEAN_THEN_NORM, "rotary": "eva02", "activation": "swiglu", "key_bias": False}
DEIT_TAGS: dict[str, Arguments] = {"fb_in1k": {}, "fb_in22k_ft_in1k": {}}
MIXER_TAGS: dict[str, Arguments] = {"goog_in21k": IN21K, "goog_in21k_ft_in1k": {}, "untrained": {}}
BIT_TAGS: dict[str, Arguments] = {
    "goog_in21k": {**IN21K, "image_size": 224},
    "goog_distilled_in1k": {"image_size": 224},
    "goog_teacher_in21k_ft_in1k": {"image_size": 224},
    "goog_teacher_in21k_ft_in1k_384": {"image_size": 384},
}

_PATCH, _PIXELS = r"(?P<patch>[1-9]\d?)", r"(?P<pixels>[1-9]\d{1,3})"

_TIMM_RULES = (
    Rule(
        rf"vit_(?P<size>tiny|small|base|large|huge|giant|gigantic)_patch{_PATCH}_{_PIXELS}",
        "ViT-{size}/{patch}",
        TIMM,
        VIT,
        tags=VIT_TAGS,
        examples=(
            *("vit_tiny_patch16_224", "vit_small_patch32_224", "vit_small_patch16_224"),
            *("vit_base_patch32_224", "vit_base_patch16_224", "vit_base_patch8_224"),
            *("vit_large_patch32_224", "vit_large_patch16_224", "vit_huge_patch14_224"),
            *("vit_giant_patch14_224", "vit_gigantic_patch14_224"),
        ),
    ),
    Rule(
        rf"deit_(?P<size>tiny|small|base)_patch{_PATCH}_{_PIXELS}",
        "ViT-{size}/{patch}",
        {**TIMM, **IMAGENET},
        VIT,
        tags=DEIT_TAGS,
        examples=("deit_tiny_patch16_224", "deit_small_patch16_224", "deit_base_patch16_224"),
    ),
    Rule(
        rf"deit3_(?P<size>small|medium|base|large|huge)_patch{_PATCH}_{_PIXELS}",
        "ViT-{size}/{patch}",
        {**TIMM, **IMAGENET, "layer_scale": 1e-6},
        VIT,
        tags=DEIT_TAGS,
        examples=(
            *("deit3_small_patch16_224", "deit3_medium_patch16_224", "deit3_base_patch16_224"),
            *("deit3_large_patch16_224", "deit3_huge_patch14_224"),
        ),
    ),
    *(
        Rule(
            rf"vit_(?P<size>small|base|large|giant)_patch(?P<patch>14){infix}_dinov2",
            "ViT-{size}/{patch}",
            {**TIMM, **IMAGENET, **FEATURES, "layer_scale": 1e-5, "num_registers": registers},
            DINOV2,
            image_size=518,
            tags={"lvd142m": {}},
            examples=tuple(f"vit_{size}_patch14{infix}_dinov2" for size in DINOV2),
        )
        for infix, registers in (("", 0), ("_reg4", 4))
    ),
    *(
        Rule(
            rf"vit_(?P<size>{size})_patch{_PATCH}_clip_{_PIXELS}",
            "ViT-{size}/{patch}",
            {**CLIP, "num_classes": dimensions},
            VIT,
            tags={"openai": {}},
            examples=examples,
        )
        for size, dimensions, examples in (
            ("base", 512, ("vit_base_patch32_clip_224", "vit_base_patch16_clip_224")),
            ("large", 768, ("vit_large_patch14_clip_224",)),
        )
    ),
    Rule(
        r"vit_(?P<size>small|base|large)_patch(?P<patch>16)_dinov3",
        "ViT-{size}/{patch}",
        {**TIMM, **IMAGENET, **FEATURES, **DINOV3},
        VIT,
        image_size=256,
        tags={"lvd1689m": {}},
        examples=tuple(f"vit_{size}_patch16_dinov3" for size in ("small", "base", "large")),
    ),
    Rule(
        rf"deit_(?P<size>tiny|small|base)_distilled_patch{_PATCH}_{_PIXELS}",
        "ViT-{size}/{patch}",
        {**TIMM, **IMAGENET, "distilled": True},
        VIT,
        tags=DEIT_TAGS,
        examples=tuple(f"deit_{s}_distilled_patch16_224" for s in ("tiny", "small", "base")),
    ),
    Rule(
        rf"beit_(?P<size>base|large)_patch{_PATCH}_{_PIXELS}",
        "ViT-{size}/{patch}",
        {**TIMM, **BEIT, "layer_scale": 1e-5},
        VIT,
        tags={"in22k_ft_in22k_in1k": {}},
        examples=("beit_base_patch16_224", "beit_large_patch16_224"),
    ),
    *(
        Rule(
            rf"eva02_(?P<size>{size})_patch(?P<patch>14)_{_PIXELS}",
            "ViT-{size}/{patch}",
            {**EVA02, "mlp_dim": mlp_dim, "normalization": "clip"},
            VIT,
            tags={"mim_in22k_ft_in1k": {}},
            examples=(f"eva02_{size}_patch14_336",),
        )
        for size, mlp_dim in (("tiny", 512), ("small", 1024))
    ),
    Rule(
        rf"vit_(?P<size>tiny)_r_s(?P<patch>16)_p8_{_PIXELS}",
        "R+ViT-{size}/{patch}",
        TIMM,
        VIT,
        tags=VIT_TAGS,
        examples=("vit_tiny_r_s16_p8_224",),
    ),
    Rule(
        rf"vit_(?P<size>small|base|large)_r(?P<layers>\d+)_s{_PATCH}_{_PIXELS}",
        "R{layers}+ViT-{size}/{patch}",
        TIMM,
        VIT,
        tags=VIT_TAGS,
        examples=(
            *("vit_small_r26_s32_224", "vit_base_r26_s32_224", "vit_base_r50_s16_224"),
            "vit_large_r50_s32_224",
        ),
    ),
    Rule(
        rf"mixer_(?P<size>[sbl]){_PATCH}_{_PIXELS}",
        "Mixer-{size}/{patch}",
        TIMM,
        MIXER,
        tags=MIXER_TAGS,
        examples=(
            *("mixer_s32_224", "mixer_s16_224", "mixer_b32_224", "mixer_b16_224"),
            *("mixer_l32_224", "mixer_l16_224"),
        ),
    ),
    *(
        Rule(
            rf"resnetv2_(?P<layers>{layers})x(?P<width>{width})_bit",
            "BiT-R{layers}x{width}",
            {},
            {},
            tags={**BIT_TAGS, "goog_in21k_ft_in1k": {"image_size": 480 if width == "4" else 448}},
            examples=(f"resnetv2_{layers}x{width}_bit",),
        )
        for layers, width in (name.removeprefix("BiT-R").split("x") for name in BIT_NAMES)
    ),
)

_HUGGINGFACE_RULES = (
    Rule(
        rf"google/siglip2?-(?P<size>base|large|so400m)-patch{_PATCH}-{_PIXELS}",
        "ViT-{size}/{patch}",
        SIGLIP,
        {**VIT, "so400m": "So400m"},
        examples=("google/siglip-base-patch16-224", "google/siglip2-base-patch16-224"),
    ),
    Rule(
        rf"google/vit-(?P<size>base|large|huge)-patch{_PATCH}-{_PIXELS}",
        "ViT-{size}/{patch}",
        HUGGINGFACE,
        VIT,
        examples=(
            *("google/vit-base-patch16-224", "google/vit-base-patch32-384"),
            *("google/vit-large-patch16-224", "google/vit-large-patch32-384"),
        ),
    ),
    Rule(
        rf"google/vit-(?P<size>base|large|huge)-patch{_PATCH}-{_PIXELS}-in21k",
        "ViT-{size}/{patch}",
        {**HUGGINGFACE, **FEATURES},
        VIT,
        has_pooler=True,
        examples=(
            *("google/vit-base-patch16-224-in21k", "google/vit-base-patch32-224-in21k"),
            *("google/vit-large-patch16-224-in21k", "google/vit-large-patch32-224-in21k"),
            "google/vit-huge-patch14-224-in21k",
        ),
    ),
    Rule(
        rf"WinKawaks/vit-(?P<size>tiny|small)-patch{_PATCH}-{_PIXELS}",
        "ViT-{size}/{patch}",
        HUGGINGFACE,
        VIT,
        examples=("WinKawaks/vit-tiny-patch16-224", "WinKawaks/vit-small-patch16-224"),
    ),
    Rule(
        rf"facebook/deit-(?P<size>tiny|small|base)-patch{_PATCH}-{_PIXELS}",
        "ViT-{size}/{patch}",
        {**HUGGINGFACE, **IMAGENET},
        VIT,
        examples=tuple(f"facebook/deit-{s}-patch16-224" for s in ("tiny", "small", "base")),
    ),
    Rule(
        r"facebook/dino-vit(?P<size>s|b)(?P<patch>8|16)",
        "ViT-{size}/{patch}",
        {**HUGGINGFACE, **IMAGENET, **FEATURES},
        {"s": "S", "b": "B"},
        image_size=224,
        examples=tuple(f"facebook/dino-vit{s}" for s in ("s16", "s8", "b16", "b8")),
    ),
    *(
        Rule(
            rf"facebook/dinov2{infix}-(?P<size>small|base|large|giant)",
            "ViT-{size}/14",
            {
                **{"activation": "gelu", "layer_scale": 1.0, "num_registers": registers},
                **IMAGENET,
                **FEATURES,
            },
            DINOV2,
            image_size=518,
            examples=tuple(f"facebook/dinov2{infix}-{size}" for size in DINOV2),
        )
        for infix, registers in (("", 0), ("-with-registers", 4))
    ),
    Rule(
        rf"google/vit-hybrid-(?P<size>base)-bit-{_PIXELS}",
        "R50+ViT-{size}/16",
        HUGGINGFACE,
        VIT,
        examples=("google/vit-hybrid-base-bit-384",),
    ),
)

RULES = (*_TIMM_RULES, *_HUGGINGFACE_RULES)

OTHER_NAMES = tuple(name for rule in RULES for name in rule.examples)

# timm's names before its version 0.9, and the names of its repositories.
FORMER_NAMES = (
    (r"^(hf[-_]hub:)?timm/", ""),
    (r"^resnetv2_(\w+)_bitm$", r"resnetv2_\1_bit.goog_in21k_ft_in1k"),
    (r"^resnetv2_(\w+)_bitm_in21k$", r"resnetv2_\1_bit.goog_in21k"),
    (r"^mixer_(\w+)_in21k$", r"mixer_\1.goog_in21k"),
    (r"^vit_(\w+)_in21k$", r"vit_\1.augreg_in21k"),
)


def of_other_package(name: str) -> NamedModel | None:
    """Return the model that timm or Hugging Face calls by this name; None for one that is not here.

    Raises:
        ValueError: The model is known, but its tag, which follows the dot, is not.

    >>> of_other_package("timm/mixer_b16_224.goog_in21k").variant
    'Mixer-B/16'
    """
    for pattern, replacement in FORMER_NAMES:
        name = re.sub(pattern, replacement, name)
    base, dot, tag = name.partition(".")
    for rule in RULES:
        if match := re.fullmatch(rule.pattern, base):
            named = _model_of(rule, match)
            if named is None or not dot:
                return named
            if tag not in rule.tags:
                raise ValueError(
                    f"No model {name!r}: {base} does not have a tag {tag!r}. "
                    f"{did_you_mean(tag, rule.tags)} Or leave the tag out."
                )
            arguments = {**named.arguments, **rule.tags[tag]}
            image_size = arguments.pop("image_size", named.image_size)
            return NamedModel(named.variant, image_size, arguments)
    return None


def _model_of(rule: Rule, match: re.Match[str]) -> NamedModel | None:
    """Return the model that the parts of a name make; None for sizes that no model here has."""
    parts = match.groupdict()
    size = rule.sizes.get(parts.pop("size", ""))
    variant = rule.variant.format(size=size, **parts)
    of_tables = HYBRIDS if "+" in variant else BIT_NAMES if "BiT" in variant else (variant,)
    if variant not in of_tables:
        return None
    arguments = {**rule.arguments, **OF_VARIANT.get(variant, {})}
    if rule.has_pooler:
        arguments["representation_size"] = size_arguments(variant)["hidden_dim"]
    pixels = parts.get("pixels")
    return NamedModel(variant, int(pixels) if pixels else rule.image_size, arguments)
