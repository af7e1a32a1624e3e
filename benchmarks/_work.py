"""What one contestant of a benchmark has to do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Step = Callable[[], Any]
# For trying the benchmark itself out; all other sizes come from `keras_vit.list_models()`.
TINY = {"patch_size": 16, "hidden_dim": 64, "depth": 2, "num_heads": 2, "mlp_dim": 256}

# Arguments beside the learning rate; Keras, torch and, in lower case, optax share the names.
OPTIMIZERS: dict[str, dict[str, float]] = {"AdamW": {}, "SGD": {"momentum": 0.9}}
# Values that each stores per weight.
MOMENTS = {"AdamW": 2, "SGD": 1}


@dataclass(frozen=True)
class Work:
    """What one contestant has to do.

    Attributes:
        system: A key of `SYSTEMS`.
        variant: One of the system's variants, mostly a backend.
        task: `"inference"` or `"training"`.
        model: A name of `keras_vit.list_models()`, or `"tiny"`.
        image_size: Height and width of the images in pixels.
        batch_size: Images per step.
        dtype: `"float32"` or `"bfloat16"`: in training, bfloat16 with weights in float32.
        malloc: `"huge"` for huge pages from glibc, as `keras-vit` sets them, or `"default"`.
        dropout: Rate of dropout, on attention probabilities too where the system has that.
        optimizer: `"AdamW"`, or `"SGD"` with momentum, with which the paper fine-tunes.
        options: More arguments of the model, under the system's names.
        label: Name of the contestant, or empty for system and variant.
        tree: The folder whose code is run, or empty for this one.
    """

    system: str
    variant: str
    task: str
    model: str = "ViT-S/16"
    image_size: int = 224
    batch_size: int = 8
    dtype: str = "float32"
    malloc: str = "huge"
    dropout: float = 0.0
    optimizer: str = "AdamW"
    options: dict[str, Any] = field(default_factory=dict)
    num_classes: int = 1000
    label: str = ""
    tree: str = ""

    @property
    def backend(self) -> str:
        """The library that computes: the variant without `-compiled`, and torch for torch's."""
        name = self.variant.removesuffix("-compiled")
        return name if name in ("tensorflow", "jax", "torch") else "torch"

    @property
    def ours(self) -> bool:
        return self.system in ("keras_vit", "exported")

    @property
    def compiled(self) -> bool:
        return self.variant.endswith("compiled")

    @property
    def policy(self) -> str:
        """The dtype policy of Keras's models."""
        return "mixed_bfloat16" if self.dtype == "bfloat16" else "float32"

    def sizes(self) -> dict[str, int]:
        """The size arguments of `VisionTransformer`; imports keras_vit."""
        sizes = TINY
        if self.model != "tiny":
            from keras_vit.models import model_arguments

            sizes = model_arguments(self.model)
        overrides = self.options if self.ours else {}
        return {name: overrides.get(name, size) for name, size in sizes.items()}

    def cost(self) -> Any:
        """The `Cost` of a batch, without the savings of token merging and patch dropout."""
        from keras_vit.models import VisionTransformer
        from keras_vit.models.cost import cost_of
        from keras_vit.models.skeleton import without_values

        shape = (self.image_size, self.image_size, 3)
        given = {"input_shape": shape, "num_classes": self.num_classes, "dtype": self.policy}
        model = without_values(lambda: VisionTransformer(**self.sizes(), **given))
        return cost_of(model, self.batch_size)

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Images in [-1, 1], `(batch, height, width, 3)`, and labels."""
        random = np.random.default_rng(0)
        shape = (self.batch_size, self.image_size, self.image_size, 3)
        images = random.uniform(-1, 1, shape).astype("float32")
        return images, random.integers(0, self.num_classes, self.batch_size).astype("int32")
