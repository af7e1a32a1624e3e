"""The options of `keras-vit list`."""

from dataclasses import dataclass

from keras_vit_cli.options.option import POSITIONAL, Command, in_model


@dataclass(frozen=True)
class ListOptions:
    """The options of `keras-vit list`."""

    pattern: str = in_model(
        "list only names that match this shell pattern, such as 'ViT-B*'; with --weights also "
        "a model, or a part of a name, such as dinov2",
        "*",
        name=POSITIONAL,
        nargs="?",
    )
    weights: bool = in_model("list released weights in place of models", False)


LIST = Command(
    ListOptions,
    "list the models, or the released weights",
    "keras-vit list --weights dinov2",
)
