"""The formats of exported classifiers: a row for each."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType

from keras_vit._base.errors import check_choice
from keras_vit._base.version import install_command


@dataclass(frozen=True)
class Format:
    """How a format is written and run.

    Attributes:
        name: As its makers write it.
        module: Of this package; has `write`, `read_contract` and `runner`.
        backend: The backend that Keras is on where it is written.
        suffix: Of its file; None where it is a folder.
        runs_with: The packages that run it.
        written_with: The packages that write it, beside those.
        extra: What brings them: `pip install 'keras3-vit[EXTRA]'`.
        files: Patterns of the files of a folder.
        int8: None, or the reason why it is not quantized, in float16 neither.
        int8_with: What quantizes it in int8, beside the others.
    """

    name: str
    module: str
    backend: str
    suffix: str | None
    runs_with: tuple[str, ...]
    written_with: tuple[str, ...]
    extra: str
    files: tuple[str, ...] = ()
    int8: str | None = None
    int8_with: tuple[str, ...] = ()

    def implementation(self) -> ModuleType:
        """Return the module that writes, reads and runs it."""
        return importlib.import_module(f"keras_vit.exporting.{self.module}")

    def require(self, packages: tuple[str, ...]) -> None:
        """Raises an ImportError that says how to install what is missing."""
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        if missing:
            raise ImportError(
                f"{', '.join(missing)} is missing: {install_command(self.extra)}", name=missing[0]
            )


# How weights are stored in fewer bits, the smallest first.
QUANTIZATIONS = ("int8", "float16")
_TENSORFLOW = ("tensorflow",)
_OTHERS = "Give format='litert', 'openvino', 'onnx' or 'html'."

FORMATS = {
    "tf_saved_model": Format(
        "SavedModel",
        "saved_model",
        "tensorflow",
        None,
        _TENSORFLOW,
        (),
        "tensorflow",
        ("saved_model.pb", "fingerprint.pb", "variables/*", "assets/*", "assets.extra/*"),
        f"TensorFlow does not have int8 operators for a SavedModel on processors. {_OTHERS}",
    ),
    "onnx": Format(
        "ONNX",
        "onnx_file",
        "tensorflow",
        ".onnx",
        ("onnx", "onnxruntime"),
        (*_TENSORFLOW, "tf2onnx"),
        "onnx",
        int8_with=("onnx_ir",),
    ),
    "litert": Format(
        "LiteRT", "litert_file", "tensorflow", ".tflite", ("ai_edge_litert",), _TENSORFLOW, "litert"
    ),
    "openvino": Format(
        "OpenVINO",
        "openvino_folder",
        "tensorflow",
        None,
        ("openvino",),
        (*_TENSORFLOW, "tf2onnx", "onnx"),
        "openvino",
        ("model.xml", "model.bin"),
        int8_with=("nncf",),
    ),
    "html": Format(
        "page",
        "page_file",
        "tensorflow",
        ".html",
        ("onnxruntime",),
        (*_TENSORFLOW, "tf2onnx", "onnx"),
        "onnx",
    ),
    "torch": Format(
        "PyTorch",
        "torch_file",
        "torch",
        ".pt2",
        ("torch",),
        (),
        "torch",
        int8=f"its quantizers are a package of their own, torchao. {_OTHERS}",
    ),
    "executorch": Format(
        "ExecuTorch",
        "executorch_file",
        "torch",
        ".pte",
        ("torch", "executorch"),
        (),
        "executorch",
        int8=f"its quantizers are a package of their own, torchao. {_OTHERS}",
    ),
}


def check_format(name: str, quantize: str | None) -> Format:
    """Return the row of a format.

    Raises:
        ValueError: It is not known, or it is not quantized so.
        ImportError: A package is missing.
    """
    row = FORMATS[check_choice(name, "format", FORMATS)]
    check_choice(quantize, "quantize", (None, *QUANTIZATIONS))
    if quantize and row.int8:
        raise ValueError(f"format={name!r} is not quantized: {row.int8}")
    row.require((*row.written_with, *row.runs_with, *(row.int8_with if quantize == "int8" else ())))
    return row
