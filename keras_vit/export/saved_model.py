"""The graph of the SavedModel. Runs only in a process whose Keras backend is TensorFlow."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit.data import decode_image, evaluation_image, map_or_else
from keras_vit.export.formats import MODEL_FILE, OPTIONS_FILE
from keras_vit.models import ImageModel


def write_saved_model(
    model: ImageModel,
    path: Path,
    *,
    class_names: Sequence[str],
    image_size: tuple[int, int],
    top_k: int,
    evaluation: dict[str, Any],
    max_pixels: int,
) -> None:
    """Writes the SavedModel that `export_model` documents."""
    import tensorflow as tf

    channels = model.input_shape[-1]
    softmax = model.classifier_activation is None
    # As bytes: folders, and so classes, may have names that are not UTF-8.
    names = tf.constant([name.encode("utf-8", "surrogateescape") for name in class_names])

    def classify(images: Any, valid: Any) -> dict[str, Any]:
        scores = model(images, training=False)
        probabilities = tf.nn.softmax(scores) if softmax else scores
        values, indices = tf.math.top_k(probabilities, top_k)
        rows = valid[:, None]
        return {
            "probabilities": tf.where(rows, probabilities, 0.0),
            "top_probabilities": tf.where(rows, values, 0.0),
            "top_classes": tf.where(rows, tf.gather(names, indices), ""),
            "valid": valid,
        }

    def prepare(image: Any) -> Any:
        return evaluation_image(image, image_size, **evaluation)

    def decode(contents: Any) -> Any:
        decoder = evaluation.get("decoder") or "tensorflow"
        return decode_image(contents, channels, max_pixels=max_pixels, decoder=decoder)

    def read(contents: Any) -> Any:
        """Pixels of a file and True, or black and False."""
        return map_or_else(
            lambda c: (prepare(decode(c)), True),
            lambda _: (tf.zeros((*image_size, channels)), False),
            contents,
        )

    def from_contents(contents: Any) -> dict[str, Any]:
        files = tf.data.Dataset.from_tensor_slices(contents)
        images = files.map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        batch = images.batch(tf.maximum(tf.size(contents, tf.int64), 1))
        nothing = (tf.zeros((0, *image_size, channels)), tf.zeros(0, bool))
        empty = tf.data.Dataset.from_tensors(nothing)
        return classify(*batch.concatenate(empty).take(1).get_single_element())

    def from_images(images: Any) -> dict[str, Any]:
        prepared = tf.map_fn(
            prepare, images, fn_output_signature=tf.TensorSpec((*image_size, channels))
        )
        return classify(prepared, tf.ones(tf.shape(images)[:1], bool))

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "serving_default", from_contents, [tf.TensorSpec((None,), tf.string, "contents")]
    )
    pixels = tf.TensorSpec((None, None, None, channels), tf.float32, "images")
    archive.add_endpoint("images", from_images, [pixels])
    try:
        archive.write_out(str(path), verbose=False)
    except tf.errors.OpError as error:  # such as a full disk
        raise OSError(f"{path} cannot be written: {error.message}") from error


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    options = json.loads((folder / OPTIONS_FILE).read_text("utf-8"))
    options["image_size"] = tuple(options["image_size"])
    write_saved_model(keras.saving.load_model(folder / MODEL_FILE), folder, **options)
