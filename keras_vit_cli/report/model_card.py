"""The model card of a training run, filled into the template `model_card.md` beside this file."""

import json
import re
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from keras_vit._base.errors import counted, printable
from keras_vit.evaluation.calibration import Calibration
from keras_vit.evaluation.markdown import code, inline, table
from keras_vit.evaluation.mistakes import Mistake
from keras_vit.evaluation.report import ClassificationReport
from keras_vit.tasks.scores import wilson_interval

FILL_IN = "[fill in]"  # marks what only people know


def model_card(
    name: str,
    report: ClassificationReport,
    facts: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    calibration: Calibration | None = None,
    mistakes: tuple[Mistake, ...] = (),
    plots: tuple[str, ...] = (),
    run: Path | None = None,
) -> str:
    """A model card with Hugging Face's sections, filled in as far as possible.

    What only people know (license, intended use, contact) is marked `[fill in]`.

    Args:
        name: See `write_report`, also for `report` and `config`.
        facts: Results of the run: `parameters`, `seconds`, `data` (split name to size),
            `bad_files` (pairs of file and reason), `recipe` (its name), `temperature` and
            `held_out` (the number of images that set it), `beside` (lines to compare with). All
            optional, as are the keys of `config`.
        calibration: Calibration of the same predictions.
        mistakes: The most confident mistakes, as from `worst_mistakes`.
        plots: PNG files beside the card to show.
        run: The folder of the run as a reader would type it; None for the folder `name`.

    Returns:
        Markdown with a YAML header. Names of files and classes are escaped, whatever they contain,
        and its commands are quoted for a shell.

    Example:

    >>> from keras_vit.evaluation import classification_report
    >>> from keras_vit_cli.report.model_card import model_card
    >>> report = classification_report([0, 0, 1, 1], [0, 1, 1, 1], ["cat", "dog"])
    >>> "| dog | 0.667 |" in model_card("pets", report, {})
    True
    """
    config = config or {}
    run = Path(name) if run is None else run
    job, count = config.get("job", {}), report.macro.support
    template = files("keras_vit_cli.report").joinpath("model_card.md").read_text("utf-8")
    card = Template(template).substitute(
        title=inline(name),
        accuracy=f"{report.accuracy:.2%} on {counted(count, 'validation image')} "
        f"({_interval(report.accuracy, count)}).",
        comparisons="\n".join(f"- {inline(line)}" for line in facts.get("beside", ())),
        details=card_details(
            f"image classifier, {len(report.classes):,} classes, keras_vit", facts, job
        ),
        classes=f"{len(report.classes):,} classes "
        + ("that `report.json` lists" if report.selection else "of the table below"),
        limitations=_limitations(report, calibration, mistakes),
        predict=printable(f"keras-vit predict {shlex.quote(str(run))} photo.jpg"),
        # A string literal of Python, on one line.
        model_file=printable(json.dumps((run / "model.keras").as_posix(), ensure_ascii=False)),
        data=card_data(facts, job),
        procedure=card_procedure(facts, config),
        report=report.to_markdown(),
        calibration=f"Expected calibration error: {calibration.error:.2%} in "
        f"{len(calibration.counts)} bins."
        if calibration
        else "",
        plots="\n\n".join(f"![{plot.removesuffix('.png')}]({plot})" for plot in plots),
        versions=card_versions(config.get("versions", {})),
    )
    return re.sub(r"\n{3,}", "\n\n", card)  # empty parts leave empty lines


def _interval(rate: float, count: int) -> str:
    low, high = wilson_interval(rate, count)
    return f"95 % confidence interval {low:.1%} to {high:.1%}"


def _limitations(
    report: ClassificationReport, calibration: Calibration | None, mistakes: tuple[Mistake, ...]
) -> str:
    lines = [f"- {inline(_sentence(note))}" for note in report.notes]
    tested = [scores for scores in report.classes if scores.support]
    if tested:
        weakest = min(tested, key=lambda scores: scores.recall)
        lines.append(
            f"- The weakest class is {inline(weakest.name)}: {weakest.recall:.1%} of its "
            f""
            f"{counted(weakest.support, 'image')} {'is' if weakest.support == 1 else 'are'} "
            "classified correctly."
        )
    if calibration is not None:
        lines.append(
            f"- Its probabilities are off by {calibration.error:.1%} on average, mostly too "
            f"{'high' if calibration.overconfidence > 0 else 'low'} (see the reliability diagram)."
        )
    if mistakes:
        worst = mistakes[0]
        label, prediction = (
            inline(report.classes[i].name) for i in (worst.label, worst.prediction)
        )
        lines.append(
            f"- Its most confident mistake is an image of {label} that it classifies "
            f"as {prediction} with a probability of {worst.probability:.1%}."
        )
    lines.append(
        "- The validation images come from the same source as the training images; on others the "
        f"accuracy may be lower. Known biases of the data: {FILL_IN}."
    )
    return "\n".join(lines)


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def card_details(kind: str, facts: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """The list of what the model is."""
    details = {
        "Model type": kind,
        "Parameters": f"{facts['parameters']:,}" if "parameters" in facts else "",
        "Trained from": inline(job.get("weights") or "random weights") if job else "",
        "Teacher": inline(job.get("teacher") or ""),
        "Developed by": FILL_IN,
        "License": f"{FILL_IN}: the licenses of the data and of the initial weights may apply",
    }
    return "\n".join(f"- **{name}:** {value}" for name, value in details.items() if value)


def card_data(facts: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """What it was trained on."""
    sizes = ", ".join(f"{count} {inline(split)}" for split, count in facts.get("data", {}).items())
    parts = [
        code(str(job["data"])) if job.get("data") else "",
        f"Images: {sizes}." if sizes else "",
    ]
    bad = facts.get("bad_files", ())
    if bad:
        lines = [f"- {code(str(file))}: {inline(str(reason))}" for file, reason in bad[:20]]
        if len(bad) > len(lines):
            lines.append(f"- and {len(bad) - len(lines)} more, in report.json")
        were = "was" if len(bad) == 1 else "were"
        title = f"{counted(len(bad), 'file')} could not be decoded and {were} skipped:"
        parts += [title, "\n".join(lines)]
    parts.append(f"Origin of the images, their authors and license: {FILL_IN}.")
    return "\n\n".join(parts)


def card_procedure(facts: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """How it was trained."""
    parts = []
    if "command" in config:
        parts.append(code(config["command"]))
    if "recipe" in facts:
        parts.append(f"Recipe: {code(str(facts['recipe']))}.")
    if recipe := config.get("recipe"):
        parts.append(table(("hyper-parameter", "value"), recipe.items()))
    if "seconds" in facts:
        parts.append(f"Training took {counted(round(facts['seconds']), 'second')}.")
    if "choice" in facts:
        choice = facts["choice"]
        compared = (
            f"On {counted(choice['images'], 'training image')} held out, a linear probe on the "
            f"frozen features reaches {choice['linear_probe']:.2%} and fine-tuning from it "
            f"{choice['fine_tuned']:.2%}. "
            if choice["images"]
            else ""
        )
        parts.append(f"{compared}Kept: the {choice['selected']}, as {choice['reason']}.")
    if "temperature" in facts:
        parts.append(
            f"The logits are divided by a temperature of {facts['temperature']:.3f}, which was set "
            f"on {facts['held_out']} training images that were not trained on."
        )
    return "\n\n".join(parts)


def card_versions(versions: Mapping[str, str]) -> str:
    """A table of the software; empty for none."""
    if not versions:
        return ""
    return "## Technical specifications\n\n" + table(("software", "version"), versions.items())
