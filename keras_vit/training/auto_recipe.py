"""Which recipe suits a data set, by its images."""

import math
from typing import NamedTuple

from keras_vit._base.errors import check_above_zero

AUTO = "auto"
# Heads and fine-tuning compared on the training images, see `measured_fit`: `auto` does it below so
# many images per class. From there on it has not been shown to be better than the table below.
MEASURED, MEASURED_BELOW = "measured", 20
MEASURED_BELOW_OF_MANY = 10  # of 1,000 images or more


class RecipeChoice(NamedTuple):
    """A row of the table.

    Attributes:
        below: Training images per class, on average, or with `FROM_SCRATCH` pixels of their smaller
            side, below which the row holds.
        recipe: A name in `keras_vit.recipes`.
        reason: Why, as the end of a sentence.
    """

    below: float
    recipe: str
    reason: str


# docs/accuracy.md has the measurements that the rows follow.
WITH_WEIGHTS = (
    RecipeChoice(
        25,
        "finetune_few",
        "so few images change the weights for the worse unless the head starts from a linear probe "
        "and the learning rate is low",
    ),
    RecipeChoice(
        math.inf,
        "finetune_small",
        "all weights are trained, at learning rates that fall toward the first blocks",
    ),
)
FROM_SCRATCH = (
    RecipeChoice(
        48,
        "from_scratch_tiny",
        "without pretrained weights a small ViT behind convolutions is trained, here for images "
        "below 48 pixels",
    ),
    RecipeChoice(
        math.inf,
        "from_scratch",
        "without pretrained weights a small ViT behind convolutions is trained",
    ),
)


def choose_recipe(images_per_class: float, has_weights: bool, side: int = 224) -> RecipeChoice:
    """Choose a row: with weights by the images per class, without weights by the images' side.

    Raises:
        ValueError: A number is not above 0.

    >>> choose_recipe(10, has_weights=True).recipe, choose_recipe(300, has_weights=True).recipe
    ('finetune_few', 'finetune_small')
    """
    check_above_zero(images_per_class=images_per_class, side=side)
    rows, number = (WITH_WEIGHTS, images_per_class) if has_weights else (FROM_SCRATCH, side)
    return next(row for row in rows if number < row.below)
