"""The report of a run that does not classify: `report.json`, the card `report.md`, and plots."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from keras_vit import data
from keras_vit._base.errors import counted, printable
from keras_vit._base.files import write_bytes, write_text
from keras_vit.evaluation.markdown import inline
from keras_vit.evaluation.mistakes import images_at
from keras_vit.evaluation.task_report import TaskReport, worst
from keras_vit.tasks import Task
from keras_vit_cli.report.model_card import card_data, card_details, card_procedure, card_versions
from keras_vit_cli.report.run_files import THUMBNAIL, check_history
from keras_vit_cli.report.run_plots import plot_curves, save_figure
from keras_vit_cli.report.task_plots import PLOTS, draw_worst, truth_text


def write_task_report(
    folder: Path,
    report: TaskReport,
    facts: Mapping[str, Any],
    *,
    targets: np.ndarray,
    answers: np.ndarray,
    split: data.Split,
    history: Mapping[str, Sequence[float]],
    config: Mapping[str, Any],
    name: str,
    run: Path,
) -> None:
    """Writes `report.json`, `report.md` and their plots into a folder, each file atomically.

    Args:
        folder: Where to write.
        report: Scores of the answers.
        facts: Further results of the run, as JSON accepts them.
        targets: As the task's `check_targets` takes them.
        answers: `(examples, size)`.
        split: The images, in the order of the targets.
        history: `History.history` of `fit`.
        config: What made the model: `command`, `job`, `recipe`, `versions`.
        name: Name of the model.
        run: The final folder of the run.

    Raises:
        ValueError: A value of the history is NaN or infinite.
        OSError: A file cannot be written; the error names it.
    """
    check_history(history)
    task, plots = report.task, []
    if history:
        plot_curves(history, folder / "curves.png")
        plots.append("curves.png")
    if task.kind in PLOTS:
        plot, draw = PLOTS[task.kind]
        save_figure(draw(task, targets, answers), folder / plot)
        plots.append(plot)
    places = worst(task, targets, answers)
    images = images_at(split, places, largest=THUMBNAIL)
    lines = [(task.to_text(answers[i], 1), truth_text(task, targets[i])) for i in places]
    save_figure(draw_worst(images, lines), folder / "mistakes.png")
    plots.append("mistakes.png")
    record = {**facts, "report": report.to_dict(), "history": history}
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(folder / "report.json", text.encode("utf-8", "backslashreplace"))
    write_text(folder / "report.md", task_card(name, report, facts, config, plots, run))


def task_card(
    name: str,
    report: TaskReport,
    facts: Mapping[str, Any],
    config: Mapping[str, Any],
    plots: Sequence[str],
    run: Path,
) -> str:
    """A model card, as Markdown: names of files and labels are escaped."""
    task, job = report.task, config.get("job", {})
    template = files("keras_vit_cli.report").joinpath("task_card.md").read_text("utf-8")
    card = Template(template).substitute(
        kind=task.kind,
        title=inline(name),
        summary=f"{_sentence(task)} Scores on {counted(report.examples, 'validation image')}, with "
        "95 % intervals, beside one answer for all images (the best constant), which needs no "
        "model:",
        report=report.to_markdown(),
        plots="\n\n".join(f"![{plot.removesuffix('.png')}]({plot})" for plot in plots),
        details=card_details(f"{task.kind} of images, keras_vit", facts, job),
        uses=_sentence(task),
        predict=printable(f"keras-vit predict {shlex.quote(str(run))} photo.jpg"),
        model_file=printable(json.dumps((run / "model.keras").as_posix(), ensure_ascii=False)),
        data=card_data(facts, job),
        procedure=card_procedure(facts, config),
        versions=card_versions(config.get("versions", {})),
    )
    return re.sub(r"\n{3,}", "\n\n", card)


def _sentence(task: Task) -> str:
    shown = ", ".join(inline(name) for name in task.shown_names[:20])
    more = f" and {task.size - 20} more" if task.size > 20 else ""
    return f"Answers {task.kind} of {shown}{more}."
