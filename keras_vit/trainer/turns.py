"""Which thread may use the variables of a model.

    fit ──► waits until nobody else uses the model; everybody else gets an error at once
    evaluate, train_on_batch, ... ──► wait for their turn

On JAX, Keras takes the values off the variables of a model in `fit`, `evaluate` and `predict`, and
with them off those of all models that share its layers. On TensorFlow and torch they stay, and any
number of threads may call `predict`; `fit` and `evaluate` change the metrics of the model, though.

Unnecessary from Keras: none yet. It does not lock a model.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import keras

from keras_vit.layers.inside import sublayers

_FIT = "fit"


class _Turn(NamedTuple):
    """A turn at a layer: the thread that uses it, in which method, and how many calls deep."""

    thread: int
    action: str
    depth: int


_turns: dict[int, _Turn] = {}  # by the id of a layer that is in use
_changed = threading.Condition()


@contextmanager
def taking_turns(model: keras.Model, action: str, with_layers: bool) -> Iterator[None]:
    """Waits until no other thread uses a model; meanwhile it belongs to this thread.

    Calls within calls, such as those of callbacks, belong to the same thread, and go on.

    Args:
        with_layers: Whether models that share layers with this one have to wait as well.

    Raises:
        RuntimeError: The model is in `fit` in another thread, which may take hours.
    """
    layers = {id(layer): layer for layer in (_layers_of(model) if with_layers else [model])}
    thread = threading.get_ident()
    with _changed:
        while actions := [
            turn.action for turn in map(_turns.get, layers) if turn and turn.thread != thread
        ]:
            if _FIT in actions:
                raise RuntimeError(
                    f"{model.name}.{action} does not run while `fit` trains the model in another "
                    f"thread: {keras.backend.backend()} has its variables there. Call it after "
                    f"`fit`, in a callback of `fit`, or of a model.copy() from before `fit`."
                )
            _changed.wait()
        for key in layers:
            outer = _turns.get(key, _Turn(thread, action, 0))
            _turns[key] = outer._replace(depth=outer.depth + 1)
    try:
        yield
    finally:
        with _changed:
            for key in layers:
                turn = _turns.pop(key)
                if turn.depth > 1:
                    _turns[key] = turn._replace(depth=turn.depth - 1)
            _changed.notify_all()


def _layers_of(model: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the model, its layers, and the layers of models among them: what models can share."""
    layers = [model]
    for layer in sublayers(model):
        layers += _layers_of(layer) if isinstance(layer, keras.Model) else [layer]
    return layers
