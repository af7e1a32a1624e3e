"""VTAB-1k: fine-tuning on nineteen tasks of a thousand examples each, and the mean accuracies."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.data import DatasetUnavailableError, Split
from keras_vit.errors import check_positive, printable
from keras_vit.evaluation.arrays import check_seed
from keras_vit.evaluation.vtab_data import task_splits
from keras_vit.evaluation.vtab_tasks import GROUPS, TASKS, Task
from keras_vit.files import write_text


@dataclass(frozen=True)
class Setting:
    """One way to train a task; the defaults are the ViT paper's (appendix B.1.1, table 4).

    Attributes:
        learning_rate: Peak rate of SGD with momentum 0.9, cosine decay, clipping at global norm 1.
        steps: Updates.
        batch_size: Examples of an update.
        image_size: Pixels; every task is resized to it.
        warmup: Updates in which the learning rate rises.
        accumulate: Parts that a batch is computed in, for a machine that it does not fit.
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
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(
                f"learning_rate={self.learning_rate!r} must be greater than 0 and finite, such "
                "as 0.01."
            )
        if self.warmup < 0:
            raise ValueError(f"warmup={self.warmup!r} must be an integer of at least 0.")
        check_seed(self.seed)
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size={self.batch_size} cannot be cut into accumulate={self.accumulate} "
                "equal parts. Give a divisor, such as 1."
            )


# (task, training examples, test examples, setting) -> accuracy on the test examples.
Train = Callable[[Task, Split, Split, Setting], float]


@dataclass(frozen=True)
class VTABReport:
    """Accuracies by task, from 0 to 1; prints as a table.

    Attributes:
        tasks: The tasks asked for.
        accuracies: Of the tasks that were trained.
        missing: Why the others were not, by task.
    """

    tasks: tuple[Task, ...]
    accuracies: Mapping[str, float]
    missing: Mapping[str, str]

    def mean(self, group: str | None = None) -> float | None:
        """Mean accuracy of a group, or of all tasks; None while one of its tasks is missing."""
        names = [task.name for task in self.tasks if group in (None, task.group)]
        if not names or not all(name in self.accuracies for name in names):
            return None
        return float(np.mean([self.accuracies[name] for name in names]))

    def rows(self) -> list[tuple[str, str]]:
        """Name and accuracy in per cent: every task under the mean of its group, then the mean."""
        rows = []
        for group in GROUPS:
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
        lines = [f"| {name.strip()} | {accuracy} |" for name, accuracy in self.rows()]
        return "\n".join(["| VTAB-1k | accuracy |", "|---|---:|", *lines])


def run_vtab(
    train: Train,
    out: str | Path,
    *,
    sweep: Sequence[Setting] = (Setting(),),
    tasks: Sequence[Task] = TASKS,
    data_dir: str | PathLike[str] | None = None,
    identity: str = "",
    say: Callable[[str], None] = print,
) -> VTABReport:
    """Trains every task, and writes what comes out as it comes.

    With several settings each is trained on `train800` and evaluated on `val200`; the best is then
    trained on `train800val200` and evaluated on `test`, once. A single setting skips the first
    part, as in the ViT paper. `out/TASK.json` holds a task's results, `out/vtab.md` the table;
    what is there already is not trained again, down to the single setting of a sweep.

    Args:
        train: Trains a fresh copy of the model on a task's examples and returns the accuracy on
            others: `(task, training split, test split, setting) -> float`.
        out: The folder of results.
        sweep: Settings to choose from.
        tasks: Which tasks.
        data_dir: Where TensorFlow Datasets lie prepared. Nothing is downloaded.
        identity: What is trained, such as a digest of the weights: results under another one in
            `out` are refused.
        say: Where lines for a reader go.

    Returns:
        Accuracies, group means, and which tasks' data is missing.

    Raises:
        DatasetUnavailableError: No task's data is prepared.
        FileExistsError: `out` holds a `vtab.md` that this function did not write.
        ValueError: `out` holds results of another model or sweep, or `sweep` or `tasks` is empty,
            or `train` returned no accuracy from 0 to 1.

    Example:

    >>> import tempfile
    >>> from keras_vit.data import DatasetUnavailableError
    >>> from keras_vit.evaluation import vtab
    >>> folder = tempfile.mkdtemp()
    >>> try:
    ...     vtab.run_vtab(lambda *_: 0.5, folder, data_dir=folder, say=lambda _: None)
    ... except DatasetUnavailableError as error:
    ...     print(str(error)[:49])
    None of the 19 data sets of VTAB is prepared: cal
    """
    if not sweep:
        raise ValueError("sweep is empty. Give at least one Setting.")
    if not tasks:
        raise ValueError("tasks is empty. Give at least one Task, such as vtab_tasks.TASKS[0].")
    out = Path(out)
    page = out / "vtab.md"
    if page.exists() and not any((out / f"{task.name}.json").exists() for task in TASKS):
        raise FileExistsError(
            f"{printable(page)} exists without results beside it, and would be replaced. Give "
            "another folder."
        )
    out.mkdir(parents=True, exist_ok=True)
    about = {"identity": identity, "sweep": [asdict(setting) for setting in sweep]}
    accuracies: dict[str, float] = {}
    missing: dict[str, str] = {}
    for task in tasks:
        record = _Record(out / f"{task.name}.json", about)
        if "accuracy" not in record.found:
            try:
                splits = task_splits(task, data_dir)
            except DatasetUnavailableError as error:
                missing[task.name] = str(error)
                say(str(error))
                continue
            _run_task(task, splits, sweep, train, record)
        accuracies[task.name] = record.found["accuracy"]
        say(f"{task.name}: {accuracies[task.name]:.2%}")
    if not accuracies:
        raise DatasetUnavailableError(
            f"None of the {len(tasks)} data sets of VTAB is prepared: {', '.join(missing)}. "
            "The lines above say how to prepare each; give the folder as data_dir."
        )
    report = VTABReport(tuple(tasks), accuracies, missing)
    write_text(out / "vtab.md", report.to_markdown() + "\n")
    return report


def _run_task(
    task: Task,
    splits: Mapping[str, Split],
    sweep: Sequence[Setting],
    train: Train,
    record: "_Record",
) -> None:
    best = sweep[0]
    if len(sweep) > 1:
        on_val = record.found.setdefault("val_accuracies", [])
        for setting in sweep[len(on_val) :]:
            on_val.append(_train(train, task, splits["train800"], splits["val200"], setting))
            record.write()
        best = sweep[int(np.argmax(on_val))]
    started = time.time()
    accuracy = _train(train, task, splits["train800val200"], splits["test"], best)
    record.found |= {
        "setting": asdict(best),
        "seconds": round(time.time() - started, 1),
        "accuracy": accuracy,
    }
    record.write()


def _train(train: Train, task: Task, learned: Split, tested: Split, setting: Setting) -> float:
    accuracy = float(train(task, learned, tested, setting))
    if not 0 <= accuracy <= 1:
        raise ValueError(
            f"train returned {accuracy} for {task.name} with {setting}. Return an accuracy from 0 "
            "to 1."
        )
    return accuracy


class _Record:
    """The JSON file of one task: read where it is, and written whole or not at all."""

    def __init__(self, path: Path, about: dict[str, Any]):
        self.path = path
        self.found: dict[str, Any] = dict(about)
        if not path.is_file():
            return
        try:
            self.found = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}). Delete it to train anew.") from error
        if {name: self.found.get(name) for name in about} != about:
            raise ValueError(
                f"{path} holds results of another model or sweep. Give another folder, or delete "
                "this one."
            )

    def write(self) -> None:
        write_text(self.path, json.dumps(self.found, indent=2, allow_nan=False))


def _percent(accuracy: float | None) -> str:
    return "missing" if accuracy is None else f"{accuracy:.2%}"
