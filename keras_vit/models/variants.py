"""The sizes that have a name: one table, one row per model."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Width:
    """The encoder of a ViT, for any patch size."""

    hidden_dim: int
    depth: int
    num_heads: int
    mlp_dim: int


@dataclass(frozen=True)
class MixerWidth:
    """An MLP-Mixer, for any patch size."""

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

# Widths that were released but that no model here is named after: DeiT III's medium, DINOv2's
# giant, whose gated MLP of 4096 has as many weights as a plain one of 6144, and SigLIP's So400m.
UNNAMED_WIDTHS = {
    "M": Width(512, 12, 8, 2048),
    "giant": Width(1536, 40, 24, 6144),
    "So400m": Width(1152, 27, 16, 4304),
}

VIT_NAMES = (
    *("ViT-Ti/16", "ViT-S/32", "ViT-S/16", "ViT-B/32", "ViT-B/16", "ViT-B/8"),
    *("ViT-L/32", "ViT-L/16", "ViT-H/14", "ViT-g/14", "ViT-G/14"),
)

# MLP-Mixer, table 1; the patches of 8 are those of "When Vision Transformers Outperform ResNets".
MIXER_WIDTHS = {
    "S": MixerWidth(512, 8, 256, 2048),
    "B": MixerWidth(768, 12, 384, 3072),
    "L": MixerWidth(1024, 24, 512, 4096),
    "H": MixerWidth(1280, 32, 640, 5120),
}

MIXER_NAMES = (
    *("Mixer-S/32", "Mixer-S/16", "Mixer-S/8", "Mixer-B/32", "Mixer-B/16"),
    *("Mixer-L/32", "Mixer-L/16", "Mixer-H/14"),
)

# Hybrids of AugReg and the ViT paper: encoder, patch size on the feature map, units per stage.
HYBRIDS: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "R+ViT-Ti/16": ("Ti", 8, ()),
    "R26+ViT-S/32": ("S", 1, (2, 2, 2, 2)),
    "R26+ViT-B/32": ("B", 1, (2, 2, 2, 2)),
    "R50+ViT-B/16": ("B", 1, (3, 4, 9)),
    "R50+ViT-L/32": ("L", 1, (3, 4, 6, 3)),
}

# BiT, table 1: units per stage by number of layers, and the names with their width.
BIT_DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
BIT_NAMES = ("BiT-R50x1", "BiT-R50x3", "BiT-R101x1", "BiT-R101x3", "BiT-R152x2", "BiT-R152x4")


def size_arguments(name: str) -> dict[str, Any]:
    """Return the size arguments of a name such as `"ViT-B/16"`, `"R50+ViT-B/16"` or `"BiT-R50x1"`.

    >>> size_arguments("Mixer-B/16")["tokens_mlp_dim"]
    384
    """
    if name in HYBRIDS:
        width, patch_size, resnet = HYBRIDS[name]
        return {"patch_size": patch_size, "resnet": resnet, **vars(WIDTHS[width])}
    kind, _, size = name.partition("-")
    if kind == "BiT":
        layers, factor = size.removeprefix("R").split("x")
        return {"depths": BIT_DEPTHS[int(layers)], "width": 64 * int(factor)}
    letter, _, patch = size.partition("/")
    widths: dict[str, Any] = MIXER_WIDTHS if kind == "Mixer" else {**WIDTHS, **UNNAMED_WIDTHS}
    return {"patch_size": int(patch), **vars(widths[letter])}
