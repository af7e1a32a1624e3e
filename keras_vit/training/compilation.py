"""`compile_model`: from a recipe to a compiled model, ready for `fit`."""

import re
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_vit._base.errors import accepted_arguments, check_positive
from keras_vit.models.answers import task_of
from keras_vit.models.head import DENSE_HEADS
from keras_vit.tasks import Classification, Task
from keras_vit.tasks.query_losses import QueryLoss
from keras_vit.tasks.task_words import in_words, scale_of
from keras_vit.trainer.loss_scaling import with_loss_scaling
from keras_vit.training.optimizers import OPTIMIZERS, TableOptimizer
from keras_vit.training.parameter_groups import (
    KERNELS_DECAY,
    Table,
    freeze,
    frozen_rows,
    layerwise_decay,
)
from keras_vit.training.recipes import Recipe
from keras_vit.training.sam import Rho, gsam_rho, sharpness_aware
from keras_vit.training.schedules import make_schedule


def compile_model(
    model: keras.Model,
    recipe: Recipe,
    total_steps: int,
    *,
    groups: Table = KERNELS_DECAY,
    frozen: Iterable[str] = (),
    targets: Any = None,
    **options: Any,
) -> None:
    """Compiles a model by a recipe: schedule, optimizer, groups, loss, metrics, EMA, SAM.

    Loss and metrics are those of the model's task; the recipe's `loss` is one of them, or that of
    classification, in whose place another task has its first. Labels are what the task's
    `check_targets` returns: of a classification integers, or rows, which mixup and CutMix need.
    With `recipe.accumulation`, an update takes that many batches of `fit`, each of
    `recipe.batch_size / recipe.accumulation` images. A new head, all zeros, gets
    `recipe.head_bias`.

    Args:
        model: Any Keras model that returns logits, or a `Distillation`; one without a `task` is a
            classifier.
        recipe: A recipe of `recipes`, or your own.
        total_steps: Updates of the whole training, such as `recipe.total_steps(examples)`.
        groups: Table of parameters (see `parameter_groups`).
        frozen: Patterns of parameters to freeze, such as `"(?!head/).*"` for all but the head.
        targets: The training targets, as the task's `check_targets` returns them, which
            `recipe.balance` counts for weights and priors. `"sampling"` is not of the model but of
            its images: `keras_vit.fit` does it, or `splits.train.resampled(rates)`.
        **options: Further arguments of `keras.Model.compile`, such as `jit_compile`.

    Raises:
        ValueError: The model's task is None, or does not have the loss; `recipe.balance` does not
            suit it, or needs `targets`; `total_steps` is below 1,
            the warm-up takes all of them, no group matches a parameter, or nothing would train.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, num_classes=5,
    ...     input_shape=(32, 32, 3))
    >>> recipe = keras_vit.recipes.get("finetune/flowers")
    >>> keras_vit.training.compile_model(model, recipe, total_steps=500)
    >>> type(model.optimizer).__name__, model.optimizer.gradient_accumulation_steps
    ('MomentumSGD', 8)
    """
    network = getattr(model, "student", model)  # a `Distillation` trains the layers of its student
    if recipe.layer_decay < 1:
        # Not `model.depth`: any Keras model may have blocks of that name.
        depth = sum(bool(re.fullmatch(r"block_\d+", layer.name)) for layer in network.layers)
        groups = layerwise_decay(depth, recipe.layer_decay, groups)
    groups = frozen_rows(frozen, groups)
    freeze(network, groups)
    if recipe.head_bias:
        set_head_bias(network, recipe.head_bias)
    schedule = schedule_of(recipe, total_steps)
    optimizer = optimizer_of(recipe, schedule, groups)
    task = _task(network)
    loss, metrics = recipe_loss(task, recipe, targets), task.metrics()
    if getattr(network, "head_kind", None) == "eomt":
        check_query_loss(recipe.loss)
        loss = QueryLoss(steps=total_steps * recipe.accumulation)
    model.compile(with_loss_scaling(model, optimizer), loss, metrics=metrics, **options)
    sharpness_aware(model, _rho(recipe, schedule), recipe.alpha)


def schedule_of(
    recipe: Recipe, total_steps: int
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Return the learning rate schedule of a recipe for this many updates.

    Raises:
        ValueError: The warm-up takes all steps; `recipe.scaled(steps=...)` shortens it as well.

    >>> from keras_vit.training import recipes
    >>> schedule = schedule_of(recipes.get("bit_hyperrule"), 500)
    >>> [round(float(schedule(step)), 6) for step in (50, 150, 250)]
    [0.0015, 0.003, 0.0003]
    """
    check_positive(total_steps=total_steps)
    warmup_steps = recipe.warmup_steps(total_steps)
    if warmup_steps >= total_steps:
        raise ValueError(
            f"The warm-up of {warmup_steps} steps takes all {total_steps} steps. "
            f"recipe.scaled(steps={total_steps}) shortens both."
        )
    return make_schedule(
        recipe.decay,
        recipe.learning_rate,
        total_steps,
        warmup_steps,
        end=recipe.end,
        boundaries=[round(fraction * total_steps) for fraction in recipe.boundaries],
        multipliers=[0.1 ** (i + 1) for i in range(len(recipe.boundaries))],
    )


def optimizer_of(
    recipe: Recipe, learning_rate: Any, groups: Table = KERNELS_DECAY
) -> TableOptimizer:
    """Return the recipe's optimizer."""
    return OPTIMIZERS[recipe.optimizer](
        learning_rate,
        weight_decay=recipe.weight_decay,
        schedule_peak=recipe.learning_rate if recipe.decay_follows == "schedule" else None,
        groups=groups,
        state_dtype=recipe.state_dtype,
        global_clipnorm=recipe.clip_norm,
        use_ema=recipe.ema > 0,
        ema_momentum=recipe.ema,
        gradient_accumulation_steps=recipe.accumulation if recipe.accumulation > 1 else None,
    )


def _rho(recipe: Recipe, schedule: Any) -> Rho | None:
    if not recipe.rho:
        return None
    if recipe.rho_min is None:
        return recipe.rho
    return gsam_rho(schedule, recipe.rho, recipe.rho_min, recipe.learning_rate, recipe.end)


def _task(network: keras.Model) -> Task:
    if not hasattr(network, "task"):  # of any Keras model, of several outputs, too
        shape = network.output_shape
        classes = shape[-1] if isinstance(shape, tuple) and isinstance(shape[-1], int) else 2
        return Classification(size=max(classes, 2))
    return task_of(network)


def is_answered_by(task: Task, asked: Task) -> bool:
    """Return whether outputs of a task mean what the labels of data mean.

    A head without names may have more classes than there are.
    """
    is_wider = task.sums_to_one and task.size > asked.size and not task.names
    fits = task.kind == asked.kind and (task.size == asked.size or is_wider)
    same_names = not (task.names and asked.names) or task.names == asked.names
    return fits and same_names and scale_of(task) == scale_of(asked)


def check_task(network: keras.Model, asked: Task) -> None:
    """Raises a ValueError where a model answers something else than the labels of data mean."""
    task = _task(network)
    if is_answered_by(task, asked):
        return
    fix = "Give model.with_classifier(task=splits.task)"
    if not hasattr(network, "task"):
        fix = (
            "A Keras model is trained as a classifier: give one of keras_vit with task=splits.task"
        )
    elif task.outputs == asked.outputs:
        fix += ", or set model.task = splits.task where the head is to be trained on"
    raise ValueError(
        f"{network.name} answers {in_words(task)}, and the data has {in_words(asked)}. {fix}."
    )


def check_query_loss(loss: str) -> None:
    """Raise a ValueError where a recipe's loss is not one by which an EoMT head learns."""
    if loss not in (*Classification.losses, "queries"):
        raise ValueError(
            f"loss={loss!r} is of the classes of pixels, and an EoMT head learns by matching its "
            "queries with masks, whose loss has a cross-entropy and Dice of its own: leave the "
            'loss out, or give map_head="dpt" or map_head="linear".'
        )


def loss_name(task: Task, loss: str) -> str:
    """Return a recipe's loss, or the task's own where the recipe's is one for classes only."""
    if loss not in task.losses and loss in Classification.losses:
        return next(iter(task.losses))
    return loss


def recipe_loss(task: Task, recipe: Recipe, targets: Any = None) -> keras.losses.Loss:
    """Return the recipe's loss, or the task's, balanced by the training targets `targets`."""
    name = loss_name(task, recipe.loss)
    smooths = name in task.losses and "label_smoothing" in accepted_arguments(task.losses[name])
    loss = task.loss(name, **({"label_smoothing": recipe.label_smoothing} if smooths else {}))
    task.check_balance(recipe.balance, name)
    if recipe.balance in ("none", "sampling"):
        return loss
    if targets is None:
        raise ValueError(
            f"balance={recipe.balance!r} counts the targets to train on: give compile_model "
            "targets=splits.train.labels(), or call keras_vit.fit, which does."
        )
    return task.balanced(loss, recipe.balance, task.to_targets(targets))


def set_head_bias(model: keras.Model, bias: Any) -> None:
    """Sets the bias of a new head, all zeros, to a number or to an array `(outputs,)`."""
    for head in (layer for layer in model.layers if layer.name in DENSE_HEADS):
        if not any(np.any(values) for values in head.get_weights()):
            head.bias.assign(np.broadcast_to(bias, head.bias.shape))
