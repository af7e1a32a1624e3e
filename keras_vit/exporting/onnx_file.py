"""ONNX: written by tf2onnx, run and quantized by ONNX Runtime."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.manifest import sha256
from keras_vit._base.processors import available_processors
from keras_vit.exporting.contract import IMAGES, KEY, Contract, Run
from keras_vit.exporting.graph import pixels_to_answers
from keras_vit.exporting.proof import PROOF
from keras_vit.models import ImageModel

# The newest that tf2onnx writes.
OPSET = 18
# Values of a kernel that share a scale.
BLOCK = 32
# Values of the smallest kernel that `round_weights` rounds.
SMALLEST = 1024
# Of a layer's scope in the names of nodes: Keras numbers its calls behind the block's own number.
_BLOCK = re.compile(r"block_(\d+)(?:_\d+)?/")


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

    proto = in_fewer_bits(graph_of(model, contract), contract.quantize, _quantized)
    onnx.helper.set_model_props(proto, {KEY: contract.to_text()})
    onnx.save(proto, str(path))


def graph_of(model: ImageModel, contract: Contract, *, attention: bool = False) -> Any:
    """Return the graph of `pixels_to_answers` as an `onnx.ModelProto`."""
    import tf2onnx

    answer = pixels_to_answers(model, contract, attention=attention)
    proto, _ = tf2onnx.convert.from_function(answer, answer.input_signature, opset=OPSET)
    _name_batch(proto)
    return proto


def _name_batch(proto: Any) -> None:
    """Calls the free axis `batch`, where the converter counts its names."""
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


def in_fewer_bits(
    proto: Any, quantize: str | None, rounded: Callable[[Any, Collection[str]], Any]
) -> Any:
    """Return a graph with smaller weights; `rounded` stores them in int8, but for some nodes'."""
    nodes = {node.name: node.input for node in proto.graph.node}
    inner = between(nodes) if quantize == "mixed" else set()
    if quantize in ("float16", "mixed"):
        store_in_sixteen_bits(proto, {name for node in inner for name in nodes[node]})
    if quantize in ("int8", "mixed"):
        return rounded(proto, nodes.keys() - inner if inner else ())
    return proto


def between(names: Iterable[str]) -> set[str]:
    """Return which nodes of a graph are of blocks between the first and the last, by their names.

    Raises:
        ValueError: There are none.
    """
    scopes = {name: _BLOCK.findall(name) for name in names}
    blocks = {name: int(numbers[-1]) for name, numbers in scopes.items() if numbers}
    last = max(blocks.values(), default=0)
    inner = {name for name, block in blocks.items() if 0 < block < last}
    if not inner:
        raise ValueError(
            "quantize='mixed' rounds the blocks between the first and the last, and there are "
            "none: give quantize='int8' or 'float16'."
        )
    return inner


def _quantized(proto: Any, but: Collection[str] = ()) -> Any:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        proto,
        bits=8,
        block_size=BLOCK,
        is_symmetric=True,
        accuracy_level=4,
        nodes_to_exclude=[*but],
    )
    quantizer.process()
    return quantizer.model.model


def round_weights(proto: Any, but: Collection[str] = ()) -> Any:
    """Stores kernels in eight bits with a scale per output; products stay in float32.

    Returns the graph; kernels of the nodes of the names `but` stay as they are.

    Unlike `MatMulNBits`, this rounds nothing but weights, so that every engine has the same
    answers, and leaves their bytes in few values, which compress well.
    """
    import onnx

    kernels = {each.name: each for each in proto.graph.initializer}
    outputs = {"MatMul": 1, "Gemm": 1, "Conv": 0}  # axis of a kernel; of Gemm, where not transposed
    axes: dict[str, int] = {}
    for node in (each for each in proto.graph.node if each.name not in but):
        for place, name in enumerate(node.input):
            kernel = kernels.get(name)
            if kernel is None or np.prod(kernel.dims) < SMALLEST or kernel.data_type != 1:
                continue
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            fits = node.op_type == "Conv" or len(kernel.dims) == 2
            if place == 1 and node.op_type in outputs and fits:
                axes[name] = outputs[node.op_type] - transposed
    nodes = []
    for name, axis in axes.items():
        values = onnx.numpy_helper.to_array(kernels[name])
        others = tuple(a for a in range(values.ndim) if a != axis)
        scales = np.abs(values).max(others) / np.float32(127)
        scales[scales == 0] = 1
        scales = scales.reshape([-1 if a == axis else 1 for a in range(values.ndim)])
        rounded = np.rint(values / scales).astype("int8")
        proto.graph.initializer.remove(kernels[name])
        for part, array in ((f"{name}_int8", rounded), (f"{name}_scale", scales)):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, part))
        # Not `DequantizeLinear`, which some engines fuse with the product, rounding more.
        make = onnx.helper.make_node
        nodes.append(make("Cast", [f"{name}_int8"], [f"{name}_cast"], to=onnx.TensorProto.FLOAT))
        nodes.append(make("Mul", [f"{name}_cast", f"{name}_scale"], [name]))
    for node in reversed(nodes):  # in front: nodes stand in the order in which they are computed
        proto.graph.node.insert(0, node)
    return proto


def read_contract(path: Path) -> Contract:
    """Return the contract in a file's metadata."""
    import onnx

    proto = onnx.load(str(path), load_external_data=False)
    return Contract.from_text({prop.key: prop.value for prop in proto.metadata_props}[KEY])


def store_in_sixteen_bits(proto: Any, but: Collection[str] = ()) -> None:
    """Stores weights in float16, but for those of some names; all is computed in float32."""
    import onnx

    largest, make = np.finfo("float16").max, onnx.helper.make_node
    for kernel in [*proto.graph.initializer]:
        if kernel.data_type != onnx.TensorProto.FLOAT or np.prod(kernel.dims) < SMALLEST:
            continue
        if kernel.name in but:
            continue
        values = onnx.numpy_helper.to_array(kernel)
        if np.abs(values).max() > largest:
            continue
        half = onnx.numpy_helper.from_array(values.astype("float16"), f"{kernel.name}_float16")
        proto.graph.initializer.remove(kernel)
        proto.graph.initializer.append(half)
        cast = make("Cast", [half.name], [kernel.name], to=onnx.TensorProto.FLOAT)
        proto.graph.node.insert(0, cast)


def add_proof(path: Path, text: str) -> None:
    """Adds a proof to the metadata: bytes behind a message are further fields of it."""
    with path.open("ab") as file:
        file.write(_metadata(text))


def read_proof(path: Path) -> tuple[str | None, str]:
    """Return the proof in a file's metadata, or None, and the sum of what stands before it."""
    import onnx

    proto = onnx.load(str(path), load_external_data=False)
    text = {prop.key: prop.value for prop in proto.metadata_props}.get(PROOF)
    length = path.stat().st_size - (len(_metadata(text)) if text is not None else 0)
    return text, sha256(path, length)


def _metadata(text: str) -> bytes:
    import onnx

    proto = onnx.ModelProto()
    proto.metadata_props.add(key=PROOF, value=text)
    return bytes(proto.SerializeToString())


def runner(path: Path, outputs: Sequence[str], dtype: str = "uint8") -> Run:
    """Return a function from pixels of a dtype to the named outputs."""
    import onnx

    file: str | bytes = str(path)
    if dtype == "float32":
        file = taking_floats(onnx.load(path))
    return graph_runner(file, outputs)


def taking_floats(proto: Any) -> bytes:
    """Return a graph with float32 pixels: it casts its input to that at once, and nothing else."""
    proto.graph.input[0].type.tensor_type.elem_type = 1  # onnx.TensorProto.FLOAT
    return bytes(proto.SerializeToString())


def graph_runner(file: str | bytes, outputs: Sequence[str]) -> Run:
    """Return a function from pixels, as the graph takes them, to the named outputs."""
    import onnxruntime

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
