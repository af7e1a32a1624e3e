"""Compares what is compiled with a model's outputs: logits or probabilities, and of which task.

Unnecessary from Keras: none yet. It does not compare `from_logits` with the last activation.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import keras

from keras_vit.tasks.loss_kinds import CROSSENTROPY, Crossentropy, crossentropy_of, kind_of_loss
from keras_vit.trainer.spec import Spec

# Metrics of Keras that take logits with `from_logits=True` alone.
FROM_LOGITS = (
    "AUC",
    "BinaryCrossentropy",
    "CategoricalCrossentropy",
    "SparseCategoricalCrossentropy",
)
# Metrics that compare outputs with thresholds, by the argument, 0.5 where it is None; or, `top_k`
# and a None of the F-scores, with each other.
THRESHOLDS = {
    "BinaryAccuracy": "threshold",
    "BinaryIoU": "threshold",
    "F1Score": "threshold",
    "FBetaScore": "threshold",
    "FalseNegatives": "thresholds",
    "FalsePositives": "thresholds",
    "Precision": "thresholds",
    "Recall": "thresholds",
    "TrueNegatives": "thresholds",
    "TruePositives": "thresholds",
}
COMPARES_OUTPUTS = ("F1Score", "FBetaScore")
# Metrics of probabilities alone.
PROBABILITIES = (
    "KLDivergence",
    "PrecisionAtRecall",
    "RecallAtPrecision",
    "SensitivityAtSpecificity",
    "SpecificityAtSensitivity",
)
# And CROSSENTROPY: names for which Keras chooses among metrics by the shape of the outputs.
ACCURACY = ("accuracy", "acc")


def warn_of_activation(model: keras.Model, metrics: Any = None) -> None:
    """Warns when loss or metrics take logits for probabilities, or the other way round.

    And when the loss is for another task than the model's.
    """
    spec: Spec | None = getattr(model, "spec", None)
    if spec is None or not spec.outputs:
        return
    activation = keras.activations.get(spec.activation)
    loss = crossentropy_of(model.loss)
    binary = _is_binary(spec, loss)
    fitting = "sigmoid" if binary else "softmax"
    messages: list[str] = []
    if activation is keras.activations.linear:
        task, kind = spec.task, kind_of_loss(model.loss)
        if task is not None and kind not in (None, task.kind):
            messages.append(
                f"The model answers {task.kind}, as its task says, and the loss is for {kind}: the "
                f"answers of {spec.name} would be other numbers than it learns. Compile it with "
                f"model.task.loss(), or set the task of the loss: model.task = {kind!r}."
            )
        messages += filter(None, [logits_as_probabilities(spec, model.loss)])
        messages += [
            f"The metric {name} expects probabilities, and {spec.name} returns logits: its values "
            f'would be wrong. {fix}Give the model classifier_activation="{fitting}", and the loss '
            "from_logits=False."
            for name, fix in _of_probabilities(metrics, binary, spec.outputs)
        ]
    elif activation in (keras.activations.softmax, keras.activations.sigmoid):
        names = [f"The metric {name}" for name in _of_logits(metrics)]
        if loss is not None and loss.from_logits:
            names.insert(0, loss.name)
        messages += [
            f"{name} expects logits, and {spec.name} returns probabilities "
            f"(classifier_activation={spec.activation!r}). Give it from_logits=False, "
            "or the model classifier_activation=None."
            for name in names
        ]
    for message in messages:
        warnings.warn(message, UserWarning, stacklevel=3)  # the line that calls `compile`


def _is_binary(spec: Spec, loss: Crossentropy | None) -> bool:
    return spec.outputs == 1 or (loss is not None and loss.labels == "binary")


def logits_as_probabilities(spec: Spec, loss: Any) -> str:
    """Return a message, with the fix, if the loss takes logits for probabilities; else ""."""
    known = crossentropy_of(loss)
    is_linear = keras.activations.get(spec.activation) is keras.activations.linear
    if known is None or known.from_logits or not is_linear:
        return ""
    fitting = "sigmoid" if _is_binary(spec, known) else "softmax"
    return (
        f"{known.name} expects probabilities, and {spec.name} returns logits: the loss would "
        f'become NaN or never move. Give the model classifier_activation="{fitting}", or compile '
        f"it with keras.losses.{known.of_logits}(from_logits=True)."
    )


def _of_probabilities(metrics: Any, binary: bool, classes: int) -> Iterator[tuple[str, str]]:
    """Yield each metric that takes only probabilities, and what to do about it first, or ""."""
    for metric in _flat(metrics):
        if isinstance(metric, str):
            if metric in CROSSENTROPY:
                yield repr(metric), ""
            elif metric in ACCURACY and classes == 1:
                yield repr(metric), "Give keras.metrics.BinaryAccuracy(threshold=0.0) instead. Or: "
            continue
        name, config = _described(metric)
        if name in FROM_LOGITS and not config.get("from_logits"):
            # That of AUC is a sigmoid: other probabilities than those of a softmax.
            helps = binary or name != "AUC"
            yield name, "Give it from_logits=True. Or: " if helps else ""
        elif name in THRESHOLDS and _is_of_probabilities(name, config):
            argument = THRESHOLDS[name]
            fix = f"Give it {argument}=0.0, a probability of one half. Or: "
            yield name, fix if binary else ""
        elif name in PROBABILITIES:
            yield name, ""


def _of_logits(metrics: Any) -> Iterator[str]:
    for metric in _flat(metrics):
        name, config = ("", {}) if isinstance(metric, str) else _described(metric)
        if name in FROM_LOGITS and config.get("from_logits"):
            yield name


def _is_of_probabilities(name: str, config: dict[str, Any]) -> bool:
    """Return whether a threshold lies between 0 and 1; that of logits for one half is 0."""
    thresholds = config.get(THRESHOLDS[name])
    if thresholds is None:
        return name not in COMPARES_OUTPUTS and config.get("top_k") is None
    return any(0 < float(threshold) < 1 for threshold in keras.tree.flatten(thresholds))


def _flat(metrics: Any) -> list[Any]:
    """Return the metrics as objects, or names that Keras does not turn into one here."""
    flat: list[Any] = []
    for metric in keras.tree.flatten(metrics):
        if isinstance(metric, str) and metric not in (*ACCURACY, *CROSSENTROPY):
            try:
                metric = keras.metrics.get(metric)
            except ValueError:  # Keras's own error names it, in `fit`
                continue
        elif isinstance(metric, type):
            metric = metric()
        if metric is not None:
            flat.append(metric)
    return flat


def _described(metric: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of Keras's class, and the configuration, of a metric, or of a loss as one."""
    for name in (*FROM_LOGITS, *THRESHOLDS, *PROBABILITIES):
        kind = getattr(keras.metrics, name)
        if isinstance(metric, kind):
            return name, kind.get_config(metric)
    if metric is keras.metrics.binary_accuracy:
        return "BinaryAccuracy", {}
    loss = None if isinstance(metric, keras.metrics.Metric) else crossentropy_of(metric)
    if loss is not None and loss.kind in FROM_LOGITS:
        return loss.kind, {"from_logits": loss.from_logits}
    return type(metric).__name__, {}
