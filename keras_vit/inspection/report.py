"""From image files to a folder: the plots as PNG files, and one page that shows them all."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.data import MAX_PIXELS
from keras_vit.data.bit_depth import warn_of_sixteen_bits
from keras_vit.data.image_files import sixteen_bit_files
from keras_vit.errors import check_positive, printable
from keras_vit.evaluation.prediction import Prediction, predictions_of, read_images
from keras_vit.files import begins_with_mark, write_bytes
from keras_vit.inspection.forward_pass import encoder_blocks, run
from keras_vit.inspection.page import InspectedImage, Plot, write_page
from keras_vit.inspection.plots import (
    covered_size,
    draw_attention,
    draw_attention_distance,
    draw_rollout,
    plot_embedding_filters,
    plot_position_similarity,
    to_pixels,
)

_CAPTIONS = {
    "attention": (
        "Every head of every layer",
        "Where each head of each layer looks in the first photograph, as seen from {reader}. Each "
        "map is scaled to its own maximum.",
    ),
    "rollout": (
        "Attention rollout",
        "The photographs, darkened where they contribute little to the prediction (ViT paper, "
        "figure 6).",
    ),
    "attention_distance": (
        "Mean attention distance",
        "One dot per head: how far its patches look on average, over these photographs (ViT paper, "
        "figure 11). Heads at the bottom act like a convolution, those at the top see the whole "
        "image.",
    ),
    "position_similarity": (
        "Position similarity",
        "The cosine similarity of each patch's position embedding with those of all patches (ViT "
        "paper, figure 7 centre). Bright rows and columns: the model has learned the grid.",
    ),
    "embedding_filters": (
        "Embedding filters",
        "The principal components of the patch embedding's filters (ViT paper, figure 7 left); "
        "grey is zero.",
    ),
}
# A mark near the beginning of each file that this module writes: no other file is replaced.
_SOFTWARE = "keras_vit inspect"
_MARKS = {
    ".html": b'<meta name="generator" content="keras_vit inspect">',
    ".png": b"Software\x00" + _SOFTWARE.encode(),
}
_READERS = {"gap": "the mean of the patches", "map": "the probe of the attention pooling"}


def inspect_files(
    model: Any,
    files: Sequence[str | Path],
    out: str | Path,
    overwrite: bool = False,
    title: str | None = None,
    top: int = 5,
    batch_size: int = 8,
    max_pixels: int = MAX_PIXELS,
) -> dict[Path, str]:
    """Writes what a model looks at in images: PNG plots and `index.html`.

    The page needs no other file: it holds the images, predictions, the attention of each layer and
    head as an overlay that a slider selects, and the plots.

    Args:
        model: A Vision Transformer of this package that accepts pixels 0..255.
        files: Image files of any size, prepared as for `predict`.
        out: Folder to write.
        overwrite: Whether to replace a page and plots that this function wrote. Other files of
            these names are never replaced.
        title: The model's name on the page; None for `model.name`.
        top: Number of predicted classes per image.
        batch_size: Images per batch.
        max_pixels: Largest height times width of a file to decode.

    Returns:
        The files that cannot be read, with the reason; the page leaves them out.

    Raises:
        ValueError: The model does not have attention or does not accept pixels, no file can be
            read, or a number is out of range.
        FileExistsError: There is a page or a plot already, and `overwrite` is False; or a file of
            that name that this function did not write.
        NotADirectoryError: `out` is a file.
        ImportError: matplotlib is not installed.
    """
    out = Path(out)
    check_positive(top=top, batch_size=batch_size, max_pixels=max_pixels)
    _check_out(out, overwrite)
    encoder_blocks(model)
    images, readable, failed = _read_files(model, files, max_pixels)

    batches = [
        (x.readout_attention(), x.rollout(), x.distances(), x.features["logits"])
        for x in run(model, images, batch_size)
    ]
    attention, rollout, distances, logits = map(np.concatenate, zip(*batches, strict=True))
    pixels, covered = to_pixels(model, images), covered_size(model, rollout.shape[1:])

    out.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[], Any]] = {
        "rollout": lambda: draw_rollout(pixels, rollout, covered),
        "attention_distance": lambda: draw_attention_distance(distances.mean(0), pixels.shape[2]),
        "attention": lambda: draw_attention(attention[0]),
        "position_similarity": lambda: plot_position_similarity(model),
        "embedding_filters": lambda: plot_embedding_filters(model),
    }
    reader = _READERS.get(model.pooling, "the class token")
    plots = [_plot(name, maker, out, reader) for name, maker in makers.items()]
    predictions = _predictions(model, logits, top)
    inspected = [
        InspectedImage(file.name, pixels[i], predictions[i], attention[i], rollout[i])
        for i, file in enumerate(readable)
    ]
    write_page(
        out / "index.html", title or model.name, model, inspected, plots, covered, reader, failed
    )
    return failed


def _check_out(out: Path, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{printable(out)} is a file. Give a folder.")
    for path in [out / "index.html", *(out / f"{name}.png" for name in _CAPTIONS)]:
        if not os.path.lexists(path):
            continue
        if not begins_with_mark(path, _MARKS[path.suffix]):
            raise FileExistsError(
                f"{printable(path)} was not written by keras-vit inspect, and would be replaced. "
                "Give another folder."
            )
        if not overwrite:
            raise FileExistsError(
                f"There is a page in {printable(out)} already. Give another folder, or "
                "overwrite=True (on the command line --overwrite)."
            )


def _read_files(
    model: Any, files: Sequence[str | Path], max_pixels: int
) -> tuple[np.ndarray, list[Path], dict[Path, str]]:
    if not model.include_preprocessing:
        raise ValueError(
            f"{model.name!r} takes normalised images, not files. Build it with "
            "include_preprocessing=True, or call attention_maps on arrays."
        )
    if model.channels not in (1, 3):
        raise ValueError(
            f"{model.name!r} takes {model.channels} channels; image files have 3, or 1 in grey. "
            "Call attention_maps on arrays."
        )
    paths = [Path(file) for file in files]
    warn_of_sixteen_bits(sixteen_bit_files(paths), len(paths))
    images, failed = read_images(model, paths, max_pixels)
    if not len(images):
        reasons = "; ".join(f"{printable(file)}: {reason}" for file, reason in failed.items())
        raise ValueError(f"No photograph could be read. {reasons or 'Give at least one.'}")
    return images, [path for path in paths if path not in failed], failed


def _plot(name: str, maker: Callable[[], Any], out: Path, reader: str) -> Plot:
    title, caption = _CAPTIONS[name]
    path = out / f"{name}.png"
    try:
        figure = maker()
    except ValueError as error:  # such as that relative positions do not have a similarity
        path.unlink(missing_ok=True)  # of another model: `_check_out` saw that we wrote it
        return Plot(title, str(error), None)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Many tiny axes leave the layout no room at the first try; a later one succeeds.
        warnings.filterwarnings("ignore", "constrained_layout not applied")
        figure.savefig(buffer, format="png", metadata={"Software": _SOFTWARE})
    write_bytes(path, buffer.getvalue())
    return Plot(title, caption.format(reader=reader), buffer.getvalue())


def _predictions(model: Any, logits: np.ndarray, top: int) -> list[Prediction]:
    """The most probable classes of each image; empty lists without a head."""
    # Without pooling there is a row of logits per token, not per image.
    if model.num_classes == 0 or logits.ndim != 2:
        return [[] for _ in logits]
    return predictions_of(model, logits, top)
