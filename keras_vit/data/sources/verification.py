"""Which of a folder's files cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from keras_vit._base.errors import counted
from keras_vit._base.processors import available_processors
from keras_vit.data._imports import tf
from keras_vit.data.data_errors import JPEG, BadImageError, undecodable_reason
from keras_vit.data.decode.bit_depth import has_sixteen_bits
from keras_vit.data.decode.decoder import decode_and_orientation
from keras_vit.data.decode.image_files import read_contents, unreadable_reason
from keras_vit.data.decode.pillow import decode_with_pillow


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
    from rich.console import Console
    from rich.progress import track

    orientation_of = _decode_in_a_graph(max_pixels) if reader == "tensorflow" else None
    orientations, jpeg, deep = set(), set(), set()

    def reason(file: Path) -> str | None:
        try:
            contents = read_contents(file)
            if orientation_of is None:
                decode_with_pillow(contents, 3, max_pixels)
            else:
                orientations.add(orientation_of(contents))
        except (OSError, BadImageError) as error:
            return unreadable_reason(error)
        jpeg.add(contents.startswith(JPEG))
        if has_sixteen_bits(contents):
            deep.add(file)
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
    upright = orientation_of is not None and orientations <= {1}
    return unreadable, upright, jpeg == {True}, [f for f in files if f in deep]


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
