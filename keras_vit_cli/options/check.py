"""The options of `keras-vit check`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options.option import POSITIONAL, Command, in_model, in_run
from keras_vit_cli.options.shared import EXPORTED_HELP


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of `keras-vit check`."""

    file: Path = in_model(
        f"{EXPORTED_HELP}, or a folder of keras-vit convert for transformers or timm",
        name=POSITIONAL,
    )
    engine: str | None = in_run(
        "what runs the file (default: the engine of its format); ONNX: onnxruntime, openvino, "
        "openvino-bf16 or onnx, its definitions in NumPy; LiteRT: ai-edge-litert or tensorflow; "
        "OpenVINO: openvino or openvino-bf16",
        None,
        metavar="NAME",
    )


CHECK = Command(
    CheckOptions,
    "run an exported file on the images that it carries, and compare with its model's answers; "
    "status 1 where it differs",
    "keras-vit check runs/photos/saved_models/photos/1",
)
