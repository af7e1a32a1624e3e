"""The options of `keras-vit check`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options.option import POSITIONAL, Command, in_model


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of `keras-vit check`."""

    file: Path = in_model(
        "a .onnx, .tflite, .pt2 or .html file, or the folder of a SavedModel or of OpenVINO, that "
        "keras-vit export wrote",
        name=POSITIONAL,
    )


CHECK = Command(
    CheckOptions,
    "run an exported file on the images that it carries, and compare with its model's answers; "
    "status 1 where it differs",
    "keras-vit check runs/photos/saved_models/photos/1",
)
