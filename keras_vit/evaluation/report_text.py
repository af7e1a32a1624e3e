"""A `Report` in words: its tables for a terminal and for Markdown, and what to be careful about."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from keras_vit._base.errors import counted, listed, printable
from keras_vit.evaluation.markdown import table
from keras_vit.tasks import Task
from keras_vit.tasks.answer import Columns
from keras_vit.tasks.balance import differs_much, imbalance
from keras_vit.tasks.conformal import calibration_text
from keras_vit.tasks.scores import Score, wilson_interval

HEADING = ("score", "value", "95 % interval", "best constant")
Row = tuple[str, ...]

# Tables of more names have those with the lowest scores: nobody reads a thousand rows.
MOST_ROWS = 100
SHOWN_ROWS = 40
SHOWN_CONFUSIONS = 20


class Numbers(Protocol):
    """What the words are made from: see `keras_vit.evaluation.Report`, which has them."""

    @property
    def task(self) -> Task: ...
    @property
    def examples(self) -> int: ...
    @property
    def scores(self) -> Mapping[str, Score]: ...
    @property
    def constant(self) -> Mapping[str, Score]: ...
    @property
    def constant_of(self) -> str: ...
    @property
    def names(self) -> Columns: ...
    @property
    def facts(self) -> Mapping[str, float]: ...
    @property
    def pairs(self) -> np.ndarray | None: ...
    @property
    def confusions(self) -> np.ndarray: ...


def text(report: Numbers) -> str:
    """Return the tables of scores and names, and the notes, for a terminal."""
    image = "validation image" if report.constant_of == "training" else "image"  # of a run
    lines = [f"{report.task.kind} on {counted(report.examples, image)}"]
    scores = score_rows(report.scores, report.constant)
    for rows in ([HEADING, *scores], name_rows(report)):
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *others in rows:
            cells = [f"{c:>{w}}" for c, w in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([f"{printable(first):{widths[0]}}", *cells]).rstrip())
        lines += [""] if rows else []
    if title := _selection(report):
        lines.append(f"Shown: {title}.")
    lines.append(f"best constant: {constant_text(report.constant_of)}")
    return "\n".join([*lines, *(f"note: {printable(note)}" for note in notes(report))])


def markdown(report: Numbers) -> str:
    """Return the table of names, and of very many the most frequent confusions."""
    rows = name_rows(report)
    if not rows:
        return ""
    parts = [table(rows[0], rows[1:], "l" + "r" * (len(rows[0]) - 1))]
    if title := _selection(report):
        parts.insert(0, f"Shown: {title}; `report.json` has all.")
        parts.append(_confusions(report))
    return "\n\n".join(filter(None, parts))


def score_rows(scores: Mapping[str, Score], constant: Mapping[str, Score]) -> list[Row]:
    """Return rows of score, value, interval, and the value of the best constant."""
    return [
        (
            name,
            _shown(score.value),
            f"{_shown(score.low)} to {_shown(score.high)}" if np.isfinite(score.low) else "unknown",
            _shown(constant[name].value),
        )
        for name, score in scores.items()
    ]


def constant_text(of: str) -> str:
    """Say what the column of the best constants has."""
    return (
        "by each score, the single answer for all images that is best by the labels of the "
        f"{of} images"
    )


def name_rows(report: Numbers) -> list[Row]:
    """Return a heading and a row per name, of very many names those with the lowest scores."""
    if not report.names:
        return []
    names = report.task.shown_names
    columns = [_cells(column, name) for name, column in report.names.items()]
    rows = [(names[i], *(column[i] for column in columns)) for i in _shown_names(report)]
    return [(report.task.nouns[0], *report.names), *rows]


def _shown_names(report: Numbers) -> Sequence[int]:
    """Return the places of the names that tables have."""
    if report.task.size <= MOST_ROWS:
        return range(report.task.size)
    score = report.names[_lowest(report)]
    order = np.argsort(score, kind="stable")
    tested = order[report.names["images"][order] > 0]
    return tested[:SHOWN_ROWS].tolist()


def _lowest(report: Numbers) -> str:
    main = [name for name in ("F1", "IoU") if name in report.names]
    return main[0] if main else list(report.names)[1]


def _selection(report: Numbers) -> str:
    """Say which names a table has, where it does not have all; else nothing."""
    if not report.names or report.task.size <= MOST_ROWS:
        return ""
    shown = len(_shown_names(report))
    return f"the {shown} with the lowest {_lowest(report)} of {report.task.size:,}"


def _cells(column: np.ndarray, name: str) -> list[str]:
    if column.dtype.kind in "iu":
        return [str(value) for value in column.tolist()]
    is_share = name != "margin" and np.nanmax(np.abs(column), initial=0) <= 1
    digits = ".3f" if is_share else ".4g"
    return [f"{value:{digits}}" for value in column.tolist()]


def _confusions(report: Numbers) -> str:
    rows = report.confusions[:SHOWN_CONFUSIONS]
    if not len(rows):
        return ""
    names = report.task.shown_names
    cells = [(names[label], names[other], count) for label, other, count in rows.tolist()]
    title = f"The most frequent confusions, {len(rows)} of {len(report.confusions):,}:"
    return f"{title}\n\n{table(('label', 'predicted', 'images'), cells, 'llr')}"


def _shown(value: float) -> str:
    """Return four digits; a dash for what is not defined, 0 for what rounding has left of it."""
    if not np.isfinite(value):
        return "-"
    return f"{value if abs(value) > 1e-12 else 0:.4g}"


# Notes


def notes(report: Numbers) -> tuple[str, ...]:
    """Return sentences on what the scores do not say; none where there is nothing to say."""
    of_names = [] if report.pairs is None else [*_of_untested(report), *_of_majority(report)]
    others = (_of_unknown, _of_unlabeled, _of_thresholds, _of_intervals)
    return (*of_names, *(note for about in others for note in about(report)))


def _of_unknown(report: Numbers) -> Iterator[str]:
    scores = report.scores.items()
    unknown = [name for name, s in scores if np.isfinite(s.value) and not np.isfinite(s.low)]
    if unknown:
        yield (
            f"The intervals of {listed(unknown)} are unknown: of so few images, or of so few "
            "mistakes, resamples are alike."
        )


def _of_unlabeled(report: Numbers) -> Iterator[str]:
    """Yield which classes of pixels the labels do not have, and what that does to the mean."""
    if not report.task.per_pixel or "images" not in report.names:
        return
    names = report.task.shown_names
    absent = [names[i] for i in np.flatnonzero(report.names["images"] == 0)]
    if absent:
        yield (
            f"Not one pixel is labeled as {listed(absent)}: where it is predicted, its IoU is 0 "
            "and counts in the mean; where it is not, the mean is of the other classes."
        )


def _of_untested(report: Numbers) -> Iterator[str]:
    images, names = report.names["images"], report.task.shown_names
    untested = [names[i] for i in np.flatnonzero(images == 0)]
    if untested:
        yield (
            f"Not tested, as there are no images: {listed(untested)} "
            f"({counted(len(untested), *report.task.nouns)} of {report.task.size:,})."
        )


def _of_majority(report: Numbers) -> Iterator[str]:
    """Yield a note if always predicting one name may be as good, within the interval."""
    images, names = report.names["images"], report.task.shown_names
    share, accuracy = images.max() / images.sum(), report.scores["accuracy"].value
    if differs_much(images):
        times = imbalance(images.tolist())
        yield (
            f"The largest {report.task.nouns[0]} has {times:,.0f} times as many images as the "
            "smallest: the accuracy is mostly that of the largest."
        )
    low, high = wilson_interval(accuracy, images.sum())
    if share < low:
        return
    tested = np.flatnonzero(images)
    smallest = tested[images[tested].argmin()]
    reason = ""
    if len(tested) == 1:
        reason = f"; there are no images of any other {report.task.nouns[0]}"
    elif images[smallest] < images.max():
        few = counted(int(images[smallest]), "image")
        reason = f"; the smallest {report.task.nouns[0]}, {names[smallest]}, has {few}"
    recall = report.names["recall"][tested].mean()
    yield (
        f"An accuracy of {accuracy:.1%} on {counted(int(images.sum()), 'image')} says nothing of "
        f"the {report.task.nouns[1]}: always predicting {names[images.argmax()]} would reach "
        f"{share:.1%}, which is not below its 95 % confidence interval ({low:.1%} to {high:.1%})"
        f"{reason}. The balanced accuracy, the mean recall of the {report.task.nouns[1]}, is "
        f"{recall:.1%}."
    )


def _of_thresholds(report: Numbers) -> Iterator[str]:
    """Yield how the chosen thresholds compare with 0.5, and how many images they were chosen by."""
    if "threshold" not in report.names:
        return
    columns, tested = report.names, report.names["images"] > 0
    if (columns["threshold"] != 0.5).any():
        at, half = (
            f"macro F1 {columns[title][tested].mean():.3f} and exactly the labels of "
            f"{report.facts[exact]:.1%} of images"
            for title, exact in (("F1", "exact"), ("F1 at 0.5", "exact_at_half"))
        )
        yield f"At its thresholds it reaches {at}; at 0.5 for every label, {half}."
    if "chosen by" in columns:
        yield (
            "Chosen by: how many of the images that set the thresholds have the label. The fewer, "
            "the nearer a threshold is to 0.5."
        )


def _of_intervals(report: Numbers) -> Iterator[str]:
    if "margin" not in report.names:
        return
    coverage, count = report.task.coverage, report.task.calibrated_on  # type: ignore[attr-defined]
    yield (
        f"An answer plus and minus its margin is to hold {coverage:.4g} of new numbers; `inside` "
        "is the part that it holds of these, and low and high are the 95 % interval of that part."
    )
    if count:
        yield calibration_text(count, coverage)
