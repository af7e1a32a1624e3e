"""Engines that run exported files beside the usual one of their format, for `check`."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from keras_vit._base.version import install_command
from keras_vit.exporting import litert_file, onnx_file, openvino_folder
from keras_vit.exporting.contract import IMAGES, Run
from keras_vit.exporting.format_table import row_of

# As a format's `runner`: from a file, names of outputs and a dtype to a function from pixels.
Runner = Callable[..., Run]


def _onnx_evaluator(path: Path, outputs: Sequence[str], dtype: str = "uint8") -> Any:
    """Run a file by the definitions of ONNX, in NumPy, which are slow and the standard."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    proto = onnx.load(path)
    if dtype == "float32":
        onnx_file.taking_floats(proto)
    evaluator = ReferenceEvaluator(proto)
    return lambda images: evaluator.run(list(outputs), {IMAGES: images})


def _tensorflow_lite(path: Path, outputs: Sequence[str], dtype: str = "uint8") -> Any:
    import tensorflow as tf

    return litert_file.interpreted(tf.lite.Interpreter, path, outputs, dtype)


_bfloat16 = partial(openvino_folder.runner, precision="bf16")
# By format and name: the package, which the extra of its name brings, and the runner.
OTHERS: dict[tuple[str, str], tuple[str, Runner]] = {
    ("onnx", "openvino"): ("openvino", openvino_folder.runner),
    ("onnx", "openvino-bf16"): ("openvino", _bfloat16),
    ("onnx", "onnx"): ("onnx", _onnx_evaluator),
    ("litert", "tensorflow"): ("tensorflow", _tensorflow_lite),
    ("openvino", "openvino-bf16"): ("openvino", _bfloat16),
}


def engine_of(format: str, name: str | None) -> tuple[str, Runner]:
    """Return what `check` calls an engine, and what runs a file of a format by it.

    Args:
        format: A key of `FORMATS` or `FOLDERS`.
        name: Of the engine; None for the usual one.

    Raises:
        ValueError: It does not run the format.
        ImportError: It is not installed.
    """
    row = row_of(format)
    usual = row.runs_with[-1]
    engines = {usual.replace("_", "-"): (usual, row.extra, row.implementation().runner)}
    engines |= {
        n: (package, package, run) for (of, n), (package, run) in OTHERS.items() if of == format
    }
    key = next(iter(engines)) if name is None else name.lower().replace("_", "-")
    ways = ", ".join(f"{n} ({install_command(extra)})" for n, (_, extra, _) in engines.items())
    if key not in engines:
        raise ValueError(f"engine={name!r} does not run {row.name}. Engines that do: {ways}.")
    package, _, runner = engines[key]
    missing = [each for each in (*row.runs_with[:-1], package) if find_spec(each) is None]
    if missing:
        message = f"{', '.join(missing)} is missing. Engines that run {row.name}: {ways}."
        raise ImportError(message, name=missing[0])
    try:
        return f"{key} {version(package)}", runner
    except PackageNotFoundError:  # such as tensorflow, of tensorflow-cpu
        return key, runner
