"""A model's predictions for image files and for splits of a data set."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import data
from keras_vit import ops as backend
from keras_vit._base.errors import check_positive, printable
from keras_vit.data.decode.bit_depth import warn_of_sixteen_bits
from keras_vit.data.decode.image_files import prepare_file, sixteen_bit_files
from keras_vit.data.sources.map_folder import MapSplit
from keras_vit.evaluation.outcomes import Outcomes
from keras_vit.evaluation.report import Report, report_of
from keras_vit.evaluation.windows import Windows
from keras_vit.models.answers import answers_of, task_of
from keras_vit.models.geometry import DEFAULT_SIZE
from keras_vit.models.normalization import own_statistics
from keras_vit.models.scoring import answer_rows, scoring_model
from keras_vit.models.views import eval_transform_of, mean_of_views
from keras_vit.ops import current_processes
from keras_vit.tasks.answer import check_finite_answers

# Scores of a whole split that are held at once, a few times in copies.
MOST_SCORE_BYTES = 64 * 2**20
ANY = 10**12  # pixels of files that were checked when they were found
Answer = tuple[Path, np.ndarray | str]  # or the reason why there is none
Batch = tuple[list[Path], int]  # and how many images it is filled up to, where shapes are compiled


def predict_files(
    model: keras.Model,
    files: Iterable[str | Path],
    batch_size: int = 32,
    max_pixels: int = data.MAX_PIXELS,
    windows: str | int | None = None,
    elsewhere: Callable[[Iterator[Batch]], Iterable[Iterable[Answer]]] | None = None,
) -> Iterator[Answer]:
    """Predicts what a model answers for image files.

    Args:
        model: A model of this package that accepts pixels and has a task, or an exported one.
        files: Image files of any size. They are taken a batch at a time, so that there may be any
            number of them.
        batch_size: Images per batch.
        max_pixels: Largest height times width of a file to decode.
        windows: Of a model of pixels, how large images are seen, `side` of
            `keras_vit.evaluation.windows.Windows`: answers are maps of the images' own sizes. None:
            images are resized to the model's size.
        elsewhere: Calls `answer_batch` for each batch, in order, in other processes; None: here.

    Returns:
        An iterator over every file in order, with its answer `(size,)` by the model's task, such as
        a probability per class (`(height, width, size)` of a task of pixels), which
        `model.task.describe` and `to_text` put into words; or with the reason why it cannot be
        decoded. Of a model with a `novelty`, an answer is `(size + 1,)`, the novelty last: above 1,
        the image is unlike those of the training. Of a model with several heads it is a tuple of
        the answer of each.

    Raises:
        ValueError: `batch_size` is below 1, or see `check_takes_pixels_to_answers` and `Windows`.

    Example:

    >>> import keras_vit
    >>> from keras_vit.evaluation.prediction import predict_files
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 3), num_classes=2)
    >>> for file, answer in predict_files(model, ["nowhere.jpg"]):
    ...     print(file, answer)
    nowhere.jpg No such file or directory
    """
    check_positive(batch_size=batch_size)
    check_takes_pixels_to_answers(model)
    batch_size = min(batch_size, max(MOST_SCORE_BYTES // _answer_bytes(model), 1))
    by_windows = None if windows is None else Windows(model, windows, batch_size)
    if elsewhere is not None:
        answered = elsewhere
    elif by_windows is not None:
        answered = partial(
            map, lambda batch: ((path, by_windows.of_file(path, max_pixels)) for path in batch[0])
        )
    else:
        answered = partial(map, partial(answer_batch, model, scoring_model(model), max_pixels))
    # What is refused is refused now, before whoever asks has opened a file for the answers.
    return chain.from_iterable(answered(_batches(model, files, batch_size)))


def _batches(model: keras.Model, files: Iterable[str | Path], batch_size: int) -> Iterator[Batch]:
    """Yield the files in batches, and warn once of those with more bits than the model sees."""
    remaining, looked_at, size = iter(files), 0, 0
    deep: list[Path] = []
    while paths := [Path(file) for file in islice(remaining, batch_size)]:
        if not deep and eval_transform_of(model).bands is None:  # one warning
            looked_at += len(paths)
            warn_of_sixteen_bits(deep := sixteen_bit_files(paths), looked_at)
        if len(paths) == batch_size:
            size = batch_size  # also of batches with broken files, and of the last one
        yield paths, size


def answer_batch(
    model: keras.Model, scoring: Any, max_pixels: int, batch: Batch
) -> Iterator[Answer]:
    """Yield each file of a batch with its answer, as `predict_files` does.

    The last digits of an answer depend on the batch that it is computed in: the same batch has the
    same answers in every process.

    Args:
        batch: Files, and how many images the batch is filled up to where shapes are compiled.
    """
    paths, size = batch
    images, failed = read_images(model, paths, max_pixels)
    rows: Iterable[np.ndarray] = ()
    if len(images):
        filled = padded(images, size if backend.compiles_per_shape() else 0)
        rows = answer_rows(model, scoring.predict_on_batch(filled))
    answers = iter(rows)
    for path in paths:
        yield path, failed[path] if path in failed else next(answers)


def padded(images: np.ndarray, size: int) -> np.ndarray:
    """Fill a batch up to `size` with its last image: another size would be compiled again."""
    missing = max(size - len(images), 0)
    return np.pad(images, ((0, missing), *3 * [(0, 0)]), mode="edge")


def read_images(
    model: keras.Model, files: Sequence[Path], max_pixels: int = data.MAX_PIXELS
) -> tuple[np.ndarray, dict[Path, str]]:
    """Image files as a model of this package accepts them, prepared by its `eval_transform`.

    Returns:
        A batch of those that can be decoded, in order, and the reasons for the others.
    """
    (height, width), channels = size_and_channels(model)
    transform = eval_transform_of(model)
    check_reads_files(model)
    images, failed = [np.zeros((0, height, width, channels), "float32")], {}
    for file in files:
        image = prepare_file(file, (height, width), channels, max_pixels, transform)
        if isinstance(image, str):
            failed[file] = image
        else:
            images.append(image[None])
    batch = np.concatenate(images)
    return (np.moveaxis(batch, -1, 1) if _channels_first(model) else batch), failed


def check_takes_pixels_to_answers(model: keras.Model) -> None:
    """Raises a ValueError for a model that does not answer images as its task describes.

    Such a model returns features or tokens, does not have a task, takes normalized pixels, or
    answers every pixel of images whose border is cropped.
    """
    heads = getattr(model, "heads", ())
    is_row = bool(heads) or len(model.output_shape) != 3
    if model.num_classes == 0 or not is_row:  # features, or all tokens
        raise ValueError(
            f"{model.name} returns {model.output_shape}, not one score per class. "
            "Give a model with num_classes and pooling, such as model.with_classifier(5)."
        )
    if any(task_of(each).per_pixel for each in heads or (model,)):
        eval_transform_of(model).check_whole(model.name)
    check_takes_pixels(model)


def check_takes_pixels(model: keras.Model) -> None:
    """Raises a ValueError for a model of normalized pixels, or of others than this package."""
    if not hasattr(model, "include_preprocessing"):
        raise ValueError(
            f"model={type(model).__name__} is not a model of keras_vit, and what its inputs and "
            "outputs mean is not known. Give the one inside it, or use Keras's model.export."
        )
    if not model.include_preprocessing:
        raise ValueError(
            f"{model.name} takes normalized pixels, so it could be given the wrong range. "
            "Build it with include_preprocessing=True; the weights stay the same."
        )


def check_reads_files(model: keras.Model) -> None:
    """Raises a ValueError for a model of bands that does not know which bands those are."""
    if own_statistics(model) is not None and eval_transform_of(model).bands is None:
        bands = tuple(range(1, size_and_channels(model)[1] + 1))
        raise ValueError(
            f"{model.name} normalizes channels in a range of their own, and files would be read as "
            "photographs, 0..255. Say which bands its channels are: model.eval_transform = "
            f"keras_vit.data.EvalTransform(bands={bands})."
        )


def predict_split(
    model: keras.Model, split: data.Split, batch_size: int = 32
) -> tuple[np.ndarray, np.ndarray]:
    """Return a classifier's scores for a split's images, prepared by the model's `eval_transform`.

    Where that names `views`, the scores are their average: see `model.with_views`.

    Args:
        model: A Keras classifier that accepts pixels.
        split: One of `keras_vit.data.load(...)`.
        batch_size: Images per batch.

    Returns:
        int32 labels `(images,)` and scores `(images, classes)`, logits unless the model has a
        `classifier_activation`, in the split's order.

    Example:

    >>> import keras_vit
    >>> from keras_vit.evaluation import predict_split
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 1), num_classes=10)
    >>> labels, scores = predict_split(model, keras_vit.data.load("digits").val, batch_size=180)
    >>> labels.shape, scores.shape
    ((360,), (360, 10))
    """
    return _predicted(mean_of_views(model), model, split, batch_size)


def _predicted(
    predictor: Any, model: keras.Model, split: data.Split, batch_size: int
) -> tuple[np.ndarray, Any]:
    """Return the labels of a split, and what a model made of `model` predicts."""
    batches = data.pipeline(split, batch_size=batch_size, **pipeline_arguments(model))
    # Labels come with their images where files cannot be decoded, or where they are maps.
    if split.skips or split.per_pixel:
        labels = np.concatenate([batch for _, batch in batches.as_numpy_iterator()])
    else:
        labels = split.labels()
    # Of Grain's batches Keras does not know the number, and warns at their end.
    steps = getattr(batches, "num_batches", None)
    return labels, predictor.predict(batches, verbose=0, steps=steps)


def evaluate(
    model: keras.Model, split: data.Split, batch_size: int = 32, windows: str | int | None = None
) -> Report:
    """Score a model's answers to the images of a split by its task.

    Args:
        model: See `predict_split`, also for the other arguments.
        windows: As for `predict_files`: maps are scored at the images' own sizes.

    Raises:
        ValueError: The model does not have a task, or the labels do not suit it.

    Example:

    >>> import keras_vit
    >>> from keras_vit.evaluation import evaluate
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 1), num_classes=10)
    >>> report = evaluate(model, keras_vit.data.load("digits").val, batch_size=180)
    >>> report.examples, list(report.scores)
    (360, ['accuracy', 'balanced_accuracy', 'macro_f1'])
    """
    outcomes, targets = predict_outcomes(model, split, batch_size, windows)
    return report_of(outcomes, targets)


def predict_outcomes(
    model: keras.Model, split: data.Split, batch_size: int = 32, windows: str | int | None = None
) -> tuple[Outcomes, np.ndarray]:
    """Return what a model's answers to a split leave behind for their scores, and the targets.

    The answers of 21,843 images and as many classes take 1.9 GB: where there would be so many,
    each batch is reduced before the next one.
    """
    task, of_split = task_of(model), split.task
    if windows is not None:
        return _outcomes_of_windows(model, split, batch_size, windows)
    row_bytes = _answer_bytes(model)
    # Several processes predict together, in `predict` alone.
    if row_bytes * len(split) <= MOST_SCORE_BYTES or current_processes() is not None:
        labels, outputs = _predicted(scoring_model(model), model, split, batch_size)
        outputs, *novelty = keras.tree.flatten(outputs)
        # The scale of numbers is that of the model's training images, and not of these.
        targets = of_split.to_targets(labels)
        outcomes = Outcomes.of(task, targets, answers_of(model, outputs), *novelty)
        return outcomes, of_split.summary(targets)
    batch_size = min(batch_size, max(MOST_SCORE_BYTES // row_bytes, 1))
    batches = data.pipeline(split, batch_size=batch_size, **pipeline_arguments(model))
    scoring, parts, all_targets = scoring_model(model), [], []
    for images, labels in batches.as_numpy_iterator():
        # The last batch is padded: another size would be compiled again.
        predicted = scoring.predict_on_batch(padded(images, batch_size))
        outputs, *novelty = (
            keras.ops.convert_to_numpy(rows)[: len(images)]
            for rows in keras.tree.flatten(predicted)
        )
        targets = of_split.to_targets(labels)
        parts.append(Outcomes.of(task, targets, answers_of(model, outputs), *novelty))
        all_targets.append(of_split.summary(targets))
    return Outcomes.joined(parts), np.concatenate(all_targets)


def _outcomes_of_windows(
    model: keras.Model, split: data.Split, batch_size: int, windows: str | int
) -> tuple[Outcomes, np.ndarray]:
    """Return `predict_outcomes` of an image and its map at a time, both as large as the file."""
    task = split.task
    if not isinstance(split, MapSplit):
        raise ValueError(
            f"windows={windows!r} is for photographs in files with a map of each, and {split!r} "
            "is something else: leave windows out."
        )
    parts, targets = [], []
    answers = predict_files(model, split.files, batch_size, split.max_pixels or ANY, windows)
    for i, (file, answer) in enumerate(answers):
        if isinstance(answer, str):
            raise data.BadImageError(f"{printable(file)} cannot be read: {answer}")
        check_finite_answers(answer[None])
        target = task.to_targets(split.label_map(i)[None])
        parts.append(Outcomes.of(task_of(model), target, answer[None]))
        targets.append(task.summary(target))
    return Outcomes.joined(parts), np.concatenate(targets)


def _answer_bytes(model: keras.Model) -> int:
    """Return how many bytes the answer to an image takes, or the masks that it is made of."""
    if heads := getattr(model, "heads", ()):
        return sum(map(_answer_bytes, heads))
    queries = getattr(getattr(model, "map_head", None), "queries", 0)
    *pixels, outputs = model.output_shape[1:]
    return 4 * math.prod(pixels) * max(outputs, queries)


def pipeline_arguments(model: keras.Model) -> dict[str, Any]:
    """Return the arguments of `data.pipeline` that a model decides: image shape and preparation.

    For a Keras model of another kind images are resized and cropped at the center. A model that
    learns from several views of an image decides how many they are, too.
    """
    size, channels = size_and_channels(model)
    arguments = {"image_size": size, "channels": channels}
    if _channels_first(model):
        arguments["data_format"] = "channels_first"
    if views := getattr(model, "training_views", None):
        arguments["views"] = views
    return {**arguments, "eval_transform": eval_transform_of(model)}


def size_and_channels(model: keras.Model) -> tuple[tuple[int, int], int]:
    """Return (height, width), `DEFAULT_SIZE` where any is accepted, and the number of channels."""
    shape = model.input_shape[1:]
    channels, height, width = shape if _channels_first(model) else (shape[-1], *shape[:-1])
    return (height or DEFAULT_SIZE, width or DEFAULT_SIZE), channels


def _channels_first(model: keras.Model) -> bool:
    return getattr(model, "data_format", "channels_last") == "channels_first"
