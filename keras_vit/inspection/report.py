"""From photographs to a folder: the plots as PNG files, and one page that shows them all."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.data import MAX_PIXELS, read_image
from keras_vit.errors import check_positive, printable
from keras_vit.evaluation.prediction import input_of
from keras_vit.files import begins_with_mark, write_bytes
from keras_vit.inspection.attention import readout_attention_of
from keras_vit.inspection.distance import distances_of, mean_distance
from keras_vit.inspection.drawing import draw_attention, draw_attention_distance, draw_rollout
from keras_vit.inspection.page import Photograph, Plot, write_page
from keras_vit.inspection.plots import (
    covered,
    pictures,
    plot_embedding_filters,
    plot_position_similarity,
)
from keras_vit.inspection.reading import encoder_blocks, read
from keras_vit.inspection.rollout import rollout_of

_CAPTIONS = {
    "attention": (
        "Every head of every layer",
        "Where each head of each layer looks in the first photograph, seen from {reader}. Every "
        "map is scaled to its own maximum.",
    ),
    "rollout": (
        "Attention rollout",
        "The photographs, dark where little of the answer comes from (ViT paper, figure 6).",
    ),
    "attention_distance": (
        "Mean attention distance",
        "A dot for each head: how far its patches look, over these photographs (ViT paper, figure "
        "11). Low dots work like a convolution, high ones see the whole picture.",
    ),
    "position_similarity": (
        "Position similarity",
        "How alike the position embedding of a patch and those of all patches are (ViT paper, "
        "figure 7 centre). Bright rows and columns: the model knows the grid.",
    ),
    "embedding_filters": (
        "Embedding filters",
        "The principal components of the patch embedding's filters (ViT paper, figure 7 left); "
        "grey is zero.",
    ),
}
# What a file of ours has near its beginning: nothing else is replaced.
_SOFTWARE = "keras_vit inspect"
_MARKS = {".html": b'<meta name="generator" content="keras_vit inspect">'}
_MARKS[".png"] = b"Software\x00" + _SOFTWARE.encode()
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
    """Writes what a model looks at in photographs: PNG plots and `index.html`.

    The page stands alone, without any file beside it: photographs, predictions, the attention of
    each layer and head laid over the photographs by a slider, and the plots.

    Args:
        model: A Vision Transformer of this package that takes pixels 0..255.
        files: Image files of any size, brought to the model's size as `predict` does.
        out: Folder to write.
        overwrite: Whether to replace a page and plots that this function wrote. Other files of
            these names are never replaced.
        title: What the page calls the model; None for its name.
        top: How many classes to name.
        batch_size: Photographs at once.
        max_pixels: Height times width of a file that is decoded.

    Returns:
        The files that could not be read, with the reason; the page leaves them out.

    Raises:
        ValueError: The model has no attention or takes no pixels, no file could be read, or a
            number is out of range.
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

    rows, rollouts, distances, logits = [], [], [], []
    for reading in read(model, images, batch_size):
        rows.append(readout_attention_of(reading))
        rollouts.append(rollout_of(reading))
        distances.append(distances_of(reading))
        logits.append(reading.features["logits"])
    attention, rollout = np.concatenate(rows), np.concatenate(rollouts)
    shown, size = pictures(model, images), covered(model, rollout.shape[1:])

    out.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[], Any]] = {
        "attention": lambda: draw_attention(attention[0]),
        "rollout": lambda: draw_rollout(shown, rollout, size),
        "attention_distance": lambda: draw_attention_distance(
            mean_distance(distances), shown.shape[2]
        ),
        "position_similarity": lambda: plot_position_similarity(model),
        "embedding_filters": lambda: plot_embedding_filters(model),
    }
    reader = _READERS.get(model.pooling, "the class token")
    plots = [_plot(name, maker, out, reader) for name, maker in makers.items()]
    photographs = [
        Photograph(file.name, shown[i], guesses, attention[i], rollout[i])
        for i, (file, guesses) in enumerate(
            zip(readable, _guesses(model, np.concatenate(logits), top), strict=True)
        )
    ]
    write_page(
        out / "index.html", title or model.name, model, photographs, plots, size, reader, failed
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
            f"{model.name!r} takes normalised images, not photographs. Build it with "
            "include_preprocessing=True, or call attention_maps on images of your own."
        )
    first = model.data_format == "channels_first"
    size, channels = input_of(model)
    if channels not in (1, 3):
        raise ValueError(
            f"{model.name!r} takes {channels} channels; photographs have 3, or 1 in grey. "
            "Call attention_maps on images of your own."
        )
    images, readable, failed = [], [], {}
    for file in map(Path, files):
        found = read_image(file, size, channels, max_pixels=max_pixels, **model.eval_transform)
        if isinstance(found, str):
            failed[file] = found
        else:
            images.append(np.moveaxis(found, -1, 0) if first else found)
            readable.append(file)
    if not images:
        reasons = "; ".join(f"{printable(file)}: {reason}" for file, reason in failed.items())
        raise ValueError(f"No photograph could be read. {reasons or 'Give at least one.'}")
    return np.stack(images), readable, failed


def _plot(name: str, maker: Callable[[], Any], out: Path, reader: str) -> Plot:
    title, caption = _CAPTIONS[name]
    path = out / f"{name}.png"
    try:
        drawn = maker()
    except ValueError as error:  # relative positions have no similarity, and so on: it says why
        path.unlink(missing_ok=True)  # of another model: `_check_out` saw that it is ours
        return Plot(title, str(error), None)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Many tiny axes leave the layout no room at the first try; it goes on with what it has.
        warnings.filterwarnings("ignore", "constrained_layout not applied")
        drawn.savefig(buffer, format="png", metadata={"Software": _SOFTWARE})
    write_bytes(path, buffer.getvalue())
    return Plot(title, caption.format(reader=reader), buffer.getvalue())


def _guesses(model: Any, logits: np.ndarray, top: int) -> list[list[tuple[str, float]]]:
    """The best classes of each photograph with probabilities; empty lists without a head."""
    # Without pooling there is an answer for every token, none for the photograph.
    if model.num_classes == 0 or logits.ndim != 2:
        return [[] for _ in logits]
    if model.classifier_activation is None:
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        logits = powers / powers.sum(axis=-1, keepdims=True)
    names = model.class_names or tuple(map(str, range(logits.shape[-1])))
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :top]
    return [
        [(names[i], float(row[i])) for i in order] for row, order in zip(logits, best, strict=True)
    ]
