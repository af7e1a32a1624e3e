"""Files of bands, of any bit depth: TIFF and GeoTIFF, PNG, NumPy and DICOM, in their own range."""

from __future__ import annotations

import io
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from keras_vit._base.version import install_command
from keras_vit.data.data_errors import PNG, BadImageError, too_large
from keras_vit.data.decode.headers import MAX_PIXELS

_NODATA, _RAW_TAGS = 42113, {330, 50706}  # of GDAL; as in `pillow`
_VALUES = 4  # times `max_pixels`: how many values all bands of a file may have together
_FEW = 16  # bands, at most, of an array that has them in front


class RasterFormat(NamedTuple):
    """A format of bands.

    Attributes:
        name: What its users call it.
        suffixes: Of its files, in lower case.
        begins: A regular expression for the first bytes of a file.
        package: What reads it.
        read: From the bytes and a check of the shape to an array `(height, width, bands)`.
    """

    name: str
    suffixes: tuple[str, ...]
    begins: bytes
    package: str
    read: Callable[[bytes, Callable[..., None]], np.ndarray]


def read_raster(
    contents: bytes, bands: tuple[int, ...] | None = None, max_pixels: int | None = MAX_PIXELS
) -> np.ndarray:
    """The bands of a file, in its own range.

    - TIFF, GeoTIFF: one image, whose bands are samples, planes or pages of one size.
    - PNG of 8 or 16 bits: gray or RGB; alpha counts as a band. A palette's colors are bands.
    - NumPy's `.npy`: `(height, width)` or `(height, width, bands)`.
    - DICOM of one frame: with its rescale slope and intercept, so CT is in Hounsfield units; what
      has white for 0 (MONOCHROME1) is inverted, as collections mix both.

    Args:
        contents: The bytes of the file.
        bands: Numbers of the bands, from 1; None for all in the file's order.
        max_pixels: Height times width that is accepted, read before the pixels are.

    Returns:
        `(height, width, bands)` in the file's dtype, native byte order: integers of up to 32 bits
        or float32. Floats of 16 and 64 bits become float32.

    Raises:
        BadImageError: The file is damaged, of another format, lacks a band, holds NaN, infinity or
            what its header calls missing; or what reads it is not installed.
    """
    kind = next((k for k in RASTER_FORMATS if re.match(k.begins, contents[:132], re.DOTALL)), None)
    if kind is None:
        names = ", ".join(k.name for k in RASTER_FORMATS)
        raise BadImageError(f"not a file of bands, which are read of {names}")
    if find_spec(kind.package) is None:
        raise BadImageError(f"{kind.name}, which {kind.package} reads: {install_command('bands')}")

    def check(height: int, width: int, bands: int = 1) -> None:
        if min(height, width, bands) < 1:
            raise BadImageError(f"an image of {height} x {width} pixels in {bands} bands")
        if max_pixels is not None and height * width > max_pixels:
            raise BadImageError(too_large(f"{width} x {height}", max_pixels))
        if max_pixels is not None and height * width * bands > _VALUES * max_pixels:
            size = f"{width} x {height} in {bands} bands"
            raise BadImageError(too_large(size, _VALUES * max_pixels))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tags that do not matter here
            image = kind.read(contents, check)
    except BadImageError:
        raise
    except (Exception, MemoryError) as error:  # each package raises what it stumbles over
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadImageError(
            f"the {kind.name} file is damaged, incomplete, or of a kind unknown to "
            f"{kind.package}: {reason}"
        ) from error
    return _of_bands(image if image.ndim == 3 else image[..., None], bands)


def _of_bands(image: np.ndarray, bands: tuple[int, ...] | None) -> np.ndarray:
    """The chosen bands as numbers that float32 can hold."""
    if image.dtype.kind not in "buif" or image.dtype.itemsize > 8:
        raise BadImageError(f"values of {image.dtype}: write integers or floats")
    count = image.shape[-1]
    if bands is not None:
        if missing := [band for band in bands if band > count]:
            have = "1 band" if count == 1 else f"{count} bands"
            raise BadImageError(f"the file has {have}, and band {missing[0]} was asked for")
        image = image[..., [band - 1 for band in bands]]
    if image.dtype.kind == "b":
        return image.astype("uint8")
    if image.dtype.kind == "f" or image.dtype.itemsize == 8:
        image = image.astype("float32")
        if not np.isfinite(image).all():
            number = int(np.argwhere(~np.isfinite(image))[0, 2])
            band = number + 1 if bands is None else bands[number]
            raise BadImageError(
                f"band {band} holds NaN or infinity: fill it first, such as np.nan_to_num(band)"
            )
        return image
    return image.astype(image.dtype.newbyteorder("="), copy=False)


class _Heard(logging.Filter):
    """Keeps what tifffile logs of a file that this thread reads here, and lets the rest pass."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        errors = getattr(self.thread, "errors", None)
        if errors is not None and record.levelno >= logging.ERROR:
            errors.append(record.getMessage())
        return errors is None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Raises a BadImageError for errors that tifffile logs, to go on with a part of a file."""
        errors: list[str] = []
        self.thread.errors = errors
        try:
            yield
        finally:
            self.thread.errors = None
        if errors:
            raise BadImageError(f"the TIFF file is damaged: {' '.join(errors[0].split())[:200]}")


@cache
def _tifffile_errors() -> _Heard:
    import tifffile

    heard = _Heard()
    tifffile.logger().addFilter(heard)
    return heard


def _read_tiff(contents: bytes, check: Callable[..., None]) -> np.ndarray:
    import tifffile

    with _tifffile_errors().heard(), tifffile.TiffFile(io.BytesIO(contents)) as file:
        if not file.series:
            raise BadImageError("a TIFF file without an image")
        series, page = file.series[0], file.pages.first
        if not _RAW_TAGS.isdisjoint(page.tags.keys()) and not series.is_pyramidal:
            raise BadImageError("a raw camera file or one of several images: write one of them")
        if len(file.series) > 1:
            raise BadImageError(
                f"a TIFF file of {len(file.series)} images of several sizes: write each to a file "
                "of its own"
            )
        axes, shape = series.axes, series.shape
        others = [place for place, axis in enumerate(axes) if axis not in "YX"]
        if len(others) > 1 or "Y" not in axes or "X" not in axes:
            raise BadImageError(f"a TIFF file of axes {axes} {shape}: write height, width, bands")
        count = shape[others[0]] if others else 1
        check(shape[axes.index("Y")], shape[axes.index("X")], count)
        photometric = tifffile.PHOTOMETRIC(page.photometric).name
        if photometric in ("PALETTE", "MINISWHITE"):
            raise BadImageError(
                f"a TIFF file of {photometric}, whose numbers are not brightness: write them as "
                "MINISBLACK or RGB, such as by PIL.Image.open(file).convert('RGB')"
            )
        if page.dtype is None:
            raise BadImageError(f"a TIFF file of {page.bitspersample} bits per value")
        _check_whole(file, len(contents))
        image = series.asarray()
        _check_nodata(page, image)
    order = [axes.index("Y"), axes.index("X"), *others]
    return image.transpose(order)


def _check_whole(file: Any, length: int) -> None:
    """Raises for strips and tiles beyond the end, which tifffile may fill with zeros."""
    for page in file.series[0].pages:
        if page is None:
            raise BadImageError("the TIFF file lacks a page")
        segments = zip(page.dataoffsets, page.databytecounts, strict=True)
        if any(offset + count > length or not count for offset, count in segments):
            raise BadImageError("the TIFF file is incomplete: pixels are missing")


def _check_nodata(page: Any, image: np.ndarray) -> None:
    tag = page.tags.get(_NODATA)
    if tag is None:
        return
    try:
        value = float(str(tag.value).strip("\0 "))
    except ValueError:
        return
    # 0 is the usual edge of a satellite's tiles, and NaN is refused anyway.
    if value and not np.isnan(value) and (count := int((image == value).sum())):
        raise BadImageError(
            f"{count:,} values are {value:g}, which the file calls missing: fill them first, or "
            "leave such files out"
        )


def _read_png(contents: bytes, check: Callable[..., None]) -> np.ndarray:
    import imagecodecs

    width, height = (int.from_bytes(contents[at : at + 4], "big") for at in (16, 20))
    check(height, width, 4)
    if b"IEND" not in contents[-12:]:
        raise BadImageError("the PNG file is incomplete")
    return imagecodecs.png_decode(contents)


def _read_npy(contents: bytes, check: Callable[..., None]) -> np.ndarray:
    file = io.BytesIO(contents)
    version = np.lib.format.read_magic(file)
    of_version = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    shape, _, dtype = of_version[version[0]](file)
    if dtype.hasobject or dtype.fields:
        raise BadImageError(f"a NumPy file of {dtype}: write numbers")
    if len(shape) not in (2, 3):
        raise BadImageError(f"a NumPy file of shape {shape}: write (height, width, bands)")
    if len(shape) == 3 and (
        shape[0] <= min(_FEW, shape[1] - 1, shape[2] - 1) or shape[0] != shape[1] == shape[2]
    ):
        raise BadImageError(
            f"a NumPy file of shape {shape}, which looks like (bands, height, width): write "
            "np.moveaxis(array, 0, -1)"
        )
    check(*shape)
    file.seek(0)
    return np.load(file, allow_pickle=False)


def _read_dicom(contents: bytes, check: Callable[..., None]) -> np.ndarray:
    import pydicom

    file = pydicom.dcmread(io.BytesIO(contents))
    frames = int(file.get("NumberOfFrames") or 1)
    if frames > 1:
        raise BadImageError(f"a DICOM file of {frames} frames: write each to a file of its own")
    check(int(file.Rows), int(file.Columns), int(file.SamplesPerPixel))
    image = file.pixel_array
    if file.PhotometricInterpretation == "PALETTE COLOR":
        raise BadImageError("a DICOM file of palette colors: write them as RGB")
    if file.PhotometricInterpretation == "MONOCHROME1":
        # Of bits without a sign 0 becomes the largest value; of others -1 does.
        image = (2**file.BitsStored - 1 if image.dtype.kind == "u" else -1) - image
    slope, intercept = float(file.get("RescaleSlope", 1)), float(file.get("RescaleIntercept", 0))
    if (slope, intercept) == (1, 0):
        return image
    return image.astype("float32") * np.float32(slope) + np.float32(intercept)


RASTER_FORMATS = (
    RasterFormat("TIFF", (".tif", ".tiff"), rb"II[*+]\0|MM\0[*+]", "tifffile", _read_tiff),
    RasterFormat("PNG", (".png",), re.escape(PNG), "imagecodecs", _read_png),
    RasterFormat("NumPy", (".npy",), rb"\x93NUMPY", "numpy", _read_npy),
    RasterFormat("DICOM", (".dcm", ".dicom", ".ima"), rb".{128}DICM", "pydicom", _read_dicom),
)
RASTER_SUFFIXES = tuple(suffix for kind in RASTER_FORMATS for suffix in kind.suffixes)


def shown(image: np.ndarray) -> np.ndarray:
    """Bands as an image to look at: uint8 `(height, width, 3 or 1)`.

    The first three bands, or the first one, each stretched from its 2nd to its 98th percentile.

    >>> shown(np.array([[[200], [3000]], [[200], [3000]]]))[..., 0].tolist()
    [[0, 255], [0, 255]]
    """
    image = image[..., : 3 if image.shape[-1] > 2 else 1].astype("float32")
    low, high = np.percentile(image, [2, 98], axis=(0, 1))
    flat = np.asarray(high <= low)
    stretched = (image - low) / np.where(flat, 1, high - low)
    return np.where(flat, 127, np.clip(stretched, 0, 1) * 255).astype("uint8")
