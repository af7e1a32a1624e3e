"""Files of bands, of any bit depth: TIFF and GeoTIFF, PNG, NumPy and DICOM, in their own range.

Some pixels do not have a value, such as those beyond the edge of a satellite's scene. They are NaN
here, whatever says so in the file, and `fill_missing` writes what a model is to see instead.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.version import install_command
from keras_vit.data.data_errors import JPEG, BadImageError, damaged_reason, too_large
from keras_vit.data.decode.budget import BudgetedFile, jpeg_2000_size, jpeg_size
from keras_vit.data.decode.headers import MAX_PIXELS, ORIENTATION_TAG
from keras_vit.data.decode.image_kinds import BANDS, kind_of_contents, kinds_of
from keras_vit.data.decode.pillow import exif_orientation, png_exif, turn_upright
from keras_vit.data.decode.quiet_decoders import QUIET

_DNG = 50706
_NODATA, _RAW_TAGS = 42113, {330, _DNG}  # of GDAL; as in `pillow`
# How near floats are to GDAL_NODATA, which is text of few digits. The largest floats have fewer.
_NEAR, _NEAR_LARGEST, _LARGE = 1e-6, 1e-5, 1e38
_VALUES = 4  # times `max_pixels`: how many values of 16 bits are read; one of 64 counts as four
_FEW = 16  # bands, at most, of an array that has them in front
_BAND_AXES = "SCQIZ"  # of tifffile: samples, channels, pages, and what an image of many has
# Of TIFF: decoded into as many bytes as the header says. Others have a size of their own.
_BOUNDED = ("NONE", "LZW", "ADOBE_DEFLATE", "DEFLATE", "ZSTD", "LZMA", "PACKBITS", "JPEG")


class RasterFormat(NamedTuple):
    """A format of bands.

    Attributes:
        read: From the bytes and a check of the shape to an array `(height, width, bands)`, upright,
            with a mask of `numpy.ma` where pixels do not have a value.
    """

    name: str
    package: str
    read: Callable[[bytes, Callable[..., None]], np.ndarray]


def read_raster(
    contents: bytes, bands: tuple[int, ...] | None = None, max_pixels: int | None = MAX_PIXELS
) -> np.ndarray:
    """Return the bands of a file, in its own range.

    - TIFF, GeoTIFF: one image, whose bands are samples, planes or pages of one size.
      GDAL_NODATA, internal masks and sparse tiles are what does not have a value.
    - PNG of 8 or 16 bits: gray or RGB; alpha counts as a band. A palette's colors are bands.
    - NumPy's `.npy`: `(height, width)` or `(height, width, bands)`.
    - DICOM of one frame: with its rescale slope and intercept, so CT is in Hounsfield units.
      MONOCHROME1 shows the smallest value as white, after the window of a viewer, and changes no
      value (PS3.3, C.7.6.3.1.2): rescaled ones, which are in a unit, stay as they are. Those that
      are not rescaled are brightness alone, and are inverted, since collections mix both kinds.
      Padding (PixelPaddingValue, PixelPaddingRangeLimit) is what does not have a value.

    An orientation, in TIFF's tag or PNG's EXIF, is undone.

    Args:
        bands: Numbers of the bands, from 1; None for all in the file's order.
        max_pixels: Height times width that is accepted, read before the pixels are.

    Returns:
        `(height, width, bands)` in the file's dtype, native byte order: integers of up to 32 bits
        or float32. Floats of 16 and 64 bits and integers of 64 become float32, which holds
        integers up to 2**24 exactly, and so do images of which some pixels do not have a value:
        these are NaN. Truth values become uint8, 0 and 1.

    Raises:
        BadImageError: The file is damaged, of another format, lacks a band, holds infinity, or
            does not have a value in any pixel of these bands; or what reads it is not installed.
    """
    image = read_values(contents, max_pixels)
    return _of_bands(image if image.ndim == 3 else image[..., None], bands)


def read_values(contents: bytes, max_pixels: int | None = MAX_PIXELS) -> np.ndarray:
    """Return the numbers of a file as they are, infinity among them: see `read_raster`.

    `(height, width)` or `(height, width, bands)`, with a mask of `numpy.ma` where the file calls
    pixels missing.
    """
    known = kind_of_contents(contents)
    kind = next((k for k in RASTER_FORMATS if known and k.name == known.name), None)
    if kind is None:
        names = ", ".join(k.name for k in RASTER_FORMATS)
        raise BadImageError(f"not a file of bands, which are read of {names}")
    if find_spec(kind.package) is None:
        raise BadImageError(f"{kind.name}, which {kind.package} reads: {install_command('bands')}")

    def check(height: int, width: int, bands: int = 1, itemsize: int = 1) -> None:
        if min(height, width, bands) < 1:
            raise BadImageError(f"an image of {height} x {width} pixels in {bands} bands")
        if max_pixels is not None and height * width > max_pixels:
            raise BadImageError(too_large(f"{width} x {height}", max_pixels))
        values = height * width * bands * max(1, itemsize // 2)
        if max_pixels is not None and values > _VALUES * max_pixels:
            size = f"{width} x {height} in {bands} bands of {8 * itemsize} bits"
            raise BadImageError(too_large(size, _VALUES * max_pixels))

    try:
        with QUIET:
            return kind.read(contents, check)
    except BadImageError:
        raise
    except Exception as error:  # each package raises what it stumbles over
        raise BadImageError(damaged_reason(kind.name, kind.package, error)) from error


def _of_bands(image: np.ndarray, bands: tuple[int, ...] | None) -> np.ndarray:
    """Return the chosen bands as numbers that float32 can hold."""
    if image.dtype.kind not in "buif" or image.dtype.itemsize > 8:
        raise BadImageError(f"values of {image.dtype}: write integers or floats")
    count = image.shape[-1]
    if bands is not None:
        if absent := [band for band in bands if not 1 <= band <= count]:
            have = "1 band" if count == 1 else f"{count} bands"
            raise BadImageError(f"the file has {have}, and band {absent[0]} was asked for")
        image = image[..., [band - 1 for band in bands]]
    missing, image = np.ma.getmask(image), np.ma.getdata(image)
    if image.dtype.kind == "f":
        missing = missing | np.isnan(image)
    if np.all(missing):
        raise BadImageError("not one pixel of these bands has a value: leave such files out")
    if image.dtype.kind == "f" or image.dtype.itemsize == 8 or np.any(missing):
        with np.errstate(over="ignore"):  # it becomes infinity, which is refused
            image = image.astype("float32")
        if np.any(missing):
            image[missing] = np.nan
        if (infinite := np.isinf(image)).any():
            number = int(np.argwhere(infinite)[0, 2])
            band = number + 1 if bands is None else bands[number]
            raise BadImageError(
                f"band {band} holds infinity, or numbers beyond float32: replace them first, such "
                "as by np.where(np.abs(band) < 1e38, band, np.nan)"
            )
        return image
    if image.dtype.kind == "b":
        return image.astype("uint8")
    return image.astype(image.dtype.newbyteorder("="), copy=False)


def fill_missing(image: np.ndarray, nodata: Any) -> np.ndarray:
    """Writes what a model is to see where an image of bands is NaN.

    Args:
        image: `(height, width, bands)`, as from `read_raster`.
        nodata: The number to write, or one for each band; or "refuse"; or "mean", where the means
            of the bands are not known.

    Raises:
        BadImageError: A pixel is NaN, and `nodata` is not a number.

    >>> fill_missing(np.array([[[1, np.nan]]], "float32"), (7, 8)).tolist()
    [[[1.0, 8.0]]]
    """
    if image.dtype.kind != "f" or not (missing := np.isnan(image)).any():
        return image
    if isinstance(nodata, str):
        count, size = int(missing.any(axis=-1).sum()), missing[..., 0].size
        fix = {
            "refuse": "leave such files out, or fill them by nodata='mean' or nodata=NUMBER",
            "mean": "give eval_transform=model.eval_transform of a model with "
            "normalization=band_statistics(splits.train), whose means are put there, or a number "
            "as nodata",
        }
        raise BadImageError(f"{count:,} of {size:,} pixels do not have a value: {fix[nodata]}")
    return np.where(missing, np.array(nodata, "float32"), image)


class _Heard(logging.Filter):
    """Keeps what a package logs of a file that this thread reads here, and lets the rest pass."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        errors = getattr(self.thread, "errors", None)
        if errors is not None and record.levelno >= logging.ERROR:
            errors.append(record.getMessage())
        return errors is None

    @contextmanager
    def heard(self, kind: str) -> Iterator[None]:
        """Raises a BadImageError for logged errors: tifffile goes on with a part of a file."""
        errors: list[str] = []
        self.thread.errors = errors
        try:
            yield
        finally:
            self.thread.errors = None
        if errors:
            raise BadImageError(
                printable(f"the {kind} file is damaged: {' '.join(errors[0].split())[:200]}")
            )


@cache
def _log(package: str) -> _Heard:
    heard = _Heard()
    logging.getLogger(package).addFilter(heard)
    return heard


def _read_tiff(contents: bytes, check: Callable[..., None]) -> np.ndarray:
    import tifffile

    with _log("tifffile").heard("TIFF"), tifffile.TiffFile(BudgetedFile(contents)) as file:
        if not file.series:
            raise BadImageError("a TIFF file without an image")
        images = [series for series in file.series if not series.keyframe.is_mask]
        masks = [series for series in file.series if series.keyframe.is_mask]
        if not images:
            raise BadImageError("a TIFF file of a mask alone")
        series, page = images[0], images[0].keyframe
        raw = _RAW_TAGS.intersection(file.pages.first.tags.keys())
        if _DNG in raw or (raw and not series.is_pyramidal):
            raise BadImageError("a raw camera file or one of several images: write one of them")
        if len(images) > 1:
            raise BadImageError(
                f"a TIFF file of {len(images)} images of several sizes: write each to a file of "
                "its own"
            )
        axes, shape = series.axes, series.shape
        others = [place for place, axis in enumerate(axes) if axis not in "YX"]
        bad = len(others) > 1 or any(axes[place] not in _BAND_AXES for place in others)
        if bad or "Y" not in axes or "X" not in axes:
            raise BadImageError(
                printable(f"a TIFF file of axes {axes} {shape}: write height, width, bands")
            )
        if page.dtype is None:
            raise BadImageError(printable(f"a TIFF file of {page.bitspersample} bits per value"))
        count = shape[others[0]] if others else 1
        check(shape[axes.index("Y")], shape[axes.index("X")], count, page.dtype.itemsize)
        photometric = tifffile.PHOTOMETRIC(page.photometric).name
        if photometric in ("PALETTE", "MINISWHITE"):
            raise BadImageError(
                f"a TIFF file of {photometric}, whose numbers are not brightness: write them as "
                "MINISBLACK or RGB, such as by PIL.Image.open(file).convert('RGB')"
            )
        _check_segments(series, contents, check)
        image = series.asarray(maxworkers=1)  # what other threads log would not be heard
        missing = _is_nodata(page, image) | _is_sparse(series)
        order = [axes.index("Y"), axes.index("X"), *others]
        image = np.ma.array(image, mask=missing).transpose(order)
        if masks:  # of GDAL: all others are the smaller ones of overviews
            if masks[0].shape != image.shape[:2]:
                raise BadImageError(f"a TIFF file whose mask {masks[0].shape} is not of its size")
            _check_segments(masks[0], contents, check)
            image[masks[0].asarray(maxworkers=1) == 0] = np.ma.masked
    return turn_upright(image, page.tags.valueof(ORIENTATION_TAG, 1))


def _check_segments(series: Any, contents: bytes, check: Callable[..., None]) -> None:
    """Raises for strips and tiles beyond the end, which tifffile may fill with zeros, or too large.

    A tile may be much larger than its image, and has the size of its own header in JPEG. What GDAL
    leaves out as empty, at 0 and of no bytes, is not missing.
    """
    for page in series.pages:
        if page is None:
            raise BadImageError("the TIFF file lacks a page")
        key = page.keyframe  # pages like the first one have fewer attributes
        kind = getattr(key.compression, "name", str(key.compression))
        if kind not in _BOUNDED:
            raise BadImageError(
                printable(f"a TIFF file compressed by {kind}: write it with deflate")
            )
        if key.is_tiled:
            samples = key.samplesperpixel if key.planarconfig == 1 else 1
            check(key.tilelength * key.tiledepth, key.tilewidth, samples)
        segments = [s for s in zip(page.dataoffsets, page.databytecounts, strict=True) if any(s)]
        if any(offset + count > len(contents) or not count for offset, count in segments):
            raise BadImageError("the TIFF file is incomplete: pixels are missing")
        for offset, count in segments if kind == "JPEG" else ():
            check(*jpeg_size(contents[offset : offset + count]))


def _is_nodata(page: Any, image: np.ndarray) -> np.ndarray | np.bool_:
    """Return which values of an image are those that GDAL_NODATA calls missing."""
    try:
        value = float(str(page.tags.valueof(_NODATA)).strip("\0 ").replace(",", "."))
    except ValueError:  # there is none, or text that is not a number
        return np.ma.nomask
    if image.dtype.kind != "f":
        return np.asarray(image == value)
    near = _NEAR if abs(value) < _LARGE else _NEAR_LARGEST
    with np.errstate(over="ignore", invalid="ignore"):  # of other missing values, and of infinity
        number = image.dtype.type(value)
        if not np.isfinite(number):
            return np.asarray(image == number)
        return np.asarray(np.abs(image - number) <= near * np.abs(number))


def _is_sparse(series: Any) -> np.ndarray | np.bool_:
    """Return which pixels lie in the strips and tiles that a file leaves out."""
    pages, shape = series.pages, series.shape
    if all(all(page.databytecounts) for page in pages):
        return np.ma.nomask
    # One sample plane, or several; depth, which is 1; height, width and samples in each pixel.
    missing = np.zeros((len(pages), *pages[0].keyframe.shaped), bool)
    for page, planes in zip(pages, missing, strict=True):
        for number, count in enumerate(page.databytecounts):
            if not count:
                _, (plane, _, top, left, _), (_, height, width, _) = page.keyframe.decode(
                    None, number
                )
                planes[plane, :, top : top + height, left : left + width] = True
    return missing.reshape(shape)


def _read_png(contents: bytes, check: Callable[..., None]) -> np.ndarray:
    import imagecodecs

    width, height = (int.from_bytes(contents[at : at + 4], "big") for at in (16, 20))
    check(height, width, 4)
    if b"IEND" not in contents[-12:]:
        raise BadImageError("the PNG file is incomplete")
    return turn_upright(imagecodecs.png_decode(contents), exif_orientation(png_exif(contents)))


def _read_npy(contents: bytes, check: Callable[..., None]) -> np.ndarray:
    file = BudgetedFile(contents)
    version = np.lib.format.read_magic(file)
    of_version = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    shape, _, dtype = of_version[version[0]](file)
    if dtype.kind not in "buif":
        raise BadImageError(
            printable(f"a NumPy file of {dtype}: write numbers, integers or floats"[:200])
        )
    if len(shape) not in (2, 3):
        raise BadImageError(f"a NumPy file of shape {shape}: write (height, width, bands)")
    if len(shape) == 3 and (
        shape[0] <= min(_FEW, shape[1] - 1, shape[2] - 1) or shape[0] != shape[1] == shape[2]
    ):
        raise BadImageError(
            f"a NumPy file of shape {shape}, which looks like (bands, height, width): write "
            "np.moveaxis(array, 0, -1)"
        )
    check(*shape[:2], math.prod(shape[2:]), dtype.itemsize)
    if math.prod(shape) * dtype.itemsize > len(contents) - file.tell():
        raise BadImageError("the NumPy file is incomplete: pixels are missing")
    file.seek(0)
    return np.load(file, allow_pickle=False)


def _read_dicom(contents: bytes, check: Callable[..., None]) -> np.ndarray:
    import pydicom

    if pydicom.uid.DeflatedExplicitVRLittleEndian.encode() in contents:
        # pydicom inflates all of it, to a thousand times its size, before a tag can be read.
        raise BadImageError("a deflated DICOM file: write it as Explicit VR Little Endian")
    with _log("pydicom").heard("DICOM"):
        file = pydicom.dcmread(BudgetedFile(contents))
        frames = int(file.get("NumberOfFrames") or 1)
        if frames > 1:
            raise BadImageError(f"a DICOM file of {frames} frames: write each to a file of its own")
        if file.PhotometricInterpretation == "PALETTE COLOR":
            raise BadImageError("a DICOM file of palette colors: write them as RGB")
        shape = (int(file.Rows), int(file.Columns), int(file.SamplesPerPixel))
        check(*shape, int(file.BitsAllocated) // 8)
        _keep_checked_frame(file, shape)
        slope, intercept = _rescale(file)
        image = file.pixel_array
    if image.shape not in (shape, shape[:2]):  # longer than the header says
        raise BadImageError(f"a DICOM file of pixels {image.shape} whose header says {shape}")
    missing = _is_padding(file, image)
    if (slope, intercept) != (1, 0):
        # MONOCHROME1 says how values are shown: what is rescaled is in a unit, and stays in it.
        image = image.astype("float32") * np.float32(slope) + np.float32(intercept)
    elif file.PhotometricInterpretation == "MONOCHROME1":
        if image.dtype.kind == "f":
            raise BadImageError("a DICOM file of MONOCHROME1 in floats: write it as MONOCHROME2")
        # Of bits without a sign 0 becomes the largest value; of others -1 does.
        image = (2**file.BitsStored - 1 if image.dtype.kind == "u" else -1) - image
    return np.ma.array(image, mask=missing)


def _keep_checked_frame(file: Any, shape: tuple[int, ...]) -> None:
    """Leaves the first frame of compressed pixels, if its own header agrees with that of the file.

    A decoder makes as many pixels as the frame says, and of as many frames as there are.
    """
    import pydicom

    syntax = file.file_meta.TransferSyntaxUID
    if not syntax.is_encapsulated:
        return
    pixels = BudgetedFile(file.PixelData)
    frame = next(pydicom.encaps.generate_frames(pixels, number_of_frames=1))
    if syntax != pydicom.uid.RLELossless:  # which has the size of the file
        size = jpeg_size(frame) if frame.startswith(JPEG) else jpeg_2000_size(frame)
        if size != shape:
            raise BadImageError(
                f"a DICOM file of {shape[1]} x {shape[0]} pixels in {shape[2]} bands, whose "
                f"compressed image has {size.width} x {size.height} in {size.components}"
            )
    file.PixelData = pydicom.encaps.encapsulate([frame])
    for name in ("ExtendedOffsetTable", "ExtendedOffsetTableLengths"):
        if name in file:
            delattr(file, name)


def _is_padding(file: Any, image: np.ndarray) -> np.ndarray | np.bool_:
    """Return which stored values pad a gray image, as around the circle that a scanner sees.

    Source: DICOM PS3.3, C.7.5.1.1.2.
    """
    kind = {"f4": "Float", "f8": "DoubleFloat"}.get(image.dtype.str[1:], "")
    value = file.get(f"{kind}PixelPaddingValue")
    if value is None or not file.PhotometricInterpretation.startswith("MONOCHROME"):
        return np.ma.nomask
    limit = file.get(f"{kind}PixelPaddingRangeLimit")
    # Some files have the number of the other sign: 63536 for -2000 of 16 bits.
    ends = np.array([value, value if limit is None else limit]).astype(image.dtype)
    return (ends.min() <= image) & (image <= ends.max())


def _rescale(file: Any) -> tuple[float, float]:
    """Return the slope and intercept of a DICOM file; 1 and 0 where tags are missing or empty."""
    if "ModalityLUTSequence" in file:
        raise BadImageError(
            "a DICOM file with a modality lookup table: write what "
            "pydicom.pixels.apply_modality_lut returns as .npy"
        )
    if "SharedFunctionalGroupsSequence" in file:
        raise BadImageError(
            "an enhanced DICOM file, which rescales each frame: write a classic one"
        )
    slope, intercept = file.get("RescaleSlope"), file.get("RescaleIntercept")
    pair = 1.0 if slope is None else float(slope), 0.0 if intercept is None else float(intercept)
    if not pair[0] or not np.isfinite(pair).all():
        raise BadImageError(
            printable(f"a DICOM file of rescale slope {pair[0]} and intercept {pair[1]}")
        )
    return pair


RASTER_FORMATS = (
    RasterFormat("TIFF", "tifffile", _read_tiff),
    RasterFormat("PNG", "imagecodecs", _read_png),
    RasterFormat("NumPy", "numpy", _read_npy),
    RasterFormat("DICOM", "pydicom", _read_dicom),
)


def require_readers(suffixes: Iterable[str]) -> None:
    """Raises an ImportError where what reads files of these suffixes is not installed."""
    needed = set(suffixes)
    names = {kind.name for kind in kinds_of(BANDS) if needed.intersection(kind.suffixes)}
    for kind in RASTER_FORMATS:
        if kind.name in names and find_spec(kind.package) is None:
            raise ImportError(
                f"{kind.name} files are read by {kind.package}: {install_command('bands')}",
                name=kind.package,
            )


def shown(image: np.ndarray) -> np.ndarray:
    """Bands as an image to look at: uint8 `(height, width, 3 or 1)`.

    The first three bands, or the first one, each stretched from its 2nd to its 98th percentile;
    black where there is no value.

    >>> shown(np.array([[[200], [3000]], [[200], [3000]]]))[..., 0].tolist()
    [[0, 255], [0, 255]]
    """
    image = image[..., : 3 if image.shape[-1] > 2 else 1].astype("float32")
    levels = np.zeros(image.shape, "uint8")
    for number, band in enumerate(np.moveaxis(image, -1, 0)):
        if (is_value := ~np.isnan(band)).any():
            low, high = np.percentile(values := band[is_value], [2, 98])
            stretched = np.clip((values - low) / (high - low), 0, 1) * 255 if high > low else 127
            levels[is_value, number] = stretched
    return levels
