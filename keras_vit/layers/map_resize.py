"""Maps to another size, bilinear, by two small matrices: the same numbers wherever they run."""

from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import as_pair
from keras_vit.layers.configured import ConfiguredLayer, Shape
from keras_vit.tasks.bilinear import bilinear_matrix


@keras.saving.register_keras_serializable(package="keras_vit")
class MapResize(ConfiguredLayer):
    """Resizes maps, bilinear and without antialiasing.

    Takes `(batch, rows, columns, channels)` of a fixed size and returns
    `(batch, *size, channels)`. The numbers are those of torch's `interpolate(mode="bilinear")`.

    Args:
        size: Height and width of the result: one number, or a pair.
        align_corners: Whether the centers of the corner pixels stay where they are, as in DPT;
            otherwise the corners of the image do.

    Raises:
        ValueError: The size of the maps is not known.

    Example:

    >>> import keras, keras_vit
    >>> maps = keras.ops.reshape(keras.ops.arange(2.0), (1, 1, 2, 1))
    >>> resized = keras_vit.layers.MapResize((1, 4))(maps)
    >>> keras.ops.convert_to_numpy(resized).ravel().tolist()
    [0.0, 0.25, 0.75, 1.0]
    """

    def __init__(
        self, size: int | tuple[int, int], align_corners: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.size = as_pair(size, "size")
        self.align_corners = align_corners

    def build(self, input_shape: Shape) -> None:
        """Computes the matrices; there are no weights to create."""
        if None in input_shape[1:3]:
            raise ValueError(
                f"Maps of shape {tuple(input_shape)} have any size, and a fixed one is resized: "
                "give the model input_shape in numbers."
            )
        pairs = zip(input_shape[1:3], self.size, strict=True)
        self._matrices = [bilinear_matrix(int(n or 1), m, self.align_corners) for n, m in pairs]

    def call(self, inputs: Any) -> Any:
        rows, columns = (ops.cast(matrix, inputs.dtype) for matrix in self._matrices)
        height, width, channels = inputs.shape[1:]
        # Products of matrices: LiteRT does not hold an einsum of batches of any size.
        flat = ops.matmul(rows, ops.reshape(inputs, (-1, height, width * channels)))
        return ops.matmul(columns, ops.reshape(flat, (-1, self.size[0], width, channels)))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], *self.size, input_shape[3])
