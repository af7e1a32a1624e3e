"""The page `report.md` of a training run: the sections around the tables of the task's report."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from keras_vit._base.errors import accepted_arguments, counted, printable
from keras_vit.data import Augmentation
from keras_vit.evaluation.markdown import code, inline, table
from keras_vit.evaluation.report_text import HEADING, constant_text, score_rows
from keras_vit.tasks import Task
from keras_vit.tasks.scores import Score
from keras_vit.training.compilation import loss_name
from keras_vit.training.head_choice import Candidate
from keras_vit.training.measured_tuning import MeasuredChoice
from keras_vit.training.recipes import Recipe
from keras_vit_cli.options.train import TrainOptions
from keras_vit_cli.report.description import (
    as_text,
    describe_task,
    describe_weights,
    set_options,
    short_command,
    short_path,
)
from keras_vit_cli.report.results import Results

MOST_SCORES = 40  # rows: of several numbers, each has its own scores
MOST_FILES = 20
WORST = ("mistakes.png", "overlays.png")

MEANINGS = {
    "balanced_accuracy": "the mean recall of the classes",
    "macro_f1": "the mean F1 of the classes or labels",
    "mean_average_precision": "the mean over labels of the area under precision and recall",
    "mean_iou": "the mean over the classes of intersection over union of all their pixels",
    "boundary_iou": "mean_iou of the pixels within 2 % of the diagonal of a class's boundary",
    "pixel_accuracy": "the share of the labeled pixels that are right",
    "delta1": "the share of an image's pixels within a factor of 1.25, the mean over images",
    "abs_rel": "the mean relative error of an image's pixels, the mean over images",
    "aligned_delta1": "delta1 after a factor and a shift of each image's inverse depths",
    "aligned_abs_rel": "abs_rel after a factor and a shift of each image's inverse depths",
    "mae": "mean absolute error, in the unit of the number",
    "rmse": "root of the mean squared error; of depth that of each image, the mean over images",
    "r2": "the share of the variance that is explained",
    "spearman": "the correlation of the ranks",
    "grade_mae": "by how many grades an answer is off, on average",
    "quadratic_kappa": "Cohen's kappa with quadratic weights: 1 for agreement, 0 for chance",
}

CAPTIONS = {
    "confusion": "How often each name is predicted for each.",
    "calibration": "How often predictions are right, by how sure they are.",
    "precision_recall": "Precision over recall of each label; dots are at the thresholds.",
    "iou": "Intersection over union of each class, the lowest first.",
    "numbers": "Predicted against true numbers, and the residuals.",
    "mistakes": "The answers that are farthest from the truth; bold: what the model answers.",
    "overlays": "The images farthest from the truth: the image, its labels, and what is predicted; "
    "stripes are where classes differ.",
    "curves": "Loss and score of training and validation by epoch.",
}

# What the training images that are held out decide.
HELD_OUT_FOR = {
    "classification": "temperature",
    "multilabel": "thresholds",
    "regression": "prediction intervals",
}
PARTS = {"train": "training", "val": "validation"}

# Of the recipe: what readers look for although it is the default, and what is shown elsewhere or
# is not a setting of this run.
ALWAYS = (
    *("steps", "epochs", "batch_size", "optimizer", "learning_rate", "decay", "warmup"),
    *("weight_decay", "label_smoothing", "clip_norm"),
)
NEVER = ("source", "hardware", "model", "image_size", "examples", "scaling", "learning_rates")
OF_THE_JOB = ("precision", "lora", "token_merging", "distillation", "patience", "val_fraction")


def report_page(
    name: str,
    results: Results,
    facts: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    plots: tuple[str, ...] = (),
    run: Path | None = None,
) -> str:
    """Write the page in Markdown: task, training, data, scores with intervals, plots, recipe.

    Args:
        name: See `write_report`, also for `results` and `config`.
        facts: Results of the run: `model` (its description), `parameters`, `pixels` (height, width,
            channels), `seconds`, `epochs`, `data` (split name to size), `targets` (split name to
            its description), `bad_files` (pairs of file and reason), `recipe` (its name),
            `held_out` (how many training images set thresholds or the `temperature`), `choice`,
            `doubts` (warnings of the images and labels), `calibrated_on` (how many set prediction
            sets or intervals), `scored` (which images the scores are of, where they are not the
            run's validation images).
            All optional, as are the keys of `config`.
        plots: PNG files beside the page.
        run: The folder of the run as a reader would type it; None for the folder `name`.

    Returns:
        Markdown. Names of files and classes are escaped, whatever they contain, and commands are
        quoted for a shell. Its length is bounded for any number of classes; paths outside of the
        working folder are shortened.
    """
    config = config or {}
    job = config.get("job", {})
    beside = str(job.get("data", ""))
    sections = {
        "What was trained": _trained(results.report.task, facts, job),
        "Weights compared": _weights(facts.get("weights", {})),
        "Results": _scores(results, job, facts),
        "Plots": "\n\n".join(_plot(plot) for plot in plots if plot not in WORST),
        "Worst mistakes": "\n\n".join(_plot(plot) for plot in plots if plot in WORST),
        f"Per {results.report.task.nouns[0]}": results.report.to_markdown(),
        "Recipe": _recipe(results.report.task, facts, config),
        "Use and repeat": _commands(run or Path(name), config, beside, facts),
    }
    parts = [f"# {inline(name)}", _summary(results, facts)]
    parts += [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return "\n\n".join(parts) + "\n"


def _summary(results: Results, facts: Mapping[str, Any]) -> str:
    score, value, interval, _ = score_rows(results.report.scores, results.report.constant)[0]
    task = describe_task(results.report.task)
    images = f"{counted(results.report.examples, 'validation image')}, which it was not trained on"
    if "scored" in facts:
        images = f"{counted(results.report.examples, 'image')}: {inline(facts['scored'])}"
    return (
        f"{inline(task[0].upper() + task[1:])}.\n\n**{inline(score)} {value}** (95 % interval "
        f"{interval}) on {images}."
    )


def _trained(task: Task, facts: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    beside, targets = str(job.get("data", "")), facts.get("targets", {})
    labels = f", labels in {short_path(job['labels'], beside)}" if job.get("labels") else ""
    sizes = {part: counted(count, "image") for part, count in facts.get("data", {}).items()}
    purpose = f", that set the {HELD_OUT_FOR[task.kind]}" if task.kind in HELD_OUT_FOR else ""
    height, width, channels = facts.get("pixels") or 3 * ("",)
    of_bands = "" if not facts.get("bands") else f"bands {', '.join(map(str, facts['bands']))}"
    colors = of_bands or ("gray" if channels == 1 else "color")
    rows = {
        "data": f"{short_path(beside)}{labels}" if beside else "",
        **{PARTS.get(part, part): targets.get(part, size) for part, size in sizes.items()},
        "held out": f"{counted(facts['held_out'], 'training image')}, not trained on{purpose}"
        if "held_out" in facts
        else "",
        "calibrated on": f"{counted(facts['calibrated_on'], 'training image')}, used for nothing "
        "else"
        if "calibrated_on" in facts
        else "",
        "model": facts.get("model", ""),
        "parameters": f"{facts['parameters']:,}" if "parameters" in facts else "",
        "image size": f"{height} x {width} pixels, {colors}" if height else "",
        "initial weights": describe_weights(job.get("model"), job.get("weights")) if job else "",
        "teacher": short_path(job.get("teacher") or ""),
        "duration": ("; since it was resumed, " if facts.get("resumed") else " in ").join(
            counted(round(facts[key]), key.removesuffix("s"))
            for key in ("epochs", "seconds")
            if facts.get(key)
        ),
    }
    shown = [(name, value) for name, value in rows.items() if value]
    parts = [table(("", ""), shown)] if shown else []
    bad = facts.get("bad_files", ())
    if bad:
        lines = [
            f"- {code(short_path(str(file), beside))}: {inline(str(reason))}"
            for file, reason in bad[:MOST_FILES]
        ]
        if len(bad) > len(lines):
            lines.append(f"- and {len(bad) - len(lines):,} more, in `report.json`")
        were = "was" if len(bad) == 1 else "were"
        title = f"{counted(len(bad), 'file')} could not be decoded and {were} skipped:"
        parts += [title, "\n".join(lines)]
    return "\n\n".join(parts)


def _probe(row: Mapping[str, Any]) -> Score:
    return Score.from_list([row[name] for name in ("probe", "low", "high")])


def _weights(facts: Mapping[str, Any]) -> str:
    """Return the table of `--weights auto`, the best probe first."""
    if not facts:
        return ""
    rows = [
        (
            short_path(row["weights"]) + " (chosen)" * (row["weights"] == facts["chosen"]),
            f"{row['parameters']:,}",
            f"{row['knn']:.4f}",
            f"{_probe(row).value:.4f} ({_probe(row).interval('.4f')})",
            f"{row['images_per_second']}",
        )
        for row in facts["compared"]
    ]
    measure = facts["measure"].replace("_", " ")
    heading = ("weights", "parameters", "k-NN", "linear probe", "images/s")
    text = (
        f"By {measure} on frozen features of {counted(facts['images'], 'training image')}, each "
        f"answered by the others. Chosen: {inline(facts['reason'])}."
    )
    return f"{text}\n\n{table(heading, rows, 'lrrrr')}"


def _scores(results: Results, job: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    rows = score_rows(results.report.scores, results.report.constant)
    shown = rows[:MOST_SCORES]
    parts = [table(HEADING, shown, "lrrr")]
    if len(rows) > len(shown):
        parts.append(f"{len(rows) - len(shown):,} more are in `report.json`.")
    meanings = [
        f"{code(score)}: {meaning}"
        for score, meaning in MEANINGS.items()
        if any(row[0] == score or row[0].startswith(f"{score}_") for row in shown)
    ]
    constant = (
        f"The best constant is, {constant_text(results.report.constant_of)}; it needs no model."
    )
    parts.append("; ".join(meanings) + f". {constant}" if meanings else constant)
    notes = [
        *results.notes,
        *(f"Of the images: {inline(text)}" for text in facts.get("doubts", ())),
    ]
    if job.get("patience") is not None:
        notes.append(
            "The epoch was chosen by the loss on the validation images: the scores are a little "
            "better than on images that chose nothing."
        )
    if "scored" not in facts:
        notes.append(
            "The validation images come from the same source as the training images: on others the "
            "scores may be lower."
        )
    parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(filter(None, parts))


def _plot(file: str) -> str:
    name = file.removesuffix(".png")
    caption = CAPTIONS[name]
    return f"![{name.replace('_', ' ')}]({file})\n\n{caption}"


def _recipe(task: Task, facts: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    job, recipe = config.get("job", {}), config.get("recipe", {})
    source = f": {inline(str(recipe['source']))}" if recipe.get("source") else "."
    parts = [f"Recipe {code(str(facts['recipe']))}{source}"] if "recipe" in facts else []
    if job.get("freeze_backbone"):
        parts.append("The head alone was fitted, to the features of the initial weights.")
    elif recipe:
        parts.append(table(("setting", "value"), recipe_rows(task, recipe, job).items()))
    choice = facts.get("choice", {})
    if "candidates" in choice:
        parts.append(_candidates(choice))
    elif choice:
        compared = (
            f"On {counted(choice['images'], 'training image')} held out, a linear probe on the "
            f"frozen features reaches {choice['linear_probe']:.2%} and fine-tuning from it "
            f"{choice['fine_tuned']:.2%}. "
            if choice["images"]
            else ""
        )
        parts.append(f"{compared}Kept: the {choice['selected']}, as {choice['reason']}.")
    if "temperature" in facts:
        parts.append(f"The logits are divided by a temperature of {facts['temperature']:.3f}.")
    return "\n\n".join(parts)


def _candidates(choice: Mapping[str, Any]) -> str:
    header = ("candidate", choice["measure"].replace("_", " "), "log-loss", "setting")
    candidates = [Candidate(**row) for row in choice["candidates"]]
    measured = MeasuredChoice(**{**choice, "candidates": tuple(candidates)})
    missing = f" Left out: {measured.left_out}." if measured.left_out else ""
    return (
        "Compared on training images that each of them had not seen, with standard errors:\n\n"
        f"{table(header, measured.rows(), 'lrrl')}\n\n"
        f"Kept: {inline(measured.selected)}, as {inline(measured.reason)}.{missing}"
    )


def recipe_rows(task: Task, recipe: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, str]:
    """Return what is set of a recipe and of the options beside it, as text.

    >>> from keras_vit.tasks import Regression
    >>> recipe_rows(Regression(size=1), {"loss": "softmax", "ema": 0.0, "optimizer": "sgd"}, {})
    {'loss': 'squared_error', 'optimizer': 'sgd'}
    """
    loss = loss_name(task, recipe.get("loss", "softmax"))
    smooths = loss in task.losses and "label_smoothing" in accepted_arguments(task.losses[loss])
    off = {*NEVER, "augmentation"}
    off |= {"epochs"} if recipe.get("steps") else set()  # steps replace them
    off |= set() if smooths else {"label_smoothing"}
    off |= set() if task.mixes else {"mixup", "cutmix"}  # training left them out
    rows = {"loss": loss}
    rows |= {name: as_text(recipe[name]) for name in ALWAYS if recipe.get(name)}
    rows |= set_options(recipe, _defaults(Recipe))
    augmentation = set_options(recipe.get("augmentation", {}), _defaults(Augmentation))
    rows |= {f"augmentation: {n.replace('_', ' ')}": value for n, value in augmentation.items()}
    options = set_options(job, _defaults(TrainOptions))
    rows |= {name: value for name, value in options.items() if name in OF_THE_JOB}
    return {name: value for name, value in rows.items() if name not in off}


def _defaults(options: type) -> dict[str, Any]:
    return {
        field.name: None if field.default is MISSING else field.default for field in fields(options)
    }


def _commands(run: Path, config: Mapping[str, Any], beside: str, facts: Mapping[str, Any]) -> str:
    folder = short_path(str(run))
    image = "tile.tif" if config.get("job", {}).get("bands") else "photo.jpg"
    commands = [f"keras-vit predict {shlex.quote(folder)} {image}"]
    parts = []
    if "command" in config:
        commands.insert(0, short_command(config["command"], beside))
        if commands[0] != config["command"]:
            parts.append("Paths are shortened here; `config.json` has them in full.")
    if folder != str(run) and not parts:
        parts.append("Paths are shortened here.")
    # A string literal of Python, on one line.
    file = printable(json.dumps(Path(folder).as_posix(), ensure_ascii=False))
    parts.insert(0, "```\n" + "\n".join(map(printable, commands)) + "\n```")
    parts.append(
        "```python\nimport keras_vit\n\n"
        f'rows = keras_vit.predict({file}, "{image}")  # a dictionary for each file\n```',
    )
    if note := facts.get("note_of_best", ""):
        parts.append(f"Note: {note}.")
    versions = config.get("versions", {})
    if versions:
        parts.append(", ".join(f"{inline(k)} {inline(v)}" for k, v in versions.items()) + ".")
    return "\n\n".join(parts)
