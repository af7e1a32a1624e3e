"""What is trained on and what is scored: apart from each other, and noted in the model."""

from typing import Any

import numpy as np

from keras_vit.data import Split, Splits
from keras_vit.data.seen_images import (
    MOST_LISTED,
    TRAINED,
    USED,
    VALIDATED,
    SeenImages,
    none_left,
)
from keras_vit.data.sources.splits import IndexedSplit


def without_copies(part: Split | None, train: IndexedSplit) -> Split | None:
    """Return the held-out images, without copies of images that are trained on."""
    if not isinstance(part, IndexedSplit):
        return part
    is_copy = np.isin(part.digests(), train.digests())
    return part.take(np.flatnonzero(~is_copy)) if is_copy.any() else part


def digests_of(*parts: Split | None) -> np.ndarray | None:
    """Return the digests of all images of these parts; None without any, or for records."""
    known = [part.digests() for part in parts if isinstance(part, IndexedSplit)]
    return np.concatenate(known) if known else None


def note_images(model: Any, splits: Splits) -> None:
    """Notes in a model that it is trained on and validated on these images.

    Of more than a model's file lists, their numbers alone; records are not compared.
    """
    if not isinstance(splits.train, IndexedSplit) or not hasattr(model, "seen_images"):
        return
    if len(splits.train) > MOST_LISTED:
        seen = SeenImages(counts={TRAINED: len(splits.train), VALIDATED: len(splits.val)})
    else:
        digests = {TRAINED: splits.train.digests(), VALIDATED: digests_of(splits.val)}
        seen = SeenImages.of(digests)
    model.seen_images = seen | model.seen_images


def unseen(val: Split, here: SeenImages, before: SeenImages, source: str) -> tuple[Split, str]:
    """Return the validation images that nothing has seen, and a line on the others; empty without.

    Args:
        val: The validation images.
        here: What the run uses for other things.
        before: What the weights that it starts from, or its teacher, were made with.
        source: Where the images are, for messages.

    Raises:
        ValueError: None is left.
    """
    if not isinstance(val, IndexedSplit):
        return val, ""
    digests = val.digests()
    is_copy, is_known = (np.isin(seen.uses(digests), USED) for seen in (here, before))
    if not (is_copy | is_known).any():
        return val, ""
    if (is_copy | is_known).all():
        raise none_left((here | before).uses(digests), f"the validation split of {source}")
    causes = [
        f"{count:,} that {cause}"
        for count, cause in (
            (is_copy.sum(), "are copies of training images"),
            ((is_known & ~is_copy).sum(), "the weights it starts from were made with"),
        )
        if count
    ]
    rest = val.take(np.flatnonzero(~(is_copy | is_known)))
    return rest, f"left out of the validation images: {', '.join(causes)}"
