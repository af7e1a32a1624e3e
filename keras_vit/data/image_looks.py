"""What a photograph looks like, in 120 bits that stay when its file is saved anew or resized."""

import itertools
from collections.abc import Iterator

import numpy as np

from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.pillow import reduced_gray

WORDS = 2  # of 64 bits each
# Of 150 flowers saved as PNG, at half the size, with quality 30 or at 64 pixels, 97 % or more are
# this near to themselves; of 280,875 pairs of flowers none differs in fewer than 20 bits, and of
# 499,500 pairs of digits none in fewer than 9; turned or mirrored, none in fewer than 16.
MOST_BITS = 5

_SIDE, _LOW = 32, 11  # pixels of the reduced image, and frequencies of it that are kept
_PLAIN = 4.0  # gray levels of standard deviation: images with less all look the same
_COSINES = np.cos(np.pi * np.outer(np.arange(_LOW), 2 * np.arange(_SIDE) + 1) / (2 * _SIDE))


def look_of(contents: bytes) -> np.ndarray:
    """Return the signs of an image's low frequencies as uint64 `(2,)`; zeros of a plain image.

    Zeros as well where Pillow does not decode the file. As `keras_vit.curation.perceptual_hash`,
    but of more frequencies: a few bits of 64 are shared by other digits, too.
    """
    try:
        gray = reduced_gray(contents, _SIDE)
    except (OSError, BadImageError):
        return np.zeros(WORDS, np.uint64)
    if gray.std() < _PLAIN:
        return np.zeros(WORDS, np.uint64)
    signs = (_COSINES @ gray @ _COSINES.T).reshape(-1)[1:] > 0  # without the mean
    return np.frombuffer(np.packbits(signs).tobytes().ljust(8 * WORDS, b"\0"), "<u8")


def looks_like(looks: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return which looks `(n, 2)` are within `MOST_BITS` of one of those known, bool `(n,)`.

    Those of images turned by quarters and mirrored, too: files of augmented images are so.
    """
    ways = [_alike(way, known, MOST_BITS) for way in _turned(looks)]
    return (np.max(ways, axis=0) > 0) & looks.any(-1)


def distinct(looks: np.ndarray) -> np.ndarray:
    """Return those looks of different images that are unlike all others of them.

    Where a camera stands still, or pages have one layout, images look alike that are not the same:
    none of these is recognized by its look. The others are twice `MOST_BITS` apart.
    """
    return looks[_alike(looks, looks, 2 * MOST_BITS) == 1]


def _alike(looks: np.ndarray, known: np.ndarray, bits: int) -> np.ndarray:
    """Return of how many of those known each look differs in so many bits at most, `(n,)`."""
    counts, of_known = np.zeros(len(looks), int), _signs(known)
    step = max(1, 2**24 // max(len(known), 1))
    for begin in range(0, len(looks), step):
        agree = _signs(looks[begin : begin + step]) @ of_known.T
        counts[begin : begin + step] = (agree >= 64 * WORDS - 2 * bits).sum(-1)
    return counts


def _turned(looks: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the looks of these images in all eight orientations, the first one as they are.

    A mirror changes the sign of odd frequencies, and a turn by a quarter swaps the axes as well.
    """
    signs = np.insert(_signs(looks)[:, : _LOW**2 - 1], 0, 1, axis=1).reshape(-1, _LOW, _LOW)
    odd, same = (-1.0) ** np.arange(_LOW), np.ones(_LOW)
    for rows, columns in itertools.product((same, odd), repeat=2):
        mirrored = signs * np.outer(rows, columns)
        for way in (mirrored, mirrored.swapaxes(1, 2)):
            octets = np.packbits(way.reshape(len(looks), -1)[:, 1:] > 0, axis=1)
            yield np.pad(octets, ((0, 0), (0, 8 * WORDS - octets.shape[1]))).view("<u8")


def _signs(looks: np.ndarray) -> np.ndarray:
    """Return bits as -1 and 1: the product of two rows is 128 less twice the bits that differ."""
    octets = np.ascontiguousarray(looks, "<u8").view(np.uint8).reshape(-1, 8 * WORDS)
    return np.unpackbits(octets, axis=-1).astype(np.float32) * 2 - 1
