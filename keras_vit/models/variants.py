"""The sizes that have a name: one table, one row a model."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Width:
    """The encoder of a ViT, whatever its patches."""

    hidden_dim: int
    depth: int
    num_heads: int
    mlp_dim: int


@dataclass(frozen=True)
class MixerWidth:
    """An MLP-Mixer, whatever its patches."""

    hidden_dim: int
    depth: int
    tokens_mlp_dim: int
    channels_mlp_dim: int


# ViT paper, table 1; Ti and S: DeiT and AugReg; g and G: "Scaling Vision Transformers", table 2.
WIDTHS = {
    "Ti": Width(192, 12, 3, 768),
    "S": Width(384, 12, 6, 1536),
    "B": Width(768, 12, 12, 3072),
    "L": Width(1024, 24, 16, 4096),
    "H": Width(1280, 32, 16, 5120),
    "g": Width(1408, 40, 16, 6144),
    "G": Width(1664, 48, 16, 8192),
}

VIT_NAMES = (
    "ViT-Ti/16",
    "ViT-S/32",
    "ViT-S/16",
    "ViT-B/32",
    "ViT-B/16",
    "ViT-B/8",
    "ViT-L/32",
    "ViT-L/16",
    "ViT-H/14",
    "ViT-g/14",
    "ViT-G/14",
)

# MLP-Mixer, table 1; the patches of 8 are those of "When Vision Transformers Outperform ResNets".
MIXER_WIDTHS = {
    "S": MixerWidth(512, 8, 256, 2048),
    "B": MixerWidth(768, 12, 384, 3072),
    "L": MixerWidth(1024, 24, 512, 4096),
    "H": MixerWidth(1280, 32, 640, 5120),
}

MIXER_NAMES = (
    "Mixer-S/32",
    "Mixer-S/16",
    "Mixer-S/8",
    "Mixer-B/32",
    "Mixer-B/16",
    "Mixer-L/32",
    "Mixer-L/16",
    "Mixer-H/14",
)


def vit_arguments(name: str) -> dict[str, Any]:
    """The size arguments of a name such as `"ViT-B/16"`."""
    width, patch = name.removeprefix("ViT-").split("/")
    return {"patch_size": int(patch), **vars(WIDTHS[width])}


def mixer_arguments(name: str) -> dict[str, Any]:
    """The size arguments of a name such as `"Mixer-B/16"`."""
    width, patch = name.removeprefix("Mixer-").split("/")
    return {"patch_size": int(patch), **vars(MIXER_WIDTHS[width])}
