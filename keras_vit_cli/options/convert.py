"""The options of `keras-vit convert`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options.option import POSITIONAL, Command, in_model, in_run


@dataclass(frozen=True)
class ConvertOptions:
    """The options of `keras-vit convert`."""

    source: str = in_model(
        "a weights file, a folder of transformers or timm, or the released weights MODEL:TAG",
        metavar="IN",
        name=POSITIONAL,
    )
    target: Path = in_model(
        "file to write; with --layout huggingface or timm also a folder, which transformers "
        "or timm opens as it is",
        metavar="OUT",
        name=POSITIONAL,
    )
    layout: str | None = in_model(
        "names and shapes of the tensors: google, big_vision, timm or huggingface", None
    )
    overwrite: bool = in_run("replace a file that convert wrote earlier", False)


CONVERT = Command(
    ConvertOptions,
    "write weights in another layout, and report how each tensor was handled",
    "keras-vit convert ViT-B_16.npz vit.safetensors --layout timm",
)
