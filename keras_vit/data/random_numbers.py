"""Random numbers without a state: each follows from a seed, a name and a position alone.

Every purpose ("crop", "order") draws from a stream of its own, so that a further one leaves all
others as they are. The generator is NumPy's Philox (Salmon et al. 2011, "Parallel Random Numbers:
As Easy as 1, 2, 3"), which begins anywhere in its stream.
"""

import zlib

import numpy as np

_BLOCK = 8  # numbers of 32 bits that Philox makes at once


def generator(seed: int, name: str, position: int) -> np.random.Generator:
    """Return a generator for one position of a stream, from which any number may be drawn."""
    # A counter of 256 bits, of which each position has 2 ** 128 steps for itself.
    return _generator(seed, name, 0, int(position) << 128)


def uniform(seed: int, name: str, first: int, count: int, width: int, view: int = 0) -> np.ndarray:
    """Draw some numbers for each of successive positions of a stream.

    Args:
        seed: of the training, 0 or more.
        name: of the stream.
        first: the first position.
        count: how many positions.
        width: how many numbers each has.
        view: of several streams of this name, each with its own numbers.

    Returns:
        float32 `(count, width)` in [0, 1); a row follows from its own position.

    Example:
        >>> rows = uniform(3, "crop", first=10, count=5, width=2)
        >>> bool((uniform(3, "crop", first=12, count=1, width=2) == rows[2]).all())
        True
    """
    blocks = -(-width // _BLOCK)
    numbers = _generator(seed, name, view, int(first) * blocks)
    return numbers.random((count, blocks * _BLOCK), np.float32)[:, :width]


def _generator(seed: int, name: str, view: int, counter: int) -> np.random.Generator:
    stream = zlib.crc32(name.encode()) | view << 32
    return np.random.Generator(np.random.Philox(key=seed % 2**64 | stream << 64, counter=counter))
