"""Several processes, started by a launcher such as torchrun."""

import os

import keras

from keras_vit.backend import initialize_processes


def initialize() -> None:
    """Joins the processes that torchrun started; in a process of its own, does nothing.

    Call it first, in every process; then set `create("data_parallel")`. CPUs exchange data by gloo,
    GPUs by NCCL, one per process.

    Raises:
        RuntimeError: torchrun started several processes, and Keras does not run on torch.

    Example:

    >>> import keras_vit
    >>> keras_vit.distribution.initialize()  # under torchrun --nproc-per-node 8 script.py: of eight
    """
    if keras.backend.backend() != "torch" and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise RuntimeError(
            f"torchrun started WORLD_SIZE={os.environ['WORLD_SIZE']} processes, and Keras runs on "
            f"{keras.backend.backend()}. Set KERAS_BACKEND=torch, or start one process."
        )
    initialize_processes()
