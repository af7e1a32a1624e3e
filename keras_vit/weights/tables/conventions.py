"""The families of models whose weights files hold: which class, and how to know its sizes."""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras_vit.models import BiTResNet, ImageModel, MLPMixer, VisionTransformer
from keras_vit.weights import architecture
from keras_vit.weights.adaptation import Grid
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.tables.layout import Checkpoint


class StoredFamily(NamedTuple):
    """A class of models, and how to know its arguments from a file."""

    model: type[ImageModel]
    root: str  # the canonical tensor without which a file is incomplete
    arguments: Callable[[Checkpoint, Grid | None], dict[str, Any]]  # and more that the file states


STORED_FAMILIES = {
    "vit": StoredFamily(VisionTransformer, "patch_embedding/kernel", architecture.vit),
    "bit": StoredFamily(BiTResNet, "stem/conv/kernel", architecture.bit),
    "bit_v1": StoredFamily(BiTResNet, "stem/conv/kernel", architecture.bit),
    "mixer": StoredFamily(MLPMixer, "patch_embedding/kernel", architecture.mixer),
}


def stored_family(model: ImageModel) -> str:
    """Return the family of a model; a CheckpointError if it is not of one of `STORED_FAMILIES`."""
    if isinstance(model, BiTResNet):
        return "bit" if model.version == 2 else "bit_v1"
    for name, family in STORED_FAMILIES.items():
        if isinstance(model, family.model):
            return name
    names = " or ".join(sorted({family.model.__name__ for family in STORED_FAMILIES.values()}))
    raise CheckpointError(
        f"{type(model).__name__} is not a {names}: only their weights have names that other "
        "packages share. Use Keras's model.load_weights and model.save."
    )
