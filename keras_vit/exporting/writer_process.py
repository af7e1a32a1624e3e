"""Writes one format on the backend that can: `python -m keras_vit.exporting.writer_process`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.exporting.agreement import check_agreement, check_novelty
from keras_vit.exporting.contract import Contract
from keras_vit.exporting.failure import failure_reason
from keras_vit.exporting.format_table import FORMATS
from keras_vit.exporting.proof import PROOF_FILE, Proof, run_proof
from keras_vit.models.answers import NOVELTY
from keras_vit.models.scoring import scoring_model

# What the process reads, in the folder that it is given.
MODEL_FILE, CONTRACT_FILE, CHECK_FILE = "model.keras", "contract.json", "check.npz"
# What it writes there where it fails.
REASON_FILE = "reason.txt"


def write_and_check(
    model: Any,
    path: Path,
    contract: Contract,
    proof: Proof,
    images: np.ndarray,
    expected: np.ndarray,
    calibration: np.ndarray | None = None,
    novelty: np.ndarray | None = None,
) -> None:
    """Writes a model in a format, runs what was written, and adds its proof.

    Raises:
        RuntimeError: It does not predict what the model does, or cannot be written.
    """
    implementation = FORMATS[contract.format].implementation()
    implementation.write(scoring_model(model), path, contract, calibration)
    names = contract.outputs[:1] if novelty is None else (contract.outputs[0], NOVELTY)
    run = implementation.runner(path, names, contract.dtype)
    check_agreement(lambda batch: run(batch)[0], images, expected, contract)
    if novelty is not None:
        check_novelty(lambda batch: run(batch)[1], images, novelty, contract)
    proof = proof.measured(run_proof(path, contract, proof, run), contract)
    implementation.add_proof(path, proof.to_text(implementation.read_proof(path)[1]))


def main(folder: Path, path: Path) -> None:
    """Writes to `path` what the files in `folder` describe."""
    contract = Contract.from_text((folder / CONTRACT_FILE).read_text("utf-8"))
    proof = Proof.from_text((folder / PROOF_FILE).read_bytes(), contract, "")[0]
    with np.load(folder / CHECK_FILE) as arrays:
        write_and_check(
            keras.saving.load_model(folder / MODEL_FILE), path, contract, proof, **dict(arrays)
        )


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:]]
    try:
        main(*paths)
    except Exception as error:
        (paths[0] / REASON_FILE).write_text(failure_reason(error), "utf-8")
        raise  # a debugger of this process wants to see all of it
