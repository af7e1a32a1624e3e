"""Plots of answers by their task: confusion, calibration, precision and recall, numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.figures import new_figure
from keras_vit.evaluation.outcomes import Outcomes
from keras_vit.evaluation.report import Report
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression, Segmentation
from keras_vit_cli.report.contact_sheet import SOFT
from keras_vit_cli.report.run_plots import draw_calibration, draw_confusion

MOST_LABELS = 12  # of a plot, those with most images first
MOST_BARS = 40
MOST_NUMBERS = 6  # of a plot, the first ones


def draw_precision_recall(report: Report, outcomes: Outcomes) -> Any:
    """Draw precision over recall, a line per label with a dot at its threshold."""
    figure = new_figure(6.4, 5.2)
    axes = figure.subplots()
    present, answers = outcomes.tally["targets"] >= 0.5, outcomes.tally["answers"]
    task, thresholds = report.task, report.names["threshold"].astype(np.float32)
    lines = {}  # with their names: matplotlib leaves out those that begin with an underscore
    for i in np.argsort(-present.sum(0), kind="stable")[:MOST_LABELS]:
        order = np.argsort(-answers[:, i], kind="stable")
        true = np.cumsum(present[order, i])
        if not true[-1]:
            continue
        precision, recall = true / np.arange(1, len(true) + 1), true / true[-1]
        (line,) = axes.step(recall, precision, where="post", lw=1.5)
        lines[line] = printable(task.shown_names[i])[:24]
        at = int((answers[:, i] >= thresholds[i]).sum()) - 1
        if at >= 0:
            axes.plot(recall[at], precision[at], "o", c=line.get_color())
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.02))
    title = "precision and recall per label; dots: thresholds"
    if task.size > MOST_LABELS:
        title += f"\n{MOST_LABELS} of {task.size:,} labels: those of most images"
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if lines:
        axes.legend([*lines], [*lines.values()], fontsize=8, frameon=False, loc="lower left")
    return _without_math(figure)


def draw_numbers(report: Report, outcomes: Outcomes) -> Any:
    """Draw predicted against true numbers as a matplotlib Figure, and below them the residuals."""
    task, true, answers = report.task, outcomes.tally["targets"], outcomes.tally["answers"]
    units = getattr(task, "units", ())
    shown = min(task.size, MOST_NUMBERS)
    figure = new_figure(max(3.4 * shown, 4.6), 6)
    panels = figure.subplots(2, shown, squeeze=False, height_ratios=(3, 1.4))
    for i in range(shown):
        unit = f" ({printable(units[i])})" if units[i] else ""
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
    return _without_math(figure)


def draw_names(report: Report, outcomes: Outcomes) -> Any:
    """Draw the first score of each name as bars, the lowest first."""
    title, values = next(iter(report.names.items()))
    order = [i for i in np.argsort(values, kind="stable") if report.names["images"][i]][:MOST_BARS]
    figure = new_figure(6.4, 1 + 0.28 * len(order))
    axes = figure.subplots()
    names = [printable(report.task.shown_names[i])[:32] for i in order]
    axes.barh(range(len(order)), values[order])
    axes.set_yticks(range(len(order)), names)
    axes.invert_yaxis()
    axes.set(xlabel=title, xlim=(0, 1))
    noun = report.task.nouns[1]
    shown = "" if len(order) == report.task.size else f", the {len(order)} lowest"
    axes.set_title(f"{title} of the {noun}{shown}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return _without_math(figure)


def _without_math(figure: Any) -> Any:
    """Return a Figure that shows dollars of names as they are, not as formulas between two."""
    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
        text.set_parse_math(False)
    return figure


# By the kind of task, where there are any: the files, and what draws them of a report and its
# outcomes.
PLOTS: dict[str, tuple[tuple[str, Callable[[Report, Outcomes], Any]], ...]] = {
    Classification.kind: (
        ("confusion.png", lambda report, _: draw_confusion(report)),
        ("calibration.png", lambda report, _: draw_calibration(report)),
    ),
    Multilabel.kind: (("precision_recall.png", draw_precision_recall),),
    Regression.kind: (("numbers.png", draw_numbers),),
    Segmentation.kind: (("iou.png", draw_names),),
    Ordinal.kind: (("confusion.png", lambda report, _: draw_confusion(report)),),
}
