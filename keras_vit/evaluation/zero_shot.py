"""Zero-shot classification: images beside texts in one space (CLIP, SigLIP), without training."""

from collections.abc import Sequence

import keras
import numpy as np

from keras_vit._base.errors import check_choice, check_finite
from keras_vit.models.shared_model import SharedModel

LOGIT_SCALE = 100.0  # CLIP's, the largest that its training allows


def zero_shot(
    model: keras.Model,
    text_embeddings: np.ndarray,
    class_names: Sequence[str] | None = None,
    *,
    logit_scale: float = LOGIT_SCALE,
    logit_bias: float = 0.0,
    activation: str | None = "softmax",
) -> keras.Model:
    """Return a classifier of the model's images by embeddings of texts.

    It returns the cosine between an image and each text, times `logit_scale`, plus `logit_bias`,
    through the activation. The text tower is not a part of this package: its embeddings are
    an array that the user gives, such as those of "a photo of a cat" and "a photo of a dog".

    Args:
        model: A model of CLIP, whose head projects to the space of texts, or of SigLIP, whose
            features are in it.
        text_embeddings: One row for each class, `(classes, width)`, of any length.
        class_names: One for each row; None for none.
        logit_scale: 100 for CLIP; for SigLIP `exp` of its file's `logit_scale`.
        logit_bias: SigLIP's `logit_bias`.
        activation: `"softmax"` for CLIP, `"sigmoid"` for SigLIP, None for logits.

    Returns:
        A `keras.Model` from images to `(batch, classes)` in float32. `class_names` are an attribute
        of it.

    Raises:
        ValueError: The embeddings do not have the width of the model's output, or a row is zero.

    Source: "Learning Transferable Visual Models From Natural Language Supervision" (Radford et al.
    2021), figure 1; "Sigmoid Loss for Language Image Pre-Training" (Zhai et al. 2023).

    Example:

    >>> import keras_vit, numpy as np
    >>> from keras_vit.evaluation import zero_shot
    >>> tower = keras_vit.VisionTransformer(num_classes=4, pre_norm=True, patch_size=8,
    ...     hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
    >>> pets = zero_shot(tower, np.eye(2, 4), ["cat", "dog"])
    >>> pets.predict(np.zeros((1, 32, 32, 3)), verbose=0).tolist()
    [[0.5, 0.5]]
    """
    check_choice(activation, "activation", ("softmax", "sigmoid", None))
    check_finite(logit_scale=logit_scale, logit_bias=logit_bias)
    texts = np.asarray(text_embeddings, "float32")
    width = model.output_shape[-1]
    if texts.ndim != 2 or texts.shape[1] != width or len(model.output_shape) != 2:
        raise ValueError(
            f"text_embeddings of shape {texts.shape} do not fit {model.name}, which returns "
            f"{model.output_shape}: give one row of {width} numbers for each class."
        )
    lengths = np.linalg.norm(texts, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise ValueError("text_embeddings has a row that is zero or not finite: take it out.")
    if class_names is not None and len(class_names) != len(texts):
        raise ValueError(
            f"{len(class_names)} class names for {len(texts)} text embeddings: give one for each."
        )
    normalize = keras.layers.UnitNormalization(dtype="float32", name="image_embedding")
    head = keras.layers.Dense(len(texts), activation=activation, dtype="float32", name="similarity")
    outputs = head(normalize(model.output))
    head.set_weights([(logit_scale * texts / lengths).T, np.full(len(texts), logit_bias)])
    classifier = SharedModel.of(model, model.input, outputs, f"{model.name}_zero_shot")
    classifier.class_names = None if class_names is None else tuple(class_names)
    return classifier
