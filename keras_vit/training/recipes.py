"""What `compile` and `fit` need, as a table: one row a way of training."""

from dataclasses import dataclass, field
from typing import Any

from keras_vit.data import Augmentation
from keras_vit.errors import nearest


@dataclass(frozen=True)
class Recipe:
    """A way of training, complete enough to run.

    Attributes:
        source: Where the numbers come from, and the hardware they are meant for.
        model: Arguments of `VisionTransformer` when no named model is asked for.
        image_size: Height and width of the images in pixels.
        epochs: Passes over the training images.
        batch_size: Images in a batch.
        learning_rate: Its peak; it rises linearly from 0 and falls to 0 as a cosine.
        warmup: Share of the steps in which it rises.
        weight_decay: Of AdamW, on kernels only.
        label_smoothing: Share of a label that is spread over all classes.
        mixup: Parameter of mixup's Beta distribution; 0 for none.
        clip_norm: Largest global norm of a step's gradients.
        augmentation: What training images go through.
    """

    source: str
    model: dict[str, Any]
    image_size: int
    epochs: int
    batch_size: int
    learning_rate: float
    warmup: float = 0.1
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    mixup: float = 0.0
    clip_norm: float = 1.0
    augmentation: Augmentation = field(default_factory=Augmentation)


RECIPES = {
    "digits": Recipe(
        source="Tuned here for scikit-learn's 8 x 8 digits; a minute on two CPU cores.",
        model={
            "patch_size": 4,
            "hidden_dim": 96,
            "depth": 4,
            "num_heads": 4,
            "mlp_dim": 192,
            "position_embedding": "sincos2d",
            "stochastic_depth": 0.1,
        },
        image_size=8,
        epochs=60,
        batch_size=64,
        learning_rate=2e-3,
        warmup=0.08,
        mixup=0.4,
        augmentation=Augmentation(crop="resize", flip=False, shift=1),
    ),
    "small_data": Recipe(
        source="Tuned here for a few thousand photographs from scratch; minutes on two CPU cores.",
        model={
            "patch_size": 16,
            "hidden_dim": 128,
            "depth": 4,
            "num_heads": 4,
            "mlp_dim": 256,
            "position_embedding": "sincos2d",
            "pooling": "gap",
            "stochastic_depth": 0.1,
        },
        image_size=64,
        epochs=90,
        batch_size=64,
        learning_rate=1.5e-3,
        warmup=0.055,
        mixup=0.2,
        augmentation=Augmentation(min_area=0.3),
    ),
}


def get(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ValueError: The name is unknown; the message proposes the nearest ones.

    >>> from keras_vit.training import recipes
    >>> recipes.get("digits").image_size
    8
    """
    if name not in RECIPES:
        raise ValueError(f"No recipe {name!r}. {nearest(name, RECIPES)}")
    return RECIPES[name]
