"""Answers to every pixel, as files in JSON."""

import numpy as np

from keras_vit.data.decode.pillow import displayed_size
from keras_vit.tasks import Task
from keras_vit_cli.page_parts import in_base64

MOST_SIDE = 2048  # pixels: an image that is larger has a smaller map, in seconds at most
MEDIA_TYPES = {".png": "image/png", ".tiff": "image/tiff"}


def maps_of(task: Task, answer: np.ndarray, contents: bytes | np.ndarray) -> dict[str, str]:
    """Return the files of the answer to one image as data URLs, by their media type.

    Args:
        contents: The image: the bytes of its file, or pixels `(height, width, channels)`.
    """
    size = displayed_size(contents, None) if isinstance(contents, bytes) else contents.shape[:2]
    scale = min(1.0, MOST_SIDE / max(size))
    height, width = (max(1, round(side * scale)) for side in size)
    files = task.answer_files(answer, (height, width))
    types = {MEDIA_TYPES["." + suffix.rpartition(".")[2]]: file for suffix, file in files.items()}
    return {kind: f"data:{kind};base64,{in_base64(file)}" for kind, file in types.items()}
