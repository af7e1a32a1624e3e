"""Pre-training without labels: every image is a class of its own (DIET), or views agree (VISReg).

    images ──► model, up to pre_logits ──► length 1 ──► Linear(N), without bias ──► which image?
      └──► views ──► model, up to pre_logits ──► projector ──► alike, and normally distributed

With released weights the head learns alone at first, then together with the last blocks. The
blocks before them are not trained, so that no gradient is computed for them.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit._base.errors import check_choice, check_positive
from keras_vit.data import Splits
from keras_vit.data.sources.array_splits import ArraySplit
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation.features import pooled_backbone
from keras_vit.models import ImageModel
from keras_vit.models.shared_model import SharedModel
from keras_vit.tasks import Classification
from keras_vit.training import recipes
from keras_vit.training.fitting import History, fit
from keras_vit.training.lora import set_trainable_layers, trainable_layers
from keras_vit.training.recipes import Recipe
from keras_vit.training.training_set import note_images
from keras_vit.training.visreg import VIEWS, ViewsModel

METHODS = DIET, VISREG = ("diet", "visreg")
BLOCKS = 2  # the last ones, which are trained with released weights
HEAD_PART = 0.1  # of the steps, in which the head is trained alone, at a rising learning rate
RECOGNIZED = 64  # images that every epoch is validated on: are they recognized as they are?

_BLOCK = re.compile(r"block_(\d+)")
# The layers behind the blocks, which are trained with them.
_BEHIND = ("encoder_norm", "pooling", "pooling_norm", "pre_logits", "pre_head_norm", "head")
# Before the peak of the learning rate, up to the last step: the head's training is the warm-up.
_ALL_WARMUP = 0.999_999


def pretrain(
    model: ImageModel,
    images: IndexedSplit | np.ndarray,
    folder: str | os.PathLike[str],
    *,
    recipe: Recipe | None = None,
    method: str = DIET,
    blocks: int | None = BLOCKS,
    views: int = VIEWS,
    seed: int = 0,
    print_fn: Callable[[str], None] = print,
    identity: Any = None,
    **options: Any,
) -> History:
    """Trains a model to distinguish images from each other, without labels, in place.

    It is `keras_vit.fit` with the number of each image as its label, a linear layer without bias on
    features of length 1, and label smoothing (DIET, Ibrahim et al. 2023, 2302.10260; for released
    weights DIET-CP, 2509.06990, where only the last blocks are trained, after the head alone). With
    `method="visreg"` it is `keras_vit.fit` with the loss `visreg.visreg_loss` of several views of
    each image, behind a projector, which DIET does without: for thousands of images from scratch.
    Nothing says whether the features are better afterwards: on photographs of fine-grained classes
    they often are worse. `keras_vit.curation.compare_features` measures it by labels.

    The model notes the images, so that later scores leave them out. A call that was killed is gone
    on with by the same call, and ends with the same weights.

    Args:
        model: A model of this package with one feature vector per image, with or without a head,
            which is neither used nor changed. Its weights change.
        images: A split whose labels are not used, or uint8 pixels `(n, height, width, 1 or 3)`; at
            least 2, of which no two should be the same.
        folder: For checkpoints.
        recipe: Of all epochs; None for `"diet_cp"` or `"visreg_cp"` with `blocks`, and `"diet"` or
            `"visreg"` without. Its image size has to be the model's, where that is fixed.
        method: `"diet"` or `"visreg"`.
        blocks: How many of the last blocks are trained, with all that follows them, after the head
            alone for a tenth of the steps; None for the whole model, from the first step on.
        views: How many views of each image VISReg compares; a batch has so many rows per image.
        seed: Of the head, the order of images, augmentation and slices.
        print_fn: Prints a line.
        identity: What else must agree for a checkpoint to belong to the run, as JSON values.
        **options: Further arguments of `keras_vit.fit`, such as `checkpoint_seconds`.

    Returns:
        The history of all epochs. DIET's `val_accuracy` is the part of 64 images that are
        recognized as they are; it says that something is learned, and not whether it is of use.
        VISReg's `val_loss` is that of its regularizers on them: it stays high where all are alike.

    Raises:
        ValueError: There are fewer than two images; they are records or may be skipped; the model
            does not have so many blocks, or one vector per image; the method is unknown, or VISReg
            is to run in several processes; or a number is out of range.

    Example:

    >>> import keras_vit, tempfile, numpy as np
    >>> images = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3)).astype("uint8")
    >>> model = keras_vit.VisionTransformer(patch_size=8, hidden_dim=16, depth=3, num_heads=2,
    ...     input_shape=(16, 16, 3))
    >>> recipe = keras_vit.recipes.get("diet_cp").scaled(steps=10)
    >>> history = keras_vit.training.pretrain(model, images, tempfile.mkdtemp(), recipe=recipe,
    ...     progress=False, print_fn=lambda line: None)
    >>> len(history["loss"])
    10
    """
    check_choice(method, "method", METHODS)
    if recipe is None:
        recipe = recipes.get(method if blocks is None else f"{method}_cp")
    split = _instances(images)
    backbone = pooled_backbone(model)
    network: SharedModel
    if method == VISREG:
        network = ViewsModel.on(model, backbone, views, seed)
    else:
        network = _classifier(model, backbone, len(split), seed)
    network.task, network.eval_transform = split.task, model.eval_transform
    network.data_format = model.data_format
    trained = None if blocks is None else _last_layers(model, blocks)
    few = split.take(range(min(len(split), RECOGNIZED)))
    splits = Splits("images", (), {"train": split, "val": few})
    # A checkpoint of other images, or of another order, does not belong to the run.
    sums = hashlib.sha256(b"".join(split.digests().tolist())).hexdigest()
    options = {"monitor": None, **options, "seed": seed, "print_fn": print_fn}
    options["identity"] = {"identity": identity, "images": sums, "blocks": blocks}
    if method == VISREG:
        options["identity"] |= {"method": method, "views": views}
        print_fn(f"{views} views of each image")
    before = trainable_layers(model)
    model.trainable = True
    histories = []
    try:
        for name, part, names in _parts(recipe, len(split), trained):
            for layer in network.layers:
                layer.trainable = names is None or layer.name in names
            histories.append(fit(network, part, splits, Path(folder) / name, **options))
    finally:
        set_trainable_layers(before)
    note_images(model, Splits("images", (), {"train": split, "val": split.take(np.zeros(0, int))}))
    return {name: [v for history in histories for v in history[name]] for name in histories[-1]}


def _instances(images: Any) -> IndexedSplit:
    """Return the images with their numbers as labels."""
    if isinstance(images, np.ndarray) and images.ndim == 4:
        task = Classification(size=max(len(images), 2))
        images = ArraySplit("train", task, images, np.arange(len(images)))
    if not isinstance(images, IndexedSplit) or images.skips or images.per_pixel:
        raise ValueError(
            f"images={type(images).__name__} must be a split of files that were checked, or in "
            "memory, whose images can be numbered: give keras_vit.data.load(folder).train, or an "
            "array (n, height, width, channels) of at least 2 images; records and masks do not fit."
        )
    if len(images) < 2:
        raise ValueError(
            f"There are {len(images)} images to pre-train on, and each of them is a class: "
            "give at least 2, better hundreds."
        )
    return images.as_instances()


def _classifier(model: ImageModel, backbone: keras.Model, count: int, seed: int) -> SharedModel:
    """Return the classifier of `count` images, on the layers of the model."""
    unit = keras.layers.UnitNormalization(dtype="float32", name="unit_length")
    # As torch's Linear begins, with which the papers were made.
    initial = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", seed=seed)
    head = keras.layers.Dense(
        count, use_bias=False, kernel_initializer=initial, dtype="float32", name="head"
    )
    outputs = head(unit(backbone.output))
    return SharedModel.of(model, backbone.input, outputs, f"{model.name}_instances")


def _last_layers(model: ImageModel, blocks: int) -> frozenset[str]:
    """Return the names of the layers from the last blocks on."""
    check_positive(blocks=blocks)
    matches = (_BLOCK.fullmatch(layer.name) for layer in model.layers)
    names = sorted((match[0] for match in matches if match), key=lambda name: int(name[6:]))
    if blocks > len(names):
        raise ValueError(
            f"{model.name} has {len(names)} blocks to train the last of, and blocks={blocks}: give "
            f"{'at most as many, or ' if names else ''}None, which trains the whole model."
        )
    return frozenset([*names[-blocks:], *_BEHIND])


def _parts(
    recipe: Recipe, count: int, trained: frozenset[str] | None
) -> Iterator[tuple[str, Recipe, frozenset[str] | None]]:
    """Yield the name, the recipe and the trained layers of each part of the training."""
    steps = recipe.total_steps(count)
    alone = 0 if trained is None else round(HEAD_PART * steps)
    if not alone or alone == steps:
        yield "all", recipe, trained
        return
    # The warm-up of the first part ends at the peak, from which the second one falls.
    yield "head", replace(recipe, steps=alone, warmup=_ALL_WARMUP), frozenset(["head"])
    yield "blocks", replace(recipe, steps=steps - alone, warmup=0.0), trained
