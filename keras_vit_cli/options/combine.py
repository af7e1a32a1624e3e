"""The options of `keras-vit combine`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_vit_cli.options.option import POSITIONAL, Command, UsageError, in_data, in_model, in_run

# Modes of `keras_vit.data.EvalTransform` that a model does not take from another package.
TRANSFORMS = ("crop", "stretch", "stretch_bicubic")


@dataclass(frozen=True, kw_only=True)
class CombineOptions:
    """The options of `keras-vit combine`."""

    eval_transform: str | None = in_data(
        "how images are prepared for all heads: the middle of an image, or all of it, which masks "
        "and depth need (default: as in the runs, which then have to agree)",
        None,
        choices=TRANSFORMS,
    )
    models: tuple[Path, ...] = in_model(
        "two or more .keras or weights files, or folders of training runs, whose heads were "
        "trained on one frozen encoder",
        metavar="RUN",
        name=POSITIONAL,
    )
    names: tuple[str, ...] | None = in_model(
        "a name for each head, which its outputs, columns and file begin with (default: what each "
        "run predicts, such as segmentation; of two that predict alike, the names of the runs)",
        None,
        metavar="NAME",
    )
    out: Path = in_run("folder to write", metavar="FOLDER")
    overwrite: bool = in_run("replace a folder that combine wrote earlier", False)


def _check(options: dict[str, Any]) -> None:
    models, names = options["models"], options["names"]
    if names is not None and len(names) != len(models):
        raise UsageError(f"--names has {len(names)} for {len(models)} runs: give one for each")


COMBINE = Command(
    CombineOptions,
    "join the heads of several runs on the frozen encoder that they share: all answers in one pass",
    "keras-vit combine runs/photos runs/masks --eval-transform stretch --out runs/both",
    _check,
)
