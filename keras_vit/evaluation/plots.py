"""The pictures of a training run: its curves and its confusions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_vit.evaluation.report import ClassificationReport


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError(
            "Plots need matplotlib: pip install 'keras_vit[plots]'", name="matplotlib"
        ) from error
    # A Figure of its own, not pyplot's: no window, no global state to leak between runs.
    return Figure(figsize=(width, height), layout="constrained", dpi=120)


def plot_curves(history: Mapping[str, Sequence[float]], path: str | Path) -> None:
    """Loss and accuracy by epoch, for training and validation, as a PNG.

    Args:
        history: `History.history` of `fit`: `loss`, `accuracy`, `val_loss`, `val_accuracy`.
        path: The file to write.
    """
    figure = _figure(9, 3.6)
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for key, label in ((name, "training"), (f"val_{name}", "validation")):
            if key in history:
                axes.plot(range(1, len(history[key]) + 1), history[key], label=label)
        axes.set(xlabel="epoch", ylabel=name)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path)


def plot_confusion(report: ClassificationReport, path: str | Path) -> None:
    """The confusion matrix as a PNG: colour is the share of a label's row, text the count."""
    names = [scores.name for scores in report.classes]
    counts = report.confusion
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    side = max(4.0, 0.42 * len(names) + 1.8)
    figure = _figure(side + 0.8, side)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the label", shrink=0.85)
    ticks = range(len(names))
    axes.set_xticks(ticks, names, rotation=45, ha="right")
    axes.set_yticks(ticks, names)
    axes.set(xlabel="predicted", ylabel="label", title=f"accuracy {report.accuracy:.1%}")
    if len(names) <= 30:  # beyond that the numbers are smaller than a reader can see
        for row in ticks:
            for column in ticks:
                if counts[row, column]:
                    colour = "white" if shares[row, column] > 0.5 else "black"
                    axes.text(column, row, counts[row, column], ha="center", va="center", c=colour)
    figure.savefig(path)
