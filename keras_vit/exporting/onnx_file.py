"""ONNX: written by tf2onnx, run and quantized by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.processors import available_processors
from keras_vit.exporting.contract import IMAGES, KEY, Contract
from keras_vit.exporting.graph import pixels_to_answers
from keras_vit.models import ImageModel

# The newest that tf2onnx writes.
OPSET = 18
# Values of a kernel that share a scale.
BLOCK = 32


def write(
    model: ImageModel, path: Path, contract: Contract, calibration: np.ndarray | None = None
) -> None:
    """Writes an ONNX file.

    int8 is weights in eight bits with a scale for each 32 of them, and activations quantized row
    by row while the products are computed. (Scales of whole tensors do not suit these models: a
    few channels of ViT-Ti/16 are a hundred times as large as the others.) Such products are
    ONNX Runtime's own operator, `MatMulNBits`.
    """
    import onnx
    import tf2onnx

    answer = pixels_to_answers(model, contract)
    proto, _ = tf2onnx.convert.from_function(answer, answer.input_signature, opset=OPSET)
    _name_batch(proto)
    if contract.quantize:
        proto = _quantized(proto)
    onnx.helper.set_model_props(proto, {KEY: contract.to_text()})
    onnx.save(proto, str(path))


def _name_batch(proto: Any) -> None:
    """Calls the free axis `batch`, where the converter counts its names."""
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


def _quantized(proto: Any) -> Any:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        proto, bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=4
    )
    quantizer.process()
    return quantizer.model.model


def read_contract(path: Path) -> Contract:
    """Return the contract in a file's metadata."""
    import onnx

    proto = onnx.load(str(path), load_external_data=False)
    return Contract.from_text({prop.key: prop.value for prop in proto.metadata_props}[KEY])


def runner(
    path: Path, outputs: Sequence[str], dtype: str = "uint8"
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Return a function from pixels of a dtype to the named outputs."""
    import onnx
    import onnxruntime

    file: str | bytes = str(path)
    if dtype == "float32":  # the graph casts its input to float32 at once: nothing else changes
        proto = onnx.load(path)
        proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        file = proto.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # By default it counts physical cores, of which a virtual machine may show half.
    options.intra_op_num_threads = available_processors()
    session = onnxruntime.InferenceSession(
        file, options, providers=onnxruntime.get_available_providers()
    )

    def run(images: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(each) for each in session.run(list(outputs), {IMAGES: images})]

    return run
