"""What the studies in this folder share: trials, their results on disk, tables and options.

    trials ── run_study() ──► runs/TRIAL/row.json, results.csv ──► to_markdown(), a plot

A trial with a result is not trained again; an interrupted one resumes where it stopped.
"""

import argparse
import csv
import fnmatch
import gc
import hashlib
import io
import json
import math
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import keras

import keras_vit
from keras_vit import data, fit
from keras_vit._base.errors import check_positive
from keras_vit._base.files import atomic_write, write_text
from keras_vit.evaluation import predict_split
from keras_vit.models import ImageModel, model_cost
from keras_vit.models.cost import Cost
from keras_vit.training.callbacks import NonFiniteLossError
from keras_vit.training.recipes import Recipe
from keras_vit.training.state_file import is_state

Value = str | int | float
Row = dict[str, Value]

# Fields of a recipe that describe it, or describe a model that is not used: accuracy does not
# depend on them.
DESCRIPTIONS = ("source", "hardware", "model", "learning_rates", "examples")


@dataclass(frozen=True)
class Trial:
    """One model to train by one recipe: a row of a study.

    Attributes:
        name: Title of the row.
        model: A name that `keras_vit.create` knows.
        sizes: Arguments that replace those of the name, such as `patch_size`.
        recipe: How it is trained, the number of steps and the image size included.
        about: Further columns of the row, such as what the trial varies.
        seed: Seed of the initial weights, the order of images and the augmentation.
    """

    name: str
    model: str
    sizes: Mapping[str, Any]
    recipe: Recipe
    about: Mapping[str, Value]
    seed: int = 0

    def build(self, num_classes: int, channels: int = 3) -> ImageModel:
        """The untrained model, with the recipe's dropout where its class has such an argument."""
        size = self.recipe.image_size
        model = keras_vit.create(
            self.model,
            **{**self.sizes, "num_classes": num_classes, "input_shape": (size, size, channels)},
        )
        if rates := self.recipe.rates(model.get_config()):
            model = model.copy(**rates)
        # Where training sees whole images, there is no border to crop in evaluation.
        if self.recipe.augmentation.crop == "resize":
            model.eval_transform = {"mode": "stretch"}
        return model

    def cost(self, num_classes: int, channels: int = 3) -> Cost:
        """Parameters and operations, counted before anything has values."""
        size = self.recipe.image_size
        images = {"num_classes": num_classes, "input_shape": (size, size, channels)}
        return model_cost(self.model, **{**self.sizes, **images})

    def identity(self, splits: data.Splits) -> str:
        """Twelve hexadecimal digits of everything that the accuracy depends on but the backend.

        Trials with equal digits are one trial, whatever their names. Of the data, the last part of
        the path, the class names and the numbers of images count.
        """
        facts = {
            "model": self.model,
            "sizes": dict(self.sizes),
            "recipe": non_defaults(self.recipe, leave_out=DESCRIPTIONS),
            "seed": self.seed,
            "data": [Path(splits.source).name, splits.class_names],
            "images": {name: len(split) for name, split in splits.splits.items()},
            **non_defaults(self, leave_out=[field.name for field in fields(Trial)]),  # a subclass's
        }
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def non_defaults(settings: Any, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """The fields that differ from their defaults: a field added later changes no identity."""
    return {
        field.name: non_defaults(value) if is_dataclass(value) else value
        for field in fields(settings)
        if field.name not in leave_out and (value := getattr(settings, field.name)) != field.default
    }


def print_at_once(line: str) -> None:
    print(line, flush=True)  # a study may take an hour and write to a file


def run_study(
    trials: Sequence[Trial],
    splits: data.Splits,
    folder: Path,
    print_fn: Callable[[str], None] = print_at_once,
) -> list[Row]:
    """Trains the trials without a result in `folder`, in order, and returns all rows.

    A model that diverges gets the accuracy NaN, and the study continues with the next one. Several
    processes may share a folder; give them different trials, or both train the same one.

    Returns:
        A row per trial, in their order: `name`, the columns in `about`, `parameters`, `macs` (per
        image, forward), `images` (seen in training), `accuracy`, `val_images`, `seconds` (of
        `fit`, interrupted processes included), `data`, `seed`, `backend`, `identity`.
    """
    rows = []
    for number, trial in enumerate(trials, 1):
        title, identity = f"[{number}/{len(trials)}] {trial.name}", trial.identity(splits)
        result = next(folder.glob(f"runs/*-{identity}/row.json"), None)
        if result is None:
            print_fn(f"{title}: starts")
            result = run_folder(trial, splits, folder) / "row.json"
            row = run_trial(trial, splits, folder, print_fn)
            result.parent.mkdir(parents=True, exist_ok=True)
            write_text(result, json.dumps(row))
            write_csv(folder)
            gc.collect()  # models refer to themselves, and the next one needs their memory
            time_taken = f"{row['seconds']:.0f} s"
        else:
            time_taken = "trained before"
        # The trial may have another name today than when it was trained.
        row = {**json.loads(result.read_text("utf-8")), "name": trial.name, **trial.about}
        outcome = "diverged" if math.isnan(row["accuracy"]) else f"{row['accuracy']:.2%}"
        print_fn(f"{title}: {outcome}, {time_taken}")
        rows.append(row)
    return rows


def run_folder(trial: Trial, splits: data.Splits, folder: Path) -> Path:
    words = re.sub(r"[^a-z0-9.+]+", "_", trial.name.lower()).strip("_")
    return folder / "runs" / f"{words}-{trial.identity(splits)}"


def run_trial(
    trial: Trial, splits: data.Splits, folder: Path, print_fn: Callable[[str], None]
) -> Row:
    """Trains and evaluates one model."""
    run, identity = run_folder(trial, splits, folder), trial.identity(splits)
    keras.utils.set_random_seed(trial.seed)
    model = trial.build(splits.num_classes, splits.train.channels)
    stopwatch = Stopwatch()
    accuracy, val_images = math.nan, len(splits.val)
    try:
        fit(
            model,
            trial.recipe,
            splits,
            run,
            seed=trial.seed,
            print_fn=print_fn,
            identity=identity,
            callbacks=[stopwatch],
            monitor=None,
        )
        labels, scores = predict_split(model, splits.val)
        accuracy = round(float((scores.argmax(-1) == labels).mean()), 6)
        val_images = len(labels)
    except NonFiniteLossError as error:
        print_fn(f"{trial.name}: {error}")
    remove_checkpoints(run / "checkpoints")
    return {
        "name": trial.name,
        **trial.about,
        "parameters": model.count_params(),
        "macs": trial.cost(splits.num_classes, splits.train.channels).macs,
        "images": images_seen(trial.recipe, splits),
        "accuracy": accuracy,
        "val_images": val_images,
        "seconds": round(stopwatch.total, 1),
        "data": Path(splits.source).name,
        "seed": trial.seed,
        "backend": keras.backend.backend(),
        "identity": identity,
    }


def read_rows(folder: Path) -> list[Row]:
    """All results in a folder, in the order in which they were written."""
    results = sorted(folder.glob("runs/*/row.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text("utf-8")) for path in results]


def finished(file: Path, options: Mapping[str, Any], compute: Callable[[], Any]) -> Row:
    """Return the row in a file, or compute and write it, with the options that it depends on.

    Raises:
        SystemExit: The row is one of other options.
    """
    options = json.loads(json.dumps(options, default=str))
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({**compute(), "options": options}))
    row: Any = json.loads(file.read_text("utf-8"))
    made_with = row.pop("options", options)  # earlier files do not have any
    names = [name for name in options if made_with.get(name) != options[name]]
    if names:
        was, now = (
            ", ".join(f"{name}={of.get(name)!r}" for name in names) for of in (made_with, options)
        )
        raise SystemExit(f"{file} was made with {was}, not with {now}: give another --out.")
    return row


def write_csv(folder: Path) -> None:
    """Writes `results.csv`, all results in a folder as a table."""
    rows = read_rows(folder)
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "results.csv", text.getvalue())


def remove_checkpoints(folder: Path) -> None:
    """Deletes the files that `ResumableRun` wrote, and the folder if nothing else is in it."""
    for pattern in ("step-[0-9]*.safetensors", ".step-[0-9]*.part*"):
        for path in filter(is_state, folder.glob(pattern)):
            path.unlink()
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        folder.rmdir()


def images_seen(recipe: Recipe, splits: data.Splits) -> int:
    images = len(splits.train)
    return recipe.total_steps(images) * min(recipe.batch_size, images)


def curve_of(folder: Path, identity: Value) -> list[float]:
    """Accuracy on `val` after each epoch of a trial; empty if the folder of its run is gone."""
    for path in folder.glob(f"runs/*-{identity}/history.csv"):
        with path.open(encoding="utf-8") as file:
            return [float(epoch["val_accuracy"]) for epoch in csv.DictReader(file)]
    return []


class Stopwatch(keras.callbacks.Callback):
    """Seconds of `fit`, summed over all its processes where `ResumableRun` restores callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.before = 0.0
        self.start: float | None = None

    @property
    def total(self) -> float:
        """Seconds until now, or until the end of training."""
        return self.before + (0.0 if self.start is None else time.monotonic() - self.start)

    def on_train_begin(self, logs: Any = None) -> None:
        self.start = time.monotonic()

    def on_train_end(self, logs: Any = None) -> None:
        self.before, self.start = self.total, None

    def state_dict(self) -> dict[str, float]:
        return {"seconds": self.total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.before = state["seconds"]


def averaged(rows: Iterable[Row], over: str = "seed") -> list[Row]:
    """One row per name: the mean of `accuracy` and `seconds` over the seeds.

    Adds `spread`, the standard deviation of the accuracies (n - 1; NaN for one run), and the
    number of `runs`; leaves the column `over` out.
    """
    groups: dict[Value, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["name"], []).append(row)
    means = []
    for group in groups.values():
        accuracies = [float(row["accuracy"]) for row in group]
        means.append(
            {
                **{name: value for name, value in group[0].items() if name != over},
                "accuracy": statistics.fmean(accuracies),
                "seconds": statistics.fmean(float(row["seconds"]) for row in group),
                "spread": statistics.stdev(accuracies) if len(group) > 1 else math.nan,
                "runs": len(group),
            }
        )
    return means


def ranked(rows: Iterable[Row]) -> list[Row]:
    """The rows by accuracy, the highest first, without those that diverged."""
    done = [row for row in rows if not math.isnan(float(row["accuracy"]))]
    return sorted(done, key=lambda row: -float(row["accuracy"]))


def data_name(source: str) -> str:
    """The name of a folder or TFDS data set as a page writes it."""
    name = Path(source).name
    known = {
        "cifar10": "CIFAR-10",
        "cifar100": "CIFAR-100",
        "tf_flowers": "flowers",
        "flowers": "flowers",
    }
    return known.get(name.lower(), name)


def mean_and_spread(values: Sequence[float]) -> str:
    """`99.06%`; of several values, `99.06% ± 0.31` with their standard deviation (n - 1)."""
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2%}{spread}"


def paragraphs(*parts: str) -> str:
    """The parts of a page with an empty line between them, without those that are empty."""
    return "\n\n".join(filter(None, parts))


def to_markdown(rows: Iterable[Mapping[str, Value]], columns: Mapping[str, str]) -> str:
    """A Markdown table of rows.

    Args:
        rows: Rows of `run_study` or `averaged`.
        columns: From a column's title to its format, such as `"{accuracy:.2%}"`. Columns whose
            format has a colon are numbers, and aligned right. NaN becomes a dash.
    """
    cells = [[form.format(**row) for form in columns.values()] for row in rows]
    cells = [["–" if "nan" in cell else cell for cell in line] for line in cells]
    rule = "|".join("---:" if ":" in form else "---" for form in columns.values())
    title, *body = [f"| {' | '.join(line)} |" for line in [list(columns), *cells]]
    return "\n".join([title, f"|{rule}|", *body])


def plan(trials: Iterable[Trial], splits: data.Splits) -> str:
    """What a study would train, as a Markdown table: the work, and the share of each trial."""
    rows: list[dict[str, Any]] = []
    for trial in trials:
        macs = trial.cost(splits.num_classes, splits.train.channels).macs
        images = images_seen(trial.recipe, splits)
        gradients = 2 if trial.recipe.rho else 1  # per sharpness-aware step, per plain step
        work = macs * images * gradients
        rows.append({"name": trial.name, "mmacs": macs / 1e6, "images": images, "work": work})
    total = sum(row["work"] for row in rows)
    columns = {
        "model": "{name}",
        "MMACs per image": "{mmacs:,.1f}",
        "images": "{images:,}",
        "share": "{share:.0%}",
    }
    return to_markdown(({**row, "share": row["work"] / total} for row in rows), columns)


def study_parser(description: str | None, out: str, **defaults: Any) -> argparse.ArgumentParser:
    """The options that every study has.

    Args:
        description: Text of `--help`: the script's docstring.
        out: Default of `--out`.
        **defaults: Defaults of the other options, by name: `data`, `steps`, `batch_size`, `seeds`.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--data", help="a folder of images, or a TFDS name")
    add("--data-dir", help="folder of the TFDS data sets")
    add("--steps", type=int, help="updates of each model")
    add("--batch-size", type=int, help="images per update; the learning rate is scaled with it")
    add("--seeds", type=int, help="how many times each model is trained")
    add("--only", metavar="NAME", nargs="+", default=["*"], help='such as "ViT base" "Mixer*"')
    add("--precision", default="float32", help="dtype policy, such as mixed_bfloat16")
    add("--plan", action="store_true", help="print what would be trained, and train nothing")
    add("--out", type=Path, default=Path(out), help="folder for results.csv, table and plot")
    add("--markdown", type=Path, help="another file for table and plot, such as docs/NAME.md")
    parser.set_defaults(**{"data": "cifar10", "seeds": 1, **defaults})
    return parser


def command_line() -> str:
    """The command that this process was started with, as a page shows it.

    Files that are written are left out, and of paths the last name is kept.
    """
    words, written = [], ("--out", "--markdown")
    for before, word in zip(["", *sys.argv], sys.argv, strict=False):
        if word not in written and before not in written:
            words.append(Path(word).name if "/" in word else word)
    return shlex.join(["python", f"examples/{words[0]}", *words[1:]])


def pages(options: argparse.Namespace) -> list[Path]:
    """The Markdown files that a study writes: `table.md` in `--out`, and `--markdown` if given."""
    return [options.out / "table.md", *([options.markdown] if options.markdown else [])]


def write_study(
    options: argparse.Namespace, text: str, plot: Callable[[Path], None], title: str
) -> None:
    """Prints a study's table, and writes it with its plot to `--out` and `--markdown`.

    Args:
        options: What `study_parser` parsed.
        text: Markdown.
        plot: Writes the plot to a PNG file.
        title: Alternative text of the plot.
    """
    print(f"\n{text}\n")
    for page in pages(options):
        image = page.with_suffix(".png")
        page.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(image) as temporary:
            plot(temporary)
        write_text(page, f"{text}\n\n![{title}]({image.name})\n")
    print(f"written to {options.out}: results.csv, table.md, table.png")


def select(trials: Sequence[Trial], options: argparse.Namespace) -> list[Trial]:
    """The trials that match `--only`, once per seed, under the `--precision`.

    Raises:
        ValueError: A pattern matches no trial, or `--seeds` is below 1.
    """
    check_positive(seeds=options.seeds)
    for pattern in options.only:
        if not any(fnmatch.fnmatch(trial.name, pattern) for trial in trials):
            names = "; ".join(trial.name for trial in trials)
            raise ValueError(f"--only {pattern!r} matches none of: {names}.")
    policy = {} if options.precision == "float32" else {"dtype": options.precision}
    return [
        replace(trial, seed=seed, sizes={**trial.sizes, **policy})
        for trial in trials
        if any(fnmatch.fnmatch(trial.name, pattern) for pattern in options.only)
        for seed in range(options.seeds)
    ]
