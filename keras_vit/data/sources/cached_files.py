"""Photographs decoded once, reduced and kept in files that are quick to read.

A file of the cache is an uncompressed BMP, which both readers read as they read any photograph,
where a JPEG file of 12 megapixels takes Pillow a hundred times as long. Its name follows from the
photograph's path, size and time of change, so that new and changed photographs alone are decoded
when the cache is asked for again, and after a kill the rest of them. Four bytes that BMP reserves
have a sum of the name and the content: what is cut off, damaged or of another photograph is written
anew.
"""

import hashlib
import io
import math
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.filesize import decimal

from keras_vit._base.errors import counted, printable
from keras_vit._base.files import TEMPORARY_FILES, cache_folder, irregular_type, write_bytes
from keras_vit._base.processors import available_processors
from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.image_files import unreadable_reason
from keras_vit.data.sources.array_splits import MEMORY_BYTES
from keras_vit.data.sources.folder import FileSplit
from keras_vit.data.sources.splits import Split, spread

_SUM = slice(6, 10)  # bytes of a BMP that are reserved, between its size and where pixels begin
_AT_ONCE = 256  # photographs between two looks at the clock
_SAMPLE = 32
_LARGE = 400_000  # bytes of a file: below, a photograph is decoded in a few milliseconds
_SECONDS = 10.0  # between lines of progress
_STALE_SECONDS = 3600.0  # writing a file takes milliseconds; another run may do it now


def cached_photographs(
    split: Split,
    shorter_side: int,
    channels: int = 3,
    folder: Path | None = None,
    print_fn: Callable[[str], None] = print,
) -> FileSplit:
    """Return the same photographs, decoded, with a shorter side of at most so many pixels.

    Pillow decodes them, and reduces those that are larger by its antialiased bicubic resize, so
    that crops of them differ a little from those of the photographs; smaller ones keep the pixels
    that `decoder="pillow"` has. The size is said before anything is written, and afterwards whether
    reading is quicker. Nothing but what killed runs left unfinished is deleted: the folder can be,
    at any time between runs.

    Args:
        split: Of image files that were verified; its training images, as a rule.
        shorter_side: In pixels. With twice the model's image size, a crop of a quarter of the
            photograph or more is not enlarged.
        channels: 3, or 1 for gray.
        folder: Where the files go; None for `photographs` in Keras's cache (`KERAS_HOME`).
        print_fn: Prints a line.

    Raises:
        ValueError: The split is not of verified photographs, or the side is below 1.
        OSError: The disk does not have the space, which is checked first; or it cannot be written.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> photographs = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (400, 300)).save(photographs / "a.jpg")
        >>> split = FileSplit("train", ("a",), [photographs / "a.jpg"], [0], verified=True)
        >>> small = cached_photographs(split, 64, 3, photographs / "cache", lambda line: None)
        >>> small.pixels(0).shape
        (64, 85, 3)
    """
    if shorter_side < 1:
        raise ValueError(f"cache={shorter_side} must be a number of pixels, 1 or more")
    if reason := _unsuitable(split):
        raise ValueError(
            f"cache={shorter_side} keeps photographs of a folder or table decoded, and {split!r} "
            f"{reason}: leave cache= out."
        )
    assert isinstance(split, FileSplit)
    folder = (folder or cache_folder() / "photographs") / f"{shorter_side}px"
    _remove_stale(folder)
    files = [folder / name[:2] / name for name in _names(split, shorter_side, channels)]
    with ThreadPoolExecutor(available_processors()) as pool:
        missing = [place for place, whole in enumerate(pool.map(_is_whole, files)) if not whole]
    cached = split.with_bitmaps(files)
    images = counted(len(files), "training photograph")
    if not missing:
        print_fn(f"cache: {images}, kept in {printable(folder)}")
        return cached
    rest = split.take(missing)
    sample = measure(rest, channels, shorter_side)
    print_fn(
        f"cache: {images} with a shorter side of up to {shorter_side} pixels take about "
        f"{decimal(round(len(files) * sample.reduced_bytes))} in {printable(folder)}"
        + ("" if len(missing) == len(files) else f"; {len(missing):,} of them are new")
    )
    _check_space(folder, len(missing) * sample.reduced_bytes)
    _write(rest, [files[place] for place in missing], shorter_side, channels, print_fn)
    seconds = measure(cached.take(missing), channels, shorter_side).seconds
    times = f"{_milliseconds(seconds)} in place of {_milliseconds(sample.seconds)}"
    if seconds < 0.8 * sample.seconds:
        print_fn(f"cache: a photograph is read in {times}")
    else:
        print_fn(
            f"note: a photograph is read in {times}: the cache does not pay here, leave it out"
        )
    return cached


class Sample(NamedTuple):
    """Means over some photographs."""

    seconds: float
    bytes: float
    reduced_bytes: float


def measure(split: FileSplit, channels: int, shorter_side: int) -> Sample:
    """Decodes some photographs of a split, spread evenly; those that broke are left out."""
    shapes, seconds = [], 0.0
    for place in spread(len(split), _SAMPLE):
        start = time.perf_counter()
        with suppress(OSError, BadImageError):
            shapes.append(split.pixels(place, channels).shape)
            seconds += time.perf_counter() - start
    reduced = [_reduced_size(shape[1], shape[0], shorter_side) for shape in shapes]
    count = max(len(shapes), 1)
    return Sample(
        seconds=seconds / count,
        bytes=sum(math.prod(shape) for shape in shapes) / count,
        reduced_bytes=sum(w * h * channels for w, h in reduced) / count,
    )


def note_of_cache(split: Split, shorter_side: int, channels: int) -> str:
    """Advice to keep photographs decoded, where that pays: many, and larger than needed."""
    if _unsuitable(split):
        return ""
    assert isinstance(split, FileSplit)
    sizes = [_size_and_time(split.files[place])[0] for place in spread(len(split), _SAMPLE)]
    if np.mean(sizes) < _LARGE:
        return ""
    sample = measure(split, channels, shorter_side)
    everything, reduced = len(split) * sample.bytes, len(split) * sample.reduced_bytes
    if everything < MEMORY_BYTES or everything < 4 * reduced:
        return ""
    return (
        f"note: {len(split):,} photographs are decoded in every epoch, "
        f"{_milliseconds(sample.seconds)} each; cache={shorter_side} decodes them once, into "
        f"{decimal(round(reduced))} on the disk"
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"


def _unsuitable(split: Split) -> str:
    """Return why a split's images cannot be kept decoded, such as "is not verified", or ""."""
    if not isinstance(split, FileSplit):
        return "is read from memory or records"
    if split.bands is not None:
        return "has bands, not photographs"
    if split.per_pixel:
        return "has maps of its photographs' sizes"
    return "is not verified" if split.skips else ""


def _names(split: FileSplit, shorter_side: int, channels: int) -> Iterator[str]:
    """Yield a name for each file, which changes with the file and with what is asked for."""
    how = f"{shorter_side} {channels}"
    for file in split.files:
        size, changed = _size_and_time(file)
        facts = f"{how} {size} {changed} "
        path = os.fsencode(os.path.abspath(file))
        yield hashlib.sha256(facts.encode() + path).hexdigest()[:40] + ".bmp"


def _size_and_time(file: Path) -> tuple[int, int]:
    """Bytes, and nanoseconds of the last change; 0 where it is gone, which reading it reports."""
    try:
        state = file.stat()
    except OSError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


def _is_whole(file: Path) -> bool:
    """Return whether a file of the cache, not a link, is as it was written for its photograph."""
    try:
        if irregular_type(file, follow=False):
            return False
        content = file.read_bytes()
    except OSError:
        return False
    return content[:2] == b"BM" and content[_SUM] == _sum(content, file)


def _sum(content: bytes, file: Path) -> bytes:
    """Return the CRC-32 of a file's name and of its content, leaving out the sum itself."""
    view = memoryview(content)
    value = zlib.crc32(view[: _SUM.start], zlib.crc32(file.name.encode()))
    return zlib.crc32(view[_SUM.stop :], value).to_bytes(4, "little")


def _remove_stale(folder: Path) -> None:
    """Removes what runs that were killed have left: the part of a file that each was writing."""
    for file in folder.glob(f"*/{TEMPORARY_FILES}.bmp"):
        with suppress(OSError):  # another run removes it, too
            if time.time() - file.lstat().st_mtime > _STALE_SECONDS:
                file.unlink()


def _check_space(folder: Path, needed: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            f"the cache needs {decimal(round(needed))}, and {decimal(free)} are free in "
            f"{printable(folder)}: give fewer pixels, or another place (KERAS_HOME)."
        )


def _write(
    split: FileSplit,
    files: Sequence[Path],
    shorter_side: int,
    channels: int,
    print_fn: Callable[[str], None],
) -> None:
    """Write every photograph of the split to its file, several at a time."""
    for folder in {file.parent for file in files}:
        folder.mkdir(exist_ok=True)

    def write(place: int) -> None:
        try:
            pixels = split.pixels(place, channels)
        except (OSError, BadImageError) as error:
            # It broke after it was verified. What is missing here is read as gray, too.
            files[place].unlink(missing_ok=True)
            split.report_undecodable(place, unreadable_reason(error))
        else:
            _write_one(pixels, files[place], shorter_side)

    shown = time.monotonic()
    with ThreadPoolExecutor(available_processors()) as pool:
        for begin in range(0, len(files), _AT_ONCE):
            end = min(begin + _AT_ONCE, len(files))
            for _ in pool.map(write, range(begin, end)):
                pass  # raises what a thread did
            if time.monotonic() - shown > _SECONDS:
                shown = time.monotonic()
                print_fn(f"cache: {end:,} of {len(files):,} photographs")


def _write_one(pixels: np.ndarray, file: Path, shorter_side: int) -> None:
    from PIL import Image

    height, width, channels = pixels.shape
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    size = _reduced_size(width, height, shorter_side)
    if size != image.size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    # In memory: Pillow does not see that a full disk took a part of what it writes.
    saved = io.BytesIO()
    image.save(saved, "BMP")
    content = saved.getvalue()
    # To force it to the disk takes longer than to decode; what is not whole is written anew.
    content = content[: _SUM.start] + _sum(content, file) + content[_SUM.stop :]
    write_bytes(file, content, forced=False)


def _reduced_size(width: int, height: int, shorter_side: int) -> tuple[int, int]:
    """Width and height in the same proportion; those of a small image."""
    short = min(width, height)
    if short <= shorter_side:
        return width, height
    return round(width * shorter_side / short), round(height * shorter_side / short)
