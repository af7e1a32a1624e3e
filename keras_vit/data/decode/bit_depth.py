"""PNG files of 16 bits per channel, which are warned of: of these the high 8 bits are decoded.

Nothing is lost of images that fill all 16 bits, but what has 12, such as X-rays, becomes nearly
black: 0..4095 is read as 0..15. So whoever reads such files is warned, once per call.
"""

from collections.abc import Iterable
from os import PathLike

from keras_vit._base.errors import printable, warn_of_data
from keras_vit.data.data_errors import PNG

# The depth stands behind the signature, the length and name of the first chunk, and two sides.
_DEPTH = 24
HEADER_BYTES = _DEPTH + 1


def has_sixteen_bits(contents: bytes) -> bool:
    """Return whether these are the first bytes of a PNG file of 16 bits per channel.

    >>> has_sixteen_bits(b"no image")
    False
    """
    return contents.startswith(PNG) and contents[_DEPTH : _DEPTH + 1] == b"\x10"


def warn_of_sixteen_bits(names: Iterable[str | PathLike[str]], total: int) -> None:
    """Warns that these, of so many images looked at, have 16 bits; or does nothing."""
    deep = [printable(name) for name in names]
    if deep:
        first = ", ".join(deep[:3]) + (", ..." if len(deep) > 3 else "")
        count = f" ({len(deep)} of {total} looked at)" if total > 1 else ""
        warn_of_data(f"{first}{count}: a {DEEP}")


EIGHT_BITS_FIRST = (
    "read all bits by load(bands='all'), or write 8 bits first: PIL.Image.fromarray(np.uint8("
    "np.clip(pixels / white, 0, 1) * 255)), where white is the value of white, such as 4095."
)
DEEP = (
    "PNG file of 16 bits per channel, of which the high 8 bits alone are read, so that an image of "
    "12 bits, 0..4095, becomes nearly black, 0..15. Unless all 16 bits are filled, "
    + EIGHT_BITS_FIRST
)
