"""How much work a file may ask for, counted from its structure before its pixels are decoded.

The number of pixels alone does not bound it: each scan of a progressive JPEG file goes over all
of them in a few bytes, and parsers written in Python take a step per segment, chunk, tag or page,
of which a file can hold a million.
"""

import io
import re
from typing import NamedTuple

from keras_vit.data.data_errors import JPEG, BadImageError

# Encoders write about ten scans. More are read where they take as long as these do for the largest
# image of MAX_PIXELS: a second or two.
_FEW_SCANS, MOST_SCANS = 16, 100
_SCANNED_PIXELS = 2**30
_MOST_SEGMENTS = 2**16
# Of 128 MiB in chunks of 8 KiB, as libpng writes them, with four reads each.
MOST_READS = 2**16
# Files are read once or twice. Tags of TIFF can each be all of the file.
_TIMES_READ, _AT_LEAST = 4, 2**20
# A marker with a length behind it. Those of data (0) and restarts are without one.
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
_SCAN, _END = 0xDA, 0xD9
_FRAMES = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}  # and that of JPEG-LS
_JPEG_2000 = b"\xff\x4f\xff\x51"


class BudgetedFile(io.BytesIO):
    """The bytes of a file, for a parser in Python, which may not read without end.

    Raises:
        BadImageError: From `read`: there were more calls, or they returned four times the file.
    """

    def __init__(self, contents: bytes, most_reads: int = MOST_READS) -> None:
        super().__init__(contents)
        self.reads, self.most_reads = 0, most_reads
        self.left = _TIMES_READ * len(contents) + _AT_LEAST

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.reads += 1
        self.left -= len(data)
        if self.left >= 0 and self.reads <= self.most_reads:
            return data
        if self.reads > self.most_reads:
            raise BadImageError(
                f"the file has too many parts (segments, chunks, tags or pages): more than "
                f"{self.most_reads:,} reads. Open and save it again"
            )
        raise BadImageError(
            f"the file's parts lie over each other: {_TIMES_READ} times its bytes were read"
        )


class JpegSize(NamedTuple):
    """What the frame header of a JPEG stream says."""

    height: int
    width: int
    components: int


def jpeg_size(jpeg: bytes) -> JpegSize:
    """Return the size in the frame header of a JPEG or JPEG-LS stream; zeros where there is none.

    Goes from marker to marker, as decoders do, up to the end of the image.

    Raises:
        BadImageError: There are more scans than `check_scans` lets pass.
    """
    size, scans, place, progressive = JpegSize(0, 0, 0), 0, 2, False
    for _ in range(_MOST_SEGMENTS):
        match = _MARKER.search(jpeg, place)
        if not match or (marker := jpeg[match.end() - 1]) == _END:
            break
        place = match.end()
        segment = jpeg[place : place + 8]
        if marker in _FRAMES and not size.height and len(segment) == 8:
            height, width = (int.from_bytes(segment[at : at + 2]) for at in (3, 5))
            size = JpegSize(height, width, segment[7])
            progressive = marker % 4 == 2
        if marker == _SCAN:
            scans += 1
            if not progressive and segment[2:3] == bytes([size.components]):
                break  # it is of all components, after which decoders stop
        place += int.from_bytes(segment[:2])
    else:
        raise BadImageError(f"a JPEG file of more than {_MOST_SEGMENTS:,} segments: save it again")
    most = max(_FEW_SCANS, min(MOST_SCANS, _SCANNED_PIXELS // max(1, size.height * size.width)))
    if scans > most:
        raise BadImageError(
            f"a JPEG file of {scans:,} scans, of which {most} are read in an image of "
            f"{size.width} x {size.height} pixels: save it again, without progressive=True"
        )
    return size


def check_scans(contents: bytes) -> None:
    """Raises a BadImageError for a JPEG file of too many scans; others pass.

    Up to 16 scans pass, and up to 100 where these go over 2**30 pixels at most. Linear time.
    """
    if contents.startswith(JPEG):
        jpeg_size(contents)


def jpeg_2000_size(codestream: bytes) -> JpegSize:
    """Return the size in a JPEG 2000 codestream's header; zeros if the header is another one."""
    header = codestream[:42]
    if not header.startswith(_JPEG_2000) or len(header) < 42:
        return JpegSize(0, 0, 0)
    right, bottom, left, top = (int.from_bytes(header[at : at + 4]) for at in (8, 12, 16, 20))
    return JpegSize(bottom - top, right - left, int.from_bytes(header[40:42]))
