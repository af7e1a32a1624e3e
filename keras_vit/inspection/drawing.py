"""Arrays into figures; `plots` computes the arrays.

Figures are narrow and their letters large, so that they can be read at the width of a telephone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_vit.version import install_command

HEAT = "inferno"
_WIDTH = 4.8  # inches


def figure(height: float, width: float = _WIDTH) -> Any:
    """A matplotlib Figure of its own: no window, and no global state of pyplot."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Plots need matplotlib: {install_command('plots')}", name="matplotlib"
        ) from error
    return Figure(figsize=(width, height), layout="constrained", dpi=160)


def draw_attention(maps: np.ndarray) -> Any:
    """Rows of heads, columns of layers: `(depth, heads, grid_h, grid_w)` of one image."""
    depth, heads, grid_h, grid_w = maps.shape
    width = max(_WIDTH, 0.3 * depth)  # the thumbnails of a deep model stay large enough to see
    cell = min(0.9 * width / depth, 1.2)
    drawn = figure(0.7 + heads * cell * grid_h / grid_w, width)
    axes = drawn.subplots(heads, depth, squeeze=False)
    for head in range(heads):
        for layer in range(depth):
            axes[head, layer].imshow(maps[layer, head], vmin=0, cmap=HEAT)
            axes[head, layer].set(xticks=[], yticks=[])
        axes[head, 0].set_ylabel(head + 1, rotation=0, ha="right", va="center", fontsize=11)
    for layer in range(depth):
        axes[0, layer].set_title(layer + 1, fontsize=11)
    drawn.supylabel("head", fontsize=11)
    drawn.suptitle("layer", fontsize=11)
    return drawn


def draw_rollout(pictures: np.ndarray, rollout: np.ndarray, covered: tuple[int, int]) -> Any:
    """Photographs `(batch, height, width, channels)` in 0..1 beside what was looked at in them.

    As in the paper's figure 6 the photograph is darkened where the rollout is small. `covered` is
    the height and width in pixels that the patches cover.
    """
    count, pairs = len(pictures), min(len(pictures), 2)
    rows = -(-count // pairs)
    cell = _WIDTH / (2 * pairs)
    drawn = figure(rows * (cell * pictures.shape[1] / pictures.shape[2] + 0.1) + 0.3)
    axes = drawn.subplots(rows, 2 * pairs, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for i in range(count):
        left, right = axes[i // pairs, 2 * (i % pairs) : 2 * (i % pairs) + 2]
        light = np.zeros(pictures.shape[1:3])
        share = resized(rollout[i] / rollout[i].max(), covered)[: len(light), : len(light[0])]
        light[: covered[0], : covered[1]] = share
        left.imshow(_shown(pictures[i]), vmin=0, vmax=1, cmap="gray")
        right.imshow(_shown(pictures[i] * light[..., None]), vmin=0, vmax=1, cmap="gray")
    for column in range(pairs):
        axes[0, 2 * column].set_title("input", fontsize=11)
        axes[0, 2 * column + 1].set_title("attention", fontsize=11)
    return drawn


def draw_attention_distance(distances: np.ndarray, width: int) -> Any:
    """One dot for each head over the depth of its layer, as in figure 11; `width` in pixels."""
    drawn = figure(3.4)
    axes = drawn.subplots()
    depth, heads = distances.shape
    layers = np.arange(1, depth + 1)
    for head in range(heads):
        axes.scatter(layers, distances[:, head], s=34, alpha=0.75, color=_colour(head, heads))
    axes.plot(layers, distances.mean(axis=1), color="0.45", lw=1, zorder=0, label="mean of heads")
    axes.set_xlabel("layer", fontsize=11)
    axes.set_ylabel(f"mean distance in pixels (of {width})", fontsize=11)
    axes.set_ylim(0, 1.12 * max(float(distances.max()), 1e-6))
    axes.set_xticks(layers[:: max(1, -(-depth // 12))])
    axes.tick_params(labelsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=10, loc="lower right")
    return drawn


def draw_position_similarity(similarity: np.ndarray) -> Any:
    """For each patch of the grid a small picture of its similarity to all, as in figure 7."""
    grid_h, grid_w = similarity.shape[:2]
    # At most seven a side: of 24 x 24 pictures none could be seen.
    rows, columns = (_spread(side, 7) for side in (grid_h, grid_w))
    cell = 0.85 * _WIDTH / len(columns)
    drawn = figure(0.4 + cell * len(rows) * grid_h / grid_w)
    axes = drawn.subplots(len(rows), len(columns), squeeze=False)
    low = float(similarity.min())
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            image = axes[y, x].imshow(similarity[row, column], vmin=low, vmax=1, cmap="viridis")
            axes[y, x].set(xticks=[], yticks=[])
        axes[y, 0].set_ylabel(row + 1, rotation=0, ha="right", va="center", fontsize=11)
    for x, column in enumerate(columns):
        axes[-1, x].set_xlabel(column + 1, fontsize=11)
    bar = drawn.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.set_label("cosine similarity", fontsize=11)
    drawn.supxlabel("column of the patch", fontsize=11)
    drawn.supylabel("row of the patch", fontsize=11)
    return drawn


def draw_embedding_filters(filters: np.ndarray) -> Any:
    """The components as pictures, grey where a weight is zero, as in figure 7 left."""
    if filters.shape[-1] not in (1, 3):
        raise ValueError(
            f"Filters of {filters.shape[-1]} channels cannot be shown as colours. Of a model that "
            "embeds 1 or 3 channels they can; the numbers are embedding_filters(model)."
        )
    columns = min(7, len(filters))
    rows = -(-len(filters) // columns)
    drawn = figure(_WIDTH / columns * rows * filters.shape[1] / filters.shape[2] + 0.05)
    axes = drawn.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, weights in zip(axes.flat, filters, strict=False):
        grey = 0.5 + weights / (2 * np.abs(weights).max())
        axis.imshow(_shown(grey), vmin=0, vmax=1, cmap="gray")
    return drawn


def resized(grid: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A small map at the size of a picture, bilinear between the centres of patches."""
    for axis, (old, new) in enumerate(zip(grid.shape, size, strict=True)):
        source = (np.arange(new) + 0.5) * old / new - 0.5
        weights = np.maximum(0, 1 - np.abs(source.clip(0, old - 1)[:, None] - np.arange(old)))
        grid = np.moveaxis(np.tensordot(weights, grid, (1, axis)), 0, axis)
    return grid


def _shown(pixels: np.ndarray) -> np.ndarray:
    """What imshow takes: one channel without its axis."""
    return np.clip(pixels[..., 0] if pixels.shape[-1] == 1 else pixels, 0, 1)


def _spread(length: int, most: int) -> list[int]:
    """At most `most` of the indices below `length`, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, length - 1, min(length, most))})


def _colour(index: int, count: int) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](index / max(count - 1, 1))
