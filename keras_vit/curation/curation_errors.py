"""What is wrong with an index of features."""

from keras_vit._base.errors import printable


class IndexMismatchError(ValueError):
    """An index was made by another model, layer or preparation, or of other photographs.

    The message, one line that is safe to print, has both, and the fix.

    Example:

    >>> from keras_vit.curation import IndexMismatchError
    >>> issubclass(IndexMismatchError, ValueError)
    True
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class DamagedIndexError(ValueError):
    """A folder is not an index, or a file of it was cut off or changed; the message names it.

    Example:

    >>> from keras_vit.curation import DamagedIndexError, FeatureIndex
    >>> try:
    ...     FeatureIndex.open("nowhere")
    ... except DamagedIndexError as error:
    ...     print(str(error).partition(":")[0])
    nowhere is not an index of features
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))
