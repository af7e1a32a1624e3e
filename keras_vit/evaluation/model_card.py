"""The model card: what a stranger should know before trusting a model, in Markdown."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.errors import printable
from keras_vit.evaluation.calibration import Calibration
from keras_vit.evaluation.markdown import code, inline
from keras_vit.evaluation.mistakes import Mistake
from keras_vit.evaluation.report import ClassificationReport

FILL_IN = "[fill in]"

# What a finished card has to say and no program can know.
_HEADER = """---
license: other # fill in the licence of the weights
library_name: keras
pipeline_tag: image-classification
tags: [vision-transformer, keras_vit]
metrics: [accuracy]
---
"""
_CITATION = """```bibtex
@inproceedings{dosovitskiy2021vit,
  title = {An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale},
  author = {Dosovitskiy, Alexey and others},
  booktitle = {International Conference on Learning Representations},
  year = {2021}
}
```"""


def model_card(
    name: str,
    report: ClassificationReport,
    facts: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    calibration: Calibration | None = None,
    mistakes: tuple[Mistake, ...] = (),
    pictures: tuple[str, ...] = (),
    run: Path | None = None,
) -> str:
    """A model card with Hugging Face's sections, filled in as far as a training run knows.

    What only people know (licence, intended use, contact) is marked `[fill in]`.

    Args:
        name: Name of the model, the title of the card.
        report: Scores on the validation split.
        facts: What the run found: `parameters`, `seconds`, `data` (split name to size),
            `bad_files` (pairs of file and reason), `beside` (lines to compare with). All optional,
            as are the keys of `config`.
        config: What made the model: `command`, `job`, `recipe`, `versions`.
        calibration: Of the same predictions.
        mistakes: The worst ones.
        pictures: PNG files beside the card to show.
        run: The folder of the run as a reader would type it; None for the folder `name`.

    Returns:
        Markdown with a YAML header. Names of files and classes are text in it, whatever they
        contain, and its commands are quoted for a shell.

    Example:

    >>> from keras_vit.evaluation import classification_report
    >>> from keras_vit.evaluation.model_card import model_card
    >>> report = classification_report([0, 0, 1, 1], [0, 1, 1, 1], ["cat", "dog"])
    >>> "| dog | 0.667 |" in model_card("pets", report, {})
    True
    """
    config = config or {}
    run = Path(name) if run is None else run
    job, recipe = config.get("job", {}), config.get("recipe", {})
    parts = [
        f"{_HEADER}\n# {inline(name)}",
        f"{report.accuracy:.2%} of {report.macro.support} validation images are classified right "
        f"({_interval(report.accuracy, report.macro.support)}).",
        *(f"- {inline(line)}" for line in facts.get("beside", ())),
        "## Model details",
        _list(
            {
                "Model type": f"image classifier, {len(report.classes)} classes, keras_vit",
                "Parameters": _number(facts.get("parameters")),
                "Trained from": inline(job.get("weights") or "random weights") if job else "",
                "Developed by": FILL_IN,
                "Licence": f"{FILL_IN}: that of the data and of the weights it was trained from "
                "may bind it",
            }
        ),
        "## Uses",
        f"Classifies images like those it was trained on into the {len(report.classes)} classes of "
        f"the table below. Intended use: {FILL_IN}. Out of scope: images that show none of the "
        "classes (it predicts one of them all the same), and decisions about people.",
        "## Bias, risks and limitations",
        *_limits(report, calibration, mistakes),
        "## How to get started",
        f"```\n{printable(f'keras-vit predict {shlex.quote(str(run))} photo.jpg')}\n```",
        "```python\nimport keras, keras_vit\n\n"
        f"model = keras.saving.load_model({_string(run / 'model.keras')})  # 0..255 to logits\n```",
        "## Training details",
        "### Training data",
        *_data(facts, job),
        "### Training procedure",
        code(config["command"]) if "command" in config else "",
        _table(("hyper-parameter", "value"), recipe),
        f"Took {facts['seconds']:.0f} seconds." if "seconds" in facts else "",
        "## Evaluation",
        "On the validation split; precision, recall and F1 of every class:",
        report.to_markdown(),
        f"Expected calibration error: {calibration.error:.2%} in {len(calibration.counts)} bins."
        if calibration
        else "",
        *(f"![{picture.removesuffix('.png')}]({picture})" for picture in pictures),
        "## Technical specifications" if config.get("versions") else "",
        _table(("software", "version"), config.get("versions", {})),
        "## Citation",
        _CITATION,
        "## Contact",
        FILL_IN,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _interval(share: float, count: int) -> str:
    """Wilson's 95 % interval: what the same model may score on other pictures of the kind."""
    z = 1.96
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * (share * (1 - share) / count + (z / (2 * count)) ** 2) ** 0.5
    return f"95 % interval {centre - half:.1%} to {centre + half:.1%}"


def _limits(
    report: ClassificationReport,
    calibration: Calibration | None,
    mistakes: tuple[Mistake, ...],
) -> list[str]:
    lines = []
    tested = [scores for scores in report.classes if scores.support]
    if tested:
        weakest = min(tested, key=lambda scores: scores.recall)
        lines.append(
            f"- The weakest class is {inline(weakest.name)}: {weakest.recall:.1%} of its "
            f"{weakest.support} images are found."
        )
    if untested := [inline(scores.name) for scores in report.classes if not scores.support]:
        lines.append(f"- Not tested, as there are no validation images: {', '.join(untested)}.")
    if calibration is not None:
        lines.append(
            f"- Its probabilities are off by {calibration.error:.1%} on average (see the "
            "reliability diagram)."
        )
    if mistakes:
        names = [inline(scores.name) for scores in report.classes]
        worst = mistakes[0]
        lines.append(
            f"- Its surest mistake took {names[worst.label]} for {names[worst.prediction]} with "
            f"{worst.probability:.1%}."
        )
    lines.append(
        "- The validation images come from the same source as the training images; elsewhere it "
        f"may do worse. Known biases of the data: {FILL_IN}."
    )
    return ["\n".join(lines)]


def _data(facts: Mapping[str, Any], job: Mapping[str, Any]) -> list[str]:
    sizes = ", ".join(f"{count} {inline(split)}" for split, count in facts.get("data", {}).items())
    parts = [
        code(str(job["data"])) if job.get("data") else "",
        f"Images: {sizes}." if sizes else "",
    ]
    bad = facts.get("bad_files", ())
    if bad:
        shown = "\n".join(
            f"- {code(str(file))}: {inline(str(reason))}" for file, reason in bad[:20]
        )
        more = f"\n- and {len(bad) - 20} more, in report.json" if len(bad) > 20 else ""
        parts.append(f"{len(bad)} files could not be decoded and were left out:\n\n{shown}{more}")
    parts.append(f"Where they come from, who took them, under which licence: {FILL_IN}.")
    return parts


def _list(items: Mapping[str, str]) -> str:
    return "\n".join(f"- **{name}:** {value}" for name, value in items.items() if value)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:,}"


def _table(header: tuple[str, str], rows: Mapping[str, Any]) -> str:
    lines = [f"| {header[0]} | {header[1]} |", "|---|---|"] if rows else []
    lines += [f"| {inline(str(name))} | {inline(str(value))} |" for name, value in rows.items()]
    return "\n".join(lines)


def _string(path: Path) -> str:
    """A path as a string literal of Python, on one line."""
    return printable(json.dumps(path.as_posix(), ensure_ascii=False))
