"""What a report has of its task: scores, plots, notes; the page around them is one for all."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from keras_vit import data
from keras_vit._base.errors import counted
from keras_vit.evaluation.calibration import Calibration, calibration_of
from keras_vit.evaluation.markdown import inline
from keras_vit.evaluation.mistakes import Mistake, images_at, mistakes_of
from keras_vit.evaluation.novelty import novelty_report_of
from keras_vit.evaluation.outcomes import Outcomes
from keras_vit.evaluation.report import ClassificationReport
from keras_vit.evaluation.set_report import set_report_of
from keras_vit.evaluation.task_report import TaskReport, worst
from keras_vit.tasks import Classification, Task
from keras_vit_cli.report.contact_sheet import draw_contact_sheet, file_text
from keras_vit_cli.report.run_plots import draw_calibration, draw_confusion, draw_mistakes
from keras_vit_cli.report.task_plots import PLOTS, truth_text

THUMBNAIL = 480  # pixels: twice the width of a mistake's image in its plot


@dataclass(frozen=True)
class Results:
    """What differs from task to task in the report of a run.

    Attributes:
        task: What the model answers.
        examples: How many images the scores are of.
        report: The scores.
        notes: What to be careful about, in Markdown, a sentence or two each.
        plots: From the name of a file to what draws its figure; the images of the worst mistakes
            are in `mistakes.png`.
        record: What `report.json` has beside the facts and the history.
        promises: Reports of how prediction sets and the novelty score held, to print.
    """

    task: Task
    examples: int
    report: ClassificationReport | TaskReport
    notes: tuple[str, ...]
    plots: Mapping[str, Callable[[], Any]]
    record: Mapping[str, Any]
    promises: tuple[Any, ...] = ()


def results_of_classes(
    report: ClassificationReport,
    outcomes: Outcomes,
    split: data.Split | None = None,
    task: Task | None = None,
) -> Results:
    """Of a classifier.

    Args:
        report: Scores of the predictions.
        outcomes: What `predict_outcomes` returned.
        split: The examples in the same order, to show the images of the most confident mistakes.
        task: That of the model, whose prediction sets are reported; None for one without.
    """
    calibration = calibration_of(outcomes)
    files = None if split is None or split.skips else split.files
    mistakes = mistakes_of(outcomes, files=files)
    names = tuple(scores.name for scores in report.classes)
    plots: dict[str, Callable[[], Any]] = {
        "confusion.png": partial(draw_confusion, report),
        "calibration.png": partial(draw_calibration, calibration),
    }
    if split is not None:
        plots["mistakes.png"] = lambda: draw_mistakes(
            mistakes, images_at(split, [m.index for m in mistakes], largest=THUMBNAIL), names
        )
    record = {
        "accuracy": report.accuracy,
        "report": report.to_dict(),
        "calibration": calibration.to_dict(),
        "mistakes": [asdict(mistake) for mistake in mistakes],
    }
    notes = _notes_of_classes(report, calibration, mistakes)
    sets, novel = set_report_of(outcomes, task), novelty_report_of(outcomes.novelty)
    promises: dict[str, Any] = {} if sets is None else {"sets": sets}
    promises |= {} if novel is None else {"novelty": novel}
    record |= {name: promise.to_dict() for name, promise in promises.items()}
    notes = [*map(str, promises.values()), *notes]
    shown = tuple(promises.values())
    return Results(
        Classification(names), report.macro.support, report, tuple(notes), plots, record, shown
    )


def _notes_of_classes(
    report: ClassificationReport, calibration: Calibration, mistakes: tuple[Mistake, ...]
) -> list[str]:
    lines = [inline(f"{note[0].upper()}{note[1:]}.") for note in report.notes]
    weakest = min((s for s in report.classes if s.support), key=lambda scores: scores.recall)
    lines.append(
        f"The weakest class is {inline(weakest.name)}: {weakest.recall:.1%} of its "
        f"{counted(weakest.support, 'image')} {'is' if weakest.support == 1 else 'are'} "
        "classified correctly."
    )
    lines.append(
        f"Its probabilities are off by {calibration.error:.1%} on average (expected calibration "
        f"error in {len(calibration.counts)} bins), mostly too "
        f"{'high' if calibration.overconfidence > 0 else 'low'}."
    )
    if mistakes:
        worst = mistakes[0]
        label, prediction = (
            inline(report.classes[i].name) for i in (worst.label, worst.prediction)
        )
        lines.append(
            f"Its most confident mistake is an image of {label} that it classifies "
            f"as {prediction} with a probability of {worst.probability:.1%}."
        )
    return lines


def results_of_task(
    report: TaskReport,
    targets: np.ndarray,
    answers: np.ndarray,
    split: data.Split,
    novelty: np.ndarray | None = None,
) -> Results:
    """Of a model that answers anything else.

    Args:
        report: Scores of the answers.
        targets: As the task's `check_targets` takes them.
        answers: `(examples, size)`.
        split: The images, in the order of the targets.
        novelty: Of each image `(examples,)`; None for a model without one.
    """
    task, plots = report.task, dict[str, Callable[[], Any]]()
    if task.kind in PLOTS:
        file, draw = PLOTS[task.kind]
        plots[file] = partial(draw, task, targets, answers)

    files = None if split.skips else split.files
    places = worst(task, targets, answers, count=8)
    mistakes: list[dict[str, Any]] = [
        {
            "index": i,
            "file": None if files is None else str(files[i]),
            "answer": task.to_text(answers[i], 1),
            "truth": truth_text(task, targets[i]),
        }
        for i in places
    ]
    lines = [
        (row["answer"], f"true: {row['truth']}", file_text(row["index"], row["file"]))
        for row in mistakes
    ]

    def draw_worst() -> Any:
        images = images_at(split, places, largest=THUMBNAIL)
        # Wider images than those of classes: several labels are a longer line.
        return draw_contact_sheet("The answers farthest from the truth", images, lines, 2, 2.8)

    plots["mistakes.png"] = draw_worst
    record = {"report": report.to_dict(), "mistakes": mistakes}
    novel = novelty_report_of(novelty)
    promises = () if novel is None else (novel,)
    if novel is not None:
        record["novelty"] = novel.to_dict()
    notes = (*report.notes, *map(str, promises))
    return Results(task, report.examples, report, notes, plots, record, promises)
