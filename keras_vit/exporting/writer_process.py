"""Writes one format on the backend that can: `python -m keras_vit.exporting.writer_process`."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.exporting.agreement import check_agreement
from keras_vit.exporting.contract import Contract
from keras_vit.exporting.debug_features import written_model
from keras_vit.exporting.failure import failure_reason
from keras_vit.exporting.format_table import FORMATS
from keras_vit.exporting.proof import PROOF_FILE, Proof, run_proof

# What the process reads, in the folder that it is given.
MODEL_FILE, CONTRACT_FILE, CHECK_FILE = "model.keras", "contract.json", "check.npz"
# What it writes there where it fails.
REASON_FILE = "reason.txt"


def write_and_check(
    model: Any,
    path: Path,
    contract: Contract,
    proof: Proof,
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Writes a model in a format, runs what was written, and adds its proof.

    Args:
        arrays: `images`, the model's answers to them by the names of the outputs, and perhaps
            images for `calibration`.

    Raises:
        RuntimeError: It does not predict what the model does, or cannot be written.
    """
    implementation = FORMATS[contract.format].implementation()
    written = written_model(model, debug=bool(contract.features))
    implementation.write(written, path, contract, arrays.get("calibration"))
    run, images = implementation.runner(path, [*proof.expected], contract.dtype), arrays["images"]
    # Of each head, and the novelty at last.
    for i, name in enumerate(contract.measured):
        part = (*contract.heads, contract)[i]
        output = partial(lambda i, x: run(x)[i], i)
        check_agreement(name, output, images, arrays[name], part)
    proof = proof.measured(run_proof(path, contract, proof, run), contract)
    implementation.add_proof(path, proof.to_text(implementation.read_proof(path)[1]))


def main(folder: Path, path: Path) -> None:
    """Writes to `path` what the files in `folder` describe."""
    contract = Contract.from_text((folder / CONTRACT_FILE).read_text("utf-8"))
    proof = Proof.from_text((folder / PROOF_FILE).read_bytes(), contract, "")[0]
    with np.load(folder / CHECK_FILE) as arrays:
        model = keras.saving.load_model(folder / MODEL_FILE)
        write_and_check(model, path, contract, proof, dict(arrays))


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:]]
    try:
        main(*paths)
    except Exception as error:
        (paths[0] / REASON_FILE).write_text(failure_reason(error), "utf-8")
        raise  # a debugger of this process wants to see all of it
