"""Whether an exported file predicts what its model does."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from keras.ops import convert_to_numpy, convert_to_tensor

from keras_vit.data.band_statistics import Statistics
from keras_vit.data.decode.headers import ORIENTATION_TAG
from keras_vit.exporting.contract import Contract
from keras_vit.models.answers import NOVELTY
from keras_vit.tasks import Task

# The largest difference between answers, and with int8 the mean one, as parts of their scale.
TOLERANCE = 1e-3
INT8_TOLERANCE = 0.25
# Of the novelty, which is a square: a part of it, and below the threshold a part of that.
NOVELTY_TOLERANCE = 1e-2
# One image alone and some together: the batch is free.
BATCHES = (1, 7)


def check_images(
    size: tuple[int, int], channels: int, statistics: Statistics | None = None
) -> np.ndarray:
    """Smooth colored patterns `(8, height, width, channels)`: the same on every machine.

    uint8; with means and standard deviations, float32 around them. Of few levels, so that they are
    stored in little.
    """
    height, width = size
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    images = []
    for i in range(sum(BATCHES)):
        random = np.random.default_rng(i)
        waves = [
            np.sin(2 * np.pi * (random.uniform(-6, 6) * x + random.uniform(-6, 6) * y) + phase)
            for phase in random.uniform(0, 6, (channels * 4))
        ]
        images.append(np.stack([sum(waves[c::channels]) for c in range(channels)], -1))
    if statistics is not None:
        means, stds = np.array(statistics, "float32")
        return (means + stds * np.rint(images) / 2).astype("float32")
    return np.clip(127.5 + 50 * np.stack(images), 0, 255).astype("uint8") // 64 * 64


def check_files(size: tuple[int, int]) -> list[tuple[str, bytes]]:
    """Image files by kind: a PNG larger than `size`, a smaller one, a turned JPEG, transparency."""
    from PIL import Image

    height, width = size
    result: list[tuple[str, bytes]] = []
    for kind, rows, columns in (("PNG", 1.3, 1.6), ("PNG", 0.9, 0.6), ("JPEG", 1.4, 1.1)):
        size = max(int(height * rows), 4), max(int(width * columns), 4)
        levels = check_images(size, 3)[len(result)]
        image, file, exif = Image.fromarray(levels), io.BytesIO(), Image.Exif()
        exif[ORIENTATION_TAG] = 6
        image.save(file, kind, **({"exif": exif, "quality": 80} if kind == "JPEG" else {}))
        result.append((kind, file.getvalue()))
    file, levels = io.BytesIO(), np.random.default_rng(0).integers(0, 256, (9, 7, 4), "uint8")
    Image.fromarray(levels).save(file, "PNG")
    return [*result, ("alpha", file.getvalue())]


def decisions_agree(task: Task, answers: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return whether two answers to an image mean the same: the class, the labels, the numbers."""
    return same_parts(task, answers, others).all(axis=1)


def same_parts(task: Task, answers: np.ndarray, others: np.ndarray) -> Any:
    """Return which decisions of two answers to an image are the same, `(images, decisions)`."""
    first, second = (decisions(task, each) for each in (answers, others))
    if first is None or second is None:  # the answers themselves are what is decided
        same = np.abs(answers - others) < scale_of("", task, answers) / 100
    else:
        same = first == second
    return same.reshape(len(same), -1)


def decisions(task: Task, answers: np.ndarray) -> np.ndarray | None:
    """Return the class, labels, grade or classes of pixels that answers mean; None of numbers."""
    named = [*task.graph_answers(convert_to_tensor(answers), top_k=1).values()]
    return convert_to_numpy(named[1]) if len(named) > 1 else None


def scale_of(name: str, task: Task | None, truth: np.ndarray) -> Any:
    """Return the scale of an output, of which differences from the true values are parts."""
    if name == NOVELTY:
        return np.maximum(truth, 1)
    if task is None:
        return max(1.0, float(np.abs(truth).max()))
    if not task.joins_windows:  # of no unit: the spread of the answers themselves
        return float(np.ptp(truth)) or 1.0
    return task.answer_scale


def check_agreement(
    name: str,
    run: Callable[[np.ndarray], np.ndarray],
    images: np.ndarray,
    expected: np.ndarray,
    contract: Contract,
) -> None:
    """Runs an exported file on batches of two sizes, and refuses it where an output differs.

    Args:
        images: `(8, height, width, channels)`.
        expected: The model's answers `(8, size)`, its outputs where it does not have a task, or its
            novelty `(8,)`.
        contract: Of the file: its task has the scale of the answers; quantization rounds them.

    Raises:
        RuntimeError: It differs; the message has the greatest difference.
    """
    most = NOVELTY_TOLERANCE if name == NOVELTY else TOLERANCE
    scale, start = np.broadcast_to(scale_of(name, contract.task, expected), expected.shape), 0
    differences = []
    for rows in BATCHES:
        part = slice(start, start + rows)
        outputs, truth, start = run(images[part]), expected[part], start + rows
        if outputs.shape != truth.shape:
            raise RuntimeError(
                f"it returns {name} {outputs.shape} for {rows} images, where the model's are "
                f"{truth.shape}"
            )
        difference = np.abs(outputs - truth) / scale[part]
        if not np.isfinite(difference).all():
            raise RuntimeError(f"it returns {name} with values that are not finite")
        differences.append(difference)
        of_answers = contract.quantize and name != NOVELTY
        if of_answers and (moved := _moved(difference, truth)) > INT8_TOLERANCE:
            raise RuntimeError(f"{contract.quantize} moves its {name} by {moved:.0%}")
        if not contract.quantize and difference.max() > most:
            raise RuntimeError(
                f"its {name} differ from the model's by up to "
                f"{(difference * scale[part]).max():.2g}"
            )
    moved = float(np.concatenate(differences).mean())
    if contract.quantize and name == NOVELTY and moved > INT8_TOLERANCE:
        raise RuntimeError(
            f"{contract.quantize} moves its {name} by {moved:.0%}, so that its threshold means "
            "nothing: export it without quantize, or model.uncalibrated()"
        )


def _moved(difference: np.ndarray, truth: np.ndarray) -> float:
    """Return how far answers are from the true ones on average, as a part of their scale."""
    # A row is an image, or one of its pixels.
    rows, truth = (array.reshape(-1, array.shape[-1]) for array in (difference, truth))
    # The probability that moved to other classes: of a thousand, each moves little.
    of_one = np.allclose(truth.sum(1), 1, atol=1e-3)
    return float((rows.sum(1) / 2 if of_one else rows.max(1)).mean())
