"""Weights in several files, as transformers writes large models: an index, and its shards.

`model.safetensors.index.json` maps the name of each tensor to the file that holds it:

    {"metadata": {"total_size": 346270720}, "weight_map": {"vit.…bias": "model-00001-of-00002.…"}}

The index may come from anyone: its files are looked for in its own folder alone.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from keras_vit.weights.checkpoint_error import CheckpointError, reason
from keras_vit.weights.containers.safetensors_file import open_safetensors
from keras_vit.weights.containers.sums import INDEX_SUFFIX, check_regular, verify_sums
from keras_vit.weights.containers.tensors import Container, Tensor
from keras_vit.weights.containers.torch_bin import open_torch

SHARD_OPENERS = {".safetensors": open_safetensors, ".bin": open_torch}
# ViT-G has 776 tensors at Hugging Face, whose lines have about 100 bytes each.
LARGEST_INDEX = 2**22
# All stay open together, and a process may open 1,024 files.
MOST_SHARDS = 256
# No separators, drives or "..": a file of the same folder.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@contextmanager
def open_shards(index: Path) -> Iterator[Container]:
    """Yield the tensors of all files in an index, checked by their headers, read on demand."""
    file_of = read_index(index)
    tensors: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for shard in shards_of(index, file_of):
            verify_sums(shard)
            container = stack.enter_context(SHARD_OPENERS[shard.suffix](shard))
            for name, tensor in container.tensors.items():
                if file_of.get(name) != shard.name:
                    listed = f"in {file_of[name]}" if name in file_of else "nowhere"
                    raise CheckpointError(
                        f"{shard} holds tensor {name!r}, which {index} lists {listed}: one of the "
                        "two files is of another model. Download the folder again."
                    )
                tensors[name] = tensor
        if missing := [name for name in file_of if name not in tensors]:
            raise CheckpointError(
                f"{index} lists tensor {missing[0]!r} in {file_of[missing[0]]}, which does not "
                f"hold it{f', and {len(missing) - 1} more' if missing[1:] else ''}: one of the two "
                "files is of another model. Download the folder again."
            )
        yield Container(index, tensors)


def read_index(index: Path) -> dict[str, str]:
    """Return the name of the file that holds each tensor.

    Raises:
        CheckpointError: The index is damaged or too large, or lists a file outside its folder.
    """
    check_regular(index)
    size = index.stat().st_size
    if size > LARGEST_INDEX:
        raise CheckpointError(
            f"{index} is {size:,} bytes long; the list of a model's tensors has at most "
            f"{LARGEST_INDEX:,}. It is something else. Nothing was read."
        )
    try:
        content = json.loads(index.read_text("utf-8"))
        file_of = content["weight_map"]
        items = list(file_of.items())
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{index} is not a list of tensors and their files ({reason(error)}): it is damaged, "
            "or something else. Download it again."
        ) from error
    suffix = Path(index.name.removesuffix(INDEX_SUFFIX)).suffix
    if suffix not in SHARD_OPENERS:
        raise CheckpointError(
            f"{index} is not the index of files that can be read: those are called "
            f"{' or '.join(f'NAME{known}{INDEX_SUFFIX}' for known in SHARD_OPENERS)}."
        )
    for name, file in items:
        is_plain = isinstance(file, str) and _PLAIN_NAME.fullmatch(file)
        if not is_plain or not file.endswith(suffix):
            raise CheckpointError(
                f"{index} lists tensor {name!r} in {str(file)[:100]!r}, which is not the name of a "
                f"{suffix} file in the same folder. Nothing was read."
            )
    number = len({*file_of.values()})
    if not 1 <= number <= MOST_SHARDS:
        raise CheckpointError(
            f"{index} lists {number:,} files: from 1 to {MOST_SHARDS} are accepted. "
            "Nothing was read."
        )
    return dict(items)


def shards_of(index: Path, file_of: dict[str, str]) -> list[Path]:
    """Return the files of an index.

    Raises:
        CheckpointError: One of them is not there, or is not a regular file.
    """
    shards = [index.with_name(name) for name in sorted({*file_of.values()})]
    for shard in shards:
        if not shard.exists():
            tensor = next(name for name, file in file_of.items() if file == shard.name)
            raise CheckpointError(
                f"{index} lists tensor {tensor!r} in {shard.name}, which is not beside it: "
                "download that file as well."
            )
        check_regular(shard)
    return shards
