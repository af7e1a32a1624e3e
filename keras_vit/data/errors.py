"""What can be wrong with data, as types that a caller can catch."""


class BadImageError(ValueError):
    """Files that should be photographs cannot be decoded; the message says which and why."""


class DatasetUnavailableError(RuntimeError):
    """A TFDS data set is neither prepared on this machine nor within reach of it."""
