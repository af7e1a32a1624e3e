"""The SavedModel, which also decodes JPEG and PNG files. Written where Keras is on TensorFlow."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.files import write_text
from keras_vit._base.manifest import sha256
from keras_vit.data import decode_image, evaluation_image, map_or_else
from keras_vit.exporting.contract import IMAGES, KEY, PIXELS, Contract, Run
from keras_vit.exporting.graph import save_signatures
from keras_vit.exporting.proof import PROOF_FILE
from keras_vit.models import ImageModel
from keras_vit.models.answers import named_answers
from keras_vit.tasks import Task
from keras_vit.tasks.pixel_losses import IGNORED

# Where TensorFlow Serving expects what is the user's own.
DESCRIPTION = f"assets.extra/{KEY}.json"
PROOF_PATH = f"assets.extra/{PROOF_FILE}"


def write(
    model: ImageModel, path: Path, contract: Contract, calibration: np.ndarray | None = None
) -> None:
    """Writes the SavedModel that `keras_vit.export` documents."""
    import tensorflow as tf

    size, channels = contract.image_size, contract.channels

    def answer(images: Any, valid: Any) -> dict[str, Any]:
        answers = named_answers(model, model(images, training=False), contract.top_k)
        named = {
            name: _of_valid(head.task, name.removeprefix(head.prefix), answers[name], valid)
            for head in contract.heads
            for name in head.outputs
        }
        return {**named, **{name: answers[name] for name in contract.features}, "valid": valid}

    def prepare(image: Any) -> Any:
        return evaluation_image(image, size, contract.evaluation)

    def decode(contents: Any) -> Any:
        decoder = contract.evaluation.decoder or "tensorflow"
        limit = contract.max_pixels
        return decode_image(contents, channels, max_pixels=limit, decoder=decoder, to_save=True)

    def read(contents: Any) -> Any:
        """Return pixels of a file and True, or black and False."""
        return map_or_else(
            lambda c: (prepare(decode(c)), True),
            lambda _: (tf.zeros((*size, channels)), False),
            contents,
        )

    def from_contents(contents: Any) -> dict[str, Any]:
        files = tf.data.Dataset.from_tensor_slices(contents)
        images = files.map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        batch = images.batch(tf.maximum(tf.size(contents, tf.int64), 1))
        nothing = (tf.zeros((0, *size, channels)), tf.zeros(0, bool))
        empty = tf.data.Dataset.from_tensors(nothing)
        return answer(*batch.concatenate(empty).take(1).get_single_element())

    def from_images(images: Any) -> dict[str, Any]:
        spec = tf.TensorSpec((*size, channels))
        is_prepared = tf.reduce_all(tf.shape(images)[1:3] == size)  # as for the other formats
        prepared = tf.cond(
            is_prepared,
            lambda: tf.cast(images, tf.float32),
            lambda: tf.map_fn(prepare, images, fn_output_signature=spec),
        )
        return from_pixels(tf.ensure_shape(prepared, (None, *size, channels)))

    def from_pixels(pixels: Any) -> dict[str, Any]:
        return answer(pixels, tf.ones(tf.shape(pixels)[:1], bool))

    signatures: dict[str, tuple[Callable[..., Any], Any]] = {
        IMAGES: (from_images, tf.TensorSpec((None, None, None, channels), contract.dtype, IMAGES)),
        PIXELS: (from_pixels, tf.TensorSpec((None, *size, channels), tf.float32, PIXELS)),
    }
    if contract.reads_files:
        contents = tf.TensorSpec((None,), tf.string, "contents")
        signatures["serving_default"] = (from_contents, contents)
    functions = {
        name: tf.function(function, input_signature=[spec])
        for name, (function, spec) in signatures.items()
    }
    save_signatures(model, path, functions)
    (path / DESCRIPTION).parent.mkdir(exist_ok=True)  # left over from an attempt that failed
    write_text(path / DESCRIPTION, contract.to_text())


def _of_valid(task: Task | None, name: str, values: Any, valid: Any) -> Any:
    """Values, by name where they are integers, and nothing for images that are not valid."""
    import tensorflow as tf

    rows = tf.reshape(valid, (-1, *(1,) * (len(values.shape) - 1)))
    if task is None or not values.dtype.is_integer:
        # A probability of 0 is not an answer, but a number of 0 would be one.
        return tf.where(rows, values, 0.0 if name.endswith("probabilities") else np.nan)
    if task.per_pixel:  # a name in every pixel would take a hundred times the memory
        return tf.where(rows, values, IGNORED)
    # As bytes: folders, and so classes, may have names that are not UTF-8.
    names = tf.constant([n.encode("utf-8", "surrogateescape") for n in task.shown_names])
    if name in task.index_answers:
        return tf.where(rows, tf.gather(names, values), "")
    return tf.where(rows & (values > 0), names, "")


def read_contract(path: Path) -> Contract:
    """Return the contract beside the model's own assets."""
    return Contract.from_text((path / DESCRIPTION).read_text("utf-8"))


def add_proof(path: Path, text: str) -> None:
    """Writes a proof beside the contract."""
    write_text(path / PROOF_PATH, text)


def read_proof(path: Path) -> tuple[str | None, str]:
    """Return the proof beside the contract, or None, and the sum of the sums of the model's files.

    (Others in `assets.extra` are the user's, such as requests by which a server warms up.)
    """
    patterns = ("saved_model.pb", "fingerprint.pb", "variables/*", "assets/*", DESCRIPTION)
    files = sorted(file for pattern in patterns for file in path.glob(pattern))
    sums = " ".join(f"{file.relative_to(path).as_posix()} {sha256(file)}" for file in files)
    proof = path / PROOF_PATH
    return proof.read_text("utf-8") if proof.exists() else None, sums


def file_runner(
    path: Path, outputs: Sequence[str]
) -> Callable[[Sequence[bytes]], list[np.ndarray]]:
    """Return a function from image files' bytes to the named outputs, as a server would run it."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures["serving_default"]

    def run(contents: Sequence[bytes]) -> list[np.ndarray]:
        assert loaded  # what owns the variables
        named = signature(contents=tf.constant(list(contents)))
        return [np.asarray(named[output]) for output in outputs]

    return run


def runner(path: Path, outputs: Sequence[str], dtype: str = "uint8") -> Run:
    """Return a function from pixels of a dtype to the named outputs."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    name = PIXELS if dtype == "float32" else IMAGES
    signature = loaded.signatures[name]

    def run(images: np.ndarray) -> list[np.ndarray]:
        assert loaded  # what owns the variables
        named = signature(**{name: tf.constant(images)})
        return [np.asarray(named[output]) for output in outputs]

    return run
