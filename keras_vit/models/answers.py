"""What a model's outputs mean by its task: probabilities, labels, numbers or grades."""

import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_vit._base.errors import printable
from keras_vit.tasks import Task

# Under any other `classifier_activation`, outputs are answers already.
OF_LOGITS = (None, "linear")
# What an exported file calls outputs that no task describes.
RAW_OUTPUTS = "outputs"
# And how far an image is from the training images, where a model has a score of it.
NOVELTY = "novelty"
ANSWERS = "answers"  # beside features, where outputs are a dictionary


def task_of(model: keras.Model) -> Task:
    """Return the task of a model.

    Raises:
        ValueError: It does not have one: nobody said what its outputs mean.
    """
    task = getattr(model, "task", None)
    if task is None:
        raise ValueError(unknown_task(model))
    return task


# What a head may be called: it begins names of files, columns and tensors.
HEAD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def head_prefix(name: str) -> str:
    """Return what the names of the outputs of a head begin with, where there are several heads."""
    return f"{name}_"


def several_tasks(name: str, tasks: Mapping[str, Task]) -> str:
    """Return what to say of a model with several tasks, by their heads, where one is asked for."""
    heads = ", ".join(f"{head} ({task.kind})" for head, task in tasks.items())
    return (
        f"{printable(name)} answers by several heads, {heads}, and what was asked for takes one "
        "task: give the model of one head. All heads together predict, are exported, and their "
        "file is checked."
    )


def unknown_task(model: keras.Model) -> str:
    """Return what to say of a model without a task, and what to do."""
    outputs, loss = model.output_shape[-1], getattr(model, "loss", None)
    why = "a single output may be a number or a label"
    if loss is not None:
        why = f"{getattr(loss, '__name__', type(loss).__name__)} may be a loss of any task"
    elif outputs != 1:
        why = "neither a task nor the compiled loss says it"
    example = '("weight",)' if outputs == 1 else f"size={outputs}"
    return (
        f"What the outputs of {model.name}, {tuple(model.output_shape)}, mean is not known: {why}. "
        f'Say it: model.task = keras_vit.tasks.Regression({example}), "multilabel" or '
        '"classification", or task=... when it is built.'
    )


def answers_of(model: keras.Model, outputs: Any) -> np.ndarray:
    """Outputs `(images, outputs)` as what they mean, `(images, size)`, by the model's task.

    >>> import keras_vit
    >>> model = keras_vit.VisionTransformer(patch_size=8, hidden_dim=16, depth=1, num_heads=2,
    ...                                     input_shape=(32, 32, 3), num_classes=2)
    >>> answers_of(model, np.zeros((1, 2))).tolist()
    [[0.5, 0.5]]
    """
    outputs = keras.ops.convert_to_numpy(outputs)
    return task_of(model).answers(outputs) if _returns_logits(model) else outputs


def answers_in_graph(model: keras.Model, outputs: Any) -> Any:
    """`answers_of` by `keras.ops`, for graphs."""
    return task_of(model).answers_in_graph(outputs) if _returns_logits(model) else outputs


def outputs_in_graph(model: keras.Model, answers: Any) -> Any:
    """Outputs of the model that mean these answers, such as an average over several views."""
    return task_of(model).outputs_in_graph(answers) if _returns_logits(model) else answers


def named_answers(model: keras.Model, outputs: Any, top_k: int = 5) -> dict[str, Any]:
    """Return the named tensors of an exported file, by `keras.ops`, the one of `answers_of` first.

    Without a task, the outputs as they are. With a novelty beside the outputs, it is the last one.
    Of a model with several heads, each head's, their names behind that of the head. Of a dictionary
    with `ANSWERS` those, and the rest as it is.
    """
    if isinstance(outputs, dict):
        rest = dict(outputs)
        return named_answers(model, rest.pop(ANSWERS), top_k) | rest
    if heads := getattr(model, "heads", ()):
        named: dict[str, Any] = {}
        for head, of_head in zip(heads, outputs, strict=True):
            answers = named_answers(head, of_head, min(top_k, head.task.size))
            named |= {head.prefix + name: values for name, values in answers.items()}
        return named
    if isinstance(outputs, list | tuple):
        outputs, novelty = outputs
        return {**named_answers(model, outputs, top_k), NOVELTY: keras.ops.cast(novelty, "float32")}
    outputs = keras.ops.cast(outputs, "float32")
    task = getattr(model, "task", None)
    if task is None:
        return {RAW_OUTPUTS: outputs}
    return dict(task.graph_answers(answers_in_graph(model, outputs), top_k))


def _returns_logits(model: keras.Model) -> bool:
    return getattr(model, "classifier_activation", None) in OF_LOGITS
