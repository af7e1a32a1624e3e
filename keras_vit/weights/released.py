"""The weights that their authors released, from the table `released.csv`.

Addresses: google-research/vision_transformer and big_vision (README, index.csv), timm 1.0.31
(`default_cfgs`), and the Hugging Face repositories of timm, google and facebook. Accuracies:
ImageNet-1k top-1 as published by `source`, at the row's resolution.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from keras_vit.models.geometry import DEFAULT_SIZE
from keras_vit.models.variants import size_arguments
from keras_vit.weights.tables.layouts import LAYOUTS


@dataclass(frozen=True)
class Weights:
    """One file of released weights.

    Attributes:
        tag: What the weights are, as in `ViTB16(weights=tag)`.
        model: What they are for, such as `"ViT-B/16"`.
        url: Where they are.
        layout: The layout they are in.
        pixels: Height and width of the images they were trained on last.
        num_classes: Classes of the head; 0 for none.
        top1: Published ImageNet-1k top-1 in per cent, or None.
        source: Who published it.
        arguments: What no tensor of the file shows, as arguments of the model.
        license: Of the weights.
        url_is_guessed: Whether only the folder was published, and the name of the file is a guess.
        megabytes: The size of the download, four bytes per parameter.
    """

    tag: str
    model: str
    url: str
    layout: str
    pixels: int = DEFAULT_SIZE
    num_classes: int = 1000
    top1: float | None = None
    source: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    license: str = "Apache-2.0"
    url_is_guessed: bool = False
    megabytes: int = 0

    @property
    def name(self) -> str:
        """Model and tag, joined by a colon, as `keras_vit.load` takes them."""
        return f"{self.model}:{self.tag}"

    @property
    def sizes(self) -> dict[str, Any]:
        """The size arguments of the model."""
        return size_arguments(self.model)

    @property
    def preprocessing(self) -> str:
        """The mean and standard deviation that pixels are normalized with."""
        kind = LAYOUTS[self.layout].conventions.normalization
        return {"imagenet": "ImageNet mean/std", "clip": "CLIP mean/std"}.get(kind, "0.5/0.5")

    @property
    def file_name(self) -> str:
        """Name in the cache."""
        suffix = ".npz" if self.url.endswith(".npz") else ".safetensors"
        return f"{self.model.replace('/', '_')}.{self.tag}{suffix}"


def _arguments(layout: str, pixels: int) -> dict[str, Any]:
    """Return what no tensor of a released file in a layout shows."""
    if layout == "big_vision":  # "Better plain ViT baselines"
        return {"position_embedding": "sincos2d", "pooling": "gap"}
    if layout == "flexivit":
        return {"patch_size": 16, "input_shape": (pixels, pixels, 3)}
    if layout == "timm_clip":  # OpenAI's; timm's model of the same name has the exact GELU
        return {"activation": "quick_gelu"}
    return {"input_shape": (pixels, pixels, 3)} if layout == "bit" else {}


def _url(place: str) -> str:
    """Return the address of `gs://BUCKET/FILE` or `hf://REPOSITORY`."""
    scheme, _, path = place.partition("://")
    if scheme == "gs":
        return f"https://storage.googleapis.com/{path}"
    return f"https://huggingface.co/{path}/resolve/main/model.safetensors"


def _read_table() -> Iterator[Weights]:
    lines = resources.files(__package__).joinpath("released.csv").read_text("utf-8").splitlines()
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        layout, pixels = row["layout"], int(row["pixels"])
        yield Weights(
            row["tag"],
            row["model"],
            _url(row["url"]),
            layout,
            pixels,
            int(row["num_classes"]),
            float(row["top1"]) if row["top1"] else None,
            row["source"],
            _arguments(layout, pixels),
            row["license"] or "Apache-2.0",
            bool(row["url_is_guessed"]),
            int(row["megabytes"]),
        )


RELEASED: tuple[Weights, ...] = tuple(_read_table())
