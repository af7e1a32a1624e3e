"""Replaces a model's compiled step by one that can fail without harm to the model.

It runs on the devices or processes that are set. On TensorFlow it is made anew when the shape of
the labels changes, as a step is traced for integers or for one-hot rows.

Unnecessary from Keras: none yet. On JAX, a failed step leaves a model without its variables.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from keras_vit.ops.current_distribution import current_distribution, on_devices
from keras_vit.ops.jax_processes import gathered
from keras_vit.ops.torch_processes import step_in_processes
from keras_vit.trainer.device_batches import placed


def takes_variables_away() -> bool:
    """Return whether Keras moves the values elsewhere during `fit`, `predict` and so on."""
    return keras.backend.backend() == "jax"


def synchronize(model: keras.Model) -> None:
    """Brings the variables of a model that is in `fit` up to date: JAX keeps them elsewhere."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()


@contextmanager
def synchronized(model: keras.Model) -> Iterator[None]:
    """Afterwards the variables of a model are up to date, also when a step failed."""
    try:
        yield
    finally:
        synchronize(model)


def guard_step(
    model: keras.Model, name: str, variables: Callable[[], Sequence[Sequence[keras.Variable]]]
) -> None:
    """Make a train, test or predict function that can fail without harm to its model.

    On JAX, Keras takes the variables off the model before the first step, and a step that fails,
    mostly when it is traced, leaves `None` in their place. On TensorFlow, a step that failed when
    it was first traced may not create the optimizer's variables later: it is made anew. On torch,
    a step keeps the model as it is, and may run in several processes.

    Args:
        variables: Gives groups of variables in the order of the step's state.
    """
    step = getattr(model, name)

    def jax_step(state: Any, iterator: Any) -> Any:
        try:
            if current_distribution() is None:
                return step(state, iterator)
            with on_devices():
                outputs, state = step(state, placed(iter(iterator)))
            return (gathered(outputs) if name == "predict_function" else outputs), state
        except BaseException:
            if not any(value.is_deleted() for values in state for value in values):
                for group, values in zip(variables(), state, strict=True):
                    for variable, value in zip(group, values, strict=True):
                        variable.assign(value)
                model._jax_state_synced = True  # nothing newer is elsewhere
            raise

    layout: Any = None

    def tensorflow_step(iterator: Any) -> Any:
        nonlocal layout
        label_layout = _label_layout(iterator)
        if layout not in (None, label_layout):
            return getattr(model, f"make_{name}")(force=True)(iterator)
        try:
            outputs = step(iterator)
        except BaseException:
            if layout is None:
                getattr(model, f"make_{name}")(force=True)
            raise
        layout = label_layout
        return outputs

    torch_step = step_in_processes(model, step, training=name == "train_function")
    guarded = {"jax": jax_step, "tensorflow": tensorflow_step, "torch": torch_step}
    setattr(model, name, guarded[keras.backend.backend()])


def _label_layout(iterator: Any) -> list[Any]:
    """Ranks of what a TensorFlow iterator gives, and the width of its rows."""
    specs = keras.tree.flatten(getattr(iterator, "element_spec", ()))
    shapes = [getattr(spec, "shape", None) for spec in specs]  # a strategy's do not have one
    return [None if s is None else ("row", s[-1]) if s.rank == 2 else s.rank for s in shapes]
