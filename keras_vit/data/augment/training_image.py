"""What was drawn, applied: to an image, and alike to a mask of it or to boxes in it.

With arrays of NumPy as with tensors, in TensorFlow's graph.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from keras_vit._base.errors import as_pair
from keras_vit.data.arrays import Array, array_namespace
from keras_vit.data.augment.augmentation import Augmentation
from keras_vit.data.augment.boxes import crop_to_box
from keras_vit.data.augment.change import Draws
from keras_vit.data.resizing import PixelSize


def training_image(
    image: Array,
    image_size: int | tuple[int, int],
    draws: dict[str, Draws],
    augmentation: Augmentation,
) -> Array:
    """Bring one image to `image_size` with the random changes that were drawn for it.

    Args:
        image: uint8 or float array or tensor of shape `(height, width, channels)`, values 0..255.
        image_size: int or `(height, width)` of the result.
        draws: what `augmentation.draw` returned for this size and one image.
        augmentation: the changes; `mixup` and `cutmix` are left to `pipeline`.

    Returns:
        float32 of the kind of `image`, shape `(*image_size, channels)`, values 0..255.

    Example:
        >>> import numpy as np
        >>> augmentation = Augmentation()
        >>> draws = augmentation.draw((32, 48), seed=0, position=0)
        >>> training_image(np.zeros((60, 90, 3), "uint8"), (32, 48), draws, augmentation).shape
        (32, 48, 3)
    """
    image = array_namespace(image).convert_to_tensor(image)
    image = crop_to_box(image, augmentation.random_crop.to_decode(draws["crop"]))
    return augment_crop(image, as_pair(image_size, "image_size"), draws, augmentation)


def augment_crop(
    image: Array, size: PixelSize, draws: dict[str, Draws], augmentation: Augmentation
) -> Array:
    """Do what follows `RandomCrop.to_decode` in `training_image`."""
    xp, channels = array_namespace(image), image.shape[-1]
    image = augmentation.random_crop.apply(image, size, draws["crop"])
    image = xp.ensure_shape(xp.cast(image, xp.float32), (*size, channels))
    for name, change in augmentation.changes.items():
        image = xp.ensure_shape(change.apply(image, draws[name]), (*size, channels))
    return image


def training_mask(
    mask: Array,
    image_size: int | tuple[int, int],
    draws: dict[str, Draws],
    augmentation: Augmentation,
    fill: float = 0,
    turns: bool = False,
) -> Array:
    """Move the label of each pixel as `training_image` moves the image, to the nearest pixel.

    Args:
        mask: integers or floats of shape `(height, width, ...)`, array or tensor, one label per
            pixel of the image.
        image_size, draws, augmentation: those of the image.
        fill: the label of what comes in from outside the image.
        turns: whether a label's first two numbers are a direction, to the right and down, which
            turns as the image does.

    Returns:
        Of the kind and type of `mask`, shape `(*image_size, ...)`.

    Example:
        >>> import numpy as np
        >>> augmentation = Augmentation(crop="resize", rotation=90)
        >>> draws = augmentation.draw(4, seed=0, position=0)
        >>> training_mask(np.ones((8, 8), "int32"), 4, draws, augmentation).dtype.name
        'int32'
    """
    size, xp = as_pair(image_size, "image_size"), array_namespace(mask)
    shape = xp.shape(mask)[:2]
    y, x = (xp.range(side, dtype=xp.float32) for side in size)
    y, x = xp.broadcast_to(y[:, None], size), xp.broadcast_to(x, size)
    inside = xp.ones_like(y, xp.bool)
    # Backwards, from each pixel of the result to where it came from.
    moves = list(_moves(draws, augmentation))
    for matrix in reversed(moves):
        y, x = (_nearest(p) for p in _moved(matrix, y, x))
        inside = inside & (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
    matrix = augmentation.random_crop.matrix(shape, size, draws["crop"])
    places = xp.stack([_nearest(p) for p in _moved(matrix, y, x)], axis=-1)
    places = xp.clip_by_value(xp.cast(places, xp.int32), 0, shape - 1)
    labels = xp.gather_nd(mask, places)
    if turns:
        labels = _turned(labels, [matrix, *moves])
    inside = xp.reshape(inside, (*size, *[1] * len(mask.shape[2:])))
    return xp.where(inside, labels, xp.cast(fill, mask.dtype))


def training_boxes(
    boxes: Array,
    shape: tuple[int, int],
    image_size: int | tuple[int, int],
    draws: dict[str, Draws],
    augmentation: Augmentation,
) -> Array:
    """Move boxes as `training_image` moves the image.

    Args:
        boxes: float32 `(boxes, 4)`, array or tensor: top, left, bottom and right edge in pixels of
            the image, so that the whole image is `(0, 0, height, width)`.
        shape: height and width of the image before.
        image_size, draws, augmentation: those of the image.

    Returns:
        float32 `(boxes, 4)` in pixels of the result, the smallest boxes around what the given ones
        have become, cut off at its border. The area of one that lies outside is 0.

    Example:
        >>> import numpy as np
        >>> augmentation = Augmentation(crop="resize", flip=False)
        >>> draws = augmentation.draw((20, 20), seed=0, position=0)
        >>> box = np.array([[2, 4, 6, 8]], "float32")
        >>> training_boxes(box, (40, 80), (20, 20), draws, augmentation).tolist()
        [[1.0, 1.0, 3.0, 2.0]]
    """
    size, xp = as_pair(image_size, "image_size"), array_namespace(boxes)
    limits = xp.constant([*size, *size], xp.float32)
    whole = augmentation.random_crop.matrix(xp.constant(shape, xp.int32), size, draws["crop"])
    for matrix in (whole, *_moves(draws, augmentation)):
        a, b, c, d, e, f = (matrix[i] for i in range(6))
        top, left, bottom, right = (boxes[:, i] - 0.5 for i in range(4))
        # All corners, through the inverse of what takes a pixel of the result to its source.
        y = xp.stack([top, top, bottom, bottom], axis=1) - f
        x = xp.stack([left, right, left, right], axis=1) - c
        area = a * e - b * d
        y, x = (a * y - d * x) / area + 0.5, (e * x - b * y) / area + 0.5
        edges = [reduce(p, axis=1) for reduce in (xp.reduce_min, xp.reduce_max) for p in (y, x)]
        boxes = xp.clip_by_value(xp.stack(edges, axis=1), 0.0, limits)
    return boxes


def _moves(draws: dict[str, Draws], augmentation: Augmentation) -> Iterator[Array]:
    """Yield what moves the pixels of the image once it has the model's size, in order."""
    for name in augmentation.changes:
        if (matrix := draws[name].get("matrix")) is not None:
            xp = array_namespace(matrix)
            yield from xp.unstack(xp.reshape(matrix, (-1, 6)))


def _turned(labels: Array, matrices: Sequence[Array]) -> Array:
    """Turn directions as the image, as slopes of it turn; their lengths stay."""
    xp = array_namespace(labels)
    x, y = before = labels[..., 0], labels[..., 1]
    for a, b, _, d, e, _ in (xp.unstack(matrix) for matrix in matrices):
        x, y = a * x + d * y, b * x + e * y
    length, now = (xp.sqrt(u * u + v * v) for u, v in (before, (x, y)))
    scale = length / xp.maximum(now, np.finfo("float32").tiny)
    return xp.concat([xp.stack([x * scale, y * scale], axis=-1), labels[..., 2:]], axis=-1)


def _moved(matrix: Array, y: Array, x: Array) -> tuple[Array, Array]:
    a, b, c, d, e, f = (matrix[i] for i in range(6))
    return d * x + e * y + f, a * x + b * y + c


def _nearest(place: Array) -> Array:
    """Half a pixel is rounded away from 0, as `transform` does."""
    xp = array_namespace(place)
    return xp.where(place < 0, -xp.floor(0.5 - place), xp.floor(place + 0.5))
