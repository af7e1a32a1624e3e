"""A perceptual hash: 64 bits that stay nearly the same when an image is resized or saved anew."""

import numpy as np

_SIDE, _LOW = 32, 8  # pixels of the reduced image, and frequencies of it that are kept
# The type-II cosine transform of 32 values as a matrix, its 8 lowest frequencies alone.
_COSINES = 2 * np.cos(np.pi * np.outer(np.arange(_LOW), 2 * np.arange(_SIDE) + 1) / (2 * _SIDE))
_MIRRORED = (-1.0) ** np.arange(_LOW)  # what a mirror image's horizontal frequencies differ by


def perceptual_hash(pixels: np.ndarray) -> tuple[int, int]:
    """Return the pHash of an image, and that of its mirror image: the signs of its low frequencies.

    The image in gray levels is reduced to 32 x 32 pixels; a bit is whether one of the 8 x 8 lowest
    frequencies of its cosine transform is above their median.

    Args:
        pixels: uint8 `(height, width, 3)` or `(height, width, 1)`.

    Returns:
        Two integers of 64 bits, the first of which is `int(str(imagehash.phash(image)), 16)`.

    Source: Krawetz, "Looks Like It" (2011); the package ImageHash, `phash`.

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import perceptual_hash
    >>> pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype("uint8")
    >>> same, mirrored = perceptual_hash(pixels)
    >>> perceptual_hash(pixels[:, ::-1]) == (mirrored, same)
    True
    """
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    reduced = image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    frequencies = _COSINES @ np.asarray(reduced, np.float64) @ _COSINES.T
    return _number(frequencies), _number(frequencies * _MIRRORED)


def _number(frequencies: np.ndarray) -> int:
    bits = frequencies > np.median(frequencies)
    return int.from_bytes(np.packbits(bits.reshape(-1)).tobytes(), "big")
