"""VTAB-1k: fine-tuning on nineteen tasks of a thousand examples each, and the mean accuracies."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import keras
import numpy as np

from examples.vtab.tasks import VTAB_GROUPS, VTAB_TASKS, VtabTask, task_splits
from keras_vit._base.errors import check_above_zero, check_non_negative, check_positive, printable
from keras_vit._base.files import write_text
from keras_vit.data import DatasetUnavailableError, Split, pipeline
from keras_vit.evaluation.markdown import table
from keras_vit.models.geometry import image_shape


@dataclass(frozen=True)
class Setting:
    """Hyper-parameters of one training; the defaults are the ViT paper's (appendix B.1.1, table 4).

    Attributes:
        learning_rate: Peak learning rate of SGD with momentum 0.9, cosine decay and gradients
            clipped at global norm 1.
        steps: Number of updates.
        batch_size: Examples per update.
        image_size: Images are resized to this size in pixels.
        warmup: Updates in which the learning rate rises.
        accumulate: Number of parts in which a batch is computed, to save memory.
        seed: Seed of the order and the initial values.

    Raises:
        ValueError: A value is out of range, or `accumulate` does not divide `batch_size`.
    """

    learning_rate: float = 0.01
    steps: int = 2500
    batch_size: int = 512
    image_size: int = 384
    warmup: int = 500
    accumulate: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(
            steps=self.steps,
            batch_size=self.batch_size,
            image_size=self.image_size,
            accumulate=self.accumulate,
        )
        check_above_zero(learning_rate=self.learning_rate)
        check_non_negative(warmup=self.warmup, seed=self.seed)
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size={self.batch_size} cannot be split into accumulate={self.accumulate} "
                "equal parts. Give a divisor, such as 1."
            )


# (task, training examples, test examples, setting) -> accuracy on the test examples.
Train = Callable[[VtabTask, Split, Split, Setting], float]


@dataclass(frozen=True)
class VTABReport:
    """Accuracies per task, from 0 to 1; prints as a table.

    Attributes:
        tasks: The requested tasks.
        accuracies: Accuracy by name of the task.
        missing: The reasons why the other tasks were not trained, by name.
    """

    tasks: tuple[VtabTask, ...]
    accuracies: Mapping[str, float]
    missing: Mapping[str, str]

    def mean(self, group: str | None = None) -> float | None:
        """Mean accuracy of a group, or of all tasks; None while one of its tasks is missing."""
        names = [task.name for task in self.tasks if group in (None, task.group)]
        if not names or not all(name in self.accuracies for name in names):
            return None
        return float(np.mean([self.accuracies[name] for name in names]))

    def rows(self) -> list[tuple[str, str]]:
        """Names and accuracies in per cent: tasks under the mean of their group, then the mean."""
        rows = []
        for group in VTAB_GROUPS:
            members = [task for task in self.tasks if task.group == group]
            if members:
                rows.append((f"{group} ({len(members)})", _percent(self.mean(group))))
            rows += [(f"  {t.name}", _percent(self.accuracies.get(t.name))) for t in members]
        rows.append((f"mean of {len(self.tasks)} tasks", _percent(self.mean())))
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {accuracy:>7}" for name, accuracy in rows)

    def to_markdown(self) -> str:
        """The table in Markdown."""
        return table(("VTAB-1k", "accuracy"), [(n.strip(), a) for n, a in self.rows()], "lr")


def run_vtab(
    train: Train,
    out: str | Path,
    *,
    sweep: Sequence[Setting] = (Setting(),),
    tasks: Sequence[VtabTask] = VTAB_TASKS,
    data_dir: str | PathLike[str] | None = None,
    identity: str = "",
    log: Callable[[str], None] = print,
) -> VTABReport:
    """Trains every task, and writes each result as soon as it is known.

    With several settings each is trained on `train800` and evaluated on `val200`; the best is then
    trained on `train800val200` and evaluated on `test`, once. A single setting skips the first
    part, as in the ViT paper. `out/TASK.json` holds a task's results, `out/vtab.md` the table;
    existing results are not computed again, down to the single setting of a sweep.

    Args:
        train: Trains a fresh copy of the model on a task's training split and returns the accuracy
            on its test split: `(task, training split, test split, setting) -> float`.
        out: The folder of results.
        sweep: Settings to choose from.
        tasks: Which tasks.
        data_dir: Folder of prepared TensorFlow Datasets. Nothing is downloaded.
        identity: Identifies the model, such as a digest of its weights: results of another one in
            `out` are refused.
        log: Receives lines of progress.

    Raises:
        DatasetUnavailableError: No task's data is prepared.
        FileExistsError: `out` holds a `vtab.md` that this function did not write.
        ValueError: `out` holds results of another model or sweep, `sweep` or `tasks` is empty, or
            `train` did not return an accuracy from 0 to 1.

    Example:

    >>> import tempfile
    >>> from keras_vit.data import DatasetUnavailableError
    >>> from examples.vtab import runner
    >>> folder = tempfile.mkdtemp()
    >>> try:
    ...     runner.run_vtab(lambda *_: 0.5, folder, data_dir=folder, log=lambda _: None)
    ... except DatasetUnavailableError as error:
    ...     print(str(error)[:49])
    None of the 19 data sets of VTAB is prepared: cal
    """
    if not sweep:
        raise ValueError("sweep is empty. Give at least one Setting.")
    if not tasks:
        raise ValueError("tasks is empty. Give at least one, such as vtab_tasks.VTAB_TASKS[0].")
    out = Path(out)
    page = out / "vtab.md"
    if page.exists() and not any((out / f"{task.name}.json").exists() for task in VTAB_TASKS):
        raise FileExistsError(
            f"{printable(page)} exists without results beside it, and would be replaced. Give "
            "another folder."
        )
    out.mkdir(parents=True, exist_ok=True)
    accuracies: dict[str, float] = {}
    missing: dict[str, str] = {}
    for task in tasks:
        path = out / f"{task.name}.json"
        results = _read_results(path, identity, sweep)
        if "accuracy" not in results:
            try:
                splits = task_splits(task, data_dir)
            except DatasetUnavailableError as error:
                missing[task.name] = str(error)
                log(str(error))
                continue
            _run_task(task, splits, sweep, train, path, results)
        accuracies[task.name] = results["accuracy"]
        log(f"{task.name}: {accuracies[task.name]:.2%}")
    if not accuracies:
        raise DatasetUnavailableError(
            f"None of the {len(tasks)} data sets of VTAB is prepared: {', '.join(missing)}. "
            "The lines above explain how to prepare each; give the folder as data_dir."
        )
    report = VTABReport(tuple(tasks), accuracies, missing)
    write_text(page, report.to_markdown() + "\n")
    return report


def _run_task(
    task: VtabTask,
    splits: Mapping[str, Split],
    sweep: Sequence[Setting],
    train: Train,
    path: Path,
    results: dict[str, Any],
) -> None:
    """Trains what `results` lacks, and writes it to `path` after each training."""

    def accuracy(train_split: str, test_split: str, setting: Setting) -> float:
        value = float(train(task, splits[train_split], splits[test_split], setting))
        if not 0 <= value <= 1:
            raise ValueError(
                f"train returned {value} for {task.name} with {setting}. Return an accuracy from "
                "0 to 1."
            )
        return value

    def save() -> None:
        write_text(path, json.dumps(results, indent=2, allow_nan=False))

    best = sweep[0]
    if len(sweep) > 1:
        val_accuracies = results.setdefault("val_accuracies", [])
        for setting in sweep[len(val_accuracies) :]:
            val_accuracies.append(accuracy("train800", "val200", setting))
            save()
        best = sweep[int(np.argmax(val_accuracies))]
    started = time.time()
    results["setting"] = asdict(best)
    results["accuracy"] = accuracy("train800val200", "test", best)
    results["seconds"] = round(time.time() - started, 1)
    save()


def _read_results(path: Path, identity: str, sweep: Sequence[Setting]) -> dict[str, Any]:
    """The results of one task that are there already."""
    expected = {"identity": identity, "sweep": [asdict(setting) for setting in sweep]}
    if not path.is_file():
        return expected
    try:
        results: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}). Delete it to train again.") from error
    if any(results.get(name) != value for name, value in expected.items()):
        raise ValueError(
            f"{path} holds results of another model or sweep. Give another folder, or delete "
            "this one."
        )
    return results


def finetuning(model: Any, verbose: str | int = "auto") -> Train:
    """The `train` of `run_vtab` that fine-tunes copies of a model under new zero heads.

    SGD with momentum 0.9, no weight decay, cosine decay after a linear warm-up, gradients clipped
    at global norm 1; images resized to the setting's size, without augmentation, as in the
    benchmark.

    Args:
        model: A pretrained model that accepts pixels; it is not changed.
        verbose: `verbose` of Keras's `fit`.

    Example:

    >>> import keras_vit
    >>> from examples.vtab.runner import finetuning
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=4, hidden_dim=8, depth=1, num_heads=2, input_shape=(8, 8, 3))
    >>> train = finetuning(model)  # for run_vtab(train, "runs/vtab", data_dir="tfds")
    """
    # Training imports this package, which may not import it back before it is complete.
    from keras_vit.training.optimizers import MomentumSGD
    from keras_vit.training.schedules import make_schedule

    def train(task: VtabTask, train_split: Split, test_split: Split, setting: Setting) -> float:
        keras.utils.set_random_seed(setting.seed)
        size, steps = (setting.image_size, setting.image_size), setting.steps
        shape = image_shape(size, model.channels, model.data_format)
        copy = model.with_input_shape(shape).with_classifier(task.classes)

        def batches(split: Split, **options: Any) -> Any:
            options |= {"channels": model.channels, "eval_transform": "stretch"}
            options["data_format"] = model.data_format
            part = setting.batch_size // setting.accumulate
            return pipeline(split, setting.image_size, part, **options)

        warmup = min(setting.warmup, steps - 1)
        copy.compile(
            MomentumSGD(  # counts updates: Keras's own takes its rate by the number of batches
                make_schedule("cosine", setting.learning_rate, steps, warmup),
                global_clipnorm=1.0,
                gradient_accumulation_steps=setting.accumulate if setting.accumulate > 1 else None,
            ),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        copy.fit(
            batches(train_split, training=True, seed=setting.seed, augment="none", repeat=True),
            steps_per_epoch=steps * setting.accumulate,
            shuffle=False,  # the pipeline has shuffled
            verbose=verbose,
        )
        results = copy.evaluate(batches(test_split), return_dict=True, verbose=verbose)
        return float(results["accuracy"])

    return train


def _percent(accuracy: float | None) -> str:
    return "missing" if accuracy is None else f"{accuracy:.2%}"
