"""The report of a training run: `report.json`, the model card `report.md`, and plots."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keras_vit import data
from keras_vit._base.files import write_bytes, write_text
from keras_vit.evaluation.calibration import calibration_of
from keras_vit.evaluation.mistakes import images_at, mistakes_of
from keras_vit.evaluation.outcomes import Outcomes
from keras_vit.evaluation.report import ClassificationReport
from keras_vit_cli.report.model_card import model_card
from keras_vit_cli.report.run_plots import (
    plot_calibration,
    plot_confusion,
    plot_curves,
    plot_mistakes,
)

THUMBNAIL = 480  # pixels: twice the width of a mistake's image in its plot


def write_report(
    folder: str | Path,
    report: ClassificationReport,
    facts: Mapping[str, Any],
    *,
    labels: Any = None,
    logits: Any = None,
    outcomes: Outcomes | None = None,
    split: data.Split | None = None,
    history: Mapping[str, Sequence[float]] | None = None,
    config: Mapping[str, Any] | None = None,
    name: str | None = None,
    run: str | Path | None = None,
) -> None:
    """Writes `report.json`, `report.md` and their plots into a folder, each file atomically.

    The plots: `confusion.png`, `calibration.png`, `curves.png` with a `history`, and
    `mistakes.png`, the images of the most confident mistakes, with a `split` to read them from.

    Args:
        folder: Where to write; created if missing.
        report: Scores of the predictions.
        facts: Further results of the run, as JSON accepts them; they go to `report.json` as they
            are, and the keys that `model_card` knows to the card.
        labels: Integer classes `(examples,)`.
        logits: `(examples, classes)`, as the model returns them.
        outcomes: What `predict_outcomes` returned, in place of `labels` and `logits`: of many
            images and classes, logits take gigabytes.
        split: The examples in the order of `labels`.
        history: `History.history` of `fit`.
        config: What made the model, for the card: `command`, `job`, `recipe`, `versions`.
        name: Name of the model; by default that of the run's folder.
        run: The final folder of the run, to which the card's commands refer; by default `folder`.

    Raises:
        ValueError: Shapes do not match, or a score or a value of the history is NaN or infinite.
        OSError: A file cannot be written; the error names it.

    Example:

    >>> import numpy as np, tempfile
    >>> from pathlib import Path
    >>> from keras_vit.evaluation import classification_report
    >>> from keras_vit_cli.report.run_files import write_report
    >>> labels, logits = np.array([0, 1, 1]), np.eye(2)[[0, 1, 0]]
    >>> folder = Path(tempfile.mkdtemp())
    >>> scores = classification_report(labels, logits, ["cat", "dog"])
    >>> write_report(folder, scores, {"seconds": 1.0}, labels=labels, logits=logits)
    >>> sorted(path.name for path in folder.iterdir())
    ['calibration.png', 'confusion.png', 'report.json', 'report.md']
    """
    folder, run = Path(folder), Path(folder if run is None else run)
    history = dict(history or {})
    check_history(history)
    if outcomes is None:
        outcomes = Outcomes.of_logits(labels, logits)
    calibrated = calibration_of(outcomes)
    files = None if split is None or split.skips else split.files
    mistakes = mistakes_of(outcomes, files=files)
    folder.mkdir(parents=True, exist_ok=True)

    plots = ["confusion.png", "calibration.png"]
    plot_confusion(report, folder / "confusion.png")
    plot_calibration(calibrated, folder / "calibration.png")
    if history:
        plot_curves(history, folder / "curves.png")
        plots.insert(0, "curves.png")
    if split is not None:
        names = [scores.name for scores in report.classes]
        places = [mistake.index for mistake in mistakes]
        images = images_at(split, places, largest=THUMBNAIL)
        plot_mistakes(mistakes, images, names, folder / "mistakes.png")
        plots.append("mistakes.png")

    record = {
        "accuracy": report.accuracy,
        **facts,
        "report": report.to_dict(),
        "calibration": calibrated.to_dict(),
        "mistakes": [asdict(mistake) for mistake in mistakes],
        "history": history,
    }
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    # A file name may hold bytes that are not UTF-8: JSON's escapes preserve them.
    write_bytes(folder / "report.json", text.encode("utf-8", "backslashreplace"))
    title = name or run.resolve().name
    card = model_card(title, report, facts, config, calibrated, mistakes, tuple(plots), run)
    write_text(folder / "report.md", card)


def check_history(history: Mapping[str, Sequence[float]]) -> None:
    """Raises a ValueError for a value that is NaN or infinite."""
    for name, values in history.items():
        for epoch, value in enumerate(values, 1):
            if not math.isfinite(value):
                raise ValueError(
                    f"{name} is {value} in epoch {epoch}: the training diverged. Train again with "
                    "a lower learning rate."
                )
