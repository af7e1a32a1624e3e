"""The part of a report that depends on the task: scores, plots, notes; all share the page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from keras_vit import data
from keras_vit._base.errors import counted
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation.markdown import inline
from keras_vit.evaluation.outcomes import Outcomes
from keras_vit.evaluation.report import Report
from keras_vit.evaluation.shown_images import images_at
from keras_vit_cli.report.contact_sheet import draw_contact_sheet, file_text
from keras_vit_cli.report.overlays import draw_worst
from keras_vit_cli.report.task_plots import PLOTS

THUMBNAIL = 480  # pixels: twice the width of a mistake's image in its plot
MOST_MISTAKES, SHOWN_MISTAKES = 24, 12  # in `report.json`, and in the plot
MOST_OVERLAYS = 6


@dataclass(frozen=True)
class Results:
    """A report with its plots, its notes and its record.

    Attributes:
        notes: Cautions for the reader in Markdown, a sentence or two each.
        plots: File names and the functions that draw their figures; `mistakes.png`, or of pixels
            `overlays.png`, shows the images of the worst mistakes.
    """

    report: Report
    notes: tuple[str, ...]
    plots: Mapping[str, Callable[[], Any]]
    record: Mapping[str, Any]


def results_of(
    report: Report,
    outcomes: Outcomes,
    split: data.Split | None = None,
    model: Any = None,
    windows: str | int | None = None,
) -> Results:
    """Build the report's plots, notes and record, with the worst mistakes.

    Args:
        split: The images in the same order, to show the worst mistakes; None: show no images.
        model: What answered, for what is not kept of an answer: of pixels, the maps of the worst
            images.
        windows: How it saw images of pixels, as for `predict_outcomes`.
    """
    files = None if split is None or split.skips else split.files
    mistakes: list[dict[str, Any]] = []
    for i in outcomes.worst(MOST_MISTAKES):
        answer, truth = outcomes.task.texts(outcomes.tally, i)
        file = None if files is None else str(files[i])
        mistakes.append({"index": i, "file": file, "answer": answer, "truth": truth})
    plots: dict[str, Callable[[], Any]] = {
        file: partial(draw, report, outcomes) for file, draw in PLOTS.get(report.task.kind, ())
    }
    has_maps = report.task.per_pixel and model is not None
    if mistakes and has_maps and isinstance(split, IndexedSplit):
        shown = mistakes[:MOST_OVERLAYS]
        worst = [{**row, "file": file_text(row["index"], row["file"])} for row in shown]
        plots["overlays.png"] = lambda: draw_worst(model, split, worst, THUMBNAIL, windows)
    elif split is not None:
        plots["mistakes.png"] = lambda: _draw_mistakes(mistakes[:SHOWN_MISTAKES], split)
    record = {"report": report.to_dict(), "mistakes": mistakes}
    notes = (*map(str, report.promises), *map(inline, report.notes), *_of_names(report, mistakes))
    return Results(report, notes, plots, record)


def _draw_mistakes(mistakes: list[dict[str, Any]], split: data.Split) -> Any:
    images = images_at(split, [row["index"] for row in mistakes], largest=THUMBNAIL)
    lines = [
        (row["answer"], row["truth"], file_text(row["index"], row["file"])) for row in mistakes
    ]
    return draw_contact_sheet("The answers farthest from the truth", images, lines)


def _of_names(report: Report, mistakes: list[dict[str, Any]]) -> list[str]:
    """Return notes on the weakest class and calibration, if each image has one class."""
    calibration, noun = report.calibration, report.task.nouns[0]
    if report.pairs is None or calibration is None:
        return []
    images, recall = report.names["images"], report.names["recall"]
    weakest = int(np.where(images > 0, recall, 2).argmin())
    lines = [
        f"The weakest {noun} is {inline(report.task.shown_names[weakest])}: "
        f"{recall[weakest]:.1%} of its {counted(int(images[weakest]), 'image')} "
        f"{'is' if images[weakest] == 1 else 'are'} classified correctly.",
        f"Its probabilities are off by {calibration.error:.1%} on average (expected calibration "
        f"error in {len(calibration.counts)} bins), mostly too "
        f"{'high' if calibration.overconfidence > 0 else 'low'}.",
    ]
    if mistakes:
        answer, truth = (inline(mistakes[0][key]) for key in ("answer", "truth"))
        lines.append(f"Its most confident mistake is {answer} for an image of {truth}.")
    return lines
