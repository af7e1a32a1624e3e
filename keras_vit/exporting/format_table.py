"""The formats of exported classifiers: a row for each."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from keras_vit._base.errors import check_choice, printable
from keras_vit._base.version import install_command

# How weights are stored in fewer bits, the smallest first.
QUANTIZATIONS = ("int8", "mixed", "float16")


@dataclass(frozen=True)
class Format:
    """How a format is written and run.

    Attributes:
        module: Of this package; has `write`, `read_contract` and `runner`.
        backend: The backend that Keras is on where it is written.
        suffix: Of its file; None where it is a folder.
        written_with: The packages that write it, beside those.
        extra: What brings them: `pip install 'keras3-vit[EXTRA]'`.
        files: Patterns of the files of a folder.
        int8: None, or the reason why it is not quantized, in float16 neither.
        int8_with: What quantizes it in int8, beside the others.
        quantizations: How its weights are stored in fewer bits, the smallest first.
        only_on: The system that alone runs it, of Python's names; empty for every one.
        in_folder: Patterns of its files where a path without a suffix makes a folder of it.
        sorts: Whether it has the stable sort of token merging.
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
    quantizations: tuple[str, ...] = QUANTIZATIONS
    only_on: str = ""
    in_folder: tuple[str, ...] = ()
    sorts: bool = True

    def implementation(self) -> ModuleType:
        """Return the module that writes, reads and runs it."""
        return importlib.import_module(f"keras_vit.exporting.{self.module}")

    def at(self, path: Path) -> Format:
        """Return the row for a path: where it may be a folder, one without a suffix is."""
        is_folder = self.in_folder and not path.suffix
        return replace(self, suffix=None, files=self.in_folder) if is_folder else self

    @property
    def patterns(self) -> tuple[str, ...]:
        """Of the files of its folder, whether it is always one or may be."""
        return self.files or self.in_folder

    def require(self, packages: tuple[str, ...], without_tensorflow: str = "") -> None:
        """Raises an ImportError that says how to install what is missing."""
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        if missing:
            message = f"{', '.join(missing)} is missing: {install_command(self.extra)}"
            more = without_tensorflow if "tensorflow" in missing else ""
            raise ImportError(message + more, name=missing[0])

    @property
    def runs_here(self) -> bool:
        """Whether this system has what runs it."""
        return self.only_on in ("", sys.platform)

    def require_system(self, file: Path) -> None:
        """Raises a RuntimeError where its files cannot be run."""
        if not self.runs_here:
            raise RuntimeError(
                f"{printable(file)} is for {self.name}, which only macOS and iOS have. Here it can "
                "only be written, without data= and quantize='auto', and checked: predict with the "
                "model that it was exported from, or with another format."
            )


_TENSORFLOW = ("tensorflow",)
_WITHOUT_TENSORFLOW = (
    ". TensorFlow writes it in a process of its own, and Keras stays on its backend. Without "
    "TensorFlow, torch writes format='torch'."
)
_OTHERS = "Give format='litert', 'openvino', 'onnx', 'executorch', 'coreml' or 'html'."

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
        "LiteRT",
        "litert_file",
        "tensorflow",
        ".tflite",
        ("ai_edge_litert",),
        _TENSORFLOW,
        "litert",
        quantizations=("int8", "float16"),  # its converter rounds all kernels or none
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
        quantizations=("int8", "float16"),
    ),
    "html": Format(
        "page",
        "page_file",
        "tensorflow",
        ".html",
        ("onnxruntime",),
        (*_TENSORFLOW, "tf2onnx", "onnx"),
        "onnx",
        in_folder=(
            "graph.bin",
            "wasm.bin",
            "index.html",
            "manifest.webmanifest",
            "icon.svg",
            "worker.js",
        ),
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
        int8_with=("torchao",),
        quantizations=("int8",),
        sorts=False,
    ),
    "coreml": Format(
        "Core ML",
        "coreml_file",
        "torch",
        ".mlpackage",
        ("coremltools",),
        ("torch",),
        "coreml",
        (
            "Data/com.apple.CoreML/model.mlmodel",
            "Data/com.apple.CoreML/weights/weight.bin",
            "Manifest.json",
        ),
        quantizations=("int8",),
        only_on="darwin",
        sorts=False,
    ),
}

# What `keras_vit.weights.save_weights` writes for other packages, by layout; these are checked.
FOLDERS = {
    layout: Format(name, "peer_folder", "torch", None, ("torch", name), (), name)
    for layout, name in (("huggingface", "transformers"), ("timm", "timm"))
}


def row_of(name: str) -> Format:
    """Return the row of a format or of a folder for another package."""
    return FOLDERS[name] if name in FOLDERS else FORMATS[name]


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
    if quantize and quantize not in row.quantizations:
        ways = " or ".join(map(repr, row.quantizations))
        raise ValueError(f"format={name!r} does not have quantize={quantize!r}: give {ways}.")
    quantizers = row.int8_with if quantize in ("int8", "mixed") else ()
    row.require((*row.written_with, *row.runs_with, *quantizers), _WITHOUT_TENSORFLOW)
    return row
