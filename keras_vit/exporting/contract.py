"""What every exported file takes and returns, and the text of it that the file carries."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from keras_vit import tasks
from keras_vit._base.errors import check_positive
from keras_vit._base.version import __version__
from keras_vit.data.band_statistics import Statistics
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.data.seen_images import SeenImages
from keras_vit.models.answers import HEAD_NAME, NOVELTY, RAW_OUTPUTS, head_prefix
from keras_vit.models.config import check_statistics
from keras_vit.tasks import Task

# Under this name the text stands in the file's metadata.
KEY = "keras_vit"
# And in an archive or a folder in a file of this name.
DESCRIPTION = f"{KEY}.json"
# The input, by the name that every format gives it.
IMAGES = "images"
# A second signature, where a format has several: float32, so that prepared photographs, whose
# pixels lie between levels, are not rounded. The other formats cast `images` to float32 at once,
# and their reader declares its input so.
PIXELS = "pixels"
# What a format's `runner` returns: from pixels to the outputs that it was asked for.
Run: TypeAlias = Callable[[np.ndarray], list[np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What an exported model takes and returns.

    Its input `images` are uint8 pixels 0..255 `(batch, height, width, channels)` of any batch, or
    float32 in the range of raster files where the model has statistics of its own
    (`pixels`, a second signature of SavedModel and LiteRT, takes float32); its `outputs` are the
    `answer_names` of its task, or one called `outputs`, what the model returns.

    Attributes:
        format: A key of `keras_vit.exporting.FORMATS`.
        task: What the outputs mean; None where nobody said it.
        image_size: Height and width of the images.
        channels: 3 for RGB, 1 for gray; image files are not read as any other number.
        evaluation: How photographs are brought to that size.
        top_k: How many of the most probable classes are returned.
        max_pixels: Height times width that a photograph may have.
        quantize: None, `"int8"`, `"mixed"` or `"float16"`.
        raw_shape: Without a task, the shape of the outputs for one image.
        novelty: Whether the last output is `novelty`.
        statistics: The means and standard deviations of channels that are not 0..255, or None.
        seen_images: Which images the model was made with, or None.
        version: Of the package that wrote the file.
        tasks: Of a model with several heads, the name and the task of each, and no `task`: the
            names of its outputs begin with that of the head.
        features: Of a debug export, the names of its further outputs, in the order of the data.
        prefix: In the contract of one of several heads (`heads`), what its outputs begin with.
    """

    format: str
    task: Task | None
    image_size: tuple[int, int]
    channels: int
    evaluation: EvalTransform = field(default_factory=EvalTransform)
    top_k: int
    max_pixels: int
    quantize: str | None = None
    raw_shape: tuple[int, ...] = ()
    novelty: bool = False
    statistics: Statistics | None = None
    seen_images: SeenImages | None = None
    version: str = __version__
    tasks: tuple[tuple[str, Task], ...] = ()
    features: tuple[str, ...] = ()
    prefix: str = ""

    @property
    def heads(self) -> tuple[Contract, ...]:
        """The contract of each head by itself; of a model with one head, this contract."""
        if not self.tasks:
            return (self,)
        one = partial(replace, self, tasks=())
        return tuple(one(task=task, prefix=head_prefix(name)) for name, task in self.tasks)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, the answers of each head first."""
        if self.tasks:
            return tuple(name for head in self.heads for name in head.outputs)
        names = (RAW_OUTPUTS,) if self.task is None else self.task.answer_names
        return tuple(self.prefix + name for name in (*names, *[NOVELTY] * self.novelty))

    @property
    def has_task(self) -> bool:
        """Whether somebody said what its outputs mean, those of each head."""
        return self.task is not None or bool(self.tasks)

    @property
    def answers(self) -> tuple[str, ...]:
        """The names of the answers themselves, one per head, without what follows from them."""
        return tuple(head.outputs[0] for head in self.heads)

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of the outputs that a proof has numbers of, answers and novelty."""
        return (*self.answers, *self.outputs[-1:] * self.novelty)

    @property
    def returned(self) -> tuple[str, ...]:
        """The names of all that it returns, `outputs` and `features`."""
        return (*self.outputs, *self.features)

    @property
    def answer_shape(self) -> tuple[int, ...]:
        """The shape of the first output for one image."""
        return self.raw_shape if self.task is None else self.task.answer_shape(self.image_size)

    @property
    def reads_files(self) -> bool:
        """Whether the bytes of JPEG and PNG files, of up to four channels, can be its input."""
        return self.channels in (1, 3) and self.statistics is None

    @property
    def reads_photographs(self) -> bool:
        """Whether image files are read as photographs, 0..255, and not as bands."""
        return self.reads_files and self.evaluation.bands is None

    @property
    def dtype(self) -> str:
        """The dtype of the input `images`."""
        return "uint8" if self.statistics is None else "float32"

    def to_text(self) -> str:
        """JSON in ASCII, whatever characters the names have."""
        written = {
            "task": self.task and self.task.get_config(),
            "evaluation": self.evaluation.to_dict(),
            "seen_images": self.seen_images and self.seen_images.to_dict(),
        }
        values = {**vars(self), **written}
        del values["prefix"], values["tasks"]
        if not self.features:  # earlier versions read the text that files always had
            del values["features"]
        if self.tasks:
            values["tasks"] = [[name, task.get_config()] for name, task in self.tasks]
        return json.dumps(values)

    @classmethod
    def from_text(cls, text: str | bytes) -> Contract:
        """Return the contract that a file carries.

        Raises:
            ValueError: The text is not that of a contract.
        """
        try:
            values = json.loads(text)
            if values["task"] is not None:
                values["task"] = tasks.get(values["task"])
            heads = [(str(name), tasks.get(task)) for name, task in values.get("tasks", ())]
            values["tasks"] = tuple(heads)
            values["features"] = tuple(map(str, values.get("features", ())))
            values["raw_shape"] = tuple(map(int, values.get("raw_shape", ())))
            values["image_size"] = tuple(map(int, values["image_size"]))
            values["evaluation"] = EvalTransform.of(values.get("evaluation"))
            values["seen_images"] = SeenImages.from_dict(values.get("seen_images"))
            if values.get("statistics") is not None:
                values["statistics"] = check_statistics(values["statistics"], values["channels"])
            contract = cls(**values)
            height, width = contract.image_size
            check_positive(height=height, width=width, top_k=contract.top_k)
            check_positive(max_pixels=contract.max_pixels)
            check_positive(**{f"raw_shape[{i}]": n for i, n in enumerate(contract.raw_shape)})
            check_positive(channels=contract.channels)
            if not all(head.answer_shape for head in contract.heads):
                raise ValueError("it has neither a task nor raw_shape")
            if contract.prefix or (heads and (contract.task or contract.novelty)):
                raise ValueError("it has one task and several")
            if not all(HEAD_NAME.fullmatch(name) for name, _ in heads):
                raise ValueError("a head does not have a name")
            if len({*contract.returned}) < len(contract.returned):
                raise ValueError("several outputs have one name")
            return contract
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"its description is damaged: {error}") from error


def append(path: Path, contract: Contract) -> None:
    """Writes a contract into a zip archive behind a file's own bytes."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(DESCRIPTION, contract.to_text())


def read_appended(path: Path) -> Contract:
    """Return the contract in a zip archive behind a file's own bytes."""
    with zipfile.ZipFile(path) as archive:
        return Contract.from_text(archive.read(DESCRIPTION))
