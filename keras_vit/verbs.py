"""`evaluate` and `predict`: a model, a file or a run, and any images, as the commands take them."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import data as sources
from keras_vit import evaluation
from keras_vit._base.errors import check_positive, printable
from keras_vit.curation.photo_sources import find_photos
from keras_vit.data.sources.label_table import read_file_table
from keras_vit.data.sources.table_files import SUFFIXES as TABLES
from keras_vit.evaluation.answer_row import Row, answer_row, row_of_heads
from keras_vit.evaluation.prediction import check_takes_pixels_to_answers, predict_files
from keras_vit.evaluation.unseen_images import check_same_task, unseen_images
from keras_vit.exporting import ExportedModel, load_classifier
from keras_vit.models import ImageModel
from keras_vit.models.answers import task_of
from keras_vit.models.combined import CombinedModel
from keras_vit.models.scoring import answer_rows, has_novelty, scoring_model


def evaluate(
    model: Any,
    data: Any = None,
    *,
    split: str | None = None,
    batch_size: int = 32,
    windows: str | int | None = None,
    print_fn: Callable[[str], None] = print,
    **loading: Any,
) -> evaluation.Report:
    """Score a model on labeled images that it was not made with.

    Images that the model was trained on, tuned by or calibrated on are left out, as far as it has a
    record of them, and their number is printed; `split="train"` scores them all the same.

    Args:
        model: A model of this package; or the file of one, the folder of a run, `"MODEL:TAG"` of
            released weights, or what `keras_vit.export` wrote.
        data: A folder or the name of a data set, as `keras_vit.data.load` takes it; what that
            returned, or a split of it; or arrays `(images, labels)`, uint8
            `(n, height, width, 1 or 3)` and what the model's task takes as targets. None for the
            images that the run validated on.
        split: "val", "test", "train" or "all"; None for the validation images where the data says
            which these are, and otherwise for all that the model has not seen.
        batch_size: Images per batch.
        windows: As for `predict`: maps are scored at the images' own sizes.
        print_fn: Prints which images are scored, and which are left out.
        **loading: `labels`, `task` and the others about a table, `data_dir`, `max_pixels` and
            `reader`, as for `keras_vit.data.load`.

    Returns:
        The report, which prints as tables and has `scores["accuracy"].value`, `notes` and more.

    Raises:
        FileNotFoundError: There is no such model or data.
        ValueError: There is no data, and the model is not of a run; an array comes without labels;
            no image is left; or the labels mean something else than the model answers.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=4, hidden_dim=16, depth=1, num_heads=2, num_classes=10,
    ...     input_shape=(8, 8, 1), name="small")
    >>> keras_vit.evaluate(model, "digits", split="val").examples
    small on Splits('digits', 10 classes: train 1437, val 360)
    val: 360 images; small does not have a record of those it was made with
    360
    """
    check_positive(batch_size=batch_size)
    path, model = _opened(model)
    task_of(model)  # there is one, and not several
    if isinstance(data, tuple) and len(data) == 2:
        data = sources.ArraySplit("all", task_of(model), *data)
    known = (str, os.PathLike, sources.Split, sources.Splits)
    if not (data is None or isinstance(data, known)):
        raise ValueError(
            f"data={type(data).__name__} does not say which image has which label. Give a folder, "
            "a data set's name, what keras_vit.data.load returned, or a tuple (images, labels)."
        )
    images = unseen_images(model, data, path=path, split=split, **loading)
    check_same_task(model, images.split)
    print_fn(f"{model.name} on {images.source}\n{images.line}")
    return evaluation.evaluate(model, images.split, batch_size, windows)


def predict(
    model: Any,
    data: Any,
    *,
    top: int = 5,
    batch_size: int = 32,
    max_pixels: int = sources.MAX_PIXELS,
    windows: str | int | None = None,
) -> list[Row]:
    """Answer images, each in a row of names and values.

    Args:
        model: As for `evaluate`; or a model with several heads of
            `keras_vit.models.combined.combine`, its folder, or its exported file.
        data: An image file; a folder, of which every image at any depth is taken; a table with a
            column of files; several files; or an array of pixels 0..255 as the model takes them,
            `(n, height, width, channels)`.
        top: How many classes a row has at most, the most probable first.
        batch_size: Images per batch.
        max_pixels: Largest height times width of a file to decode.
        windows: Of files and a model of pixels, how those are seen that are larger than its images:
            by windows that overlap, of the photograph with a short side as long as theirs
            (`"model"`), as it is (`"own"`) or of so many pixels; or without windows, at its aspect
            ratio (`"whole"`). None stretches it. See `keras_vit.evaluation.windows.Windows`.

    Returns:
        A dictionary per image, in order, with `file`, or the number of an image in an array,
        `error`, None or the reason why there is no answer, and the answer by the model's task, see
        `keras_vit.evaluation.answer_row`; of several heads, such a dictionary for each by its name.
        Of more files than memory holds rows of,
        `keras_vit.evaluation.prediction.predict_files` gives the answers one by one.

    Raises:
        FileNotFoundError: There is no such model, or `data` is a path where nothing is.
        ValueError: A folder does not have images; the model does not answer images; `data` is
            something else; or `top` or `batch_size` is below 1.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=4, hidden_dim=16, depth=1, num_heads=2, num_classes=2,
    ...     input_shape=(8, 8, 3))
    >>> model.class_names = ["cat", "dog"]
    >>> row, = keras_vit.predict(model, np.full((1, 8, 8, 3), 127, "uint8"), top=1)
    >>> row["file"], row["error"], list(row["predictions"][0])
    (0, None, ['class', 'probability'])
    >>> keras_vit.predict(model, ["nowhere.jpg"])
    [{'file': 'nowhere.jpg', 'error': 'No such file or directory'}]
    """
    check_positive(top=top)
    check_positive(batch_size=batch_size)
    _, model = _opened(model, several=True)
    answers: Iterable[tuple[Any, Any]]
    if hasattr(data, "__array__") and np.ndim(data) == 1:
        data = list(data)  # a column of files
    if hasattr(data, "__array__") and not hasattr(data, "tobitmap"):
        check_takes_pixels_to_answers(model)
        if windows is not None:
            raise ValueError(
                f"windows={windows!r} is for image files, and an array has the model's size: leave "
                "windows out, or call keras_vit.evaluation.windows.Windows(model).map_of(pixels)."
            )
        outputs = scoring_model(model).predict(_images(data), batch_size=batch_size, verbose=0)
        answers = enumerate(answer_rows(model, outputs))
    else:
        answers = predict_files(model, _files(data), batch_size, max_pixels, windows)
    if heads := {head.name: head.task for head in getattr(model, "heads", ())}:
        return [row_of_heads(heads, file, answer, top) for file, answer in answers]
    task, novelty = task_of(model), has_novelty(model)
    return [answer_row(task, file, answer, top, novelty) for file, answer in answers]


def _opened(model: Any, several: bool = False) -> tuple[Any, Any]:
    """Return where a model is from, None for one in memory, and the model."""
    path, is_path = model, isinstance(model, str | os.PathLike)
    model = load_classifier(Path(model), several=several) if is_path else model
    if not isinstance(model, ImageModel | ExportedModel | CombinedModel):
        raise ValueError(
            f"model={type(model).__name__} is not a model of keras_vit. Give one, or a file, a "
            "folder or the name of released weights; others have Keras's `evaluate` and `predict`."
        )
    return (path if is_path else None), model


def _images(data: Any) -> np.ndarray:
    """Return a batch of images, in an array."""
    images = np.asarray(data)
    if images.ndim != 4 or not len(images):
        one = " Of one image, give image[None]." if images.ndim in (2, 3) else ""
        raise ValueError(
            f"data is an array of shape {images.shape}, and not of images (n, height, width, "
            f"channels), one at least.{one}"
        )
    return images


def _files(data: Any) -> Iterable[str | Path]:
    """Return the image files that are meant."""
    accepted = "Give an image file, a folder, a table, a list of files, or an array of pixels."
    if not isinstance(data, str | os.PathLike):
        # A dictionary, or `Splits`, would give its keys.
        files = list(data) if isinstance(data, list | tuple | Iterator) else []
        if not files or not all(isinstance(file, str | os.PathLike) for file in files):
            shown = "an empty list" if data == [] else type((files or [data])[0]).__name__
            raise ValueError(f"data is not of image files, but {shown}. {accepted}")
        return files
    path = Path(data).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"There is nothing at {printable(path)}. {accepted}")
    if path.is_dir():
        photos = find_photos(path)
        return (photos.root / photo.name for photo in photos.walk())
    if path.suffix.lower() in TABLES:  # in its order, and as often as it has them
        return [path.parent / name for name, *_ in read_file_table(path, only_files=True)]
    return [path]
