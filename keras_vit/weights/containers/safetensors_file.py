"""`.safetensors`, read by its library.

It is written here: the library writes the metadata in random order (ten saves of one model made
eight different files), and the same model should make the same bytes.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401, gives NumPy the bfloat16 that safetensors asks it for
import numpy as np

from keras_vit.weights.checkpoint_error import CheckpointError, reason
from keras_vit.weights.containers.sums import SEAL_KEY, UNSET_SEAL
from keras_vit.weights.containers.tensors import (
    Array,
    Container,
    Tensor,
    check_declared_size,
    check_shape,
    checked_float32,
    largest_header,
    pack_metadata,
    unpack_metadata,
)

# Name in the file: NumPy's, or ml_dtypes's for bfloat16.
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bfloat16", "BOOL": "?"}
DTYPES |= {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}


@contextmanager
def open_safetensors(path: Path) -> Iterator[Container]:
    """Yield the tensors of a `.safetensors` file, checked by its header, read on demand."""
    from safetensors import safe_open

    size = path.stat().st_size
    with path.open("rb") as stream:
        header_size = int.from_bytes(stream.read(8), "little")
    if size < 8 or header_size > min(size - 8, largest_header(size)):
        raise CheckpointError(
            f"{path} announces a header of {header_size:,} bytes at byte 0, but is {size:,} bytes "
            f"long, and {largest_header(size):,} is the limit: it was cut off, or is something "
            "else. Download it again."
        )
    try:
        # "pread" copies one tensor at a time; mapped pages would stay in the peak memory.
        file = safe_open(path, "numpy", backend="pread")
    except Exception as error:  # of the library, whatever a hostile header provokes
        raise CheckpointError(
            f"{path} ({header_size:,} bytes of header from byte 8, {size - 8 - header_size:,} of "
            f"data) is not a whole safetensors file: {reason(error)}. Download it again."
        ) from error
    with file:
        tensors = {name: _tensor(file, name) for name in file.keys()}  # noqa: SIM118, no mapping
        check_declared_size(path, (tensor.shape for tensor in tensors.values()))
        metadata = unpack_metadata((file.metadata() or {}).get("keras_vit", ""))
        yield Container(path, tensors, metadata)


def _tensor(file: Any, name: str) -> Tensor:
    declared = file.get_slice(name)
    shape, dtype = tuple(declared.get_shape()), declared.get_dtype()
    check_shape(name, shape)

    def read() -> Array:
        try:
            values = file.get_tensor(name)
        except Exception as error:  # such as a dtype that NumPy does not have
            raise CheckpointError(
                f"Tensor {name!r} of shape {shape} and dtype {dtype} cannot be read: "
                f"{reason(error)}"
            ) from error
        return checked_float32(name, values)

    return Tensor(name, shape, np.dtype(DTYPES[dtype]).name if dtype in DTYPES else dtype, read)


def save_safetensors(
    path: Path, tensors: Iterable[tuple[str, Array]], metadata: dict[str, Any]
) -> None:
    """Writes a `.safetensors` file with `metadata` in its header."""
    # "format" is what transformers asks for before it loads a file.
    notes = {"format": "pt", SEAL_KEY: UNSET_SEAL, "keras_vit": ""}
    header: dict[str, Any] = {"__metadata__": notes}
    arrays = {name: np.ascontiguousarray(values, "<f4") for name, values in tensors}
    end = 0
    for name, values in arrays.items():
        begin, end = end, end + values.nbytes
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [begin, end]}
    room = largest_header(end) - len(json.dumps(header))
    notes["keras_vit"] = pack_metadata(metadata, room, lambda text: len(json.dumps(text)))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in arrays.values():
            file.write(values.data)
