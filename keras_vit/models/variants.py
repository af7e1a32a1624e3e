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


def vit_arguments(name: str) -> dict[str, Any]:
    """The size arguments of a name such as `"ViT-B/16"`."""
    width, patch = name.removeprefix("ViT-").split("/")
    return {"patch_size": int(patch), **vars(WIDTHS[width])}
