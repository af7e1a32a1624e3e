"""The base of random changes: numbers drawn in NumPy, then applied to images, masks or boxes."""

from abc import ABC, abstractmethod

import numpy as np

from keras_vit.data.arrays import Array

# What was drawn for one image, or along a first axis for several.
Draws = dict[str, Array]


class Change(ABC):
    """One kind of random change of an image of the model's size.

    A further one is a file with a subclass, and a setting and a row in `Augmentation`. `str` of a
    change names it in a few words.

    Attributes:
        numbers: how many random numbers an image takes.
        of_bytes: whether it changes colors of pixels 0..255, which bands do not have.
    """

    numbers: int
    of_bytes = False

    @abstractmethod
    def draw(self, uniform: np.ndarray, size: tuple[int, int]) -> Draws:
        """Decide what is done to each of several images.

        Args:
            uniform: float32 `(images, numbers)` in [0, 1).
            size: height and width of the images.

        Returns:
            small arrays, each `(images, ...)`. Masks and boxes move by the one that is called
            "matrix", `(images, 6)` or, one after the other, `(images, moves, 6)`; see `transform`.
        """

    @abstractmethod
    def apply(self, image: Array, draws: Draws) -> Array:
        """Change one image.

        Args:
            image: float32 array or tensor of static shape `(height, width, channels)`.
            draws: of this image.

        Returns:
            Another like `image`.
        """


def matrix_rows(*values: np.ndarray | float) -> np.ndarray:
    """Stack six numbers, or an array of each, to float32 matrices `(..., 6)` for `transform`."""
    return np.stack(np.broadcast_arrays(*values), axis=-1).astype("float32")
