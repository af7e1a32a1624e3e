"""Every loss of every task trains a head, by `fit`, to answers better than the mean."""

import warnings

import keras
import numpy as np
import pytest

from keras_vit.tasks import TASKS, Multilabel, Task, get
from tests.backend import rows
from tests.bank import TINY, fresh, outputs, pixels

LOSSES = [(kind, loss) for kind, task in TASKS.items() for loss in task.losses]
FIRST = [(kind, next(iter(task.losses))) for kind, task in TASKS.items()]


def task_and_data(kind: str) -> tuple[Task, np.ndarray, np.ndarray]:
    """Targets that follow from the features, up to some noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 8)).astype("float32")
    scores = x @ rng.normal(size=(8, 3)) + rng.normal(0, 0.3, (256, 3))
    if kind == "classification":
        return get(kind, size=3), x, scores.argmax(axis=1)
    if kind == "multilabel":
        return get(kind, size=3), x, scores > [0, 1, 3]
    if kind == "regression":
        targets = 100 + 20 * scores[:, :2]
        return get(kind, names=("x", "y")).fitted(targets), x, targets
    return get(kind, size=4), x, np.digitize(scores[:, 0], [-2, 0, 3])


@pytest.mark.parametrize(("kind", "loss"), rows(LOSSES, FIRST))
def test_fit(kind: str, loss: str) -> None:
    task, x, targets = task_and_data(kind)
    bias = keras.initializers.Constant(task.initial_bias(targets))
    head = keras.layers.Dense(task.outputs, kernel_initializer="zeros", bias_initializer=bias)
    model = keras.Sequential([keras.Input((8,)), head])
    model.compile(keras.optimizers.Adam(0.1), task.loss(loss), metrics=task.metrics())
    mean = task.scores(targets, task.answers(outputs(model, x)), 0)
    history = model.fit(x, task.check_targets(targets), batch_size=64, epochs=10, verbose=0).history
    scores = task.scores(targets, task.answers(outputs(model, x)), 0)
    main, name = next(iter(scores)), task.metrics()[0].name
    is_error = "mae" in main
    assert scores[main].value < 0.3 * mean[main].value if is_error else scores[main].value > 0.9
    assert (history[name][-1] < history[name][0]) == is_error
    if not isinstance(task, Multilabel):  # whose metric counts all labels alike
        metrics = model.evaluate(x, task.check_targets(targets), verbose=0, return_dict=True)
        assert metrics[name] == pytest.approx(scores[main].value, rel=1e-5)


@pytest.mark.parametrize("kind", TASKS)
def test_a_model_of_this_package_takes_every_task(kind: str) -> None:
    """Without a warning of its checks of losses and labels."""
    task, _, targets = task_and_data(kind)
    model, images = fresh(**TINY | {"num_classes": task.outputs}), pixels(8, 16, 16, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.compile("sgd", task.loss(), metrics=task.metrics())
        model.fit(images.astype("float32"), task.check_targets(targets)[:8], verbose=0)
