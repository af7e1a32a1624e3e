"""Plots of a training run: curves, confusion matrix, reliability diagram and mistakes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.errors import printable
from keras_vit.evaluation.calibration import Calibration
from keras_vit.evaluation.mistakes import Mistake
from keras_vit.evaluation.report import ClassificationReport
from keras_vit.files import atomic_write
from keras_vit.version import install_command


def new_figure(width: float, height: float, dpi: int = 120) -> Any:
    """A matplotlib Figure that pyplot does not know: no window, and no global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Plots need matplotlib: {install_command('plots')}", name="matplotlib"
        ) from error
    return Figure(figsize=(width, height), layout="constrained", dpi=dpi)


def _save(figure: Any, path: str | Path) -> None:
    with atomic_write(path) as temporary:
        figure.savefig(temporary)


def plot_curves(history: Mapping[str, Sequence[float]], path: str | Path) -> None:
    """The history of `fit` as a PNG file: loss and accuracy of training and validation."""
    figure = new_figure(9, 3.6)
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for key, label in ((name, "training"), (f"val_{name}", "validation")):
            if key in history:
                axes.plot(range(1, len(history[key]) + 1), history[key], label=label)
        axes.set(xlabel="epoch", ylabel=name)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    _save(figure, path)


def plot_confusion(report: ClassificationReport, path: str | Path) -> None:
    """The confusion matrix as a PNG file: colours are shares of a row, numbers are counts."""
    names = [printable(scores.name) for scores in report.classes]
    counts = report.confusion
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    side = max(4.0, 0.42 * len(names) + 1.8)
    figure = new_figure(side + 0.8, side)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the label", shrink=0.85)
    ticks = range(len(names))
    # Names are plain text: matplotlib would typeset what stands between dollars, or fail at it.
    axes.set_xticks(ticks, names, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(ticks, names, parse_math=False)
    axes.set(xlabel="predicted", ylabel="label", title=f"accuracy {report.accuracy:.1%}")
    if len(names) <= 30:  # beyond that the numbers are too small to read
        for row, column in np.argwhere(counts):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, counts[row, column], ha="center", va="center", c=colour)
    _save(figure, path)


def plot_calibration(calibration: Calibration, path: str | Path) -> None:
    """The reliability diagram as a PNG file: accuracy against confidence, and a histogram.

    Bars below the diagonal are overconfident.
    """
    bins = len(calibration.counts)
    edges = np.arange(bins) / bins
    figure = new_figure(4.6, 5.4)
    diagram, histogram = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    diagram.bar(edges, np.nan_to_num(calibration.accuracy), 1 / bins, align="edge", ec="white")
    diagram.plot((0, 1), (0, 1), "--", c="black", lw=1, label="perfectly calibrated")
    diagram.plot(calibration.confidence, calibration.accuracy, "o", c="C1", label="bins")
    diagram.set(ylabel="accuracy", ylim=(0, 1), xlim=(0, 1))
    diagram.set_title(f"expected calibration error {calibration.error:.1%}, {bins} bins")
    diagram.legend(loc="upper left")
    histogram.bar(edges, calibration.counts, 1 / bins, align="edge", ec="white")
    histogram.set(xlabel="confidence of the prediction", ylabel="predictions")
    _save(figure, path)


def plot_mistakes(
    mistakes: Sequence[Mistake],
    images: Sequence[np.ndarray],
    class_names: Sequence[str],
    path: str | Path,
    columns: int = 6,
) -> None:
    """The images of mistakes as a PNG file, with label, predicted class and probability.

    Args:
        mistakes: As from `worst_mistakes`; without any, the plot says so.
        images: The image of each, uint8 `(height, width, 1 or 3)`.
        class_names: The name of every class.
        path: The file to write.
        columns: Images per row.
    """
    rows = max(-(-len(mistakes) // columns), 1)
    figure = new_figure(1.9 * columns, 2.35 * rows)
    for axes in (cells := figure.subplots(rows, columns, squeeze=False)).flat:
        axes.axis("off")
    if not mistakes:
        figure.suptitle("no mistakes", y=0.5)
    for axes, mistake, image in zip(cells.flat, mistakes, images, strict=False):
        # A digit of 8 x 8 pixels should show its pixels, not a blur.
        interpolation = "nearest" if max(image.shape[:2]) < 64 else None
        axes.imshow(image, "gray", interpolation=interpolation)
        axes.set_title(
            f"{_short(class_names[mistake.label])}\n"
            f"predicted {_short(class_names[mistake.prediction])} {mistake.probability:.0%}",
            fontsize=8,
            parse_math=False,
        )
    _save(figure, path)


def _short(name: str, length: int = 16) -> str:
    name = printable(name)
    return name if len(name) <= length else name[: length - 1] + "…"
