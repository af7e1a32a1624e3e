"""Pictures drawn for the tests, and the files that hold them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

_Y, _X = np.mgrid[0:24, 0:32]
# Smooth, so that JPEG keeps it, and different in every corner, so that a turn shows.
PIXELS = np.stack([_Y * 10, _X * 7, (_X + _Y) * 4], axis=-1).astype(np.uint8)
PICTURE = Image.fromarray(PIXELS)


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def plain(level: int, size: tuple[int, int] = (20, 16)) -> bytes:
    """A PNG file of one grey level."""
    return encode(Image.new("RGB", size, (level, level, level)), "PNG")


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, contents in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
    return root


def flat_folder(root: Path, count: int = 10) -> Path:
    """`root/<class>/*.png`, classes a and b; the grey level of a picture is its number."""
    names = [f"{'ab'[i % 2]}/{i:03d}.png" for i in range(2 * count)]
    return write(root, {name: plain(i) for i, name in enumerate(names)})
