"""Core ML (`.mlpackage`): written and checked anywhere, run by macOS and iOS alone."""

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from keras_vit._base.manifest import sha256
from keras_vit.exporting.contract import IMAGES, KEY, Contract, Run
from keras_vit.exporting.executorch_file import answers_module, quietly
from keras_vit.exporting.proof import PROOF
from keras_vit.models import ImageModel

_DATA = Path("Data/com.apple.CoreML")
MODEL, WEIGHTS = _DATA / "model.mlmodel", _DATA / "weights/weight.bin"
IS_MAC = sys.platform == "darwin"


def write(
    model: ImageModel, path: Path, contract: Contract, calibration: np.ndarray | None = None
) -> None:
    """Writes a package by `torch.export` and coremltools. Runs where Keras is on torch.

    It takes one image, float32 `(1, height, width, channels)` in the range of `Contract`'s images,
    and computes in float32: float16, Core ML's default, moves a ViT's answers. int8 is weights in
    eight bits with a scale per output.
    """
    import torch

    example = torch.zeros((1, *contract.image_size, contract.channels))
    aten = torch.ops.aten
    table = {aten.gelu.default: _gelu, aten.subtract.Tensor: torch.sub}
    with torch.no_grad(), quietly():
        import coremltools

        program = torch.export.export(answers_module(model, contract), (example,))
        program = program.run_decompositions(table)
        for node in [*program.graph.nodes]:
            if node.target is aten.alias.default:  # which coremltools does not know
                node.replace_all_uses_with(node.args[0])
                program.graph.erase_node(node)
        package = coremltools.convert(
            program,
            outputs=[coremltools.TensorType(name) for name in contract.returned],
            convert_to="mlprogram",
            compute_precision=coremltools.precision.FLOAT32,
            minimum_deployment_target=coremltools.target.iOS16,
            skip_model_load=True,
        )
        if contract.quantize:
            package = _quantized(package)
    package.user_defined_metadata[KEY] = contract.to_text()
    if not IS_MAC:
        package.short_description = (
            "Written where Core ML is not: coremltools evaluated the program, nothing ran it. On a "
            "Mac, keras_vit.exporting.check runs it on the images that it carries."
        )
    with tempfile.TemporaryDirectory() as name:
        package.save(saved := f"{name}/model.mlpackage")
        for part in ("Manifest.json", "Data"):  # and not coremltools' own notes
            shutil.move(Path(saved) / part, path / part)


def _gelu(inputs: Any, approximate: str = "none") -> Any:
    """GELU in parts, which coremltools joins; of the whole it loses that it is approximate."""
    import torch

    if approximate == "none":
        return 0.5 * inputs * (1 + torch.erf(inputs * 0.5**0.5))
    inner = (2 / np.pi) ** 0.5 * (inputs + 0.044715 * torch.pow(inputs, 3))
    return 0.5 * inputs * (1 + torch.tanh(inner))


def _quantized(package: Any) -> Any:
    from coremltools.optimize import coreml

    config = coreml.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=1024)
    return coreml.linear_quantize_weights(package, coreml.OptimizationConfig(config))


def _spec(path: Path) -> Any:
    with quietly():
        from coremltools.proto import Model_pb2
    return Model_pb2.Model.FromString((path / MODEL).read_bytes())


def read_contract(path: Path) -> Contract:
    """Return the contract in the model's metadata."""
    return Contract.from_text(dict(_spec(path).description.metadata.userDefined)[KEY])


def add_proof(path: Path, text: str) -> None:
    """Adds a proof to the metadata: bytes behind a message are further fields of it."""
    with (path / MODEL).open("ab") as file:
        file.write(_metadata(_spec(path), text))


def read_proof(path: Path) -> tuple[str | None, str]:
    """Return the proof in the metadata, or None, and the sum of all else."""
    spec = _spec(path)
    text = dict(spec.description.metadata.userDefined).get(PROOF)
    length = (path / MODEL).stat().st_size
    length -= len(_metadata(spec, text)) if text is not None else 0
    sums = [sha256(path / MODEL, length), sha256(path / WEIGHTS), sha256(path / "Manifest.json")]
    return text, hashlib.sha256(" ".join(sums).encode()).hexdigest()


def _metadata(spec: Any, text: str) -> bytes:
    other = type(spec)()
    other.description.metadata.userDefined[PROOF] = text
    return bytes(other.SerializeToString())


def engine(version: str) -> str:
    """Return what `runner` runs a package by."""
    if IS_MAC:
        return f"Core ML, by {version}"
    return f"the definitions in {version}, as Core ML is on Macs alone,"


def runner(path: Path, outputs: Sequence[str], dtype: str = "uint8") -> Run:
    """Return a function from pixels of a dtype to the named outputs.

    On a Mac, Core ML computes them on the processor. Elsewhere the package's program is read back
    with its weights, and each operation evaluated as coremltools defines it, in NumPy.
    """
    spec = _spec(path)
    with quietly():
        evaluate = (_core_ml if IS_MAC else _evaluator)(spec, str((path / WEIGHTS).parent))
    size = tuple(spec.description.input[0].type.multiArrayType.shape)[1:]

    def run(images: np.ndarray) -> list[np.ndarray]:
        if images.shape[1:] != size:
            raise ValueError(f"images {images.shape} must be (batch, {', '.join(map(str, size))})")
        rows = [evaluate(image[None]) for image in images.astype("float32")]
        return [np.concatenate([np.asarray(row[name]) for row in rows]) for name in outputs]

    return run


def _core_ml(spec: Any, folder: str) -> Callable[[np.ndarray], Mapping[str, np.ndarray]]:
    from coremltools import ComputeUnit
    from coremltools.models import MLModel

    model = MLModel(spec, compute_units=ComputeUnit.CPU_ONLY, weights_dir=folder)
    return lambda image: model.predict({IMAGES: image})


def _evaluator(spec: Any, folder: str) -> Callable[[np.ndarray], Mapping[str, np.ndarray]]:
    """Return a function that evaluates a package's program for one image."""
    from coremltools.converters.mil.frontend.milproto.load import load

    program = load(spec, spec.specificationVersion, file_weights_dir=folder)
    function = program.functions["main"]
    for operation in function.operations:  # NumPy does not take its own booleans for Python's
        for variable in operation.outputs if operation.op_type == "const" else ():
            if isinstance(variable.val, np.bool_):
                variable._sym_val = SimpleNamespace(val=bool(variable.val))

    def evaluate(image: np.ndarray) -> dict[str, np.ndarray]:
        function.inputs[IMAGES]._sym_val = SimpleNamespace(val=image)
        for operation in function.operations:
            kind, results = operation.op_type, operation.outputs
            if kind == "const":
                continue
            if kind.startswith("constexpr"):
                values = operation.materialized_val_inference()
            else:
                values = OPERATIONS.get(kind, type(operation).value_inference)(operation)
            values = values if len(results) > 1 else [values]
            for variable, value in zip(results, values, strict=True):
                variable._sym_val = SimpleNamespace(val=value)
        return {variable.name: variable.val for variable in function.outputs}

    return evaluate


def _windows(operation: Any, sizes: Sequence[int], fill: float) -> Any:
    """Return the windows of images `(n, channels, rows, columns, *sizes)` that a kernel sees."""
    padding = {"custom": operation.pad.val, "valid": np.zeros(4, int)}[operation.pad_type.val]
    edges = [(0, 0), (0, 0), *np.reshape(padding, (2, 2))]
    images = np.pad(operation.x.val, edges, constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(images, sizes, (2, 3))
    rows, columns = operation.strides.val
    return windows[:, :, ::rows, ::columns]


def _convolution(operation: Any) -> np.ndarray:
    kernel, groups = operation.weight.val, int(operation.groups.val)
    if set(operation.dilations.val) != {1}:
        raise ValueError("a dilated convolution cannot be evaluated")
    windows = np.split(_windows(operation, kernel.shape[2:], 0), groups, 1)
    parts = zip(windows, np.split(kernel, groups), strict=True)
    products = [np.einsum("ncxyij,ocij->noxy", *part, optimize=True) for part in parts]
    bias = 0 if operation.bias is None else operation.bias.val.reshape(-1, 1, 1)
    return np.concatenate(products, 1) + bias


# What coremltools does not evaluate.
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "conv": _convolution,
    "max_pool": lambda op: _windows(op, tuple(op.kernel_sizes.val), -np.inf).max((-2, -1)),
    "silu": lambda op: op.x.val / (1 + np.exp(-op.x.val)),
}
