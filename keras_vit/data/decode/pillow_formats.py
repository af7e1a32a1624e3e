"""Formats that Pillow reads and TensorFlow does not: photographs of phones, and scans."""

from keras_vit._base.version import install_command
from keras_vit.data.decode.image_kinds import (
    PILLOW,
    TENSORFLOW,
    ImageKind,
    kind_of_contents,
    kinds_of,
)

PILLOW_FORMATS = tuple(kind for kind in kinds_of(PILLOW) if TENSORFLOW not in kind.readers)


def pillow_format(contents: bytes) -> ImageKind | None:
    """Return the format of a file's first bytes, if it is one of these.

    >>> pillow_format(b"II*\\0...").name
    'TIFF'
    """
    kind = kind_of_contents(contents)
    return kind if kind in PILLOW_FORMATS else None


def missing_plugin(kind: ImageKind) -> str | None:
    """Registers what Pillow reads a format with; what to install where it is missing."""
    from PIL import Image

    if kind.name == "HEIC":
        try:
            from pillow_heif import register_heif_opener
        except ImportError:
            return f"a HEIC file, which pillow-heif reads: {install_command('heic')}"
        register_heif_opener()
    Image.init()
    if kind.pillow in Image.OPEN:
        return None
    return f"a file of {kind.name}, which this Pillow does not read: pip install --upgrade pillow"
