"""The rules by which the authors of weights resample them, in NumPy.

Every rule acts on rows and columns apart, so each is one matrix `(new, old)`.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from keras_vit.weights.containers.tensors import Array


def zoom(new: int, old: int) -> Array:
    """`scipy.ndimage.zoom(order=1)`: linear, corners aligned. Google's two repositories."""
    source = np.arange(new) * ((old - 1) / max(new - 1, 1))
    return np.maximum(1 - np.abs(source[:, None] - np.arange(old)), 0)


def _linear(x: Array) -> Array:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: Array, a: float) -> Array:
    """Keys's cubic; torch takes a = -0.75, and -0.5 (as Pillow) when it antialiases."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _antialias(new: int, old: int, kernel: Callable[[Array], Array]) -> Array:
    """Half-pixel centers; the kernel widens with the shrinking, and is cut at the border."""
    scale = old / new
    centers = (np.arange(new) + 0.5) * scale - 0.5
    weights = kernel((np.arange(old) - centers[:, None]) / max(scale, 1))
    return weights / weights.sum(axis=1, keepdims=True)


def _sampled(
    new: int, old: int, kernel: Callable[[Array], Array], reach: int, offset: float = 0
) -> Array:
    """Half-pixel centers, `2 * reach` source pixels; beyond the border, the value at the border.

    DINOv2 asks for `(new + offset) / old` as its scale, and that shifts every center.
    """
    centers = (np.arange(new) + 0.5) * (old / (new + offset)) - 0.5
    first = np.floor(centers).astype(int)
    weights = np.zeros((new, old))
    for step in range(1 - reach, 1 + reach):
        index = np.clip(first + step, 0, old - 1)
        np.add.at(weights, (np.arange(new), index), kernel(first + step - centers))
    return weights


def _geometric(new: int, old: int) -> Array:
    """Linear between offsets that lie the wider apart the larger they are (timm's BEiT)."""
    low, high, ratio = 1.01, 1.5, 1.0
    while high - low > 1e-6:
        ratio = (low + high) / 2
        is_beyond = (1 - ratio ** (old // 2)) / (1 - ratio) > new // 2
        low, high = (low, ratio) if is_beyond else (ratio, high)
    distances = np.cumsum(ratio ** np.arange(old // 2))
    source = np.concatenate([-distances[::-1], [0], distances])
    target = np.arange(-(new // 2), new // 2 + 1)
    return np.stack([np.interp(target, source, row) for row in np.eye(old)], axis=1)


# Rule -> the matrix that resamples `old` entries to `new`.
RULES: dict[str, Callable[[int, int], Array]] = {
    "zoom": zoom,  # vit_jax, big_vision
    "linear_antialias": partial(_antialias, kernel=_linear),  # FlexiViT: jax.image.resize
    "bicubic_antialias": partial(_antialias, kernel=partial(_cubic, a=-0.5)),  # timm
    "bicubic": partial(_sampled, kernel=partial(_cubic, a=-0.75), reach=2),  # Hugging Face
    "bicubic_offset": partial(_sampled, kernel=partial(_cubic, a=-0.75), reach=2, offset=0.1),
    "geometric": _geometric,
    "bilinear": partial(_sampled, kernel=_linear, reach=1),  # tf.image.resize
}


def resample_grid(grid: Array, size: tuple[int, int], rule: str) -> Array:
    """`(rows, columns, width)` brought to `size` by a rule of `RULES`, in float32.

    >>> resample_grid(np.arange(4.0).reshape(2, 2, 1), (2, 3), "zoom")[..., 0].tolist()
    [[0.0, 0.5, 1.0], [2.0, 2.5, 3.0]]
    """
    rows, columns = (RULES[rule](new, old) for new, old in zip(size, grid.shape, strict=False))
    return np.einsum("yh,xw,hwd->yxd", rows, columns, grid, optimize=True).astype("float32")


def resample_patches(kernel: Array, size: tuple[int, int]) -> Array:
    """Return a patch kernel `(height, width, channels, width)` for patches of another size.

    FlexiViT's pseudo-inverse resize (Beyer et al. 2023, equation 4): the kernel that gives a
    resized patch the embedding of the patch, as nearly as can be. Resizing acts on rows and
    columns apart, and the pseudo-inverse of a Kronecker product is the product of theirs.
    """
    inverse = [
        np.linalg.pinv(RULES["bilinear"](new, old).T)
        for new, old in zip(size, kernel.shape, strict=False)
    ]
    return np.einsum("yh,xw,hwcd->yxcd", *inverse, kernel, optimize=True).astype("float32")


def resample_channels(kernel: Array, channels: int) -> Array:
    """Return a patch kernel for images of another number of channels.

    More: the channels repeat in turn and copies share their weight. Fewer: those that would
    have been copies are summed. So a gray image, whose channels are equal, keeps its embeddings
    either way, and from three to any more and back is the kernel again.

    >>> resample_channels(np.ones((1, 1, 3, 1)), 4).ravel().tolist()
    [0.5, 1.0, 1.0, 0.5]
    >>> resample_channels(np.ones((1, 1, 3, 1)), 1).ravel().tolist()
    [3.0]
    """
    count = kernel.shape[2]
    if channels < count:
        folded = [kernel[:, :, i::channels].sum(axis=2) for i in range(channels)]
        return np.stack(folded, axis=2)
    source = np.arange(channels) % count
    copies = np.bincount(source, minlength=count)[source]
    return (kernel[:, :, source] / copies[:, None]).astype("float32")
