"""OpenVINO: for Intel's and other x86 processors, and for OpenVINO Model Server."""

import hashlib
import html
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.manifest import sha256
from keras_vit.exporting import onnx_file
from keras_vit.exporting.contract import IMAGES, KEY, Contract, Run
from keras_vit.exporting.proof import PROOF
from keras_vit.models import ImageModel

MODEL_FILES = ("model.xml", "model.bin")
_RT_INFO = b"\t<rt_info>\n"  # of the model: those of its layers are indented further
_PROOF = re.compile(rb'\t\t<%s value="([^"]*)" />\n' % PROOF.encode())


def quietly_imported() -> Any:
    """OpenVINO, which reports each import to its makers unless the variable `CI` is set.

    Its telemetry decides once in a process, for NNCF as well.
    """
    before = os.environ.get("CI")
    os.environ["CI"] = "true"
    try:
        import openvino
    finally:
        del os.environ["CI"]
        if before is not None:
            os.environ["CI"] = before
    return openvino


def write(
    model: ImageModel, path: Path, contract: Contract, calibration: np.ndarray | None = None
) -> None:
    """Writes `model.xml` and `model.bin` into a folder, from the graph of the ONNX file.

    int8 is NNCF's: with images to calibrate by, weights and activations, with SmoothQuant for the
    few channels that are much larger than the others; without images, the weights alone.
    """
    openvino = quietly_imported()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        onnx_file.write(model, file, replace(contract, quantize=None))
        converted = openvino.convert_model(file)
    if contract.quantize == "int8":
        converted = _quantized(converted, calibration)
    converted.set_rt_info(contract.to_text(), [KEY])
    openvino.save_model(
        converted, path / MODEL_FILES[0], compress_to_fp16=contract.quantize == "float16"
    )


def _quantized(model: Any, calibration: np.ndarray | None) -> Any:
    import nncf

    if calibration is None:
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    images = nncf.Dataset([calibration[i : i + 1] for i in range(len(calibration))])
    return nncf.quantize(
        model,
        images,
        preset=nncf.QuantizationPreset.MIXED,
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(calibration),
    )


def read_contract(path: Path) -> Contract:
    """Return the contract in the model's runtime information."""
    openvino = quietly_imported()
    model = openvino.Core().read_model(path / MODEL_FILES[0])
    return Contract.from_text(model.get_rt_info([KEY]).astype(str))


def add_proof(path: Path, text: str) -> None:
    """Adds a proof to the runtime information, as OpenVINO writes it (it would write all again)."""
    file = path / MODEL_FILES[0]
    before, mark, after = file.read_bytes().rpartition(_RT_INFO)
    element = f'\t\t<{PROOF} value="{html.escape(text)}" />\n'
    file.write_bytes(before + mark + element.encode() + after)


def read_proof(path: Path) -> tuple[str | None, str]:
    """Return the proof in the runtime information, or None, and the sum of all else."""
    xml = (path / MODEL_FILES[0]).read_bytes()
    element = _PROOF.search(xml)
    rest = hashlib.sha256(_PROOF.sub(b"", xml)).hexdigest()
    text = html.unescape(element[1].decode()) if element else None
    return text, f"{rest} {sha256(path / MODEL_FILES[1])}"


def runner(path: Path, outputs: Sequence[str], dtype: str = "uint8", precision: str = "f32") -> Run:
    """Return a function from pixels of a dtype to the named outputs, computed in float32.

    An ONNX file will do for the folder. By itself OpenVINO computes in `precision="bf16"` on
    processors that have it.
    """
    openvino = quietly_imported()
    core = openvino.Core()
    if precision.upper() not in ("F32", *core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")):
        raise ValueError(f"this processor does not compute in {precision}")
    model = core.read_model(path / MODEL_FILES[0] if path.is_dir() else path)
    if dtype == "float32":  # the graph casts its input to float32 at once: nothing else changes
        model.inputs[0].get_node().set_element_type(openvino.Type.f32)
        model.validate_nodes_and_infer_types()
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    compiled = core.compile_model(model, "CPU", options)

    def run(images: np.ndarray) -> list[np.ndarray]:
        # A copy: the array that it returns is its own memory, which the next images overwrite.
        named = compiled({IMAGES: images})
        return [np.array(named[output]) for output in outputs]

    return run
