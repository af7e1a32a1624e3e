"""Which of a folder's files cannot be decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.errors import counted, warn_of_data
from keras_vit._base.processors import available_processors
from keras_vit.data._imports import tf
from keras_vit.data.data_errors import JPEG, BadImageError, undecodable_reason
from keras_vit.data.decode.bit_depth import has_sixteen_bits
from keras_vit.data.decode.budget import check_scans
from keras_vit.data.decode.decoder import decode_and_orientation
from keras_vit.data.decode.image_files import read_contents, unreadable_reason
from keras_vit.data.decode.pillow import decode_with_pillow
from keras_vit.data.decode.rasters import fill_missing, read_raster


def checked_files(
    files: Sequence[Path], max_pixels: int | None, reader: str
) -> tuple[list[tuple[Path, str]], bool, bool, list[Path]]:
    """Decodes every file once, in threads, with a progress bar where stderr is a terminal.

    A line there with the result takes the place of the bar. One core decodes about 1,000
    photographs of 300 x 200 pixels in a second.

    Returns:
        `(path, reason)` of those that fail; whether all others are stored upright; whether all
        others are JPEG files; and the PNG files of 16 bits per channel. Only TensorFlow looks for
        what is upright, to leave the search out later.
    """
    orientation_of = _decode_in_a_graph(max_pixels) if reader == "tensorflow" else None
    orientations, jpeg, deep = set(), set(), set()

    def reason(file: Path) -> str | None:
        try:
            contents = read_contents(file)
            if orientation_of is None:
                decode_with_pillow(contents, 3, max_pixels)
            else:
                check_scans(contents)
                orientations.add(orientation_of(contents))
        except (OSError, BadImageError) as error:
            return unreadable_reason(error)
        jpeg.add(contents.startswith(JPEG))
        if has_sixteen_bits(contents):
            deep.add(file)
        return None

    unreadable = _unreadable(files, reason)
    upright = orientation_of is not None and orientations <= {1}
    return unreadable, upright, jpeg == {True}, [f for f in files if f in deep]


def checked_rasters(
    files: Sequence[Path],
    max_pixels: int | None,
    bands: tuple[int, ...],
    exact: bool,
    nodata: Any,
) -> list[tuple[Path, str]]:
    """Reads every file of bands once, as `checked_files` does, and warns of mixed bit depths.

    Args:
        files: Of a folder.
        max_pixels: As in `decode_image`.
        bands: The numbers of those that are needed.
        exact: Whether no file may have more.
        nodata: As in `load`: whether pixels may lack a value.
    """
    depths: dict[str, int] = Counter()

    def reason(file: Path) -> str | None:
        try:
            image = read_raster(read_contents(file), None if exact else bands, max_pixels)
            if nodata == "refuse":
                fill_missing(image, nodata)
        except (OSError, BadImageError) as error:
            return unreadable_reason(error)
        if image.shape[-1] != len(bands):
            have = f"it has {counted(image.shape[-1], 'band')}, and the first file has {len(bands)}"
            return f"{have}: choose those that all have, such as bands=(3, 2, 1)"
        if not np.isnan(image).any():  # others are floats, whatever their depth
            depths[str(image.dtype)] += 1
        return None

    unreadable = _unreadable(files, reason)
    if len(depths) > 1:
        kinds = ", ".join(f"{counted(n, 'file')} of {kind}" for kind, n in sorted(depths.items()))
        warn_of_data(
            f"The files differ in bit depth ({kinds}): where their ranges differ as well, write "
            "all in one, or a model sees what the depth shows of the class."
        )
    return unreadable


def _unreadable(
    files: Sequence[Path], reason: Callable[[Path], str | None]
) -> list[tuple[Path, str]]:
    """The files with a reason, each looked at once, in threads."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    with ThreadPoolExecutor(available_processors()) as pool:
        reasons = track(
            pool.map(reason, files),
            "checking files",
            total=len(files),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        unreadable = [(f, why) for f, why in zip(files, reasons, strict=True) if why]
    if console.is_terminal:
        result = f"{len(unreadable):,} cannot be decoded" if unreadable else "all can be decoded"
        console.print(f"checked {counted(len(files), 'file')}: {result}", highlight=False)
    return unreadable


@cache
def _decode_in_a_graph(max_pixels: int | None) -> Callable[[bytes], int]:
    """From the bytes of a file to its EXIF orientation, after it was decoded.

    TensorFlow releases the GIL while a graph runs, so threads decode in parallel.
    """
    decode = tf.function(
        lambda contents: decode_and_orientation(contents, 3, max_pixels=max_pixels),
        input_signature=[tf.TensorSpec((), tf.string)],
        autograph=False,
    )
    decode.get_concrete_function()

    def orientation_of(contents: bytes) -> int:
        try:
            with tf.device("CPU"):
                return int(decode(contents)[1])
        except tf.errors.InvalidArgumentError as error:
            raise BadImageError(undecodable_reason(contents, error)) from error

    return orientation_of
