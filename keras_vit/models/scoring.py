"""A model with its novelty score: from images to outputs, and how far they are from training."""

from typing import Any

import keras
import numpy as np

from keras_vit.models.answers import answers_of
from keras_vit.models.shared_model import SharedModel
from keras_vit.models.views import mean_of_views


def scoring_model(model: Any, with_features: bool = False) -> Any:
    """Return a model from the same images to `[outputs, novelty]`, outputs as of `mean_of_views`.

    The novelty `(images,)` is that of the image itself, whatever the views. The features that it is
    computed from are a third output `with_features`.

    Returns:
        A `keras.Model` that shares the weights; without a `novelty`, what `mean_of_views` returns.
    """
    if hasattr(model, "scoring"):  # an exported file
        return model.scoring()
    averaged = mean_of_views(model)
    layer = getattr(model, "novelty", None)
    if layer is None:
        return averaged
    backbone = model.feature_model("pre_logits")
    if averaged is model:
        images, outputs, features = model.inputs[0], model.outputs[0], backbone.outputs[0]
    else:
        images = keras.Input(model.inputs[0].shape[1:], name="images")
        outputs, features = averaged(images), backbone(images)
    outputs = [outputs, layer(features), *[features] * with_features]
    scored = SharedModel.of(model, images, outputs, model.name)
    scored.classifier_activation, scored.task = model.classifier_activation, model.task
    return scored


def answer_rows(model: Any, outputs: Any) -> Any:
    """Return a `scoring_model`'s predictions as rows of answers, with novelty as a last column.

    Args:
        model: The model itself.
        outputs: Of a batch: `(images, outputs)`, or a list of that and the novelty `(images,)`; of
            a model with several heads, a list of the outputs of each.

    Returns:
        `(images, size)`, or `(images, size + 1)`; of several heads, for each image a tuple of the
        answer of each.
    """
    if heads := getattr(model, "heads", ()):
        answers = (answers_of(head, each) for head, each in zip(heads, outputs, strict=True))
        return list(zip(*answers, strict=True))
    if not isinstance(outputs, list | tuple):
        return answers_of(model, outputs)
    outputs, novelty = outputs
    column = keras.ops.convert_to_numpy(novelty)[:, None]
    return np.concatenate([answers_of(model, outputs), column], axis=1)


def has_novelty(model: Any) -> bool:
    """Return whether a model or exported file scores how far images are from its training's."""
    if hasattr(model, "contract"):
        return bool(model.contract.novelty)
    return getattr(model, "novelty", None) is not None
