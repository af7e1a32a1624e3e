"""The labeled images that a command scores a model on, by its options."""

from typing import Any

from keras_vit.evaluation.unseen_images import OF_TABLE, Scored, unseen_images


def scored_images(
    model: Any,
    options: Any,
    *,
    split_name: str | None = None,
    fits: bool = False,
    own_classes: bool = True,
) -> Scored:
    """Return `unseen_images` of `options.data`, or of the run `options.model`.

    Raises:
        ValueError: As `unseen_images`.
    """
    names = ("data_dir", "max_pixels", "reader", *OF_TABLE)
    return unseen_images(
        model,
        options.data,
        path=options.model,
        split=split_name,
        fits=fits,
        own_classes=own_classes,
        **{name: getattr(options, name) for name in names if hasattr(options, name)},
    )
