"""A step of `fit`, `evaluate` or `predict` in several processes of torch."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from keras_vit.ops.processes import check_same_batch, exchange, rows_in
from keras_vit.ops.step import current_step
from keras_vit.ops.torch_processes.process_parallel import ProcessParallel

# Gradients are summed in parts of 128 MiB (float32), so that their copies stay small.
BUCKET_SIZE = 2**25

# What Keras draws random numbers with, given a `size`.
_DRAWS = (torch.rand, torch.randint, torch.normal)


def run_step(
    model: keras.Model,
    distribution: ProcessParallel,
    step: Callable[[Any], Any],
    data: Any,
    training: bool,
) -> Any:
    """Runs a step of Keras on a global batch, of which this process computes its rows."""
    if not distribution.is_batch_checked:  # in this call of `fit`, `evaluate` or `predict`
        check_same_batch(data)
        distribution.is_batch_checked = True
    generators = _generators(model, distribution) if training else nullcontext()
    rows = rows_in(data)
    with generators, _loss_of(model, rows), _Step(model, distribution, rows) as current:
        token = current_step.set(current)
        try:
            return step(data)
        finally:
            current_step.reset(token)


class _Step(TorchFunctionMode):
    """The rows of a process in one step, and the random numbers that belong to them.

    Random numbers that have a row per row of the batch are drawn for the whole batch, of which the
    process takes its own: its masks are those of one process. (torch's generators cannot skip
    numbers.) As a mode it sees the draws of all layers, also those of other packages.
    """

    def __init__(self, model: keras.Model, distribution: ProcessParallel, rows: int) -> None:
        super().__init__()
        self.model, self.distribution = model, distribution
        self.global_rows = rows  # of the data of this step
        self.is_inside = False  # whether the model is computing the rows
        self.is_sum_due = False  # whether this backward pass will sum the gradients
        self.batch = self.rows = 0  # how many rows the batch has, and this process
        self.index: Any = None  # the process's rows in the batch
        self.batch_axis = 0  # of random numbers that are drawn now

    def call(self, function: Callable[[Any], Any], images: Any) -> Any:
        """`on_all_processes`: equally many rows each, of which copies of the last are dropped."""
        processes, rank = self.distribution.processes, self.distribution.rank
        has_all = images.shape[0] * processes != self.global_rows
        self.batch = images.shape[0] if has_all else self.global_rows
        self.rows = -(-self.batch // processes)
        index = torch.arange(rank * self.rows, (rank + 1) * self.rows)
        self.index = torch.clamp(index, max=self.batch - 1)
        # Only these rows go to the device; NumPy would take a tensor of one index for an integer.
        mine: Any = self.index if isinstance(images, torch.Tensor) else self.index.numpy()
        mine = mine if has_all else slice(None)
        self.is_inside = True
        try:
            outputs = function(images[mine])
        finally:
            self.is_inside = False
        return keras.tree.map_structure(lambda x: _Gather.apply(x, self)[: self.batch], outputs)

    def sum_after_backward(self) -> None:
        """Sums the gradients over all processes when the backward pass that runs now is over."""
        if not self.is_sum_due:
            self.is_sum_due = True
            # As torch's DistributedDataParallel does.
            torch.autograd.Variable._execution_engine.queue_callback(self._sum_gradients)

    def _sum_gradients(self) -> None:
        self.is_sum_due = False
        gradients = [variable.value.grad for variable in self.model.trainable_variables]
        for bucket in _buckets([gradient for gradient in gradients if gradient is not None]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            exchange(torch.distributed.all_reduce, flat)
            sums = flat.split([gradient.numel() for gradient in bucket])
            for gradient, total in zip(bucket, sums, strict=True):
                gradient.copy_(total.view_as(gradient))

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        shape = kwargs.get("size", ()) if function in _DRAWS else ()
        if function is torch.bernoulli:
            shape = args[0].shape
        axis = self.batch_axis
        if len(shape) <= axis or shape[axis] != self.rows:
            return function(*args, **kwargs)
        whole = (*shape[:axis], self.batch, *shape[axis + 1 :])
        if function is torch.bernoulli:  # of probabilities, the same in every row
            args = (args[0].narrow(axis, 0, 1).expand(whole).contiguous(), *args[1:])
        else:
            kwargs["size"] = whole
        numbers = function(*args, **kwargs)
        return numbers.index_select(axis, self.index.to(numbers.device))


class _Gather(torch.autograd.Function):
    """The rows of all processes, from those of each.

    Every process computes the whole loss, so its own rows of the gradient are complete:
    `torch.distributed.nn.functional.all_gather` would sum those of all processes.
    """

    @staticmethod
    def forward(context: Any, rows: Any, step: _Step) -> Any:
        context.step, context.rows = step, rows.shape[0]
        parts = [torch.empty_like(rows) for _ in range(step.distribution.processes)]
        exchange(torch.distributed.all_gather, parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        context.step.sum_after_backward()
        start = context.step.distribution.rank * context.rows
        return gradient[start : start + context.rows], None


@contextmanager
def _loss_of(model: keras.Model, rows: int) -> Iterator[None]:
    """Meanwhile the mean of the loss weights a batch by its rows: Keras takes those of `x`."""
    metrics = [metric for metric in model.metrics if metric.name == "loss"][:1]
    for metric in metrics:
        # Found before that of its class.
        vars(metric)["update_state"] = functools.partial(_update, metric, rows)
    try:
        yield
    finally:
        for metric in metrics:
            del vars(metric)["update_state"]


def _update(metric: Any, rows: int, values: Any, sample_weight: Any = None) -> None:
    type(metric).update_state(metric, values, sample_weight=rows)


@contextmanager
def _generators(model: keras.Model, distribution: ProcessParallel) -> Iterator[None]:
    """Meanwhile torch's own generators draw other numbers in each process.

    Dropout without a seed, such as the fused kernel on GPUs, draws for the rows of its process
    alone. Afterwards the generators are as before: the same in all processes.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        step = int(model.optimizer.iterations)
        seed = np.random.SeedSequence([torch.initial_seed(), step, distribution.rank])
        torch.manual_seed(int(seed.generate_state(1)[0]))
        yield


def _buckets(tensors: Sequence[Any]) -> Iterator[list[Any]]:
    """Tensors of one dtype each, in their order, of about `BUCKET_SIZE` values together."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        bucket: list[Any] = []
        size = 0
        for tensor in tensors:
            if tensor.dtype == dtype:
                bucket.append(tensor)
                size += tensor.numel()
            if size >= BUCKET_SIZE:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket
