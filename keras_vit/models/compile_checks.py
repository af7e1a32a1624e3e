"""Compares what is compiled with a model's outputs: logits or probabilities."""

import warnings
from typing import Any

import keras

from keras_vit.models.data_checks import crossentropy_of


def warn_of_activation(model: Any) -> None:
    """Warns when the loss takes logits for probabilities, or probabilities for logits."""
    loss = crossentropy_of(model.loss)
    if loss is None or not getattr(model, "num_classes", None):
        return
    activation = keras.activations.get(model.classifier_activation)
    fitting = "sigmoid" if loss.labels == "binary" else "softmax"
    if activation is keras.activations.linear and not loss.from_logits:
        message = (
            f"{loss.name} expects probabilities, and {model.name} returns logits: the loss would "
            f'become NaN or never move. Give the model classifier_activation="{fitting}", or '
            f"compile it with keras.losses.{loss.kind}(from_logits=True)."
        )
    elif activation in (keras.activations.softmax, keras.activations.sigmoid) and loss.from_logits:
        message = (
            f"{loss.name} expects logits, and {model.name} returns probabilities "
            f"(classifier_activation={model.classifier_activation!r}). Give the loss "
            "from_logits=False, or the model classifier_activation=None."
        )
    else:
        return
    warnings.warn(message, UserWarning, stacklevel=3)  # the line that calls `compile`
