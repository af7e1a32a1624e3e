"""The options of `keras-vit average`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options.option import POSITIONAL, Command, in_model, in_run


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """The options of `keras-vit average`."""

    models: tuple[Path, ...] = in_model(
        "two or more .keras or weights files, or folders of training runs, all fine-tuned "
        "from the same weights",
        metavar="MODEL",
        name=POSITIONAL,
    )
    start: str | None = in_model(
        "the weights that all of them started from, a file or MODEL:TAG: draw the average "
        "toward them, as far as the runs disagree (Model Stock)",
        None,
    )
    out: Path = in_run(".keras file to write", metavar="FILE")
    overwrite: bool = in_run("replace a file that average or convert wrote earlier", False)


AVERAGE = Command(
    AverageOptions,
    "average the weights of fine-tuned models of one origin into one model of the same size",
    "keras-vit average runs/seed0 runs/seed1 runs/seed2 --out runs/soup.keras",
)
