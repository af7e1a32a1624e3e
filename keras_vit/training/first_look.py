"""What the features of a model know before it is trained: a linear head on them, and its scores."""

import numpy as np

from keras_vit.evaluation.probes import LinearProbe, linear_probe
from keras_vit.evaluation.task_probe import TaskProbe, task_probe
from keras_vit.tasks import Task
from keras_vit.training.compilation import recipe_loss
from keras_vit.training.recipes import Recipe

Features = tuple[np.ndarray, np.ndarray]  # of images, and what stands for their labels


def first_look(
    task: Task, train: Features, val: Features, recipe: Recipe, seed: int = 0
) -> tuple[LinearProbe | TaskProbe, dict[str, float]]:
    """Fit a linear head to frozen features by the loss of a recipe, and score it.

    Args:
        train: Features `(examples, dimension)` and what `task.check_targets` returned.
        val: The same of the images to score it on.
        seed: Of the folds, or of the held-out examples, that choose the penalty.

    Returns:
        The head, and its scores by name, as far as they are defined.

    Raises:
        ValueError: There are too few examples, or features are not finite.
    """
    probe: LinearProbe | TaskProbe
    if task.sums_to_one:  # by scikit-learn, which is faster
        probe = linear_probe(*train, *val, seed=seed, balance=recipe.balance, num_classes=task.size)
    else:
        probe = task_probe(task, *train, recipe_loss(task, recipe, train[1]), seed)
    outputs = (np.asarray(val[0]) @ probe.kernel + probe.bias).astype(np.float32)
    scores = task.scores(task.to_targets(val[1]), task.answers(outputs), resamples=0)
    return probe, {name: s.value for name, s in scores.items() if np.isfinite(s.value)}
