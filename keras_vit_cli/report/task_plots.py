"""Plots of answers that are not classes: precision and recall, numbers, grades."""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.figures import new_figure
from keras_vit.tasks import Multilabel, Ordinal, Regression, Task
from keras_vit_cli.report.contact_sheet import SOFT

MOST_LABELS = 12  # of a plot, those with most images first
MOST_NUMBERS = 6  # of a plot, the first ones
MOST_GRADES = 50
LARGEST = 12.0  # inches: a side of the grades


def draw_precision_recall(task: Multilabel, targets: np.ndarray, answers: np.ndarray) -> Any:
    """Precision over recall as a matplotlib Figure, a line per label, a dot at its threshold."""
    figure = new_figure(6.4, 5.2)
    axes = figure.subplots()
    present = task.check_targets(targets) >= 0.5
    for i in np.argsort(-present.sum(0), kind="stable")[:MOST_LABELS]:
        order = np.argsort(-answers[:, i], kind="stable")
        true = np.cumsum(present[order, i])
        if not true[-1]:
            continue
        precision, recall = true / np.arange(1, len(true) + 1), true / true[-1]
        name = printable(task.shown_names[i])[:24]
        (line,) = axes.step(recall, precision, where="post", label=name, lw=1.5)
        at = int((answers[:, i] >= np.float32(task.thresholds[i])).sum()) - 1
        if at >= 0:
            axes.plot(recall[at], precision[at], "o", c=line.get_color())
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.02))
    title = "precision and recall per label; dots: thresholds"
    if task.size > MOST_LABELS:
        title += f"\n{MOST_LABELS} of {task.size:,} labels: those of most images"
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False, loc="lower left")
    return figure


def draw_numbers(task: Regression, targets: np.ndarray, answers: np.ndarray) -> Any:
    """Predicted against true numbers as a matplotlib Figure, and below them the residuals."""
    shown = min(task.size, MOST_NUMBERS)
    figure = new_figure(max(3.4 * shown, 4.6), 6)
    panels = figure.subplots(2, shown, squeeze=False, height_ratios=(3, 1.4))
    true = task.values(targets)
    for i in range(shown):
        unit = f" ({printable(task.units[i])})" if task.units[i] else ""
        above, below = panels[:, i]
        both = np.concatenate([true[:, i], answers[:, i]])
        limits = [both.min(), both.max()]
        above.plot(limits, limits, c=SOFT, lw=1)
        above.plot(true[:, i], answers[:, i], ".", ms=4, alpha=0.6)
        above.set_title(printable(task.shown_names[i])[:40], loc="left", fontsize=11)
        above.set(xlabel=f"true{unit}", ylabel=f"predicted{unit}")
        below.axhline(0, c=SOFT, lw=1)
        below.plot(true[:, i], answers[:, i] - true[:, i], ".", ms=4, alpha=0.6)
        below.set(xlabel=f"true{unit}", ylabel="residual")
        for axes in (above, below):
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
    if shown < task.size:
        figure.suptitle(f"the first {shown} of {task.size:,} numbers")
    return figure


def draw_grades(task: Ordinal, targets: np.ndarray, answers: np.ndarray) -> Any:
    """How often each grade is predicted for each, as a matplotlib Figure.

    Of more than `MOST_GRADES`, so many neighboring ones are a row or a column together that no more
    remain.
    """
    together = -(-task.size // MOST_GRADES)
    names = [printable(name)[:16] for name in task.shown_names[::together]]
    true, predicted = (x // together for x in (task.check_targets(targets), task.grades(answers)))
    counts = np.zeros((len(names), len(names)), int)
    np.add.at(counts, (true, predicted), 1)
    side = max(3.6, min(0.5 * len(names), LARGEST))
    figure = new_figure(side + 1, side)
    axes = figure.subplots()
    axes.imshow(counts / counts.sum(1, keepdims=True).clip(1), cmap="Blues", vmin=0, vmax=1)
    slant = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(names)), names, **slant, parse_math=False)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set(xlabel="predicted", ylabel="true")
    if together > 1:
        axes.set_title(f"{together} grades per cell, from the one beside it on", loc="left")
    if len(names) <= 20:
        for (row, column), count in np.ndenumerate(counts):
            dark = count > counts[row].sum() / 2
            color = "white" if dark else "black"
            axes.text(column, row, str(count), ha="center", va="center", c=color, fontsize=9)
    return figure


# By the kind of task: the file, and what draws it.
PLOTS: dict[str, tuple[str, Callable[..., Any]]] = {
    Multilabel.kind: ("precision_recall.png", draw_precision_recall),
    Regression.kind: ("numbers.png", draw_numbers),
    Ordinal.kind: ("grades.png", draw_grades),
}


def truth_text(task: Task, target: Any) -> str:
    """A target as the line above an image has it."""
    checked = task.check_targets([target])
    if checked.ndim == 1:
        return printable(task.shown_names[int(checked[0])])
    if isinstance(task, Multilabel):
        names = [task.shown_names[i] for i in np.flatnonzero(checked[0] >= 0.5)]
        return printable(", ".join(names)) or "none of the labels"
    return ", ".join(f"{value:.4g}" for value in np.ravel(task.to_targets(checked)))
