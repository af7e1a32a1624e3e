"""How inspection sees what layers compute: while a model runs, they report to an observer.

So a Vision Transformer can be inspected wherever it is: inside other models at any depth, in a
`Sequential`, in the `call` of someone's subclass.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class Observer:
    """What layers report to; this one ignores it all."""

    def called(self, layer: Any, arguments: dict[str, Any], outputs: Any) -> Any:
        """Observe a call of a layer of this package.

        Returns:
            The outputs to go on with.
        """
        return outputs

    def attended(self, probabilities: Any) -> Any:
        """Return the attention probabilities `(batch, heads, queries, keys)` to go on with."""
        return probabilities


# Of this thread alone: another one may be predicting with the same layers.
_OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


def current_observer() -> Observer | None:
    """Return the observer of this thread, or None."""
    return _OBSERVER.get()


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Within it, the layers that this thread runs report to `observer`."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)
