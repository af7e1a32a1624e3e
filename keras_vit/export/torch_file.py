"""PyTorch's own format for programs (`.pt2`), which runs without Keras."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.contract import IMAGES, KEY, Contract
from keras_vit.models import ImageModel

DESCRIPTION = f"{KEY}.json"


def write(
    model: ImageModel, path: Path, contract: Contract, calibration: np.ndarray | None = None
) -> None:
    """Writes a `.pt2` file by `torch.export`. Runs where Keras is on torch."""
    import torch

    softmax = model.classifier_activation is None

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Any) -> dict[str, Any]:
            scores = self.model(images.to(torch.float32), training=False).to(torch.float32)
            probabilities = torch.softmax(scores, -1) if softmax else scores
            values, indices = torch.topk(probabilities, contract.top_k)
            return {
                "probabilities": probabilities,
                "top_classes": indices.to(torch.int32),
                "top_probabilities": values,
            }

    example = torch.zeros((2, *contract.image_size, contract.channels), dtype=torch.uint8)
    with torch.no_grad():
        program = torch.export.export(
            Classifier().eval(),
            (),
            {IMAGES: example},
            dynamic_shapes={IMAGES: {0: torch.export.Dim("batch")}},
        )
    torch.export.save(program, path, extra_files={DESCRIPTION: contract.to_text()})


def read_contract(path: Path) -> Contract:
    """The contract among the extra files."""
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith(f"/{DESCRIPTION}"))
        return Contract.from_text(archive.read(name))


def runner(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """From pixels to probabilities."""
    import torch

    program = torch.export.load(path).module()

    def run(images: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(program(**{IMAGES: torch.from_numpy(images)})["probabilities"])

    return run
