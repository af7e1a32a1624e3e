"""What every exported file takes and returns, and the text of it that the file carries."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from keras_vit._base.errors import check_positive
from keras_vit._base.version import __version__
from keras_vit.data.eval_transform import EvalTransform

# Under this name the text stands in the file's metadata.
KEY = "keras_vit"
# The input and the outputs, by the names that every format gives them.
IMAGES = "images"
# A second signature, where a format has several: float32, so that prepared photographs, whose
# pixels lie between levels, are not rounded. The other formats cast `images` to float32 at once,
# and their reader declares its input so.
PIXELS = "pixels"
OUTPUTS = ("probabilities", "top_classes", "top_probabilities")


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What an exported classifier takes and returns.

    Its input `images` are uint8 pixels 0..255 `(batch, height, width, channels)` of any batch
    (`pixels`, a second signature of SavedModel and LiteRT, takes float32); its outputs are
    `probabilities`, float32 `(batch, classes)`, `top_classes` and `top_probabilities`
    `(batch, top_k)`, the most probable first.

    Attributes:
        format: A key of `keras_vit.export.FORMATS`.
        class_names: The name of each class.
        image_size: Height and width of the images.
        channels: 3 for RGB, 1 for gray; image files are not read as any other number.
        evaluation: How photographs are brought to that size.
        top_k: How many of the most probable classes are returned.
        max_pixels: Height times width that a photograph may have.
        quantize: None, or `"int8"`.
        version: Of the package that wrote the file.
    """

    format: str
    class_names: tuple[str, ...]
    image_size: tuple[int, int]
    channels: int
    evaluation: EvalTransform = field(default_factory=EvalTransform)
    top_k: int
    max_pixels: int
    quantize: str | None = None
    version: str = __version__

    @property
    def reads_files(self) -> bool:
        """Whether the bytes of image files, of one, three or four channels, can be its input."""
        return self.channels in (1, 3)

    def to_text(self) -> str:
        """JSON in ASCII, whatever characters the names have."""
        return json.dumps({**asdict(self), "evaluation": self.evaluation.to_dict()})

    @classmethod
    def from_text(cls, text: str | bytes) -> Contract:
        """The contract that a file carries.

        Raises:
            ValueError: The text is not that of a contract.
        """
        try:
            values = json.loads(text)
            values["class_names"] = tuple(map(str, values["class_names"]))
            values["image_size"] = tuple(map(int, values["image_size"]))
            values["evaluation"] = EvalTransform.of(values.get("evaluation"))
            contract = cls(**values)
            height, width = contract.image_size
            check_positive(height=height, width=width, top_k=contract.top_k)
            check_positive(max_pixels=contract.max_pixels)
            check_positive(channels=contract.channels)
            return contract
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"its description is damaged: {error}") from error
