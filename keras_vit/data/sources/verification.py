"""Which of a folder's files cannot be decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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
from keras_vit.data.sources.splits import digest_of


class Checked(NamedTuple):
    """What is known of files that were read once.

    Attributes:
        unreadable: `(path, reason)` of those that cannot be decoded.
        digests: Of each file that can be opened, as `IndexedSplit.digests` has it; empty where none
            was read.
        upright: Whether all others are stored upright. Only TensorFlow looks for it, to leave the
            search out later.
        jpeg: Whether all others are JPEG files.
        deep: The PNG files of 16 bits per channel.
        shapes: Height, width and whether it is a JPEG file, of those that can be decoded.
    """

    unreadable: list[tuple[Path, str]]
    digests: dict[Path, str]
    upright: bool = False
    jpeg: bool = False
    deep: tuple[Path, ...] = ()
    shapes: Mapping[Path, tuple[int, int, bool]] = {}


def checked_files(files: Sequence[Path], max_pixels: int | None, reader: str) -> Checked:
    """Decodes every file once, in threads, with a progress bar where stderr is a terminal.

    A line there with the result takes the place of the bar. One core decodes about 1,000
    photographs of 300 x 200 pixels in a second.
    """
    decode = _decode_in_a_graph(max_pixels) if reader == "tensorflow" else None
    orientations, deep = set(), set()
    shapes: dict[Path, tuple[int, int, bool]] = {}

    def check(file: Path, contents: bytes) -> None:
        if decode is None:
            height, width = decode_with_pillow(contents, 3, max_pixels).shape[:2]
        else:
            check_scans(contents)
            orientation, (height, width) = decode(contents)
            orientations.add(orientation)
        shapes[file] = height, width, contents.startswith(JPEG)
        if has_sixteen_bits(contents):
            deep.add(file)

    unreadable, digests = _read_all(files, check)
    upright = decode is not None and orientations <= {1}
    jpeg = bool(shapes) and all(is_jpeg for *_, is_jpeg in shapes.values())
    in_order = tuple(file for file in files if file in deep)
    return Checked(unreadable, digests, upright, jpeg, in_order, shapes)


def checked_rasters(
    files: Sequence[Path],
    max_pixels: int | None,
    bands: tuple[int, ...],
    exact: bool,
    nodata: Any,
) -> Checked:
    """Reads every file of bands once, as `checked_files` does, and warns of mixed bit depths.

    Args:
        bands: The numbers of those that are needed.
        exact: Whether no file may have more.
        nodata: As in `load`: whether pixels may lack a value.
    """
    depths: dict[str, int] = Counter()

    def check(file: Path, contents: bytes) -> None:
        image = read_raster(contents, None if exact else bands, max_pixels)
        if nodata == "refuse":
            fill_missing(image, nodata)
        if image.shape[-1] != len(bands):
            have = f"it has {counted(image.shape[-1], 'band')}, and the first file has {len(bands)}"
            raise BadImageError(f"{have}: choose those that all have, such as bands=(3, 2, 1)")
        if not np.isnan(image).any():  # others are floats, whatever their depth
            depths[str(image.dtype)] += 1

    unreadable, digests = _read_all(files, check)
    if len(depths) > 1:
        kinds = ", ".join(f"{counted(n, 'file')} of {kind}" for kind, n in sorted(depths.items()))
        warn_of_data(
            f"The files differ in bit depth ({kinds}): where their ranges differ as well, write "
            "all in one, or a model sees what the depth shows of the class."
        )
    return Checked(unreadable, digests)


def _read_all(
    files: Sequence[Path], check: Callable[[Path, bytes], None]
) -> tuple[list[tuple[Path, str]], dict[Path, str]]:
    """Reads each file once, in threads; those that a check refuses, and the digests."""
    from rich.console import Console
    from rich.progress import track

    digests: dict[Path, str] = {}

    def reason(file: Path) -> str | None:
        try:
            contents = read_contents(file)
            digests[file] = digest_of(contents)
            check(file, contents)
        except (OSError, BadImageError) as error:
            return unreadable_reason(error)
        return None

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
    return unreadable, digests


@cache
def _decode_in_a_graph(max_pixels: int | None) -> Callable[[bytes], tuple[int, tuple[int, int]]]:
    """Return a function that decodes a file's bytes, and returns its EXIF orientation and its size.

    TensorFlow releases the GIL while a graph runs, so threads decode in parallel.
    """
    decode = tf.function(
        lambda contents: decode_and_orientation(contents, 3, max_pixels=max_pixels),
        input_signature=[tf.TensorSpec((), tf.string)],
        autograph=False,
    )
    decode.get_concrete_function()

    def orientation_and_size(contents: bytes) -> tuple[int, tuple[int, int]]:
        try:
            with tf.device("CPU"):
                image, orientation = decode(contents)
            return int(orientation), (image.shape[0], image.shape[1])
        except tf.errors.InvalidArgumentError as error:
            raise BadImageError(undecodable_reason(contents, error)) from error

    return orientation_and_size
