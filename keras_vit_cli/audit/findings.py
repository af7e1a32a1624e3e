"""What an audit finds: groups of photographs under a problem each, for the page and the table."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from keras_vit.curation import (
    Duplicates,
    FeatureIndex,
    LabelErrors,
    PhotoMeasures,
    find_duplicates,
    find_label_errors,
    find_outliers,
    measure_photos,
    outlier_distances,
)
from keras_vit.data.sources import table_labels
from keras_vit.data.sources.label_table import read_file_rows
from keras_vit_cli.search.result_table import label_of

COLUMNS = (
    "file",
    "problem",
    "score",
    "label",
    "split",
    "suggestion",
    "other",
    "other_label",
    "other_split",
)
TableRow = tuple[str | float, ...]


@dataclass(frozen=True)
class Finding:
    """Photographs that one look decides on: one, or those that show the same.

    Attributes:
        suggestion: The class that is more probable than the label; "" where there is none.
    """

    rows: tuple[int, ...]
    facts: tuple[str, ...]
    suggestion: str = ""


@dataclass(frozen=True)
class Problem:
    """Findings of one kind, the worst first, with the rows of the table."""

    name: str
    title: str
    note: str
    findings: list[Finding]
    table: list[TableRow] = field(default_factory=list)


@dataclass(frozen=True)
class Audit:
    """All that an audit found.

    Attributes:
        skipped: Why wrong labels were not looked for; "" where they were.
        unreadable: The reason for each file that cannot be decoded, now or in the index.
    """

    problems: list[Problem]
    skipped: str
    unreadable: dict[str, str]

    def table(self) -> Iterator[TableRow]:
        """Yield the rows of `audit.csv`."""
        for problem in self.problems:
            yield from problem.table
        for file, reason in sorted(self.unreadable.items()):
            yield (file, f"unreadable: {reason}", "", "", "", "", "", "", "")


def audit_photos(
    index: FeatureIndex,
    seed: int,
    report: Callable[[int], None] = lambda count: None,
    *,
    keep: bool = False,
) -> Audit:
    """Looks for everything that the page shows; `report` and `keep` are of `measure_photos`."""
    measures = measure_photos(index, report, keep=keep)
    duplicates = find_duplicates(index, measures)
    are_classes = has_classes(index)
    problems, skipped = [], _unlabeled(index, are_classes)
    if not skipped:
        errors = find_label_errors(index, index.labels, duplicates.groups, seed=seed)
        problems.append(_wrong_labels(index, errors))
    problems += _repeated(index, duplicates, are_classes)
    problems += _single(index, measures, duplicates.groups)
    unreadable = {**index.unreadable, **{index.files[r]: t for r, t in measures.failed.items()}}
    return Audit([p for p in problems if p.findings], skipped, unreadable)


def has_classes(index: FeatureIndex) -> bool:
    """Return whether the label of an image is its class, and not a number or several labels."""
    if index.info.get("is_folder", True):  # its folders are the classes
        return True
    labels, column = index.labels[index.labels >= 0], "label"
    with suppress(OSError, ValueError):  # it is gone, or a list without columns
        column = read_file_rows(index.photos / Path(index.info.get("table") or "").name).label
    return table_labels.are_classes([index.class_names[n] for n in labels.tolist()], column)


def _unlabeled(index: FeatureIndex, are_classes: bool) -> str:
    labels = index.labels[index.labels >= 0]
    counts = np.bincount(labels)
    if not are_classes:
        return "Wrong labels were not looked for: these are numbers, or several labels per image."
    if (counts > 1).sum() >= 2:
        return ""
    return "Wrong labels were not looked for: that takes two classes with two labeled images each."


def _wrong_labels(index: FeatureIndex, errors: LabelErrors) -> Problem:
    findings, table = [], []
    for row in errors.suspects.tolist():
        label, suggestion = label_of(index, row), index.class_names[errors.suggested[row]]
        parts = errors.probabilities[row]
        facts = (
            f"labeled {label} ({parts[index.labels[row]]:.0%}), rather {suggestion} "
            f"({parts[errors.suggested[row]]:.0%}){_split(index, row)}"
        )
        findings.append(Finding((row,), (facts,), suggestion))
        score = round(float(errors.quality[row]), 6)
        table.append(_table_row(index, row, "wrong label", score, suggestion))
    note = (
        "Another class is more probable to probes and nearest neighbors that have not seen the "
        "label. The least probable labels come first; confident learning calls "
        f"{int(errors.confident.sum()):,} of them wrong."
    )
    return Problem("wrong label", "Labels that may be wrong", note, findings, table)


def _repeated(index: FeatureIndex, duplicates: Duplicates, are_classes: bool) -> list[Problem]:
    """Groups of the same image, each under the worst that it has."""
    pairs = duplicates.pairs
    table: dict[str, list[TableRow]] = {}
    worst: dict[int, str] = {}
    two_labels = duplicates.with_two_labels(index.labels)
    if not are_classes:  # alike images may have two numbers, and copies may not
        two_labels &= duplicates.is_copy
    two_splits = duplicates.across_splits(index.splits)
    for i, (one, other) in enumerate(pairs.tolist()):
        kind = "two labels" if two_labels[i] else "two splits" if two_splits[i] else "duplicate"
        group = int(duplicates.groups[one])
        worst[group] = min(worst.get(group, kind), kind, key=list(_REPEATED).index)
        what = "copy" if duplicates.is_copy[i] else "near duplicate"
        score = round(float(duplicates.similarities[i]), 6)
        end = (index.files[other], label_of(index, other), index.splits[other] or "")
        row = (*_table_row(index, one, what, score)[:-3], *end)
        table.setdefault(kind, []).append(row)
    groups = {int(duplicates.groups[rows[0]]): rows for rows in duplicates.members()}
    copied = {*pairs[duplicates.is_copy].ravel().tolist()}
    problems = []
    for kind, (title, note) in _REPEATED.items():
        findings = []
        for group, rows in groups.items():
            if worst[group] == kind:
                facts = tuple(
                    f"{'the same bytes' if row in copied else 'nearly the same'}"
                    f"{_place(index, row)}"
                    for row in rows.tolist()
                )
                findings.append(Finding(tuple(rows.tolist()), facts))
        problems.append(Problem(kind, title, note, findings, table.get(kind, [])))
    return problems


_REPEATED = {
    "two labels": (
        "The same image with two labels",
        "One of the labels is wrong, or both fit.",
    ),
    "two splits": (
        "The same image in two splits",
        "What a model was trained on does not show how good it is: keep one side.",
    ),
    "duplicate": (
        "The same image twice",
        "The same bytes; saved again, resized, cropped or mirrored; or two of one scene.",
    ),
}


def _single(index: FeatureIndex, measures: PhotoMeasures, groups: np.ndarray) -> list[Problem]:
    """Return images that look odd; those of one group, such as blank pages, are one finding."""
    distances = outlier_distances(index)
    height, width = measures.height, measures.width
    looks: list[tuple[str, str, str, np.ndarray, Callable[[int], tuple[float, str]]]] = [
        (
            "outlier",
            "Unlike all others",
            "Far from their nearest neighbors: perhaps not of this folder.",
            find_outliers(distances),
            lambda r: (float(distances[r]), f"distance {distances[r]:.2f}"),
        ),
        (
            "dark",
            "Dark",
            "95 % of the pixels are darker than the gray level given, of 255.",
            measures.dark(),
            lambda r: (float(measures.brightness[r]), f"gray level {measures.brightness[r]:.0f}"),
        ),
        (
            "blurred",
            "Blurred",
            "The variance of the Laplacian is small: out of focus, moved, or without any detail.",
            measures.blurred(),
            lambda r: (float(measures.sharpness[r]), f"variance {measures.sharpness[r]:.0f}"),
        ),
        (
            "tiny",
            "Tiny",
            "Enlarged many times before a model sees them.",
            measures.tiny(),
            lambda r: (float(min(height[r], width[r])), f"{width[r]} x {height[r]} pixels"),
        ),
    ]
    problems = []
    for name, title, note, rows, measure in looks:
        together: dict[int, list[tuple[int, str]]] = {}
        table = []
        for row in rows.tolist():
            score, text = measure(row)
            alike = together.setdefault(int(groups[row]), [])
            alike.append((row, f"{text}{_place(index, row)}"))
            table.append(_table_row(index, row, name, round(score, 6)))
        findings = [
            Finding(tuple(row for row, _ in each), tuple(text for _, text in each))
            for each in together.values()
        ]
        problems.append(Problem(name, title, note, findings, table))
    return problems


def _table_row(
    index: FeatureIndex, row: int, problem: str, score: float, suggestion: str = ""
) -> TableRow:
    label, split = label_of(index, row), index.splits[row] or ""
    return (index.files[row], problem, score, label, split, suggestion, "", "", "")


def _place(index: FeatureIndex, row: int) -> str:
    """Return the label and the split of a row, as the end of a line."""
    label = label_of(index, row)
    return f"{f', labeled {label}' if label else ''}{_split(index, row)}"


def _split(index: FeatureIndex, row: int) -> str:
    return f", in {index.splits[row]}" if index.splits[row] else ""
