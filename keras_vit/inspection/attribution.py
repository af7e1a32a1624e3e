"""Which patches speak for an answer: attention times its gradient, through all layers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import did_you_mean
from keras_vit.inspection.forward_pass import (
    ForwardPass,
    as_index,
    as_numpy,
    batches,
    infer,
    run_batch,
    sequence,
    token_index_of,
    unmerge,
)
from keras_vit.inspection.recording import Call, Recorder
from keras_vit.layers import (
    AttentionPooling,
    EncoderBlock,
    MeanPooling,
    MixerBlock,
    TokenPooling,
    UnmergeTokens,
)
from keras_vit.layers.merging import token_sizes
from keras_vit.layers.observation import observed_by
from keras_vit.models.answers import answers_of
from keras_vit.models.image_model import ImageModel
from keras_vit.ops import gradients
from keras_vit.tasks import Classification, Regression, Task

Classes = int | str | Sequence[int | str] | None
# What ends in one of these returns features: a classifier ends in a layer of classes.
_FEATURES = (
    *(EncoderBlock, TokenPooling, MeanPooling, AttentionPooling, UnmergeTokens, MixerBlock),
    *(keras.layers.LayerNormalization, keras.layers.GlobalAveragePooling1D),
)


def class_attribution(
    model: keras.Model, images: Any, classes: Classes = None, batch_size: int = 4
) -> np.ndarray:
    """Return how much each patch speaks for a class: the attention times the gradient of its score.

    In each layer, the attention of every head is multiplied by the gradient of the class's score
    with respect to it; what is negative is set to zero and the heads are averaged. The layers are
    combined as in rollout, with the identity for the residual connection. The result is read at
    the class token, or where another pooling reads: a mean is an attention with equal weights, and
    is multiplied by its gradient as well. Unlike rollout, the map differs between classes, and any
    head may stand on the blocks. Of a model with another task, it is what speaks for one of several
    labels, for a larger number, or for at least a grade.

    The score is the model's output for the class, a logit as a rule. Of a model that returns
    probabilities which sum to 1, it is the logarithm of the class's less the mean logarithm of the
    others': the same as with logits, less their mean.

    Args:
        model: A model with one Vision Transformer of this package at any depth, which returns one
            score per class: `(batch, classes)`.
        images: As the model accepts them, with a batch dimension.
        classes: Which class to explain: its number, or its name where the model has `class_names`;
            one for all images, or one per image; or a label, a number or a grade. None for the
            class that the model predicts, its most probable label, its one number or its grade.
        batch_size: Images per batch. All attention maps are kept, five times: for ViT-B/16 at 224
            pixels, 0.1 GB per image.

    Returns:
        float32 `(batch, grid_h, grid_w)`, at least 0; each map sums to 1. Zeros, with a warning,
        where no attention has an influence on the score: under a head of zeros, for example.

    Raises:
        ValueError: The model does not have attention, or more than one Transformer; it does not
            return scores of classes; a class is unknown; or the images do not fit.

    Source: "Generic Attention-model Explainability" (Chefer et al. 2021), equations 5 and 6.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.ViTTi16(input_shape=(64, 32, 3), num_classes=3)
    >>> kernel = np.random.default_rng(0).normal(size=(192, 3))
    >>> model.get_layer("head").set_weights([kernel, np.zeros(3)])
    >>> images = np.random.default_rng(0).uniform(0, 255, (1, 64, 32, 3))
    >>> keras_vit.inspection.class_attribution(model, images, classes=2).shape
    (1, 4, 2)
    """
    maps = [x.attribution() for x in run_gradients(model, images, classes, batch_size)]
    return np.concatenate(maps)


def run_gradients(
    model: keras.Model, images: Any, classes: Classes = None, batch_size: int = 4
) -> Iterator[ForwardGradient]:
    """Yield a `ForwardGradient` for each batch of `images`; arguments and errors of the above."""
    count = len(keras.tree.flatten(images)[0])
    numbers: list[Any] = [None] * count
    if classes is not None:
        numbers = class_numbers(model, classes, count)
    for batch in batches(model, images, batch_size):
        layout = _Steps({})
        forward = run_batch(model, batch, layout)
        scores = class_scores(model, forward.outputs)
        batch_classes, numbers = numbers[: len(scores)], numbers[len(scores) :]
        yield _differentiate(forward, layout, batch, _check_classes(model, scores, batch_classes))


class ForwardGradient(NamedTuple):
    """A forward pass, and the gradient of the score of each image's class.

    Attributes:
        forward: The pass.
        classes: The class of each image, int `(batch,)`.
        attention: The probabilities of each block, float32 `(batch, heads, queries, keys)`; where
            tokens are merged, of those that there are.
        gradients: The score's by each of them.
        readout: What the pooling reads from each token that the last block returns, `(batch,
            tokens)`, as attention times its gradient; each row sums to 1.
    """

    forward: ForwardPass
    classes: np.ndarray
    attention: list[np.ndarray]
    gradients: list[np.ndarray]
    readout: np.ndarray

    def attribution(self) -> np.ndarray:
        """Relevance of each patch, `(batch, grid_h, grid_w)`: see `class_attribution`."""
        forward, row = self.forward, self.readout
        # From the last layer back, a row times a matrix: cheaper than products of matrices.
        for block, attention, gradient in reversed(
            [*zip(forward.blocks, self.attention, self.gradients, strict=True)]
        ):
            row = _before_merging(row, block)
            relevance = np.maximum(attention * gradient, 0).mean(axis=1)
            relevance = relevance / _query_sizes(block, relevance.shape[1])
            # The last block may have encoded the first tokens alone.
            row = row + np.einsum("bq,bqk->bk", row[:, : relevance.shape[1]], relevance)
        row = row[:, forward.prefix :]
        matters = np.any([np.any(g != 0, axis=(1, 2, 3)) for g in self.gradients], axis=0)
        if not matters.all():
            warnings.warn(
                f"The attention of {forward.model.name!r} does not have an influence on the score "
                f"of the class in {int((~matters).sum())} of {len(row)} images: their maps are "
                "zeros. The head is not trained, or its activation is saturated: give the model "
                "without it.",
                stacklevel=2,
            )
        maps = np.where(matters[:, None], row, 0)
        maps /= np.maximum(maps.sum(axis=-1, keepdims=True), _TINY)
        return maps.reshape(-1, *forward.grid).astype("float32")


_TINY = np.finfo("float32").tiny


def _before_merging(row: np.ndarray, block: Call) -> np.ndarray:
    """Turn weights of the tokens that a block returned into weights of those it was called with."""
    length, after = sequence(block).shape[1], as_index(block.token_index)
    if after is None or after.max() >= row.shape[1]:  # it encoded the first tokens, and merged none
        return np.pad(row, ((0, 0), (0, length - row.shape[1])))
    row = unmerge(row, as_numpy(token_sizes(after, row.shape[1])), after)
    before = token_index_of(block)
    if before is None:
        return row
    merged = np.zeros((len(row), length), row.dtype)
    np.add.at(merged, (np.arange(len(row))[:, None], before), row)
    return merged


def _query_sizes(block: Call, queries: int) -> Any:
    """Return how many tokens each query of a block stands for; its gradient is their sum."""
    index = token_index_of(block)
    if index is None:
        return 1
    return as_numpy(token_sizes(index, sequence(block).shape[1]))[:, :queries, None]


class _Steps(Recorder):
    """Keeps the calls, and counts the steps to differentiate by.

    These are the attention, and the outputs of blocks and of poolings that do not attend.

    Args:
        added: Arrays to add to some of the steps, by their number.
    """

    def __init__(self, added: dict[int, Any]) -> None:
        super().__init__()
        self.added = added
        self.values: dict[int, Any] = {}  # of these steps, before the addition
        self.shapes: list[keras.KerasTensor] = []  # of all steps
        self.of_blocks: list[int] = []  # the attention of each block
        self.of_poolings: list[int] = []  # what each pooling read

    def attended(self, probabilities: Any) -> Any:
        return self._step(probabilities)

    def called(self, layer: Any, arguments: dict[str, Any], outputs: Any) -> Any:
        super().called(layer, arguments, outputs)
        last = len(self.shapes) - 1
        if isinstance(layer, EncoderBlock):
            self.of_blocks.append(last)
        elif isinstance(layer, AttentionPooling):
            self.of_poolings.append(last)
            return outputs
        elif isinstance(layer, TokenPooling | MeanPooling):
            self.of_poolings.append(last + 1)
        else:
            return outputs
        if isinstance(outputs, tuple):
            return self._step(outputs[0]), *outputs[1:]
        return self._step(outputs)

    def _step(self, value: Any) -> Any:
        number, dtype = len(self.shapes), keras.backend.standardize_dtype(value.dtype)
        self.shapes.append(keras.KerasTensor(value.shape, dtype))
        if number not in self.added:
            return value
        self.values[number] = value
        return value + self.added[number]


def _differentiate(
    forward: ForwardPass, layout: _Steps, batch: Any, classes: np.ndarray
) -> ForwardGradient:
    model, depth = forward.model, len(layout.of_blocks)
    scores = as_numpy(class_scores(model, forward.outputs))
    task = _task(model, scores)
    is_probability = task.sums_to_one and sums_to_one(scores)
    # Without a pooling of ours: which of the last block's tokens matter at all.
    numbers = [*layout.of_blocks, *(layout.of_poolings or [len(layout.shapes) - 1])]

    def score(added: list[Any]) -> tuple[Any, list[Any]]:
        steps = _Steps(dict(zip(numbers, added, strict=True)))
        with observed_by(steps):
            scores = ops.cast(class_scores(model, infer(model, batch)), "float32")
        if is_probability:
            # All that probabilities fix of logits is how they differ.
            scores = ops.log(ops.maximum(scores, _TINY))
            number = scores.shape[1]
            scores = (scores * number - ops.sum(scores, axis=1, keepdims=True)) / (number - 1)
        return ops.sum(task.evidence(scores, classes)), [steps.values[i] for i in numbers]

    zeros = [ops.zeros(layout.shapes[i].shape, layout.shapes[i].dtype) for i in numbers]
    values, slopes = (list(map(as_numpy, each)) for each in gradients(score, zeros))
    readout = _readout(forward, values[depth:], slopes[depth:])
    return ForwardGradient(forward, classes, values[:depth], slopes[:depth], readout)


def _readout(
    forward: ForwardPass, values: list[np.ndarray], gradients: list[np.ndarray]
) -> np.ndarray:
    """Return what each pooling reads from the tokens: a pooling is an attention with one query.

    Each token's weight times the score's gradient by that weight, and only what speaks for the
    class. Without a pooling of this package: all tokens that matter, evenly.
    """
    poolings = forward.recorder.of((TokenPooling, MeanPooling, AttentionPooling))
    if not poolings:
        read = np.any(gradients[0] != 0, axis=-1).astype("float32")
        return read / np.maximum(read.sum(axis=-1, keepdims=True), 1)
    total: Any = 0
    for call, value, gradient in zip(poolings, values, gradients, strict=True):
        if isinstance(call.layer, AttentionPooling):
            weights, times_gradient = value[:, :, 0].mean(axis=1), (value * gradient)[:, :, 0]
            speaks = np.maximum(times_gradient, 0).mean(axis=1)
        else:
            tokens = as_numpy(call.arguments["tokens"])
            weights = _pooling_weights(call, tokens)
            speaks = weights * np.einsum("bqd,bd->bq", tokens, gradient)
            # Of one token alone, there is nothing else to read.
            alone = isinstance(call.layer, TokenPooling)
            speaks = np.abs(speaks) if alone else np.maximum(speaks, 0)
        nothing = speaks.sum(axis=-1, keepdims=True) == 0
        total = total + np.where(nothing, weights * _TINY, speaks)
    return total / total.sum(axis=-1, keepdims=True)


def _pooling_weights(call: Call, tokens: np.ndarray) -> np.ndarray:
    """Return each token's weight in a `TokenPooling` or `MeanPooling`, `(batch, tokens)`."""
    weights = np.zeros(tokens.shape[:2], "float32")
    if isinstance(call.layer, TokenPooling):
        weights[:, call.layer.index] = 1
        return weights
    prefix, index = call.layer.num_prefix_tokens, token_index_of(call)
    weights[:, prefix:] = 1
    if index is not None:
        weights[:, prefix:] = as_numpy(token_sizes(index, tokens.shape[1]))[:, prefix:]
    return weights / weights.sum(axis=-1, keepdims=True)


def sums_to_one(scores: np.ndarray) -> bool:
    """Return whether scores `(images, classes)` are probabilities, bfloat16 ones included."""
    sums = scores.sum(axis=1)
    return scores.shape[1] > 1 and bool((scores >= 0).all() and (np.abs(sums - 1) < 0.02).all())


def class_scores(model: keras.Model, outputs: Any) -> Any:
    """Return a model's scores `(batch, classes)`; a ValueError where it returns something else."""
    flat = keras.tree.flatten(outputs)
    if len(flat) == 1 and len(flat[0].shape) == 2 and not _ends_in_features(model):
        return flat[0]
    shapes = ", ".join(str(tuple(x.shape)) for x in flat)
    raise ValueError(
        f"{model.name!r} returns {shapes}, not one score per class and image, so there is no "
        "class to explain. Give the model with its head, such as model.with_classifier(5) after "
        "training, or keras.Model(model.input, scores). attention_rollout(model, images) does "
        "without classes."
    )


def returns_scores(model: keras.Model) -> bool:
    """Return whether a model seems to return one score per class."""
    shapes = keras.tree.flatten(getattr(model, "outputs", None) or ())
    one = len(shapes) == 1 and len(shapes[0].shape) == 2
    one = one and (shapes[0].shape[1] != 1 or getattr(model, "task", None) is not None)
    return (one or not shapes) and not _ends_in_features(model)


def _ends_in_features(model: keras.Model) -> bool:
    """Return whether a functional model's last layer makes features rather than class scores."""
    while getattr(model, "outputs", None) and not isinstance(model, ImageModel):
        model = model.layers[-1]
    is_features = isinstance(model, _FEATURES) or getattr(model, "name", "") == "pre_logits"
    return is_features or getattr(model, "num_classes", None) == 0


def class_numbers(model: keras.Model, classes: Any, count: int) -> list[int]:
    """Return the number of the class of each of `count` images."""
    each = [classes] * count if isinstance(classes, str | Integral) else list(classes)
    if len(each) != count:
        raise ValueError(
            f"classes has {len(each)} entries for {count} images. Give one class for all, or one "
            "per image."
        )
    return [_class_number(getattr(model, "class_names", None), name) for name in each]


def _class_number(names: Sequence[str] | None, name: Any) -> int:
    if not isinstance(name, str):
        return int(name)
    if names and name in names:
        return names.index(name)
    if not names and name.isdecimal():  # of the command line
        return int(name)
    known = did_you_mean(name, names) if names else "The model does not have names: give a number."
    raise ValueError(f"There is no class {name!r} to explain. {known}")


def explained_text(model: keras.Model, number: int) -> str:
    """Return what attribution explains: the name of a class, or its number as text."""
    task = getattr(model, "task", None)
    if task is not None:
        return task.evidence_text(number)
    names = getattr(model, "class_names", None)
    return names[number] if names else str(number)


def _check_classes(model: keras.Model, scores: Any, classes: list[Any]) -> np.ndarray:
    """Return each image's class, for None the predicted one; a ValueError for an unknown class."""
    task = _task(model, scores)
    if None in classes:
        if getattr(model, "task", None) is not None:
            return task.explained(answers_of(model, scores))
        if task.size == 1:
            raise ValueError(
                f"{model.name!r} returns one score per image, and which class a small one stands "
                "for is not known. Give classes=0 for what makes the score larger; for what makes "
                "it smaller, explain keras.Model(model.input, -model.output)."
            )
        return task.explained(as_numpy(scores))
    for each in classes:
        if not 0 <= each < task.size:
            raise ValueError(
                f"classes={each} is not a {task.nouns[0]} of {model.name!r}. Give 0 to "
                f"{task.size - 1}."
            )
    return np.asarray(classes)


def _task(model: keras.Model, scores: Any) -> Task:
    """Return the model's task, or one name per score for a model of other layers."""
    number, task = scores.shape[1], getattr(model, "task", None)
    if task is not None:
        return task
    return Classification(size=number) if number > 1 else Regression(size=1)
