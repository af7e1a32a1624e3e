"""The distribution that torch's processes share a training by."""

import keras
import numpy as np

from keras_vit.ops.processes import process_count, process_rank


class ProcessParallel(keras.distribution.DataParallel):
    """Data parallel over the processes of `torch.distributed`, with one device each.

    Models of this package follow it in `fit`, `evaluate`, `predict` and their variants for a single
    batch. (Keras does not distribute on torch up to 3.15; from 3.16 on it averages the gradients of
    what each process computes: all rows of a global batch.)

    Attributes:
        rank: The number of this process.
        processes: The number of all processes.
    """

    def __init__(self) -> None:
        import torch

        self.rank, self.processes = process_rank(), process_count()
        device = "gpu" if torch.cuda.is_available() else "cpu"
        names = np.array([f"{device}:{rank}" for rank in range(self.processes)])
        mesh = keras.distribution.DeviceMesh(names.shape, ["batch"], names)
        # That of its base: before 3.15, its own asks Keras's backend for processes of torch.
        super(keras.distribution.DataParallel, self).__init__(mesh, "batch", False)
        self.is_batch_checked = False  # whether this call's first batch was compared
