"""Write a trained model as a SavedModel, and serve photographs from it with TensorFlow alone.

    python examples/export_savedmodel.py runs/flowers photo.jpg

Ten seconds; prints the classes of each photograph. Needs keras3-vit[tensorflow].
"""

import sys
from pathlib import Path

import keras
import tensorflow as tf

import keras_vit

run, *photographs = map(Path, sys.argv[1:])
model = keras.saving.load_model(run / "model.keras")
folder = keras_vit.export(model, Path("saved_models") / run.name / "1")

# What a server does: nothing below needs keras_vit.
served = tf.saved_model.load(str(folder)).signatures["serving_default"]
answer = served(contents=tf.constant([photograph.read_bytes() for photograph in photographs]))
for photograph, valid, names, probabilities in zip(
    photographs,
    answer["valid"].numpy(),
    answer["top_classes"].numpy(),
    answer["top_probabilities"].numpy(),
    strict=True,
):
    predictions = [f"{n.decode()} {p:.1%}" for n, p in zip(names, probabilities, strict=True)]
    print(f"{photograph}: {', '.join(predictions) if valid else 'cannot be decoded'}")
