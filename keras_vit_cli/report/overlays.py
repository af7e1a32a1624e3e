"""Classes of pixels in colors over their images: labels beside predictions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.figures import new_figure
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation.prediction import predict_split
from keras_vit.evaluation.shown_images import images_at
from keras_vit.models.answers import answers_of
from keras_vit.tasks import Segmentation
from keras_vit.tasks.class_colors import color_table
from keras_vit.tasks.pixel_losses import IGNORED
from keras_vit_cli.report.contact_sheet import FILE, ROOM, SOFT, TILE
from keras_vit_cli.report.shortening import fits_in, shorten

MOST_NAMES = 24  # of the legend, those of the most pixels
COLORED = 0.6  # how much of a pixel is the color of its class
STRIPE = 6  # pixels from one stripe to the next


def draw_overlays(
    task: Segmentation,
    images: Sequence[np.ndarray],
    titles: Sequence[Sequence[str]],
    predicted: Sequence[np.ndarray],
    labels: Sequence[np.ndarray] | None = None,
) -> Any:
    """Return a matplotlib Figure with a row per image, and a legend of the classes in it.

    Args:
        task: Has the names and colors of the classes.
        images: uint8 `(height, width, 1 or 3)`.
        titles: Of each image the lines above its panels: the image, its labels, what is
            predicted.
        predicted: The number of the class in each pixel, of the size of the images.
        labels: The same as labeled, for a panel in the middle; what differs from it has black
            and white stripes in the last one. None leaves them out.
    """
    shown = list(zip(*(maps for maps in (labels, predicted) if maps is not None), strict=True))
    columns = 1 + len(shown[0])
    height = TILE * min(max(image.shape[0] / image.shape[1] for image in images), 1.5)
    figure = new_figure(TILE * columns, (height + 0.35) * len(images) + 0.9)
    cells = figure.subplots(len(images), columns, squeeze=False)
    for row, image, lines, maps in zip(cells, images, titles, shown, strict=True):
        panels = [image, *(colored(task, image, one) for one in maps)]
        if labels is not None:
            panels[-1] = striped(panels[-1], (maps[0] != maps[1]) & (maps[0] != IGNORED))
        for axes, panel, line in zip(row, panels, lines, strict=True):
            axes.imshow(panel, "gray", vmin=0, vmax=255)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            text = shorten(line, fits_in(ROOM, FILE))
            axes.set_title(text, parse_math=False, c=SOFT, **FILE)
    _add_legend(figure, task, [one for maps in shown for one in maps], labels is not None)
    return figure


def colored(task: Segmentation, image: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return an image, uint8 with 3 channels, under the colors of classes; as it is under 255."""
    gray = image.mean(axis=-1, keepdims=True)  # whose own colors would be taken for classes
    both = COLORED * color_table(task.colors)[classes] + (1 - COLORED) * gray
    return np.where((classes == IGNORED)[..., None], image, both).astype(np.uint8)


def striped(image: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Return an image with slanted black and white lines in some of its pixels."""
    place = np.add.outer(*map(np.arange, where.shape)) % STRIPE
    lines = np.where(place[..., None] < STRIPE // 3, np.where(place[..., None], 255, 0), image)
    return np.where(where[..., None], lines, image).astype(np.uint8)


def _add_legend(
    figure: Any, task: Segmentation, maps: Sequence[np.ndarray], has_stripes: bool
) -> None:
    from matplotlib.patches import Patch

    counts = np.bincount(np.concatenate([one.ravel() for one in maps]), minlength=256)
    most = [i for i in np.argsort(-counts[: task.size], kind="stable")[:MOST_NAMES] if counts[i]]
    colors, names = color_table(task.colors) / 255, task.shown_names
    patches = [Patch(fc=colors[i], ec="0.5", label=printable(names[i])[:32]) for i in sorted(most)]
    if has_stripes:
        patches.append(Patch(fc="white", ec="black", hatch="////", label="differs (stripes)"))
    legend = figure.legend(
        handles=patches, loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def draw_worst(
    model: Any, split: IndexedSplit, mistakes: Sequence[dict[str, Any]], largest: int
) -> Any:
    """Draw what a model predicts for some images of a split beside the labels.

    Args:
        model: Its task is one of pixels.
        split: The images and their maps.
        mistakes: Of each image `index`, its place in the split, `answer` and `truth`, as texts, and
            `file`.
        largest: The larger side in pixels to which larger images are reduced.
    """
    places = [row["index"] for row in mistakes]
    images = images_at(split, places, largest=largest)
    part = split.take(places)
    _, outputs = predict_split(model, part, min(len(part), 8))
    sizes = [image.shape[:2] for image in images]
    predicted = [
        model.task.class_map(answer, size)
        for answer, size in zip(answers_of(model, outputs), sizes, strict=True)
    ]
    labels = [_nearest(part.label_map(i).astype(np.uint8), size) for i, size in enumerate(sizes)]
    titles = [
        (row["file"], f"given: {row['truth']}", f"predicted: {row['answer']}") for row in mistakes
    ]
    return draw_overlays(model.task, images, titles, predicted, labels)


def _nearest(classes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.fromarray(classes).resize(size[::-1], Image.Resampling.NEAREST))
