"""TensorFlow's stateless random functions in NumPy: the same seed gives the same bits.

Whoever reads images without TensorFlow so draws the same order, crops and changes. TensorFlow
draws on processors with Philox-4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as
1, 2, 3"), whose key and counter it mixes from the seed with Philox itself. What becomes of the
bits follows its kernels: `random_distributions.h`, `shuffle_common.h`,
`stateless_random_gamma_op.cc` and `sample_distorted_bounding_box_op.cc`.

A seed is a pair of integers. As in TensorFlow, the seeds of `stateless_split` have its type: that
of an array, and int32 where it is a tuple.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

Seed = np.ndarray | tuple[int, int]

_WORD, _LONG = 2**32 - 1, 2**64 - 1
_FEW = 16  # blocks that integers of Python compute sooner than arrays
_ATTEMPTS = 100  # boxes that are tried before the whole image is taken
_RESERVED = 256  # blocks for each Gamma sample


def stateless_uniform(
    shape: tuple[int, ...],
    seed: Seed,
    minval: float = 0.0,
    maxval: float = 1.0,
    dtype: str = "float32",
) -> np.ndarray:
    """`tf.random.stateless_uniform`: numbers in [minval, maxval).

    Args:
        shape: of the result.
        seed: a pair of integers; the same seed gives the same numbers.
        minval, maxval: the range.
        dtype: "float32" or "float64".

    Returns:
        Array of this shape and type.

    Example:
        >>> stateless_uniform((2,), (0, 1)).tolist()
        [0.08216607570648193, 0.40928006172180176]
    """
    kind: Any = np.dtype(dtype).type
    unit = _floats(_words(seed, math.prod(shape) * kind().itemsize // 4), kind)
    return (unit * (kind(maxval) - kind(minval)) + kind(minval)).reshape(shape)


def stateless_integers(count: int, seed: Seed) -> np.ndarray:
    """`tf.random.stateless_uniform` of int32 below its largest: int64 `(count,)`."""
    return (_words(seed, count) % (2**31 - 1)).astype("int64")


def stateless_split(seed: Seed, num: int = 2) -> np.ndarray:
    """`tf.random.experimental.stateless_split`: `num` seeds that follow from one, `(num, 2)`.

    Example:
        >>> stateless_split((0, 1), 2).dtype.name
        'int32'
    """
    dtype = seed.dtype if isinstance(seed, np.ndarray) else np.dtype("int32")
    words = _words(seed, 2 * num * dtype.itemsize // 4)
    return words.astype("uint32").view(dtype).reshape(num, 2)


def stateless_fold_in(seed: Seed, data: int) -> np.ndarray:
    """`tf.random.experimental.stateless_fold_in`: int32 `(2,)`, another seed for each `data`."""
    return np.append(_words(seed, 1).astype("uint32").view("int32"), np.int32(data))


def stateless_shuffle(values: np.ndarray, seed: Seed) -> np.ndarray:
    """`tf.random.experimental.stateless_shuffle`: the rows of an array in random order.

    Example:
        >>> stateless_shuffle(np.arange(5), (0, 1)).tolist()
        [4, 3, 1, 0, 2]
    """
    count = len(values)
    steps = _words(seed, max(count - 1, 0)) % np.arange(count, 1, -1, dtype="uint64")
    order = list(range(count))
    for place, step in enumerate(steps.tolist()):
        order[place], order[place + step] = order[place + step], order[place]
    return np.asarray(values)[order]


def stateless_gamma(shape: tuple[int, ...], seed: Seed, alpha: float) -> np.ndarray:
    """`tf.random.stateless_gamma`, float32: the method of Marsaglia and Tsang 2000."""
    alpha = float(np.float32(alpha))
    places = range(math.prod(shape))
    samples = [_gamma(_blocks(seed, _RESERVED * place), alpha) for place in places]
    return np.maximum(np.array(samples, "float32"), np.finfo("float32").tiny).reshape(shape)


def sample_distorted_box(
    shape: tuple[int, int] | np.ndarray,
    seed: Seed,
    aspect_ratio_range: tuple[float, float],
    area_range: tuple[float, float],
) -> np.ndarray:
    """`tf.image.stateless_sample_distorted_bounding_box` where any box will do.

    Args:
        shape: height and width of the image.
        seed: a pair of integers.
        aspect_ratio_range: of width / height.
        area_range: of the part of the image, in (0, 1].

    Returns:
        int32 (top, left, height, width); the whole image where no box fits.

    Example:
        >>> sample_distorted_box((60, 90), (0, 1), (3 / 4, 4 / 3), (0.05, 1.0)).tolist()
        [8, 19, 20, 16]
    """
    words = (word for block in _blocks(seed) for word in block)
    height, width = map(int, shape)
    low, high = np.array(aspect_ratio_range, "float32")
    areas = np.array(area_range, "float32")
    for _ in range(_ATTEMPTS):
        ratio = np.float32(_float(next(words))) * (high - low) + low
        if box := _box(height, width, ratio, areas, words):
            return np.array(box, "int32")
    return np.array((0, 0, height, width), "int32")


def _box(
    height: int, width: int, ratio: np.float32, area_range: np.ndarray, words: Iterator[int]
) -> tuple[int, int, int, int] | None:
    """One attempt, in float32 where TensorFlow's is."""
    least, most = area_range * np.float32(width) * np.float32(height)
    side, longest = (round(float(np.sqrt(area / ratio))) for area in (least, most))

    def across(side: int) -> int:
        return round(float(np.float32(side) * ratio))

    if across(longest) > width:
        longest = int((width + 0.5 - float(np.float32(1e-7))) / float(ratio))
        longest -= across(longest) > width
    longest = min(longest, height)
    side = min(side, longest)
    if side < longest:
        side += _below(longest - side + 1, words)
    # What rounding has made too small or too large by a pixel is put right.
    side += np.float32(across(side) * side) < least
    side -= np.float32(across(side) * side) > most
    wide = across(side)
    if not (least <= np.float32(wide * side) <= most and 0 < wide <= width and 0 < side <= height):
        return None
    top = _below(height - side, words) if side < height else 0
    left = _below(width - wide, words) if wide < width else 0
    return top, left, side, wide


def _below(count: int, words: Iterator[int]) -> int:
    """An integer below `count`, all as likely: words that would favor small ones are left out."""
    if count & (count - 1) == 0:
        return next(words) & (count - 1)
    return next(word for word in words if word >= _WORD % count + 1) % count


def _gamma(blocks: Iterator[list[int]], alpha: float) -> float:
    def normals() -> Iterator[float]:
        while True:
            block = next(blocks)
            radius = math.sqrt(-2 * math.log(max(_double(*block[:2]), 1e-7)))
            angle = 2 * math.pi * _double(*block[2:])
            yield math.cos(angle) * radius
            yield math.sin(angle) * radius

    def uniforms() -> Iterator[float]:
        while True:
            block = next(blocks)
            yield _double(*block[2:])
            yield _double(*block[:2])

    normal, uniform = normals(), uniforms()
    if alpha == 1:
        return -math.log1p(-next(uniform))
    d = alpha + (2 / 3 if alpha < 1 else -1 / 3)
    c = 1 / 3 / math.sqrt(d)
    while True:
        x = next(normal)
        v = 1 + c * x
        if v <= 0:
            continue
        v = v * v * v
        u = next(uniform)
        sure = u < 1 - 0.0331 * (x * x) * (x * x)
        if sure or math.log(u) < 0.5 * x * x + d * (1 - v + math.log(v)):
            return d * v * (next(uniform) ** (1 / alpha) if alpha < 1 else 1.0)


def _float(word: int) -> float:
    """In [0, 1): the lowest 23 bits."""
    return (word & 0x7FFFFF) / 2**23


def _double(high: int, low: int) -> float:
    """In [0, 1): the lowest 52 bits."""
    return ((high & 0xFFFFF) << 32 | low) / 2**52


def _floats(words: np.ndarray, kind: Any) -> np.ndarray:
    if kind is np.float32:
        return (words & 0x7FFFFF).astype("float32") / kind(2**23)
    return (((words[::2] & 0xFFFFF) << 32) | words[1::2]) / kind(2**52)


def _words(seed: Seed, count: int) -> np.ndarray:
    """The first `count` random words of 32 bits, uint64."""
    key, high = _start(seed)
    blocks = -(-count // 4)
    if blocks <= _FEW:
        rows = [_philox((n, 0, *high), key) for n in range(blocks)]
        return np.array(rows, "uint64").reshape(-1)[:count]
    numbers = np.arange(blocks, dtype="uint64")
    return np.stack(_philox((numbers & _WORD, numbers >> 32, *high), key), -1).reshape(-1)[:count]


def _blocks(seed: Seed, first: int = 0) -> Iterator[list[int]]:
    """Random words of 32 bits, four at a time, without an end."""
    key, high = _start(seed)
    while True:
        yield _philox((first & _WORD, first >> 32, *high), key)
        first += 1


def _start(seed: Seed) -> tuple[list[int], list[int]]:
    """The key, and the upper half of the counter, whose lower half counts blocks."""
    first, second = (int(number) & _LONG for number in seed)
    counter = (first & _WORD, first >> 32, second & _WORD, second >> 32)
    mixed = _philox(counter, (0x3EC8F720, 0x02461E29))
    return mixed[:2], mixed[2:]


def _philox(counter: Any, key: Any) -> list[Any]:
    """A block of four random words: integers, or uint64 arrays."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return [c0, c1, c2, c3]
