"""The steps of a recipe around `fit`: a probe, an average, a larger size, a temperature.

TrainingSet ─► set_head: a probe ─► fit ─► refine: WiSE-FT ─► eval_size ─► views ─► temperature
"""

from dataclasses import replace
from typing import Any

import numpy as np

from keras_vit import evaluation
from keras_vit.data import Split
from keras_vit.evaluation.linear_heads import Head
from keras_vit.evaluation.prediction import MOST_SCORE_BYTES, predict_split
from keras_vit.evaluation.task_probe import TaskProbe
from keras_vit.models import MLPMixer
from keras_vit.models.answers import answers_of, task_of
from keras_vit.models.geometry import image_shape
from keras_vit.models.head import DENSE_HEADS
from keras_vit.training.averaging import toward_start
from keras_vit.training.recipes import Recipe
from keras_vit.training.training_set import LEAST_HELD_OUT, some_of


def some_images(held_out: Split) -> Split:
    """Return at most as many images as keep the score matrix within 64 MiB."""
    most = max(MOST_SCORE_BYTES // (4 * held_out.num_classes), LEAST_HELD_OUT)
    return some_of(held_out, most)


def set_head(model: Any, probe: evaluation.LinearProbe | TaskProbe | Head) -> None:
    """Makes a linear probe the head of the model, also of one with two."""
    heads = [layer for layer in model.layers if layer.name in DENSE_HEADS]
    for layer in heads:  # the mean of the probe and of a second head of zeros is half of the probe
        share = len(heads) if layer.name == "head" else 0
        layer.set_weights([share * probe.kernel, share * probe.bias])


def refine(
    model: Any,
    recipe: Recipe,
    start: list[np.ndarray] | None,
    held_out: Split | None,
    batch_size: int = 32,
) -> tuple[Any, dict[str, Any]]:
    """Apply what follows training: the average with the start, final size, views, temperature.

    Args:
        recipe: Its `tuned_share`, `eval_size` and `views` are applied.
        start: The weights that training started from, for a `tuned_share` below 1.
        held_out: Images for the temperature, or None. Of a task without any, as of pixels or
            grades, they are not predicted.

    Returns:
        The model, and facts for the report: `held_out`, the number of images that the `temperature`
        of a classifier, or else the thresholds or intervals of the model's task, were fitted on.
    """
    if start is not None and recipe.tuned_share < 1:
        model.set_weights(toward_start(start, model.get_weights(), recipe.tuned_share))
    if recipe.eval_size and not isinstance(model, MLPMixer):  # which has one size
        size = (recipe.eval_size, recipe.eval_size)
        shape = image_shape(size, model.channels, model.data_format)
        model = model.with_input_shape(shape)
    if recipe.views != "one":
        model.eval_transform = replace(model.eval_transform, views=recipe.views)
    if held_out is None or not (task := task_of(model)).learns_from_held_out:
        return model, {}
    held_out = some_images(held_out)
    labels, scores = predict_split(model, held_out, batch_size)
    if not task.sums_to_one:
        model.task = task.calibrated(task.to_targets(labels), answers_of(model, scores))
        # Too few do not set intervals; thresholds of labels are set by any number.
        is_set = model.task.is_calibrated or not task.are_numbers
        return model, {"held_out": len(held_out)} if is_set else {}
    temperature = evaluation.fit_temperature(labels, scores)
    evaluation.divide_logits(model, temperature)
    return model, {"temperature": temperature, "held_out": len(held_out)}
