"""What is wrong with a file of weights."""


class CheckpointError(ValueError):
    """A file of weights cannot be used; the message names the tensor or the byte, and the fix.

    Nothing of the model has changed when it is raised.

    Example:

    >>> import keras_vit
    >>> issubclass(keras_vit.checkpoints.CheckpointError, ValueError)
    True
    """
