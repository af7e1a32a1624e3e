"""A study: models trained one after another under one budget, a row of a table for each.

    trials ── run_study() ──► results.csv, a row as each is finished ──► to_markdown(), a plot

A row that is there is not trained again, and the run that was killed goes on where it was.
"""

import argparse
import csv
import fnmatch
import gc
import hashlib
import inspect
import json
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import keras

from keras_vit import data
from keras_vit.errors import check_choice, check_positive
from keras_vit.evaluation.prediction import predict_split
from keras_vit.files import atomic_write, write_text
from keras_vit.models import BiTResNet, ImageModel, MLPMixer, VisionTransformer
from keras_vit.models.cost import Cost, mixer_cost, resnet_cost, vit_cost
from keras_vit.training.callbacks import NonFiniteLossError
from keras_vit.training.fitting import fit
from keras_vit.training.recipes import Recipe
from keras_vit.training.results_table import ResultsTable, Row, Value
from keras_vit.training.state_file import is_state

# What a trial may train, and what counts its parameters and operations.
FAMILIES: dict[str, tuple[Callable[..., ImageModel], Callable[..., Cost]]] = {
    "ViT": (VisionTransformer, vit_cost),
    "hybrid": (VisionTransformer, vit_cost),
    "BiT": (BiTResNet, resnet_cost),
    "Mixer": (MLPMixer, mixer_cost),
}

# What a recipe tells a reader, and what its model would be: none of it changes a trial.
_WORDS = ("source", "hardware", "model", "learning_rates", "examples")


@dataclass(frozen=True)
class Trial:
    """One model to train by one recipe: a row of a study.

    Attributes:
        name: What the row is called.
        family: A key of `FAMILIES`.
        sizes: Arguments of the model beside its classes and images, such as `patch_size`.
        recipe: How it is trained, its number of steps and its image size.
        about: More columns of the row, such as what the trial varies.
        seed: Of the initial weights, of order and of augmentation.

    Raises:
        ValueError: The family is unknown.

    Example:

    >>> from keras_vit import recipes
    >>> from keras_vit.training.study import Trial
    >>> sizes = {"patch_size": 4, "hidden_dim": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64}
    >>> trial = Trial("small", "ViT", sizes, recipes.get("digits"), {"depth": 2})
    >>> trial.build(num_classes=10, channels=1).count_params()
    18218
    >>> trial.cost(num_classes=10, channels=1).macs
    87488
    """

    name: str
    family: str
    sizes: Mapping[str, Any]
    recipe: Recipe
    about: Mapping[str, Value]
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self.family, "family", FAMILIES)

    def build(self, num_classes: int, channels: int = 3) -> ImageModel:
        """The untrained model, with the recipe's dropout where it has such an argument."""
        constructor = FAMILIES[self.family][0]
        size = self.recipe.image_size
        model = constructor(
            **{
                **self.recipe.rates(inspect.signature(constructor).parameters),
                **self.sizes,
                "num_classes": num_classes,
                "input_shape": (size, size, channels),
            }
        )
        # Where training sees whole pictures, there is no border to cut away.
        if self.recipe.augmentation.crop == "resize":
            model.eval_transform = {"mode": "stretch"}
        return model

    def cost(self, num_classes: int, channels: int = 3) -> Cost:
        """Parameters and operations, before anything is built (see `keras_vit.models.cost`)."""
        count = FAMILIES[self.family][1]
        counted = inspect.signature(count).parameters
        return count(
            **{name: value for name, value in self.sizes.items() if name in counted},
            image_size=self.recipe.image_size,
            channels=channels,
            num_classes=num_classes,
        )

    def identity(self, splits: data.Splits) -> str:
        """Twelve hexadecimal digits of all that the accuracy depends on, save the backend.

        Two trials with the same are one, whatever their names. Of the data they know the last
        part of the name, the classes, and how many images there are.
        """
        facts = {
            "family": self.family,
            "sizes": dict(self.sizes),
            "recipe": _said(self.recipe, leave_out=_WORDS),
            "seed": self.seed,
            "data": [Path(splits.source).name, splits.class_names],
            "images": {name: len(split) for name, split in splits.splits.items()},
        }
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _said(settings: Any, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """What differs from the defaults: a field that is new tomorrow makes no trial another one."""
    return {
        field.name: _said(value) if is_dataclass(value) else value
        for field in fields(settings)
        if field.name not in leave_out and (value := getattr(settings, field.name)) != field.default
    }


def _say(line: str) -> None:
    print(line, flush=True)  # also where a study of an hour writes to a file


def run_study(
    trials: Sequence[Trial],
    splits: data.Splits,
    folder: str | os.PathLike[str],
    say: Callable[[str], None] = _say,
) -> list[Row]:
    """Trains what has no row yet in `folder/results.csv`, in order, and returns all rows.

    Killed and called again, it goes on in the middle of the run that was under way. A model whose
    loss is lost has the accuracy NaN, and the next one is trained. Several processes may work on
    one folder; a trial that none has finished is trained by each that comes to it, so give them
    others.

    Args:
        trials: What to train. `about` has the same keys in all of them.
        splits: Of `keras_vit.data.load`: trained on `train`, measured on `val`.
        folder: For `results.csv`, and under `runs/` for each trial's curve (`history.csv`) and,
            until it is finished, checkpoints.
        say: Where lines for a reader go.

    Returns:
        A row for each trial, in their order: `name`, what is in `about`, `parameters`, `macs` (of
        one image, forward), `images` (seen in training), `accuracy`, `val_images`, `seconds` (of
        `fit`, also in the processes that were killed), `data`, `seed`, `backend`, `identity`.

    Raises:
        ValueError: `results.csv` has other columns.

    Example:

    >>> import tempfile, keras_vit
    >>> from keras_vit.training.study import Trial, curve_of, run_study
    >>> recipe = keras_vit.recipes.get("digits").scaled(steps=2, batch_size=16)
    >>> sizes = {"patch_size": 8, "hidden_dim": 8, "depth": 1, "num_heads": 1, "mlp_dim": 8}
    >>> trial = Trial("smallest", "ViT", sizes, recipe, {"depth": 1})
    >>> digits = keras_vit.data.load("digits")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = run_study([trial], digits, folder, say=lambda line: None)
    ...     again = run_study([trial], digits, folder)  # doctest: +ELLIPSIS
    ...     curve = curve_of(folder, first[0]["identity"])
    epoch 1/1 ...
    [1/1] smallest: ...%, done before
    >>> first == again, first[0]["parameters"], first[0]["images"]
    (True, 1114, 32)
    >>> abs(curve[-1] - first[0]["accuracy"]) < 1e-5
    True
    """
    folder = Path(folder)
    table = ResultsTable(folder / "results.csv")
    done = {str(row["identity"]): row for row in table.rows()}
    rows = []
    for number, trial in enumerate(trials, 1):
        place, identity = f"[{number}/{len(trials)}] {trial.name}", trial.identity(splits)
        before = identity in done
        if not before:
            say(f"{place}: begins")
            done[identity] = _run(trial, identity, splits, folder, say)
            table.append(done[identity])
            gc.collect()  # models refer to themselves, and the next one wants their memory
        # A trial may be called otherwise today than when it was trained.
        row = {**done[identity], "name": trial.name, **trial.about}
        took = "done before" if before else f"{row['seconds']:.0f} s"
        say(f"{place}: {_percent(row['accuracy'])}, {took}")
        rows.append(row)
    return rows


def _run(
    trial: Trial, identity: str, splits: data.Splits, folder: Path, say: Callable[[str], None]
) -> Row:
    words = re.sub(r"[^a-z0-9.+]+", "_", trial.name.lower()).strip("_")
    run = folder / "runs" / f"{words}-{identity}"
    keras.utils.set_random_seed(trial.seed)
    model = trial.build(splits.num_classes, splits.train.channels)
    watch = Stopwatch()
    try:
        fit(
            model,
            trial.recipe,
            splits,
            run,
            seed=trial.seed,
            say=say,
            identity=identity,
            callbacks=[watch],
            monitor=None,
        )
        labels, scores = predict_split(model, splits.val)
        accuracy = round(float((scores.argmax(-1) == labels).mean()), 6)
        seen = len(labels)
    except NonFiniteLossError as error:
        say(f"{trial.name}: {error}")
        accuracy, seen = math.nan, len(splits.val)
    _remove_checkpoints(run / "checkpoints")
    return {
        "name": trial.name,
        **trial.about,
        "parameters": model.count_params(),
        "macs": trial.cost(splits.num_classes, splits.train.channels).macs,
        "images": _images_seen(trial.recipe, splits),
        "accuracy": accuracy,
        "val_images": seen,
        "seconds": round(watch.total, 1),
        "data": Path(splits.source).name,
        "seed": trial.seed,
        "backend": keras.backend.backend(),
        "identity": identity,
    }


def _remove_checkpoints(folder: Path) -> None:
    """Deletes the files that `ResumableRun` wrote, and the folder when nothing else lies there."""
    for pattern in ("step-[0-9]*.safetensors", ".step-[0-9]*.part*"):
        for path in filter(is_state, folder.glob(pattern)):
            path.unlink()
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        folder.rmdir()


def _images_seen(recipe: Recipe, splits: data.Splits) -> int:
    images = len(splits.train)
    return recipe.total_steps(images) * min(recipe.batch_size, images)


def curve_of(folder: str | os.PathLike[str], identity: Value) -> list[float]:
    """Accuracy on `val` after each epoch of a trial of `run_study`; empty if its run is gone.

    >>> from keras_vit.training.study import curve_of
    >>> curve_of("runs/none", "0123456789ab")
    []
    """
    for path in Path(folder).glob(f"runs/*-{identity}/history.csv"):
        with path.open(encoding="utf-8") as file:
            return [float(epoch["val_accuracy"]) for epoch in csv.DictReader(file)]
    return []


class Stopwatch(keras.callbacks.Callback):
    """Seconds of `fit`; of all its processes, where a `ResumableRun` restores callbacks.

    Example:

    >>> from keras_vit.training.study import Stopwatch
    >>> watch = Stopwatch()
    >>> watch.load_state_dict({"seconds": 60.0})
    >>> watch.total
    60.0
    """

    def __init__(self) -> None:
        super().__init__()
        self._before = 0.0
        self._since: float | None = None

    @property
    def total(self) -> float:
        """Seconds until now, or until the end of training."""
        return self._before + (0.0 if self._since is None else time.monotonic() - self._since)

    def on_train_begin(self, logs: Any = None) -> None:
        self._since = time.monotonic()

    def on_train_end(self, logs: Any = None) -> None:
        self._before, self._since = self.total, None

    def state_dict(self) -> dict[str, float]:
        return {"seconds": self.total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._before = state["seconds"]


def averaged(rows: Iterable[Row], over: str = "seed") -> list[Row]:
    """One row for those that differ in their seed: mean accuracy, `spread` and number of `runs`.

    Args:
        rows: Of `run_study`. Which belong together, `name` tells.
        over: The column that is averaged over, and left out.

    Returns:
        The first row of each name, with the mean of `accuracy` and `seconds`, the standard
        deviation `spread` (n - 1; NaN of one run), and `runs`.

    Example:

    >>> from keras_vit.training.study import averaged
    >>> rows = [{"name": "ViT", "seed": s, "accuracy": 0.5 + s / 10, "seconds": 1} for s in (0, 1)]
    >>> mean = averaged(rows)[0]
    >>> round(mean["accuracy"], 3), round(mean["spread"], 3), mean["runs"]
    (0.55, 0.071, 2)
    """
    groups: dict[Value, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["name"], []).append(row)
    found = []
    for group in groups.values():
        accuracies = [float(row["accuracy"]) for row in group]
        found.append(
            {
                **{name: value for name, value in group[0].items() if name != over},
                "accuracy": statistics.fmean(accuracies),
                "seconds": statistics.fmean(float(row["seconds"]) for row in group),
                "spread": statistics.stdev(accuracies) if len(group) > 1 else math.nan,
                "runs": len(group),
            }
        )
    return found


def to_markdown(rows: Iterable[Mapping[str, Value]], columns: Mapping[str, str]) -> str:
    """A Markdown table of rows.

    Args:
        rows: Of `run_study`, `averaged` or `ResultsTable`.
        columns: From a column's title to its format, such as `"{accuracy:.2%}"`. Columns with a
            colon are numbers, and stand to the right.

    Example:

    >>> from keras_vit.training.study import to_markdown
    >>> print(to_markdown([{"name": "ViT", "accuracy": 0.5}],
    ...                   {"model": "{name}", "accuracy": "{accuracy:.1%}"}))
    | model | accuracy |
    |---|---:|
    | ViT | 50.0% |
    """
    cells = [[form.format(**row) for form in columns.values()] for row in rows]
    # Not a number: the loss was lost, or it is the spread of one run.
    cells = [["–" if "nan" in cell else cell for cell in line] for line in cells]
    rule = "|".join("---:" if ":" in form else "---" for form in columns.values())
    lines = [" | ".join(line) for line in [list(columns), *cells]]
    title, *body = [f"| {line} |" for line in lines]
    return "\n".join([title, f"|{rule}|", *body])


def plan(trials: Iterable[Trial], splits: data.Splits) -> str:
    """What a study would train, as a Markdown table: the work, and the share of each.

    Example:

    >>> import keras_vit
    >>> from keras_vit.training.study import Trial, plan
    >>> sizes = {"patch_size": 8, "hidden_dim": 8, "depth": 1, "num_heads": 1, "mlp_dim": 8}
    >>> trial = Trial("smallest", "ViT", sizes, keras_vit.recipes.get("digits"), {})
    >>> print(plan([trial], keras_vit.data.load("digits")))
    | model | MMACs an image | images | share |
    |---|---:|---:|---:|
    | smallest | 0.0 | 88,320 | 100% |
    """
    rows: list[Row] = []
    for trial in trials:
        macs = trial.cost(splits.num_classes, splits.train.channels).macs
        images = _images_seen(trial.recipe, splits)
        # A sharpness-aware step takes two gradients.
        work = macs * images * (2 if trial.recipe.rho else 1)
        rows.append({"name": trial.name, "mmacs": macs / 1e6, "images": images, "work": work})
    total = sum(float(row["work"]) for row in rows)
    columns = {
        "model": "{name}",
        "MMACs an image": "{mmacs:,.1f}",
        "images": "{images:,}",
        "share": "{share:.0%}",
    }
    return to_markdown(({**row, "share": float(row["work"]) / total} for row in rows), columns)


def study_parser(description: str | None, out: str, **defaults: Any) -> argparse.ArgumentParser:
    """The options that every study has.

    Args:
        description: Of `--help`: the script's docstring.
        out: Default of `--out`.
        **defaults: Of the other options, by name: `data`, `steps`, `batch_size`, `seeds`.

    Example:

    >>> from keras_vit.training.study import study_parser
    >>> parser = study_parser("A study.", out="runs/study", data="cifar10", seeds=2)
    >>> options = parser.parse_args(["--steps", "100"])
    >>> options.data, options.steps, options.seeds
    ('cifar10', 100, 2)
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--data", help="a folder of photographs, or a TFDS name")
    add("--data-dir", help="where TFDS has its data sets")
    add("--steps", type=int, help="updates of each model")
    add("--batch-size", type=int, help="images of an update; the learning rate follows it")
    add("--seeds", type=int, help="how often each model is trained")
    add("--only", metavar="NAME", nargs="+", default=["*"], help='such as "ViT base" "Mixer*"')
    add("--precision", default="float32", help="dtype policy, such as mixed_bfloat16")
    add("--plan", action="store_true", help="say what would be trained, and train nothing")
    add("--out", type=Path, default=Path(out), help="where results.csv, table and plot go")
    add("--markdown", type=Path, help="another file for table and plot, such as docs/NAME.md")
    parser.set_defaults(**{"data": "cifar10", "seeds": 1, **defaults})
    return parser


def write_study(
    options: argparse.Namespace, text: str, plot: Callable[[Path], None], title: str
) -> None:
    """Prints a study's table; writes it with its plot to `--out`, and to `--markdown`.

    Args:
        options: Of `study_parser`.
        text: Markdown.
        plot: Writes the plot to a PNG file.
        title: Of the plot, for those who do not see it.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from keras_vit.training.study import study_parser, write_study
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options = study_parser("", "runs/s").parse_args(["--out", folder])
    ...     write_study(options, "a table", lambda path: None, "a plot")  # doctest: +ELLIPSIS
    ...     (Path(folder) / "table.md").read_text()
    <BLANKLINE>
    a table
    <BLANKLINE>
    written to ...: results.csv, table.md, table.png
    'a table\\n\\n![a plot](table.png)\\n'
    """
    print(f"\n{text}\n")
    pages = [options.out / "table.md", *([options.markdown] if options.markdown else [])]
    for page in pages:
        picture = page.with_suffix(".png")
        page.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(picture) as temporary:
            plot(temporary)
        write_text(page, f"{text}\n\n![{title}]({picture.name})\n")
    print(f"written to {options.out}: results.csv, table.md, table.png")


def chosen(trials: Iterable[Trial], options: argparse.Namespace) -> list[Trial]:
    """The trials that `--only` asks for, for every seed, under the `--precision`.

    Raises:
        ValueError: No trial has one of the names, or `--seeds` is below 1.

    Example:

    >>> import keras_vit
    >>> from keras_vit.training.study import Trial, chosen, study_parser
    >>> trials = [Trial(name, "ViT", {}, keras_vit.recipes.get("digits"), {}) for name in "ab"]
    >>> options = study_parser("", "runs/s").parse_args(["--only", "b", "--seeds", "2"])
    >>> [(trial.name, trial.seed) for trial in chosen(trials, options)]
    [('b', 0), ('b', 1)]
    """
    trials = list(trials)
    check_positive(seeds=options.seeds)
    for pattern in options.only:
        if not any(fnmatch.fnmatch(trial.name, pattern) for trial in trials):
            names = "; ".join(trial.name for trial in trials)
            raise ValueError(f"--only {pattern!r} fits none of: {names}.")
    found = [t for t in trials if any(fnmatch.fnmatch(t.name, one) for one in options.only)]
    policy = {} if options.precision == "float32" else {"dtype": options.precision}
    return [
        replace(trial, seed=seed, sizes={**trial.sizes, **policy})
        for trial in found
        for seed in range(options.seeds)
    ]


def _percent(accuracy: Value) -> str:
    return f"{float(accuracy):.2%}" if not math.isnan(float(accuracy)) else "its loss was lost"
