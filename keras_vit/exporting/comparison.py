"""What an exported file predicts beside its model, on labeled images."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import data
from keras_vit._base.errors import counted, printable
from keras_vit.data.decode.image_kinds import kind_by_bytes
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation.prediction import pipeline_arguments, predict_files, predict_split
from keras_vit.evaluation.unseen_images import check_same_task
from keras_vit.exporting.agreement import decisions, same_parts
from keras_vit.exporting.exported import ExportedModel, format_of
from keras_vit.exporting.format_table import FORMATS
from keras_vit.models.answers import answers_of, task_of
from keras_vit.models.normalization import own_statistics
from keras_vit.tasks import Task
from keras_vit.tasks.scores import Score

# Images to calibrate by: NNCF's own default.
CALIBRATION_IMAGES = 300
# Lines about images with another answer that are printed.
MOST_CHANGED = 20


@dataclass(frozen=True)
class Comparison:
    """A model and the file that was made of it, on the same labeled images.

    Attributes:
        score_name: The task's first score, such as `"accuracy"`.
        agreement: The part of the images to which both give the same class, labels or grade; of
            numbers, where they differ by less than a hundredth of their scale.
        noun: What that is.
        size: Bytes of the file.
        weights: Bytes of the model's weights.
        files: How many JPEG and PNG files a SavedModel also decoded itself; 0 for other formats,
            and where the images are not files.
        other_files: To how many of these it gives another class, labels, grade or numbers than
            `predict_files` of the model, whose JPEG decoder may be another; of pixels, to the
            parts of how many, summed.
        flips: The part of the images, or of all pixels of a task of pixels, with another answer.
        change: By how much the file scores more, with its paired 95 % interval.
        changed: A line per image with another answer: its file, both answers, the truth; of pixels
            the part of those with another, from the largest down to the mean.
        suffers: The name that loses the most right answers, with their numbers; empty if none.
        per_pixel: Whether the task is one of pixels.
    """

    images: int
    score_name: str
    score: float
    exported_score: float
    agreement: float
    noun: str
    size: int
    weights: int
    files: int = 0
    other_files: float = 0
    flips: float = 0.0
    change: Score | None = None
    changed: tuple[str, ...] = ()
    suffers: str = ""
    per_pixel: bool = False

    def __str__(self) -> str:
        numbers = "8.2%" if self.score_name == "accuracy" else "8.4g"
        return "\n".join(
            (
                f"on {counted(self.images, 'image')}{'':12}model      file",
                f"  {self.score_name:24}{self.score:{numbers}}  {self.exported_score:{numbers}}",
                f"  {'the same ' + self.noun:34}{self.agreement:8.2%}",
                *(self._of_flips if self.changed else []),
                *([self._of_files] if self.files else []),
                f"  size{'':20}{self.weights / 1e6:5.1f} MB  {self.size / 1e6:5.1f} MB",
            )
        )

    @property
    def _of_flips(self) -> list[str]:
        assert self.change is not None
        factor, unit = (100, " points") if self.score_name == "accuracy" else (1, "")
        value, low, high = (f"{factor * x:+.3g}" for x in self.change)
        lines = [f"  {self.score_name} by {value}{unit} (paired 95 % interval {low} to {high})"]
        lines += [f"  it loses most in {self.suffers}"] if self.suffers else []
        more = len(self.changed) - MOST_CHANGED
        shown = [*self.changed[:MOST_CHANGED], *([f"and {more:,} more"] if more > 0 else [])]
        return [*lines, f"  another {self.noun}:", *(f"    {line}" for line in shown)]

    @property
    def _of_files(self) -> str:
        same = 1 - self.other_files / self.files
        line = f"  {'and where it decodes the files':34}{same:8.2%}"
        if not self.other_files:
            return line
        count = f"{self.other_files} of {counted(self.files, 'image')} not: "
        return (
            f"{line} ({'' if self.per_pixel else count}it decodes JPEG files as its eval_transform "
            "says, with TensorFlow's fast transform by default; export it with decoder='pillow' "
            "for Pillow's pixels)"
        )


def compare(
    model: Any, exported: ExportedModel, split: data.Split, predicted: Any = None
) -> Comparison:
    """Predicts a split by a model and by the file that was exported from it.

    Args:
        model: The model.
        exported: The file.
        split: Labeled images.
        predicted: What `predict_split` returns for the model; None to predict it.

    Raises:
        ValueError: The split does not have the targets of the model's task, or there is no task.
    """
    task = task_of(model)
    check_same_task(model, split)
    labels, outputs = predicted or predict_split(model, split)
    exported_answers = answers_of(exported, predict_split(exported, split)[1])
    # The scale of numbers is that of each one's training images.
    answers, targets = answers_of(model, outputs), split.task.to_targets(labels)
    scores = [task.scores(targets, a, resamples=0) for a in (answers, exported_answers)]
    name = next(iter(scores[0]))
    other = 1 - same_parts(task, answers, exported_answers).mean(axis=1)
    flips = float((other if task.per_pixel else other > 0).mean())
    return Comparison(
        len(labels),
        name,
        scores[0][name].value,
        scores[1][name].value,
        1 - flips,
        task.nouns[0],
        size_of(exported.path),
        4 * model.count_params(),
        *_decoded_otherwise(model, exported, split),
        flips=flips,
        change=task.score_changes(targets, answers, exported_answers)[name],
        changed=_changed(task, split, other, targets, answers, exported_answers),
        suffers=_suffers(task, targets, answers, exported_answers),
        per_pixel=task.per_pixel,
    )


def _changed(
    task: Task, split: data.Split, other: np.ndarray, targets: Any, answers: Any, others: Any
) -> tuple[str, ...]:
    """Return a line for each image with other answers: its file or number, and its answers."""
    files = getattr(split, "files", None) or ()
    named = files if len(files) == len(targets) else [f"image {i:,}" for i in range(len(targets))]
    if task.per_pixel:  # nearly every image has some
        most = [i for i in np.argsort(-other) if other[i] >= max(other.mean(), 1e-9)]
        return tuple(f"{printable(named[i])}: {other[i]:.2%} of its pixels" for i in most)
    lines = []
    for i in np.flatnonzero(other):
        before, after = (task.to_text(each[i], 1) for each in (answers, others))
        truth = f"; it is {task.shown_names[targets[i]]}" if targets.ndim == 1 else ""
        lines.append(f"{printable(named[i])}: {before}, now {after}{printable(truth)}")
    return tuple(lines)


def _suffers(task: Task, targets: Any, answers: Any, others: Any) -> str:
    """Return the class, grade or label that loses the most right answers; of numbers, nothing."""
    first, second = (decisions(task, each) for each in (answers, others))
    if first is None or second is None or task.per_pixel:
        return ""
    shape = targets.shape
    right = [(each.reshape(shape) == targets).astype(int) for each in (first, second)]
    if targets.ndim == 1:
        before, after = (np.bincount(targets, each, task.size) for each in right)
    else:
        before, after = (each.sum(axis=0) for each in right)
    most = int(np.argmax(before - after))
    if before[most] <= after[most]:
        return ""
    of = int((targets == most).sum()) if targets.ndim == 1 else len(targets)
    name = printable(task.shown_names[most])
    return f"{name}: {before[most]:.0f} of {of:,} right before, {after[most]:.0f} now"


def _decoded_otherwise(model: Any, exported: ExportedModel, split: data.Split) -> tuple[int, float]:
    """Return how many files a SavedModel decodes itself, and for how many its answer differs."""
    files, contract = getattr(split, "files", ()), exported.contract
    if not (files and contract.format == "tf_saved_model" and contract.reads_files):
        return 0, 0
    run = FORMATS[contract.format].implementation().file_runner(exported.path, contract.outputs[:1])
    task, total, others = task_of(model), 0, 0
    kinds = ((file, kind_by_bytes(file)) for file in files)
    files = [file for file, kind in kinds if kind and kind.name in ("JPEG", "PNG")]
    predicted = predict_files(model, files)
    readable = ((file, row) for file, row in predicted if not isinstance(row, str))
    while batch := list(islice(readable, 32)):
        answers = np.stack([row[..., : task.size] for _, row in batch])
        same = same_parts(task, answers, run([file.read_bytes() for file, _ in batch])[0])
        other = 1 - same.mean(axis=1)
        others += (other if task.per_pixel else other > 0).sum().item()
        total += len(batch)
    return total, others


def size_of(path: Path) -> int:
    """Return bytes of an exported file, or of the files of its folder."""
    if path.is_file():
        return path.stat().st_size
    name = format_of(path)
    patterns = FORMATS[name].patterns if name else ("*",)
    return sum(f.stat().st_size for pattern in patterns for f in path.glob(pattern))


def calibration_images(
    model: Any, split: data.Split, number: int = CALIBRATION_IMAGES
) -> np.ndarray:
    """Return images of a split as the model sees them, taken evenly over the split.

    uint8; float32 where the model has statistics of its own.
    """
    if isinstance(split, IndexedSplit):
        split = split.take(np.linspace(0, len(split) - 1, min(number, len(split))).astype(int))
    step = max(1, len(split) // number)  # of records
    batches = data.pipeline(split, batch_size=step, **pipeline_arguments(model))
    firsts = [images[:1] for images, _ in islice(batches.as_numpy_iterator(), number)]
    images = np.concatenate(firsts)
    if own_statistics(model) is not None:
        return images
    return np.clip(np.rint(images), 0, 255).astype("uint8")
