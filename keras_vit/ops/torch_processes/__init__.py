"""Ends with Keras 3.16, which distributes on torch itself: data parallel in several processes.

When `pyproject.toml` asks for keras >= 3.16, this folder and `ops/step.py` go. Up to version 3.15
Keras does not distribute on torch; from 3.16 on, it wraps a model in `DistributedDataParallel`,
which averages the gradients of local losses (`docs/architecture.md` says what is then different).

Every process has the labels of the same global batches, and all their images or those of its rows
(`data.pipeline`). Within a step, the model computes the rows of its process and gathers the outputs
of all of them; loss and metrics are computed from all outputs, in every process:

    images of the batch ──► rows of this process ──► model ──► outputs ──► gather ──► loss, metrics
                                                       │                     │
        sum over the processes ◄── gradient ◄──────────┴──── rows of this process

So the sum of the gradients is the gradient of the global batch's loss, whatever the loss, and it is
ready before clipping, accumulation and SAM see it.
"""

from keras_vit.ops.torch_processes.connection import (
    connect_torch_processes,
    keras_shares_steps,
    start_from_first_process,
    step_in_processes,
)
from keras_vit.ops.torch_processes.process_parallel import ProcessParallel
