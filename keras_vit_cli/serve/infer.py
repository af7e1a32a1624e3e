"""The Open Inference Protocol, version 2: named tensors as JSON, or in binary behind it.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

import json
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit.evaluation.answer_row import Row
from keras_vit.models.answers import NOVELTY
from keras_vit_cli.serve.images import RefusedError, Upload, check_count
from keras_vit_cli.serve.json_body import check_keys, decoded, json_object, short
from keras_vit_cli.serve.model import ServedModel

Contents = bytes | np.ndarray | str
# Where tensors follow the JSON, the header that has its bytes.
BINARY = "inference-header-content-length"
_DTYPES = {"FP32": "<f4", "INT32": "<i4", "BOOL": "?"}


@dataclass(frozen=True)
class Tensor:
    """A tensor of images as the protocol names it.

    Attributes:
        datatype: Of the protocol.
        dtype: Of pixels in binary; empty for image files.
        check: From pixels `(images, ...)` to what an `Upload` has for each.
    """

    datatype: str
    dtype: str = ""
    check: Callable[[np.ndarray], list[Contents]] = list


@dataclass(frozen=True)
class InferRequest:
    """A request to `infer`: its `id`, the images, the outputs to return, and those in binary."""

    id: str | None
    uploads: list[Upload]
    outputs: tuple[str, ...]
    binary: frozenset[str] = frozenset()


def _packed_files(data: bytes, count: int) -> list[Contents]:
    files: list[Contents] = []
    while data:
        end = 4 + int.from_bytes(data[:4], "little")
        if len(data) < end or len(files) == count:
            raise ValueError("of BYTES in binary is not a length of four bytes and a file, each")
        files.append(data[4:end])
        data = data[end:]
    if len(files) != count:
        raise ValueError(f"of BYTES in binary has {len(files)} files, and its shape {count}")
    return files


def _levels(images: np.ndarray) -> list[Contents]:
    if not ((images >= 0) & (images <= 255) & (images == np.trunc(images))).all():
        raise ValueError("of UINT8 has something that is not an integer from 0 to 255")
    return list(images)


def _in_range(image: np.ndarray) -> Contents:
    """Return the image; or the reason, where the values are certainly of another scale."""
    low, high = float(image.min()), float(image.max())
    # An image of one value may be black; NaN is not in any range.
    if not 0 <= low <= high <= 255 or (low < high <= 1):
        return f"its values range from {low:.4g} to {high:.4g}: give pixels from 0 to 255"
    return image


def _numbers(data: list[Any]) -> np.ndarray:
    # NumPy would make numbers of texts, and a text of many characters as wide an array of them.
    try:
        if bool in map(type, data):
            raise TypeError("true and false are not")
        return np.frombuffer(array("d", data))
    except (TypeError, OverflowError) as error:
        raise ValueError(f"has something that is not a number: {error}") from error


# By the names that exported files have for the same.
INPUTS = {
    "contents": Tensor("BYTES"),
    "images": Tensor("UINT8", "u1", _levels),
    "pixels": Tensor("FP32", "<f4", lambda images: list(map(_in_range, images))),
}


def describe_tensors(model: ServedModel) -> dict[str, list[dict[str, Any]]]:
    """Return a model's `inputs`, of which a request has one, and `outputs`; -1 is any number.

    Raises:
        RefusedError: The model answers every pixel.
    """
    if model.task.per_pixel:
        raise RefusedError(
            404,
            "This model answers every pixel, which a tensor in JSON would be too large for: ask "
            "POST /predict, whose `maps` are files.",
        )
    inputs = [_row(name, t.datatype, _shape(t, model)) for name, t in INPUTS.items()]
    outputs = [
        _row(model.task.answer_names[0], "FP32", (model.task.size,)),
        _row("valid", "BOOL", ()),
        _row("rows", "BYTES", ()),
    ]
    if getattr(model.task, "sets", None) is not None:
        outputs.append(_row(model.task.answer_names[-1], "INT32", (model.task.size,)))
    if model.novelty:
        outputs.append(_row(NOVELTY, "FP32", ()))
    return {"inputs": inputs, "outputs": outputs}


def _row(name: str, datatype: str, shape: Sequence[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [-1, *shape]}


def _shape(tensor: Tensor, model: ServedModel) -> tuple[int, ...]:
    return (*model.image_size, model.channels) if tensor.dtype else ()


def read_infer(
    body: bytes, model: ServedModel, max_images: int, length: str | None = None
) -> InferRequest:
    """Return the images of a request to `infer`.

    Raises:
        RefusedError: It is not one that this model takes, or has too many images.
    """
    described = describe_tensors(model)
    kinds = " or ".join(f"{t['name']} ({t['datatype']} {t['shape']})" for t in described["inputs"])
    accepted = (
        f'Send {{"inputs": [{{"name", "shape", "datatype", "data"}}]}} with one tensor, {kinds}; '
        "data are flat, BYTES are image files in base64. In place of data, parameters may have "
        f"binary_data_size, of bytes behind the JSON, whose own {BINARY} has."
    )
    body, tail = _parted(body, length, accepted)
    keys = ("id", "parameters", "inputs", "outputs", "model_name")  # the last of KServe's client
    request = json_object(body, accepted, keys, max_images)
    if not isinstance(request.get("id", ""), str):
        raise RefusedError(400, f'"id" is not a text. {accepted}')
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise RefusedError(400, f'"inputs" is not a list of one tensor. {accepted}')
    (sent,) = inputs
    check_keys(sent, "inputs[0]", accepted, ("name", "shape", "datatype", "data", "parameters"))
    name = sent.get("name")
    tensor = INPUTS.get(name) if isinstance(name, str) else None
    if tensor is None or sent.get("datatype") != tensor.datatype:
        datatype = short(sent.get("datatype"))
        raise RefusedError(
            400, f"There is no input {short(name)} of datatype {datatype}. {accepted}"
        )
    shape = sent.get("shape")
    one = _shape(tensor, model)  # a text stands alone, or in a list of one
    if not _is_shape(shape) or tuple(shape[1:]) not in {one, one or (1,)}:
        raise RefusedError(400, f"{name} has the shape {short(shape)}. {accepted}")
    check_count(shape[0], max_images)
    try:
        contents = _contents_of(sent, tail, tensor, tuple(shape))
    except ValueError as error:
        raise RefusedError(400, f'"data" {error}. {accepted}') from error
    uploads = [Upload(str(i), each) for i, each in enumerate(contents)]
    names = tuple(output["name"] for output in described["outputs"])
    all_binary = _parameter(request, "binary_data_output", False)
    outputs = _asked(request.get("outputs"), names)
    binary = {n for n, each in outputs.items() if _parameter(each, "binary_data", all_binary)}
    return InferRequest(request.get("id"), uploads, tuple(outputs), frozenset(binary))


def _parted(body: bytes, length: str | None, accepted: str) -> tuple[bytes, bytes]:
    """Return the JSON of a body, and what follows it."""
    if length is None:
        return body, b""
    is_number = length.isascii() and length.isdigit() and len(length) < 20
    if not is_number or int(length) > len(body):
        reason = f"{BINARY} is {short(length)}, and the body has {len(body)} bytes"
        raise RefusedError(400, f"{reason}. {accepted}")
    return body[: int(length)], body[int(length) :]


def _parameter(sent: Any, name: str, default: Any) -> Any:
    parameters = sent.get("parameters")
    return parameters.get(name, default) if isinstance(parameters, dict) else default


def _contents_of(
    sent: dict[str, Any], tail: bytes, tensor: Tensor, shape: tuple[int, ...]
) -> list[Contents]:
    """Return the images of a tensor, from its data or from the bytes behind the JSON."""
    data, size = sent.get("data"), _parameter(sent, "binary_data_size", None)
    if size is None and tail:
        raise ValueError(f"is followed by {len(tail):,} bytes without a binary_data_size")
    if size is not None:
        if data is not None or type(size) is not int or size != len(tail):
            raise ValueError(f"has the binary_data_size {short(size)}, and {len(tail):,} follow")
        if not tensor.dtype:
            return _packed_files(tail, shape[0])
        most = math.prod(shape) * np.dtype(tensor.dtype).itemsize
        if size != most:
            raise ValueError(f"has {size:,} bytes in binary, and its shape {most:,}")
        values = np.frombuffer(tail, tensor.dtype)
    elif not isinstance(data, list) or len(data) != math.prod(shape):
        raise ValueError(f"is not a flat list of {math.prod(shape)} values, by rows")
    elif not tensor.dtype:
        if not all(isinstance(text, str) for text in data):
            raise ValueError("of BYTES has something that is not a text in base64")
        return [decoded(text) for text in data]
    else:
        values = _numbers(data)
    return tensor.check(values.astype("float32").reshape(shape))


def _is_shape(shape: Any) -> bool:
    is_list = isinstance(shape, list) and bool(shape)
    return is_list and all(type(side) is int and side > 0 for side in shape)


def _asked(outputs: Any, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the outputs to return, by name; all of them where a request does not name any."""
    if outputs is None or outputs == []:
        return {name: {} for name in names}
    accepted = f'Leave "outputs" out, or name {", ".join(names)}.'
    if not isinstance(outputs, list):
        raise RefusedError(400, f'"outputs" is not a list. {accepted}')
    for output in outputs:
        check_keys(output, "One of outputs", accepted, ("name", "parameters"))
        if output.get("name") not in names:
            raise RefusedError(400, f"There is no output {short(output.get('name'))}. {accepted}")
    return {output["name"]: output for output in outputs}


def infer_answer(
    request: InferRequest, model: ServedModel, answers: Sequence[np.ndarray | str], rows: list[Row]
) -> tuple[dict[str, Any], bytes]:
    """Return a request's outputs as JSON, and those in binary, which follow it.

    Answer, set and novelty are zeros where `valid` is false.
    """
    valid = [row["error"] is None for row in rows]
    size, sets = model.task.size, getattr(model.task, "sets", None)
    values = np.zeros((len(rows), size + model.novelty))
    for i, answer in enumerate(answers):
        if valid[i]:
            values[i] = answer
    data: list[list[Any]] = [
        values[:, :size].ravel().tolist(),
        valid,
        [json.dumps(row) for row in rows],
    ]
    if sets is not None:
        inside = sets.contains(values[:, :size]) & np.array(valid)[:, None]
        data.append(inside.astype(int).ravel().tolist())
    if model.novelty:
        data.append(values[:, size].tolist())
    outputs = {
        tensor["name"]: {**tensor, "shape": [len(rows), *tensor["shape"][1:]], "data": each}
        for tensor, each in zip(describe_tensors(model)["outputs"], data, strict=True)
    }
    chosen, tail = [outputs[name] for name in request.outputs], b""
    for output in chosen:
        if output["name"] in request.binary:
            packed = _pack(output.pop("data"), output["datatype"])
            output["parameters"] = {"binary_data_size": len(packed)}
            tail += packed
    named = {} if request.id is None else {"id": request.id}
    return {**named, "outputs": chosen}, tail


def _pack(data: list[Any], datatype: str) -> bytes:
    if datatype == "BYTES":
        texts = [text.encode() for text in data]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return np.array(data, _DTYPES[datatype]).tobytes()
