"""Answers to every pixel in colors: images, labels and predictions side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.figures import new_figure
from keras_vit.data.preprocessing import evaluation_mask
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation.prediction import ANY, predict_files, predict_split
from keras_vit.evaluation.shown_images import images_at
from keras_vit.models.answers import answers_of
from keras_vit.tasks import Depth, RelativeDepth, Segmentation, Task
from keras_vit.tasks.class_colors import color_table
from keras_vit.tasks.depth_colors import VIRIDIS, depth_colors, depth_range
from keras_vit.tasks.pixel_losses import IGNORED
from keras_vit_cli.report.contact_sheet import FILE, ROOM, SOFT, TILE
from keras_vit_cli.report.shortening import fits_in, shorten

MOST_NAMES = 24  # of the legend, those of the most pixels
COLORED = 0.6  # how much of a pixel is the color of its class
STRIPE = 6  # pixels from one stripe to the next


def draw_overlays(
    task: Task,
    images: Sequence[np.ndarray],
    titles: Sequence[Sequence[str]],
    predicted: Sequence[np.ndarray],
    labels: Sequence[np.ndarray] | None = None,
) -> Any:
    """Return a matplotlib Figure with a row per image, and a legend of what colors mean.

    Args:
        images: uint8 `(height, width, 1 or 3)`.
        titles: Of each image the lines above its panels: the image, its labels, what is
            predicted.
        predicted: What `task.answer_map` returns of the size of each image.
        labels: The same as labeled, for a panel in the middle; None leaves them out.
    """
    painter = PAINTERS[task.kind](task)
    shown = list(zip(*(maps for maps in (labels, predicted) if maps is not None), strict=True))
    columns = 1 + len(shown[0])
    height = TILE * min(max(image.shape[0] / image.shape[1] for image in images), 1.5)
    figure = new_figure(TILE * columns, (height + 0.35) * len(images) + 0.9)
    cells = figure.subplots(len(images), columns, squeeze=False)
    for row, image, lines, maps in zip(cells, images, titles, shown, strict=True):
        panels = [image, *painter.panels(image, maps)]
        for axes, panel, line in zip(row, panels, lines, strict=True):
            axes.imshow(panel, "gray", vmin=0, vmax=255)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            text = shorten(line, fits_in(ROOM, FILE))
            axes.set_title(text, parse_math=False, c=SOFT, **FILE)
    legend = figure.legend(
        handles=painter.patches([one for maps in shown for one in maps], labels is not None),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


@dataclass(frozen=True)
class ClassPainter:
    """Paints classes over their image, with stripes where labels and predictions differ.

    Of an image with one map or two, what is predicted last, `panels` are the maps in colors;
    `patches` are those of a legend of all maps.
    """

    task: Segmentation

    def panels(self, image: np.ndarray, maps: Sequence[np.ndarray]) -> list[np.ndarray]:
        panels = [self.colored(image, one) for one in maps]
        if len(maps) > 1:
            panels[-1] = striped(panels[-1], (maps[0] != maps[1]) & (maps[0] != IGNORED))
        return panels

    def colored(self, image: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """Return an image, uint8 of 3 channels, under the colors of classes; as it is under 255."""
        gray = image.mean(axis=-1, keepdims=True)  # whose own colors would be taken for classes
        both = COLORED * color_table(self.task.colors)[classes] + (1 - COLORED) * gray
        return np.where((classes == IGNORED)[..., None], image, both).astype(np.uint8)

    def patches(self, maps: Sequence[np.ndarray], has_labels: bool) -> list[Any]:
        from matplotlib.patches import Patch

        task = self.task
        counts = np.bincount(np.concatenate([one.ravel() for one in maps]), minlength=256)
        order = np.argsort(-counts[: task.size], kind="stable")[:MOST_NAMES]
        most = [i for i in order if counts[i]]
        colors, names = color_table(task.colors) / 255, task.shown_names
        patches = [
            Patch(fc=colors[i], ec="0.5", label=printable(names[i])[:32]) for i in sorted(most)
        ]
        if has_labels:
            label = "differs (stripes)"
            patches.append(Patch(fc="white", ec="black", hatch="////", label=label))
        return patches


@dataclass(frozen=True)
class DepthPainter:
    """Paints depths beside their image, of a row by the range of its first map: see above."""

    task: Any

    def panels(self, image: np.ndarray, maps: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [depth_colors(one, *depth_range(maps[0])) for one in maps]

    def patches(self, maps: Sequence[np.ndarray], has_labels: bool) -> list[Any]:
        from matplotlib.patches import Patch

        rows = zip(VIRIDIS[[0, -1]] / 255, ("near", "far, of each row by itself"), strict=True)
        patches = [Patch(fc=color, ec="0.5", label=text) for color, text in rows]
        return [*patches, Patch(fc="white", ec="0.5", label="not measured")][: 2 + has_labels]


class RelativeDepthPainter(DepthPainter):
    """Paints inverse depths as `DepthPainter` does, each by its own range."""

    def panels(self, image: np.ndarray, maps: Sequence[np.ndarray]) -> list[np.ndarray]:
        *labels, answered = maps
        shown = [
            np.where(one > 0, self.task.shown(1 / np.where(one > 0, one, np.inf)), 0)
            for one in labels
        ]
        return [depth_colors(m, *depth_range(m)) for m in (*shown, self.task.shown(answered))]


# By the kind of task.
PAINTERS: dict[str, Any] = {
    Segmentation.kind: ClassPainter,
    Depth.kind: DepthPainter,
    RelativeDepth.kind: RelativeDepthPainter,
}


def striped(image: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Return an image with slanted black and white lines in some of its pixels."""
    place = np.add.outer(*map(np.arange, where.shape)) % STRIPE
    lines = np.where(place[..., None] < STRIPE // 3, np.where(place[..., None], 255, 0), image)
    return np.where(where[..., None], lines, image).astype(np.uint8)


def draw_worst(
    model: Any,
    split: IndexedSplit,
    mistakes: Sequence[dict[str, Any]],
    largest: int,
    windows: str | int | None = None,
) -> Any:
    """Draw what a model predicts for some images of a split beside the labels.

    Args:
        mistakes: Of each image `index`, its place in the split, `answer` and `truth`, as texts, and
            `file`.
        largest: The larger side in pixels to which larger images are reduced.
    """
    places = [row["index"] for row in mistakes]
    images = images_at(split, places, largest=largest)
    part = split.take(places)
    sizes = [image.shape[:2] for image in images]
    answers: Any
    if windows is None:
        answers = answers_of(model, predict_split(model, part, min(len(part), 8))[1])
    else:
        limit = getattr(part, "max_pixels", None) or ANY  # the scores' own
        files: Any = part.files
        answers = [one for _, one in predict_files(model, files, 32, limit, windows)]
    predicted = [model.task.answer_map(*pair) for pair in zip(answers, sizes, strict=True)]
    labels = [evaluation_mask(part.label_map(i), size) for i, size in enumerate(sizes)]
    titles = [
        (row["file"], f"given: {row['truth']}", f"predicted: {row['answer']}") for row in mistakes
    ]
    return draw_overlays(model.task, images, titles, predicted, labels)
