"""What every exported file takes and returns, and the text of it that the file carries."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from keras_vit import tasks
from keras_vit._base.errors import check_positive
from keras_vit._base.version import __version__
from keras_vit.data.band_statistics import Statistics
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.data.seen_images import SeenImages
from keras_vit.models.answers import NOVELTY, RAW_OUTPUTS
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
        quantize: None, `"int8"` or `"float16"`.
        raw_shape: Without a task, the shape of the outputs for one image.
        novelty: Whether the last output is `novelty`.
        statistics: The means and standard deviations of channels that are not 0..255, or None.
        seen_images: Which images the model was made with, or None.
        version: Of the package that wrote the file.
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

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, the answers first."""
        names = (RAW_OUTPUTS,) if self.task is None else self.task.answer_names
        return (*names, NOVELTY) if self.novelty else names

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
        return json.dumps({**vars(self), **written})

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
            if not contract.answer_shape:
                raise ValueError("it has neither a task nor raw_shape")
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
