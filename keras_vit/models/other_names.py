"""The names that timm and Hugging Face give to models of this package, from `other_names.csv`.

A row per family takes a name apart; the image size is the number at its end. What the model of
that name computes otherwise than ours by default follows as arguments. Sources: timm 1.0
(`vision_transformer.py`, `vision_transformer_hybrid.py`, `deit.py`, `mlp_mixer.py`, `resnetv2.py`)
and the `config.json` of the repositories.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
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
        sizes: The letter of each `size`.
        arguments: Of every model of the family.
        image_size: Where the name does not have `pixels`.
        tags: What may follow a dot, and the arguments that differ there; `"image_size"` too.
        examples: Names to propose for one that is not known.
    """

    pattern: re.Pattern[str]
    variant: str
    sizes: Mapping[str, str]
    arguments: Arguments
    image_size: int | None
    tags: Mapping[str, Arguments]
    examples: tuple[str, ...]


LETTERS = {
    **{"tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H"},
    **{"giant": "g", "gigantic": "G", "s": "S", "b": "B", "l": "L", "so400m": "So400m"},
}
_NUMBERS = {
    **{"patch": r"(?P<patch>[1-9]\d?)", "pixels": r"(?P<pixels>[1-9]\d{1,3})"},
    **{"layers": r"(?P<layers>\d+)", "width": r"(?P<width>\d)"},
}

IMAGENET = {"normalization": "imagenet"}
FEATURES = {"num_classes": 0}
IN21K = {"num_classes": 21_843}
_MEAN_THEN_NORM = {"pooling": "gap", "class_token": True, "norm_after_pooling": True}
# By the names of the table: what differs from our defaults, as `ViTConfig` explains it.
ARGUMENTS: dict[str, Arguments] = {
    "timm": {"activation": "gelu"},
    "huggingface": {"activation": "gelu", "norm_epsilon": 1e-12},
    "imagenet": IMAGENET,
    "features": FEATURES,
    "pooler": {"representation_size": "hidden_dim"},  # a tanh layer as wide as the tokens
    "clip": {
        **{"normalization": "clip", "pre_norm": True},
        **{"activation": "quick_gelu", "norm_epsilon": 1e-5},
    },
    "siglip": {**FEATURES, "pooling": "map", "class_token": False},
    "dinov3": {
        **{"rotary": "dinov3", "position_embedding": "none", "num_registers": 4},
        **{"key_bias": False, "layer_scale": 1e-5, "norm_epsilon": 1e-5, "pooling": "gap"},
        "class_token": True,
    },
    "beit": {**_MEAN_THEN_NORM, "position_embedding": "relative_2d", "key_bias": False},
    "eva02": {
        **{**_MEAN_THEN_NORM, "rotary": "eva02", "activation": "swiglu", "key_bias": False},
        "normalization": "clip",
    },
}
TAGS: dict[str, Mapping[str, Arguments]] = {
    "vit": {
        **{"augreg_in21k_ft_in1k": {}, "augreg2_in21k_ft_in1k": {}, "augreg_in1k": {}},
        **{"augreg_in21k": IN21K, "orig_in21k": FEATURES, "orig_in21k_ft_in1k": {}},
        **{"sam_in1k": {}, "untrained": {}},
        **{"dino": {**IMAGENET, **FEATURES}, "mae": {**IMAGENET, **FEATURES}},
    },
    "deit": {"fb_in1k": {}, "fb_in22k_ft_in1k": {}},
    "mixer": {"goog_in21k": IN21K, "goog_in21k_ft_in1k": {}, "untrained": {}},
    "bit": {
        "goog_in21k": {**IN21K, "image_size": 224},
        "goog_distilled_in1k": {"image_size": 224},
        "goog_teacher_in21k_ft_in1k": {"image_size": 224},
        "goog_teacher_in21k_ft_in1k_384": {"image_size": 384},
    },
}
# DINOv2's giant has a gated MLP: 4096 is the width behind the gate.
OF_VARIANT: dict[str, Arguments] = {"ViT-giant/14": {"mlp_dim": 4096, "activation": "swiglu"}}

# timm's names before its version 0.9, and the names of its repositories.
FORMER_NAMES = (
    (r"^(hf[-_]hub:)?timm/", ""),
    (r"^resnetv2_(\w+)_bitm$", r"resnetv2_\1_bit.goog_in21k_ft_in1k"),
    (r"^resnetv2_(\w+)_bitm_in21k$", r"resnetv2_\1_bit.goog_in21k"),
    (r"^mixer_(\w+)_in21k$", r"mixer_\1.goog_in21k"),
    (r"^vit_(\w+)_in21k$", r"vit_\1.augreg_in21k"),
)


def _read_table() -> Iterator[Rule]:
    lines = resources.files(__package__).joinpath("other_names.csv").read_text("utf-8").splitlines()
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        sizes: dict[str, str] = {}
        arguments: dict[str, Any] = {}
        for size, _, letter in (word.partition("=") for word in row["sizes"].split()):
            sizes[size] = letter or LETTERS[size]
        for name, _, value in (word.partition("=") for word in row["arguments"].split()):
            arguments |= {name: json.loads(value)} if value else ARGUMENTS[name]
        tags: dict[str, Arguments] = {}
        for name, _, value in (word.partition(".image_size=") for word in row["tags"].split()):
            single = {name: {"image_size": int(value)} if value else {}}
            tags |= TAGS.get(name, single)
        pattern = row["pattern"].format(size=f"(?P<size>{'|'.join(sizes)})", **_NUMBERS)
        pixels = int(row["pixels"]) if row["pixels"] else None
        examples = tuple(row["examples"].split())
        yield Rule(re.compile(pattern), row["variant"], sizes, arguments, pixels, tags, examples)


RULES = tuple(_read_table())
OTHER_NAMES = tuple(name for rule in RULES for name in rule.examples)


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
        if match := rule.pattern.fullmatch(base):
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
    if "representation_size" in arguments:
        arguments["representation_size"] = size_arguments(variant)["hidden_dim"]
    pixels = parts.get("pixels")
    return NamedModel(variant, int(pixels) if pixels else rule.image_size, arguments)
