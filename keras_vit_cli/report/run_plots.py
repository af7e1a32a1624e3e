"""Plots of a training run: curves, confusion matrix, reliability diagram and mistakes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.figures import new_figure
from keras_vit._base.files import atomic_write
from keras_vit._base.fonts import without_glyph_warnings
from keras_vit.evaluation.report import Report
from keras_vit.tasks.scores import wilson_interval
from keras_vit_cli.report.contact_sheet import SOFT
from keras_vit_cli.report.shortening import fits_in, shorten_apart, text_width

# With fewer images in a bin, chance moves its accuracy by up to 18 points (Wilson's 95 % interval).
FEW_IMAGES = 30
MOST_CLASSES = 50  # of a confusion matrix, of 3,000 x 3,000 pixels then
NO_METRICS = ("loss", "learning_rate")
MANY_EPOCHS = 40  # beyond that a dot per epoch would hide the line


def save_figure(figure: Any, path: str | Path) -> None:
    """Writes a figure as a PNG file, atomically."""
    with atomic_write(path) as temporary, without_glyph_warnings():
        figure.savefig(temporary)


def draw_curves(history: Mapping[str, Sequence[float]]) -> Any:
    """Return the history of `fit` as a matplotlib Figure.

    One panel each for loss and metric (of a classification, accuracy) of training and validation,
    and a low one below them for `learning_rate` if the history has it. With a `val_loss`, the best
    epoch is marked: the one of `best.keras`.
    """
    epochs = max(map(len, history.values()), default=0)
    losses = _by_epoch(history, "val_loss", epochs)
    best = min(losses, key=lambda epoch: losses[epoch], default=None)  # the first of equal ones
    metrics = [name for name in history if name not in NO_METRICS and not name.startswith("val_")]
    rows = [["loss", *(metrics[:1] or ["accuracy"])]]
    if "learning_rate" in history:
        rows.append(2 * ["learning_rate"])
    heights = [3.9, 1.5][: len(rows)]
    figure = new_figure(8.7, sum(heights))
    panels = figure.subplot_mosaic(rows, height_ratios=heights)
    for name, axes in panels.items():
        _draw_epochs(axes, history, name, epochs)
        if best is not None:
            axes.axvline(best, c=SOFT, lw=1, ls=":", zorder=0)
            _mark_best(axes, name, best, _by_epoch(history, f"val_{name}", epochs))
    handles, labels = panels["loss"].get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _by_epoch(history: Mapping[str, Sequence[float]], name: str, epochs: int) -> dict[int, float]:
    """Return a metric by epoch, from 1; one that a resumed run began later has only the last."""
    values = history.get(name, ())
    return dict(enumerate(values, epochs - len(values) + 1))


def _draw_epochs(axes: Any, history: Mapping[str, Sequence[float]], name: str, epochs: int) -> None:
    """Draw the curves of a metric against the epochs, which are integers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    is_rate = name == "learning_rate"
    marker = "o" if epochs <= MANY_EPOCHS else None
    for key, label, color in (
        (name, "training", "0.3" if is_rate else "C0"),
        (f"val_{name}", "validation", "C1"),
    ):
        if values := _by_epoch(history, key, epochs):
            axes.plot(list(values), list(values.values()), color, label=label, marker=marker, ms=3)
    axes.set_title(name.replace("_", " "), loc="left", fontsize=12, weight="bold")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    margin = max(0.03 * epochs, 0.15)
    axes.set_xlim(1 - margin, max(epochs, 1) + margin)
    if name == "accuracy":
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    elif is_rate:
        axes.set_ylim(bottom=0)
        # Ticks of one digit or two: rounded labels of others would look uneven.
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:.3g}"))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _mark_best(axes: Any, name: str, best: int, values: Mapping[int, float]) -> None:
    """Ring the validation's value of the best epoch, and print it above the panel."""
    if best not in values:
        return
    label = f"best epoch: {best} (lowest validation loss)"
    axes.plot([best], [values[best]], "o", ms=9, mfc="none", mec="black", label=label)
    shown = f"{values[best]:.1%}" if name == "accuracy" else f"{values[best]:.3g}"
    axes.set_title(f"{shown} in epoch {best}", loc="right", fontsize=10, c=SOFT)


def draw_confusion(report: Report) -> Any:
    """Draw the confusion matrix, a matplotlib Figure: colors are shares of a row, numbers counts.

    Of more than `MOST_CLASSES` it shows those of the most frequent confusions, those that are
    taken for each other beside each other, and the predictions of all others in a last column.
    """
    chosen = _confused_classes(report)
    names = [printable(report.task.shown_names[i]) for i in chosen]
    font = {"size": 10}
    names = shorten_apart(names, len(names) * [fits_in(200, font)])
    rows, counts = list(names), _counts_among(report, chosen)
    title = f"accuracy {report.scores['accuracy'].value:.1%}"
    if len(chosen) < report.task.size:
        names.append("any other")
        names_of = f"{report.task.size:,} {report.task.nouns[1]}"
        title += f"\n{len(chosen)} of {names_of}: those of the most frequent confusions"
    else:
        counts = counts[:, :-1]
    images = report.names["images"][chosen]
    shares = counts / images[:, None].clip(min=1)
    label = max(text_width(name, font) for name in names) / 72  # inches, beside and below
    side = max(2.8, 0.42 * len(names))
    figure = new_figure(side + label + 1.8, side + 0.71 * label + 1.2)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the label", shrink=0.85)
    # Names are plain text: matplotlib would typeset what stands between dollars, or fail at it.
    plain = {"parse_math": False}
    slant = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    is_short = max(map(len, names)) <= 3
    axes.set_xticks(range(len(names)), names, **({} if is_short else slant), **plain)
    axes.set_yticks(range(len(rows)), rows, **plain)
    axes.set(xlabel="predicted", ylabel="label")
    axes.set_title(title, weight="bold")
    for row, column in np.argwhere(counts):
        color = "white" if shares[row, column] > 0.5 else "black"
        size = 10 if counts[row, column] < 1000 else 7
        text = _compact(counts[row, column])
        axes.text(column, row, text, ha="center", va="center", c=color, fontsize=size)
    return figure


def _confused_classes(report: Report) -> list[int]:
    """Return the matrix's classes: all, or those of the most frequent confusions, pair by pair."""
    if report.task.size <= MOST_CLASSES:
        return list(range(report.task.size))
    chosen: dict[int, None] = {}
    for pair in report.confusions[:, :2].tolist():
        if len(chosen) + len(set(pair) - set(chosen)) <= MOST_CLASSES:
            chosen |= dict.fromkeys(pair)
    if not chosen:  # without a mistake, any classes are as good
        largest = np.argsort(-report.names["images"], kind="stable")
        chosen = dict.fromkeys(largest[:MOST_CLASSES].tolist())
    return list(chosen)


def _counts_among(report: Report, chosen: Sequence[int]) -> np.ndarray:
    """Counts of predictions among some classes `(chosen, chosen + 1)`; the last column: others."""
    assert report.pairs is not None
    place = np.full(report.task.size, len(chosen))
    place[list(chosen)] = np.arange(len(chosen))
    labels, predictions, amounts = report.pairs.T
    counts = np.zeros((len(chosen) + 1, len(chosen) + 1), np.int64)
    np.add.at(counts, (place[labels], place[predictions]), amounts)
    return counts[:-1]


def draw_calibration(report: Report) -> Any:
    """Return the reliability diagram as a matplotlib Figure: accuracy against confidence, by bin.

    Bars below the diagonal are overconfident. Each has its 95 % confidence interval and, below it,
    its number of images; with fewer than `FEW_IMAGES` it is pale.
    """
    from matplotlib.ticker import MaxNLocator

    calibration = report.calibration
    assert calibration is not None
    counts, accuracy, bins = calibration.counts, calibration.accuracy, len(calibration.counts)
    edges, few = np.arange(bins) / bins, counts < FEW_IMAGES
    figure = new_figure(6, 6.8)
    diagram, histogram = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for chosen, alpha, label in (
        (~few, 1.0, "accuracy of a bin"),
        (
            few & (counts > 0),
            0.35,
            f"accuracy of a bin with fewer than {FEW_IMAGES} images: may be chance",
        ),
    ):
        if not chosen.any():
            continue
        style = {"width": 1 / bins, "align": "edge", "ec": "white", "color": "C0", "alpha": alpha}
        diagram.bar(edges[chosen], accuracy[chosen], label=label, **style)
        bars = histogram.bar(edges[chosen], counts[chosen], **style)
        histogram.bar_label(bars, map(_compact, counts[chosen]), fontsize=8, padding=1)
    filled = np.flatnonzero(counts)
    low, high = np.transpose([wilson_interval(accuracy[i], counts[i]) for i in filled])
    diagram.errorbar(
        calibration.confidence[filled],
        accuracy[filled],
        # Rounding must not turn an interval that ends at the accuracy into a negative length.
        np.maximum([accuracy[filled] - low, high - accuracy[filled]], 0),
        fmt="o",
        c="C1",
        ms=5,
        ecolor=SOFT,
        elinewidth=1.2,
        label="at the bin's mean confidence, with a 95% interval",
    )
    diagram.plot((0, 1), (0, 1), "--", c="black", lw=1, label="perfectly calibrated")
    diagram.set(ylabel="accuracy", ylim=(0, 1.02), xlim=(0, 1))
    histogram.set(xlabel="confidence of the prediction", ylabel="images")
    histogram.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    histogram.margins(y=0.22)  # room for the numbers above the bars
    for axes in (diagram, histogram):
        axes.spines[["top", "right"]].set_visible(False)
    diagram.set_title(
        f"expected calibration error {calibration.error:.1%}, {counts.sum():,} images",
        weight="bold",
    )
    handles, labels = diagram.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: "calibrated" in labels[i])  # bars first
    figure.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="outside lower center",
        fontsize=9,
        frameon=False,
    )
    return figure


def _compact(count: int) -> str:
    """`950`, `9500` or `95k`, which fits above a bar."""
    return f"{count / 1000:.0f}k" if count >= 10_000 else str(count)
