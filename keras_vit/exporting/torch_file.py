"""PyTorch's own format for programs (`.pt2`), which runs without Keras."""

import io
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.exporting.contract import DESCRIPTION, IMAGES, Contract, Run
from keras_vit.exporting.proof import add_to_zip, read_from_zip
from keras_vit.models import ImageModel
from keras_vit.models.answers import named_answers

# What `torch.export.save` writes for a model of tensors alone, below the archive's own folder.
_MEMBER = re.compile(
    r"data/(weights/weight_\d+|constants/tensor_\d+|(weights|constants)/\w+_config\.json"
    r"|sample_inputs/model\.pt)|models/model\.json|extra/[\w.]+|archive_(format|version)"
    r"|byteorder|version|\.data/(version|serialization_id)|\.format_version|\.storage_alignment"
)


def write(
    model: ImageModel, path: Path, contract: Contract, calibration: np.ndarray | None = None
) -> None:
    """Writes a `.pt2` file by `torch.export`. Runs where Keras is on torch."""
    import torch

    class Answers(torch.nn.Module):
        # The model is not a part of it: the graph holds the weights that it uses as constants, and
        # those of a part would be written once more.
        def forward(self, images: Any) -> dict[str, Any]:
            # Float32 of any dtype. `images.to` would be written with a check that they are uint8.
            return named_answers(model, model(images * 1.0, training=False), contract.top_k)

    example = torch.zeros(
        (2, *contract.image_size, contract.channels), dtype=getattr(torch, contract.dtype)
    )
    with torch.no_grad():
        program = torch.export.export(
            Answers(),
            (),
            {IMAGES: example},
            dynamic_shapes={IMAGES: {0: torch.export.Dim("batch")}},
        )
    torch.export.save(program, path, extra_files={DESCRIPTION: contract.to_text()})


def read_contract(path: Path) -> Contract:
    """Return the contract among the extra files."""
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith(f"/{DESCRIPTION}"))
        return Contract.from_text(archive.read(name))


def add_proof(path: Path, text: str) -> None:
    """Adds a proof to the extra files."""
    with zipfile.ZipFile(path) as archive:
        described = next(n for n in archive.namelist() if n.endswith(f"/{DESCRIPTION}"))
    add_to_zip(path, text, described.removesuffix(DESCRIPTION))


read_proof = read_from_zip  # and the sum of what stands before it


def _check_members(path: Path) -> None:
    """Refuses an archive that `torch.export.load` would unpickle or run code of.

    It unpickles payloads marked so, objects that are not tensors, and example inputs that are not
    plain tensors.
    """
    import torch

    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        others = [name for name in names if not _MEMBER.fullmatch(name.partition("/")[2])]
        if others or len(names) != len(set(names)):
            raise ValueError(f"it holds {(others or names)[0]!r}, which is not loaded")
        for name in names:
            if name.endswith("_config.json"):
                payloads = json.loads(archive.read(name))["config"].values()
                if any(payload["use_pickle"] is not False for payload in payloads):
                    raise ValueError(f"{name!r} asks for pickled objects, which are not loaded")
            elif name.endswith(".pt"):
                torch.load(io.BytesIO(archive.read(name)), weights_only=True)


def runner(path: Path, outputs: Sequence[str], dtype: str = "uint8") -> Run:
    """Return a function from pixels of a dtype to the named outputs."""
    import torch

    _check_members(path)
    program = torch.export.load(path).module()

    def run(images: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            named = program(**{IMAGES: torch.from_numpy(images)})
            return [np.asarray(named[output]) for output in outputs]

    return run
