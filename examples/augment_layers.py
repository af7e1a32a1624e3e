"""Training images changed by layers of Keras and KerasCV, beside the recipe's own augmentation.

    python examples/augment_layers.py

Trains the same small ViT on scikit-learn's digits for a few epochs, and prints its accuracy on the
validation split. A minute on two CPU cores:

    recipe      77.22%    the recipe's shift and mixup, which are made for 60 epochs
    keras       96.11%    rotation, zoom and MixUp of keras.layers
    keras_cv    95.83%    rotation and CutMix of keras_cv.layers, with keras3-vit[cv]

Keras's layers draw from the seed, so that an interrupted run ends as if it had not stopped;
KerasCV's have a random state of their own.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras

import keras_vit
from keras_vit import data, fit
from keras_vit.evaluation.prediction import predict_split


def augmentations() -> dict[str, Any]:
    """What `augment=` of `fit` and of `keras_vit.data.pipeline` takes, by name."""
    choices: dict[str, Any] = {
        "recipe": None,
        "keras": keras.Sequential(
            [
                keras.layers.RandomRotation(0.03),
                keras.layers.RandomZoom(0.1),
                keras.layers.MixUp(0.2),
            ]
        ),
    }
    if find_spec("keras_cv"):
        import keras_cv

        choices["keras_cv"] = [keras_cv.layers.RandomRotation(0.03), keras_cv.layers.CutMix()]
    return choices


def accuracy(splits: data.Splits, augment: Any, epochs: int) -> float:
    """The accuracy of the digits' model after this many epochs."""
    recipe = replace(keras_vit.recipes.get("digits"), epochs=epochs)
    keras.utils.set_random_seed(0)
    shape = (recipe.image_size, recipe.image_size, splits.train.channels)
    model = keras_vit.VisionTransformer(
        **recipe.model, num_classes=splits.num_classes, input_shape=shape
    )
    model.eval_transform = {"mode": "stretch"}
    with tempfile.TemporaryDirectory() as folder:
        fit(model, recipe, splits, Path(folder), augment=augment)
    labels, scores = predict_split(model, splits.val, recipe.batch_size)
    return float((scores.argmax(-1) == labels).mean())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8, help="passes over the images")
    options = parser.parse_args(arguments)
    splits = data.load("digits")
    accuracies = {
        name: accuracy(splits, augment, options.epochs) for name, augment in augmentations().items()
    }
    print("", *(f"{name:<12}{value:.2%}" for name, value in accuracies.items()), sep="\n")


if __name__ == "__main__":
    main()
