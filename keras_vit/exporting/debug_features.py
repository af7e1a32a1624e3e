"""A debug export: its file returns the features of the model beside its answers, block by block."""

import re
from typing import Any

from keras_vit.models import ImageModel
from keras_vit.models.answers import ANSWERS
from keras_vit.models.scoring import scoring_model
from keras_vit.models.shared_model import SharedModel

# What a file calls the model's intermediate `images`, as its input has that name.
NORMALIZED = "normalized"
_KEPT = re.compile(r"images|(conv_)?stem|stage_\d+|patches|tokens|block_\d+|(encoder_)?norm|pooled")


def feature_tensors(model: ImageModel) -> dict[str, Any]:
    """Return the tensors that a debug export returns, by name, in the order of the data."""
    names = [name for name in model.feature_names if _KEPT.fullmatch(name)]
    tensors = model.feature_model(names).output
    return {NORMALIZED if name == "images" else name: tensors[name] for name in names}


def feature_model(model: ImageModel) -> Any:
    """Return a model from the same images to these features."""
    return SharedModel.of(model, model.inputs[0], feature_tensors(model), f"{model.name}_features")


def written_model(model: Any, *, debug: bool) -> Any:
    """Return the model whose outputs `named_answers` names: with a novelty, `debug` with features.

    For `debug`, a model with one head, for one view of an image.
    """
    scored = scoring_model(model)
    if not debug:
        return scored
    outputs = scored.outputs if model.novelty is not None else scored.outputs[0]
    tensors = {ANSWERS: outputs, **feature_tensors(model)}
    written = SharedModel.of(model, model.inputs[0], tensors, model.name)
    written.classifier_activation, written.task = model.classifier_activation, model.task
    return written
