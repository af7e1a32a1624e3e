"""The step that runs now, where several processes share it: `torch_processes/` sets it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

# None where a step is not shared.
current_step: ContextVar[Any] = ContextVar("current_step", default=None)


def recomputed_in_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` so that its random draws fit the process's rows in a backward pass, too.

    A backward pass is not in the step that it belongs to: torch leaves function modes before it.
    """
    step = current_step.get()
    if step is None:
        return function

    def call(*arguments: Any) -> Any:
        with nullcontext() if step.is_inside else step:
            return function(*arguments)

    return call


@contextmanager
def random_rows_along(axis: int) -> Iterator[None]:
    """Random numbers that are drawn meanwhile have a row per row of the batch along that axis."""
    step = current_step.get()
    if step is not None:
        step.batch_axis = axis
    try:
        yield
    finally:
        if step is not None:
            step.batch_axis = 0


def on_all_processes(function: Callable[[Any], Any], images: Any) -> Any:
    """Calls a function of a batch, in a step each process for its rows; outputs are those of all.

    Args:
        function: From a batch to outputs with a row for each of its rows, which depends on no
            other row.
        images: The batch.
    """
    step = current_step.get()
    return function(images) if step is None or step.is_inside else step.call(function, images)
