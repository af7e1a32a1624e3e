"""The model that a job names, or that of its weights or recipe, at the recipe's size."""

import warnings
from dataclasses import replace
from typing import Any

import keras_vit
from keras_vit import data
from keras_vit._base.errors import warn_at_caller
from keras_vit.data import EvalTransform
from keras_vit.models import MLPMixer, VisionTransformer
from keras_vit.models.families import family_of
from keras_vit.models.geometry import DEFAULT_SIZE
from keras_vit.tasks import Task
from keras_vit.tasks.task_words import in_words
from keras_vit.training.compilation import is_answered_by
from keras_vit.training.fitting import moves_in_crop
from keras_vit.training.recipes import Recipe
from keras_vit.weights.loading import stored_model, stored_side
from keras_vit_cli.train.job import Job


def build(
    job: Job, recipe: Recipe, task: Task, channels: int, rasters: data.Split | None = None
) -> Any:
    """Return the model of the job's name or weights, or that of the recipe.

    Of training images that are rasters it has the bands, and their statistics.
    """
    bands = None if rasters is None else rasters.bands
    size = recipe.image_size
    if size != DEFAULT_SIZE and job.weights and job.image_size is None:
        kind = family_of(job.model).model if job.model else stored_model(job.weights)[0]
        if kind is MLPMixer:  # its weights mix the patches of one size
            size = stored_side(job.weights) or DEFAULT_SIZE
    arguments: dict[str, Any] = {
        "task": task,
        "num_classes": task.outputs,
        "input_shape": (size, size, channels),
        "dtype": job.precision,
    }
    if job.map_head is not None:
        arguments["map_head"] = job.map_head
    if rasters is not None:
        arguments["normalization"] = data.band_statistics(rasters)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* has a head for ")  # `_for_task` says more
        if job.model is not None:
            model = keras_vit.create(job.model, weights=job.weights, **arguments)
        elif job.weights is not None:
            model = keras_vit.load(job.weights, **arguments)
        else:
            model = keras_vit.VisionTransformer(**{**recipe.model, **arguments})
    if job.weights is not None:
        model = _for_task(model, task)
    # What the weights were calibrated to, and the views of their recipe, are not of this training.
    model = model.uncalibrated()
    model.eval_transform = replace(model.eval_transform, views=None)
    is_named = job.model is not None or job.weights is not None
    if is_named and (rates := recipe.rates(model.get_config())):
        model = model.copy(**rates)
    if job.token_merging is not None:
        if not isinstance(model, VisionTransformer):
            raise ValueError(
                f"token_merging={job.token_merging} is for the blocks of a Vision Transformer, not "
                f"for {model.name}. Leave it out, or give another model."
            )
        model = model.with_token_merging(job.token_merging)
    if recipe.augmentation.crop == "resize" or (job.augment is None and moves_in_crop(task)):
        # Tiny images do not have a border to crop in evaluation, and places are of the whole.
        model.eval_transform = EvalTransform("stretch", bands=bands, nodata=job.nodata)
    elif bands is not None:
        model.eval_transform = EvalTransform(bands=bands, nodata=job.nodata)
    return model


def _for_task(model: Any, task: Task) -> Any:
    """Return the model; with a new head where that of its weights answers something else."""
    if model.task is not None and is_answered_by(model.task, task):
        return model
    answers = "something that is not known" if model.task is None else in_words(model.task)
    warn_at_caller(
        f"The weights answer {answers}, and the data has {in_words(task)}: the head is new."
    )
    return model.with_classifier(task=task)
