"""Figures of what a model looks at, from a model (`plot_*`) or from arrays (`draw_*`).

Each is a `matplotlib.figure.Figure`: `figure.savefig("rollout.png")`, or the last line of a
notebook's cell. Figures are narrow and their letters large, to be readable on a phone screen.
"""

from typing import Any

import keras
import numpy as np

from keras_vit._base.figures import new_figure
from keras_vit.data.decode.rasters import shown
from keras_vit.inspection.attention_analysis import readout_attention
from keras_vit.inspection.attribution import Classes, run_gradients
from keras_vit.inspection.embeddings import embedding_filters, position_similarity
from keras_vit.inspection.forward_pass import ForwardPass, as_numpy, run
from keras_vit.models.normalization import own_statistics

HEAT = "inferno"
_WIDTH = 4.8  # inches
_PAD = 0.03  # inches around each image of a figure of images


def plot_attention(model: keras.Model, image: Any) -> Any:
    """Return the attention of every head of every layer in one image, as the model accepts it.

    Returns a matplotlib Figure: one row per head, one column per layer, each map scaled to its own
    maximum. Raises what `readout_attention` raises, or an ImportError without matplotlib.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=2, num_heads=4, input_shape=(32, 16, 3))
    >>> len(keras_vit.inspection.plot_attention(model, np.zeros((32, 16, 3))).axes)
    8
    """
    return draw_attention(readout_attention(model, np.asarray(image)[None])[0])


def draw_attention(maps: np.ndarray) -> Any:
    """Draw maps `(depth, heads, grid_h, grid_w)`, a row per head and a column per layer."""
    depth, heads, grid_h, grid_w = maps.shape
    width = max(_WIDTH, 0.3 * depth)  # the thumbnails of a deep model stay large enough to see
    cell = min(0.9 * width / depth, 1.2)
    figure = new_figure(width, 0.7 + heads * cell * grid_h / grid_w, dpi=160)
    axes = figure.subplots(heads, depth, squeeze=False)
    for layer, head in np.ndindex(depth, heads):
        axes[head, layer].imshow(maps[layer, head], vmin=0, cmap=HEAT)
        axes[head, layer].set(xticks=[], yticks=[])
    for head in range(heads):
        axes[head, 0].set_ylabel(head + 1, rotation=0, ha="right", va="center", fontsize=11)
    for layer in range(depth):
        axes[0, layer].set_title(layer + 1, fontsize=11)
    figure.supylabel("head", fontsize=11)
    figure.suptitle("layer", fontsize=11)
    return figure


def plot_attribution(model: keras.Model, images: Any, classes: Classes = None) -> Any:
    """Images, and the same images darkened where they do not speak for a class.

    Takes images of 1 or 3 channels and classes as `class_attribution` does, returns a matplotlib
    Figure, and raises what that raises, or an ImportError without matplotlib.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.ViTTi16(input_shape=(64, 32, 3), num_classes=3)
    >>> kernel = np.random.default_rng(0).normal(size=(192, 3))
    >>> model.get_layer("head").set_weights([kernel, np.zeros(3)])
    >>> images = np.random.default_rng(0).uniform(0, 255, (2, 64, 32, 3))
    >>> len(keras_vit.inspection.plot_attribution(model, images).axes)
    4
    """
    passes = run_gradients(model, images, classes)
    maps = [(x.attribution(), x.forward) for x in passes]
    return _draw_maps(model, images, maps, "attribution")


def plot_rollout(model: keras.Model, images: Any) -> Any:
    """Images, and the same images darkened where attention rollout is small (ViT paper, figure 6).

    Takes images of 1 or 3 channels as `attention_rollout` does, returns a matplotlib Figure, and
    raises what that raises, or an ImportError without matplotlib.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.ViTTi16(input_shape=(64, 32, 3))
    >>> len(keras_vit.inspection.plot_rollout(model, np.zeros((2, 64, 32, 3))).axes)
    4
    """
    return _draw_maps(model, images, [(x.rollout(), x) for x in run(model, images)], "rollout")


def _draw_maps(
    model: keras.Model, images: Any, maps: list[tuple[np.ndarray, ForwardPass]], title: str
) -> Any:
    pixels = to_pixels(model, images)
    covered = maps[0][1].covered(pixels.shape[1:3])
    return draw_maps(pixels, np.concatenate([x for x, _ in maps]), covered, title)


def draw_maps(images: np.ndarray, maps: np.ndarray, covered: tuple[int, int], title: str) -> Any:
    """Draw images `(batch, height, width, channels)` in 0..1, each beside a copy darkened by a map.

    `covered` is the height and width in pixels that the patches cover; `title` names the maps.
    """
    count, (height, width) = len(images), images.shape[1:3]
    # Two pairs side by side, unless that leaves half of the last row of a short figure empty.
    pairs = 1 if count % 2 and count < 8 else 2
    rows = -(-count // pairs)
    side = _WIDTH / (2 * pairs) - 2 * _PAD
    figure, axes = _blank_axes(0.22 + rows * (side * height / width + 2 * _PAD), rows, 2 * pairs)
    figure.get_layout_engine().set(w_pad=_PAD, h_pad=_PAD, wspace=0, hspace=0)
    for i in range(count):
        original, darkened = axes[i // pairs, 2 * (i % pairs) : 2 * (i % pairs) + 2]
        light = np.zeros((height, width))
        # One patch is often far above all others: it would leave the rest black.
        largest = np.quantile(maps[i], 0.97) or maps[i].max() or 1
        relative = upsample(np.minimum(maps[i] / largest, 1), covered)[:height, :width]
        light[: covered[0], : covered[1]] = relative
        _show(original, images[i])
        _show(darkened, images[i] * light[..., None])
    for column in range(pairs):
        axes[0, 2 * column].set_title("input", fontsize=11)
        axes[0, 2 * column + 1].set_title(title, fontsize=11)
    return figure


def plot_attention_distance(model: keras.Model, images: Any) -> Any:
    """Plot each head's mean attention distance against its layer's depth (ViT paper, figure 11).

    Takes what `attention_distance` takes, returns a matplotlib Figure, and raises what that raises,
    or an ImportError without matplotlib.
    """
    passes = [(x.distances(), x.image_size[1]) for x in run(model, images)]
    distances = np.concatenate([x for x, _ in passes]).mean(axis=0)
    return draw_attention_distance(distances, passes[0][1])


def draw_attention_distance(distances: np.ndarray, width: int) -> Any:
    """Plot a dot per head of distances `(depth, heads)`; `width` is the images', in pixels."""
    depth, heads = distances.shape
    layers = np.arange(1, depth + 1)
    figure = new_figure(_WIDTH, 3.4, dpi=160)
    axes = figure.subplots()
    # One color: a head has nothing in common with the head of the same number in another layer.
    for head in range(heads):
        label = None if head else "one head"
        axes.scatter(layers, distances[:, head], s=34, alpha=0.6, c="C0", lw=0, label=label)
    axes.plot(
        layers, distances.mean(axis=1), color="0.45", lw=1, zorder=0, label="mean of the heads"
    )
    axes.set_xlabel("layer", fontsize=11)
    axes.set_ylabel(f"mean distance in pixels (of {width})", fontsize=11)
    axes.set_ylim(0, 1.12 * max(float(distances.max()), 1e-6))
    axes.set_xticks(layers[:: max(1, -(-depth // 12))])
    axes.tick_params(labelsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=10, loc="lower right")
    return figure


def plot_position_similarity(model: keras.Model) -> Any:
    """Return which position embeddings resemble each other (ViT paper, figure 7 center).

    Returns a matplotlib Figure; of a large grid it shows up to eight rows and columns. Raises what
    `position_similarity` raises, or an ImportError without matplotlib.
    """
    similarity = position_similarity(model)
    grid_h, grid_w = similarity.shape[:2]
    # At most eight per side: 24 x 24 maps would be too small to see.
    rows, columns = (_evenly_spaced(side, 8) for side in (grid_h, grid_w))
    cell = 0.74 * _WIDTH / len(columns)  # beside labels and color bar
    figure = new_figure(_WIDTH, 0.5 + cell * len(rows) * grid_h / grid_w, dpi=160)
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    low = float(similarity.min())
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            image = axes[y, x].imshow(similarity[row, column], vmin=low, vmax=1, cmap="viridis")
            axes[y, x].set(xticks=[], yticks=[])
        axes[y, 0].set_ylabel(row + 1, rotation=0, ha="right", va="center", fontsize=9)
    for x, column in enumerate(columns):
        axes[-1, x].set_xlabel(column + 1, fontsize=9)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.ax.tick_params(labelsize=9)
    bar.set_label("cosine similarity", fontsize=9)
    figure.supxlabel("column of the patch", fontsize=9)
    figure.supylabel("row of the patch", fontsize=9)
    return figure


def plot_embedding_filters(model: keras.Model, components: int | None = None) -> Any:
    """Return the principal components of the patch embedding's filters (ViT paper, figure 7 left).

    Takes what `embedding_filters` takes; the patches must have 1 or 3 channels. Returns a
    matplotlib Figure, gray where a weight is zero, and raises what `embedding_filters` raises, a
    ValueError for other channels, or an ImportError without matplotlib.
    """
    filters = embedding_filters(model, components)
    if filters.shape[-1] not in (1, 3):
        raise ValueError(
            f"Filters of {filters.shape[-1]} channels cannot be shown as colors; those of 1 or 3 "
            "channels can. Their numbers are embedding_filters(model)."
        )
    columns = min(7, len(filters))
    rows = -(-len(filters) // columns)
    height = _WIDTH / columns * rows * filters.shape[1] / filters.shape[2] + 0.05
    figure, axes = _blank_axes(height, rows, columns)
    for axis, weights in zip(axes.flat, filters, strict=False):
        _show(axis, 0.5 + weights / (2 * np.abs(weights).max()))
    return figure


def upsample(grid: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return a map at the size of an image, bilinear between the centers of patches."""
    from PIL import Image

    height, width = size
    image = Image.fromarray(np.asarray(grid, "float32"))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def to_pixels(model: keras.Model, images: Any) -> np.ndarray:
    """Return images as a model accepts them, as `(batch, height, width, channels)` in 0..1.

    The range of a model that is not of this package is taken from the images.
    """
    pixels = as_numpy(images)
    data_format = getattr(model, "data_format", None)
    if data_format is None and pixels.shape[-1] not in (1, 3):
        data_format = "channels_first" if pixels.shape[1] in (1, 3) else None
    if data_format == "channels_first":
        pixels = np.moveaxis(pixels, 1, -1)
    if own_statistics(model) is not None:
        return np.stack([shown(image) for image in pixels]) / 255
    # Without preprocessing inside, a model takes [-1, 1], the released code's range.
    takes_pixels = getattr(model, "include_preprocessing", pixels.max() > 2)
    if not takes_pixels and not hasattr(model, "include_preprocessing") and pixels.min() >= 0:
        return pixels.clip(0, 1)
    return (pixels / 255 if takes_pixels else (pixels + 1) / 2).clip(0, 1)


def _blank_axes(height: float, rows: int, columns: int) -> tuple[Any, Any]:
    """Return a figure of `rows` by `columns` images without ticks and frames."""
    figure = new_figure(_WIDTH, height, dpi=160)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    return figure, axes


def _show(axis: Any, pixels: np.ndarray) -> None:
    gray = pixels.shape[-1] == 1
    axis.imshow(np.clip(pixels[..., 0] if gray else pixels, 0, 1), vmin=0, vmax=1, cmap="gray")


def _evenly_spaced(length: int, most: int) -> range:
    """Return at most `most` indices below `length`, in equal steps, around the middle."""
    step = -(-length // most)
    return range((length - 1) % step // 2, length, step)
