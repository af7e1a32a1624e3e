"""`config.pbtxt`, by which Triton Inference Server serves an ONNX file."""

import hashlib
from pathlib import Path

from keras_vit._base.errors import printable
from keras_vit._base.files import atomic_write

CONFIG = "config.pbtxt"
# Images that Triton joins to a batch, where the file takes any number of them.
BATCH = 8
_MARK = "# Written by keras_vit from "
_TYPES = {1: "FP32", 2: "UINT8", 6: "INT32", 7: "INT64", 9: "BOOL", 10: "FP16"}
_BATCHING = """\
dynamic_batching {
  max_queue_delay_microseconds: 2000
  default_queue_policy {
    max_queue_size: 16
    timeout_action: REJECT
    default_timeout_microseconds: 2000000
  }
}
"""


def check_place(file: Path) -> Path:
    """Return where the configuration of a file belongs.

    Raises:
        ValueError: The file is not in the layout of Triton's model repository.
        FileExistsError: There is a configuration that somebody else wrote.
    """
    if file.name != "model.onnx" or not file.parent.name.isdecimal() or file.parent.name == "0":
        raise ValueError(
            f"{printable(file)} is not where Triton looks for a model: give "
            "REPOSITORY/NAME/VERSION/model.onnx, such as models/photos/1/model.onnx."
        )
    config = file.absolute().parents[1] / CONFIG
    is_there = config.exists()
    first, _, rest = (config.read_text("utf-8", "replace") if is_there else "").partition("\n")
    if is_there and not (first.startswith(_MARK) and first.endswith(_sum(rest))):
        raise FileExistsError(
            f"{printable(config)} is not as keras_vit wrote it, and is not replaced: move it "
            "elsewhere, or give another path."
        )
    return config


def write_config(file: Path) -> Path:
    """Writes `config.pbtxt` for an ONNX file, which declares its inputs and outputs.

    The name is left out: Triton takes that of the folder.
    """
    import onnx

    config, graph = check_place(file), onnx.load(file, load_external_data=False).graph
    ports = [("input", port) for port in graph.input] + [("output", port) for port in graph.output]
    shapes = [port.type.tensor_type.shape.dim for _, port in ports]
    is_free = all(shape and shape[0].dim_param for shape in shapes)
    lines = ['backend: "onnxruntime"']
    lines += [f"max_batch_size: {BATCH if is_free else 0}"]
    for (kind, port), shape in zip(ports, shapes, strict=True):
        sizes = [-1 if d.dim_param else d.dim_value for d in shape[is_free:]]
        dims = ", ".join(map(str, sizes or [1]))  # a number per image
        reshape = "" if sizes else " reshape { shape: [ ] }"
        type = f"TYPE_{_TYPES[port.type.tensor_type.elem_type]}"
        lines += [
            f'{kind} [ {{ name: "{port.name}" data_type: {type} dims: [ {dims} ]{reshape} }} ]'
        ]
    rest = "\n".join(lines) + "\n" + (_BATCHING if is_free else "")
    with atomic_write(config) as temporary:
        first = f"{_MARK}{file.parent.name}/{file.name}, sum {_sum(rest)}"
        temporary.write_text(f"{first}\n{rest}", "utf-8")
    return config


def _sum(text: str) -> str:
    """Return a sum of what follows: that of a configuration that somebody edited differs."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
