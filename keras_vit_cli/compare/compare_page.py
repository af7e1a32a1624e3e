"""The page of a comparison: scores, names, training, curves, and the images on which models differ.

compared answers ─┐
runs' records ────┴──► report.md ──► report.html, report.json, curves.png, differ_B.png
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from keras_vit._base.figures import new_figure
from keras_vit.evaluation.markdown import inline, table
from keras_vit.evaluation.shown_images import images_at
from keras_vit_cli.compare.compared import LETTERS, MOST_SHOWN, Compared
from keras_vit_cli.report.contact_sheet import draw_contact_sheet, file_text
from keras_vit_cli.report.description import as_text, short_path
from keras_vit_cli.report.results import THUMBNAIL
from keras_vit_cli.report.run_files import write_files

SHOWN = 12  # images of a contact sheet; the page and the record list twice as many
MOST_NAMES = 200  # rows of the table of names
# What is not a setting, or is one of the folder.
NOT_TRAINING = ("out", "overwrite", "resume", "data", "labels", "source", "hardware")


def write_comparison(folder: Path, compared: Compared) -> None:
    """Write `report.html`, `report.md` and `report.json`, and the plots that they show.

    Raises:
        OSError: A file cannot be written.
    """
    records, letters = list(map(_record, compared.models)), compared.letters
    plots: dict[str, Callable[[], Any]] = {}
    curves = {a: record.get("history", {}) for a, record in zip(letters, records, strict=True)}
    if any(curves.values()):
        plots["curves.png"] = partial(_draw_curves, curves)
    rows = {letter: _differing(compared, i) for i, letter in enumerate(letters) if i}
    for letter, differing in rows.items():
        if differing:
            name = f"differ_{letter}.png"
            plots[name] = partial(_draw_differing, compared, letter, differing[:SHOWN])
    page = _page(compared, records, rows, tuple(plots))
    write_files(folder, page, _content(compared, rows), plots)


def _page(
    compared: Compared,
    records: Sequence[Mapping[str, Any]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    plots: Sequence[str],
) -> str:
    letters, models = compared.letters, list(map(short_path, compared.models))
    notes = [*map(inline, compared.verdicts), *map(inline, compared.images.line.split("\n"))]
    parts = [
        f"# {inline(' and '.join(models))}",
        "\n".join(f"- {note}" for note in notes),
        table(("", "model"), list(zip(letters, models, strict=True))),
        "## Scores",
        _scores(compared),
        "An interval in brackets is of one model. Those of differences are paired: each resample "
        "of the images scores both models.",
    ]
    parts += _sections(f"## Per {compared.task.nouns[0]}", _names(compared))
    parts += _sections("## What was set otherwise in training", _settings(records, letters))
    if "curves.png" in plots:
        parts += ["## Training", "![curves](curves.png)"]
    for i, letter in enumerate(letters[1:], 1):
        parts += [f"## Images on which A and {letter} differ", inline(compared.right_alone(i))]
        if f"differ_{letter}.png" in plots:
            parts.append(f"![differ {letter}](differ_{letter}.png)")
        header = ("image", "truth", "A", letter)
        cells = [(row["file"], row["truth"], row["A"], row[letter]) for row in rows[letter]]
        parts += [table(header, cells)] if cells else []
    return "\n\n".join(parts) + "\n"


def _sections(heading: str, body: str) -> list[str]:
    return [heading, body] if body else []


def _scores(compared: Compared) -> str:
    letters = compared.letters
    header = ["score", *letters, *(f"{letter} - A" for letter in letters[1:])]
    rows = []
    for name, scores in compared.scores.items():
        each = [f"{s.value:.4g} [{s.interval('.3g', ', ')}]" for s in scores]
        changes = [change[name] for change in compared.changes]
        rows.append((name, *each, *(f"{c.value:+.3g}: {c.interval('+.3g')}" for c in changes)))
    return table(header, rows, "l" + "r" * (len(header) - 1))


def _names(compared: Compared) -> str:
    """Return a table of each name's score, those first whose score differs most; "" without."""
    tables = [one.task.name_scores(one.tally) for one in compared.outcomes]
    known = [name for name in ("F1", "IoU", "inside") if all(name in t for t in tables)]
    if not known:
        return ""
    values = [table_[known[0]] for table_ in tables]
    images = tables[0]["images"]
    gaps = [max(abs(one[i] - values[0][i]) for one in values[1:]) for i in range(len(images))]
    order = sorted(range(len(gaps)), key=lambda i: (gaps[i] != gaps[i], -gaps[i]))[:MOST_NAMES]
    of_models = (f"{known[0]} of {letter}" for letter in compared.letters)
    header = (compared.task.nouns[0], *of_models, "images")
    rows = [
        (compared.task.shown_names[i], *(f"{one[i]:.4g}" for one in values), f"{images[i]:,}")
        for i in order
    ]
    return table(header, rows, "l" + "r" * (len(header) - 1))


def _settings(records: Sequence[Mapping[str, Any]], letters: str) -> str:
    """Return a table of the options and settings of the recipe in which runs differ."""
    if not all(records):
        return ""
    sets = [{**_flat(record.get("job")), **_flat(record.get("recipe"))} for record in records]
    names = list(dict.fromkeys(name for one in sets for name in one if name not in NOT_TRAINING))
    rows = [
        (name.replace("_", " "), *(short_path(as_text(one.get(name, ""))) for one in sets))
        for name in names
        if len({json.dumps(one.get(name), sort_keys=True) for one in sets}) > 1
    ]
    return table(("", *letters), rows) if rows else "Nothing but, it may be, the images."


def _flat(values: Any) -> dict[str, Any]:
    """Return settings by name, those of an augmentation beside the others."""
    flat: dict[str, Any] = {}
    for name, value in values.items() if isinstance(values, Mapping) else ():
        flat |= _flat(value) if isinstance(value, Mapping) else {str(name): value}
    return flat


def _differing(compared: Compared, which: int) -> list[dict[str, Any]]:
    """Return the images that two models answer most differently, with both answers."""
    split = compared.images.split
    files = None if split.skips else split.files
    first, other, rows = compared.outcomes[0], compared.outcomes[which], []
    for place in compared.differing(which)[:MOST_SHOWN].tolist():
        (before, truth), (after, _) = (one.task.texts(one.tally, place) for one in (first, other))
        file = file_text(place, None if files is None else str(files[place]))
        row = {"index": place, "file": file, "truth": truth, "A": before, LETTERS[which]: after}
        rows.append(row)
    return rows


def _draw_differing(compared: Compared, letter: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    shown = images_at(compared.images.split, [row["index"] for row in rows], largest=THUMBNAIL)
    lines = [(f"A: {row['A']}, {letter}: {row[letter]}", row["truth"], row["file"]) for row in rows]
    return draw_contact_sheet(f"Where A and {letter} differ most", shown, lines)


def _draw_curves(histories: Mapping[str, Mapping[str, Sequence[float]]]) -> Any:
    """Return the validation loss and score of every run against the epochs, a Figure."""
    names = [name for one in histories.values() for name in one if name.startswith("val_")]
    names = list(dict.fromkeys(names))[:2] or ["loss"]
    figure = new_figure(8.7, 3.9)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for color, (letter, history) in enumerate(histories.items()):
            values = history.get(name, ())
            if values:
                epochs = range(1, len(values) + 1)
                axes.plot(epochs, values, f"C{color}", label=letter, marker="o", ms=3)
        axes.set_title(name.replace("val_", "validation ").replace("_", " "), loc="left")
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _record(path: str) -> dict[str, Any]:
    """Return what a run noted: `job`, `recipe` and `history`; empty of any other model."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    with suppress(OSError, ValueError, TypeError, AttributeError):
        config = json.loads((folder / "config.json").read_text("utf-8"))
        report = json.loads((folder / "report.json").read_text("utf-8"))
        history = {
            str(name): [float(value) for value in values]
            for name, values in report.get("history", {}).items()
        }
        return {"job": config.get("job"), "recipe": config.get("recipe"), "history": history}
    return {}


def _content(compared: Compared, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return what `report.json` has: null where a score is not defined."""
    letters = compared.letters
    return {
        "models": dict(zip(letters, compared.models, strict=True)),
        "images": len(compared.images.split),
        "scored": compared.images.line,
        "scores": {
            name: {a: score.to_list() for a, score in zip(letters, scores, strict=True)}
            for name, scores in compared.scores.items()
        },
        "changes": {
            letter: {name: change.to_list() for name, change in changes.items()}
            for letter, changes in zip(letters[1:], compared.changes, strict=True)
        },
        "verdicts": compared.verdicts,
        "differing": rows,
    }
