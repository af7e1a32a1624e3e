"""Who may use the variables of a model: one thread at a time, where Keras takes them away.

    predict, evaluate ──► wait for the turn ──► run ──► next
    anything else ──► while `fit` runs in another thread: an error at once

On JAX, `fit`, `evaluate` and `predict` of Keras take the values off the variables of a model, and
of all models that share its layers, and give them back at the end. On TensorFlow and torch they
stay; `evaluate` and `fit` change the metrics of the model, though.
"""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import keras

_FIT = "fit"


class _Turn(NamedTuple):
    """What a thread does with a layer, and how many of its calls do so, one within another."""

    thread: int
    action: str
    calls: int


_turns: dict[int, _Turn] = {}  # by the id of a layer, only while it is used
_changed = threading.Condition()


@contextmanager
def taking_turns(model: keras.Model, action: str, with_layers: bool) -> Iterator[None]:
    """Waits until no other thread uses the model; meanwhile it belongs to this thread.

    Calls of the same thread, such as those of callbacks, go on.

    Args:
        model: Any Keras model.
        action: The name of the method, for messages.
        with_layers: Whether models that share layers of this one have to wait as well.

    Raises:
        RuntimeError: The model is in `fit` in another thread, which may take hours.
    """
    layers = _leaves(model) if with_layers else [model]
    thread = threading.get_ident()
    with _changed:
        while others := [t for t in map(_turn_of, layers) if t and t.thread != thread]:
            if any(turn.action == _FIT for turn in others):
                raise RuntimeError(
                    f"{model.name}.{action} was called while its layers are in `fit` in another "
                    f"thread, where {keras.backend.backend()} has their values. Call it after "
                    "`fit`, or in a callback of `fit`, or take a model.copy() before `fit`."
                )
            _changed.wait()
        before = {id(layer): _turn_of(layer) for layer in layers}
        for key, turn in before.items():
            calls = turn.calls if turn else 0
            _turns[key] = _Turn(thread, turn.action if turn else action, calls + 1)
    try:
        yield
    finally:
        with _changed:
            for key in before:
                turn = _turns.pop(key)
                if turn.calls > 1:
                    _turns[key] = turn._replace(calls=turn.calls - 1)
            _changed.notify_all()
