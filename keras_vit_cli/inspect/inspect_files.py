"""From image files to a folder: the plots as PNG files, and one page that shows them all."""

import io
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.files import begins_with_mark, write_bytes
from keras_vit.data.decode.bit_depth import warn_of_sixteen_bits
from keras_vit.data.decode.image_files import sixteen_bit_files
from keras_vit.evaluation.prediction import read_images, size_and_channels
from keras_vit.inspection.attribution import explained_text, returns_scores
from keras_vit.inspection.plots import (
    draw_attention,
    draw_attention_distance,
    draw_maps,
    plot_embedding_filters,
    plot_position_similarity,
    to_pixels,
)
from keras_vit.inspection.recording import encoder_blocks
from keras_vit.models.answers import answers_of
from keras_vit.models.image_model import ImageModel
from keras_vit.models.views import eval_transform_of, mean_of_views
from keras_vit.tasks import Classification
from keras_vit_cli.inspect.looks import METHODS, Looks, look
from keras_vit_cli.inspect.page import InspectedImage, Plot, write_page
from keras_vit_cli.options.inspect import InspectOptions
from keras_vit_cli.report.overlays import draw_overlays

_CAPTIONS = {
    "pixels": (
        "Answers to every pixel",
        "What is predicted for each pixel, in color over or beside the photograph.",
    ),
    "attention": (
        "Every head of every layer",
        "Where each head of each layer looks in the first photograph, as seen from {reader}. Each "
        "map is scaled to its own maximum.",
    ),
    "attribution": (
        "What speaks for the answer",
        "The photographs, darkened where nothing speaks for {explained}: attention times the "
        "gradient of its score, through all layers (Chefer et al. 2021).",
    ),
    "rollout": (
        "Attention rollout",
        "The photographs, darkened where the attention of all layers leads to little; the same for "
        "every class (ViT paper, figure 6).",
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
        "paper, figure 7 center). Bright rows and columns: the model has learned the grid.",
    ),
    "embedding_filters": (
        "Embedding filters",
        "The principal components of the patch embedding's filters (ViT paper, figure 7 left); "
        "gray is zero.",
    ),
}
# A mark near the beginning of each file that this module writes: no other file is replaced.
_SOFTWARE = "keras_vit inspect"
_MARKS = {
    ".html": b'<meta name="generator" content="keras_vit inspect">',
    ".png": b"Software\x00" + _SOFTWARE.encode(),
}

_BATCH = 4  # images, whose attention is all in memory: see `class_attribution`
# No normalization of pixels leads beyond: CLIP's reaches 2.2 with three channels.
_LARGEST = 16


def inspect_files(model: Any, options: InspectOptions, title: str | None = None) -> dict[Path, str]:
    """Writes what a model looks at in images: PNG plots and `index.html`.

    The page needs no other file: it holds the images, predictions, the attention of each layer and
    head as an overlay that a slider selects, the map of all layers at its end, and the plots.

    Args:
        model: A model with one Vision Transformer of this package in it, at any depth, that accepts
            pixels 0..255.
        options: Of the command. Only a page and plots that this function wrote are replaced.

    Returns:
        The files that cannot be read, with the reason; the page leaves them out.

    Raises:
        ValueError: The model does not have attention or does not accept pixels, no file can be
            read, or there is not a class to explain.
        FileExistsError: There is a page or a plot already, and it is not to be replaced; or a file
            of that name that this function did not write.
        NotADirectoryError: `out` is a file.
        ImportError: matplotlib is not installed.
    """
    out = options.out
    _check_out(out, options.overwrite)
    encoder_blocks(model)
    images, readable, failed = _read_files(model, options.files, options.max_pixels)
    pixels = to_pixels(model, images)
    size = pixels.shape[1:3]
    asked = options.method, options.for_class
    looks = look(model, images, size, _BATCH, *asked, mean_of_views(model))

    if looks.largest > _LARGEST:
        raise ValueError(
            f"{model.name!r} cuts its patches from values up to {looks.largest:.0f}, where the "
            "pixels of files are 0..255: nothing in it normalizes them. Put "
            "keras.layers.Rescaling(1 / 127.5, -1) in front, or call class_attribution on arrays."
        )

    out.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[], Any]] = {
        looks.method: lambda: draw_maps(pixels, looks.maps, looks.covered, looks.method),
        "attention_distance": lambda: draw_attention_distance(
            looks.distances.mean(axis=0), looks.image_size[1]
        ),
        "attention": lambda: draw_attention(looks.attention[0]),
        "position_similarity": lambda: plot_position_similarity(model),
        "embedding_filters": lambda: plot_embedding_filters(model),
    }
    task = getattr(model, "task", None)
    if task is not None and task.per_pixel:
        makers = {"pixels": lambda: _draw_pixels(model, task, pixels, looks, readable), **makers}
    for name in {*METHODS, "pixels"} - makers.keys():
        (out / f"{name}.png").unlink(missing_ok=True)  # `_check_out` saw that we wrote it
    names = [explained_text(model, number) for number in looks.classes]
    explained = names[0] if len(set(names)) == 1 else "what is predicted for each"
    plots = [
        _plot(name, maker, out, reader=looks.reader, explained=printable(explained))
        for name, maker in makers.items()
    ]
    inspected = [
        InspectedImage(file.name, *each)
        for file, *each in zip(
            readable,
            pixels,
            _predictions(model, looks.outputs, options.top),
            looks.attention,
            looks.maps,
            names or [""] * len(readable),
            strict=True,
        )
    ]
    write_page(out / "index.html", title or model.name, looks, inspected, plots, failed)
    return failed


def _draw_pixels(
    model: Any, task: Any, pixels: np.ndarray, looks: Looks, files: Sequence[Path]
) -> Any:
    answers, size = answers_of(model, looks.outputs), pixels.shape[1:3]
    return draw_overlays(
        task,
        list(np.round(255 * pixels).astype(np.uint8)),
        [(file.name, task.to_text(answer)) for file, answer in zip(files, answers, strict=True)],
        [task.answer_map(answer, size) for answer in answers],
    )


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
    model: Any, files: Sequence[Path], max_pixels: int
) -> tuple[np.ndarray, list[Path], dict[Path, str]]:
    if not getattr(model, "include_preprocessing", True):
        raise ValueError(
            f"{model.name!r} takes normalized images, not files. Build it with "
            "include_preprocessing=True, or call class_attribution on arrays."
        )
    _, channels = size_and_channels(model)
    bands = eval_transform_of(model).bands
    if bands is None and channels not in (1, 3):
        raise ValueError(
            f"{model.name!r} takes {channels} channels; image files have 3, or 1 in gray. "
            "Call class_attribution on arrays."
        )
    if bands is None:
        warn_of_sixteen_bits(sixteen_bit_files(files), len(files))
    images, failed = read_images(model, files, max_pixels)
    if not len(images):
        reasons = "; ".join(f"{printable(file)}: {reason}" for file, reason in failed.items())
        raise ValueError(f"No photograph could be read. {reasons or 'Give at least one.'}")
    return images, [path for path in files if path not in failed], failed


def _plot(name: str, maker: Callable[[], Any], out: Path, **texts: str) -> Plot:
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
    return Plot(title, caption.format(**texts), buffer.getvalue())


def _predictions(model: Any, outputs: np.ndarray, top: int) -> list[list[dict[str, Any]]]:
    """Return each image's rows of predictions; empty lists where no task describes the outputs."""
    if isinstance(model, ImageModel) and model.task is not None:
        task, answers = model.task, answers_of(model, outputs)
    elif not isinstance(model, ImageModel) and returns_scores(model):
        task = Classification(getattr(model, "class_names", None) or (), outputs.shape[-1])
        is_probability = bool(((outputs >= 0) & (outputs <= 1)).all())
        answers = outputs if is_probability else task.answers(outputs)
    else:
        return [[] for _ in outputs]
    return [task.describe(answer, top)["predictions"] for answer in answers]
