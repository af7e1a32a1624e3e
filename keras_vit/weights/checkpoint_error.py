"""What is wrong with a file of weights."""

from keras_vit._base.errors import printable


class CheckpointError(ValueError):
    """A file of weights cannot be used; the message names the tensor or the byte, and the fix.

    The message is one line that is safe to print, whatever names the file holds. Nothing of the
    model has changed when it is raised.

    Example:

    >>> import keras_vit
    >>> issubclass(keras_vit.weights.CheckpointError, ValueError)
    True
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def reason(error: BaseException) -> str:
    """Return the message of a library's error on one line, short enough to quote."""
    return " ".join(str(error).split())[:300] or type(error).__name__
