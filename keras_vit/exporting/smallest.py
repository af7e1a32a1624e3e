"""The smallest file of a format whose answers are, but for a few, those of its model."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.errors import counted
from keras_vit.data import Split
from keras_vit.evaluation import predict_split
from keras_vit.evaluation.unseen_images import check_same_task
from keras_vit.exporting.comparison import Comparison, compare
from keras_vit.exporting.exported import load_exported
from keras_vit.exporting.format_table import check_format
from keras_vit.exporting.formats import check_target, export, format_of_path, published
from keras_vit.models import ImageModel
from keras_vit.tasks.scores import wilson_interval


@dataclass(frozen=True)
class Trial:
    """A way to write the weights, and what it does to the answers."""

    name: str
    comparison: Comparison | None
    reason: str = ""


@dataclass(frozen=True)
class Smallest:
    """What `export_smallest` tried, and which of them it kept.

    Attributes:
        trials: All, float32 at last.
        chosen: The one that was kept.
        max_flips: The part of the images that may have another answer.
    """

    trials: tuple[Trial, ...]
    chosen: Trial
    max_flips: float

    def __str__(self) -> str:
        chosen = self.chosen.comparison
        assert chosen is not None
        by_image = not chosen.per_pixel  # pixels of one image change together: without interval
        of = "which" if by_image else "whose pixels"
        most = f"{of} at most {100 * self.max_flips:.3g} % may have another {chosen.noun}"
        width = max(12, len(chosen.score_name) + 2)
        lines = [
            f"on {counted(chosen.images, 'image')}, of {most}",
            f"  {'':18}{'MB':>7}{chosen.score_name:>{width}}{'changed':>10}"
            f"{'   95 % interval' * by_image}",
        ]
        number = f"{width}.2%" if chosen.score_name == "accuracy" else f"{width}.4g"
        for trial in self.trials:
            row = trial.comparison
            mark = "*" if trial is self.chosen else " "
            if row is None:
                lines.append(f"{mark} {trial.name:18}cannot be written: {trial.reason}")
                continue
            low, high = (max(0.0, end) for end in wilson_interval(row.flips, row.images))
            lines.append(
                f"{mark} {trial.name:18}{row.size / 1e6:7.2f}{row.exported_score:{number}}"
                f"{row.flips:10.2%}" + f"   {low:.2%} to {high:.2%}" * by_image
            )
        # Wilson's interval of the chosen one: the bound was held by the images that chose it.
        high = wilson_interval(chosen.flips, chosen.images)[1]
        written = [t.comparison.flips for t in self.trials[:-1] if t.comparison is not None]
        if self.chosen.name == "float32":
            is_held = min(written, default=1.0) <= self.max_flips
            reason = "is smaller" if is_held else "holds the bound"
            lines.append(f"No quantization {reason}: float32 stays.")
        elif by_image and high > self.max_flips:
            lines.append(
                f"These images hold the bound; of others up to {high:.2%} may change: more images "
                "make it surer."
            )
        return "\n".join(lines)


def export_smallest(
    model: ImageModel,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    split: Split,
    max_flips: float = 0.01,
    calibration: np.ndarray | None = None,
    overwrite: bool = False,
    print_fn: Callable[[str], None] = print,
    **options: Any,
) -> Smallest:
    """Writes a model in the smallest of a format's quantizations that keeps its answers.

    Each of them is written and compared with the model on labeled images.

    Args:
        model: As for `keras_vit.export`.
        path: As for `keras_vit.export`, like `format`, `calibration` and `overwrite`.
        split: Images that the model was not trained on.
        max_flips: The largest part of these images, above 0 and at most 1, to which the file may
            give another class, labels or grade, or a number that differs by a hundredth of its
            scale; of pixels, where every pixel has a class. On others the part may be another: what
            is returned prints how large, where the 95 % interval of images reaches above the bound.
        print_fn: Prints a line for each quantization, before it is written: all take minutes.
        **options: Further ones of `keras_vit.export`, but for `quantize`.

    Returns:
        What was tried, and what was kept; it prints as a table.

    Raises:
        ValueError: `max_flips` is out of range, or the format is not quantized; and as
            `keras_vit.export`, like all other errors.

    Example:

    >>> import keras_vit, tempfile
    >>> from keras_vit.exporting import export_smallest
    >>> model = keras_vit.VisionTransformer(num_classes=10, patch_size=4, hidden_dim=16, depth=1,
    ...                                     num_heads=2, input_shape=(8, 8, 1))
    >>> digits = keras_vit.data.load("digits").val
    >>> made = export_smallest(model, tempfile.mkdtemp() + "/m.tflite", split=digits)
    writing and comparing int8
    writing and comparing float16
    writing and comparing float32
    >>> [trial.name for trial in made.trials]
    ['int8', 'float16', 'float32']
    """
    if not 0 < max_flips <= 1:  # NaN is not, either
        raise ValueError(
            f"max_flips={max_flips!r} is not accepted. Give a part of the images, above 0 and at "
            "most 1, such as 0.01."
        )
    path, format = Path(path), format_of_path(Path(path), format)
    row = check_format(format, "int8").at(path)
    row.require_system(path)
    check_target(path, row, overwrite)
    check_same_task(model, split)
    ways: list[tuple[str, str | None, Any]] = [(name, name, None) for name in row.quantizations]
    if format == "openvino" and calibration is not None:
        ways.insert(0, ("int8, calibrated", "int8", calibration))
    predicted, trials = predict_split(model, split), list[Trial]()
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, quantize, images in [*ways, ("float32", None, None)]:
            file = files[name] = Path(folder) / name / path.name
            file.parent.mkdir()
            print_fn(f"writing and comparing {name}")
            try:
                export(model, file, format, quantize=quantize, calibration=images, **options)
            except RuntimeError as error:
                if quantize is None:
                    raise
                trials.append(Trial(name, None, str(error)))
                continue
            trials.append(Trial(name, compare(model, load_exported(file), split, predicted)))
        written = [(each.comparison, each) for each in trials if each.comparison is not None]
        held = [(c.size, t.name, t) for c, t in written if c.flips <= max_flips]
        chosen = min(held, default=(0, "", trials[-1]))[2]
        with published(path, row, overwrite) as place:
            _copy(files[chosen.name], place, row.files)
    return Smallest(tuple(trials), chosen, max_flips)


def _copy(source: Path, target: Path, patterns: tuple[str, ...]) -> None:
    """Copies an exported file, or the files of a folder that are the model's."""
    if source.is_file():
        shutil.copyfile(source, target)
        return
    for file in (each for pattern in patterns for each in source.glob(pattern)):
        (target / file.relative_to(source)).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target / file.relative_to(source))
