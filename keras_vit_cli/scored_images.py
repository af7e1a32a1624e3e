"""The labeled images that a command scores a model on, by its options."""

from typing import Any

from keras_vit.evaluation.unseen_images import OF_TABLE, Scored, run_options, unseen_images
from keras_vit_cli.options.option import UsageError


def scored_images(
    model: Any,
    options: Any,
    *,
    split_name: str | None = None,
    fits: bool = False,
    own_classes: bool = True,
) -> Scored:
    """Return `unseen_images` of `options.data`, or of the run `options.model`.

    Args:
        model: With `seen_images`, or without.
        options: Of a command: `model`, and those of `keras_vit_cli.options.shared` about data.
        split_name: As for `unseen_images`; so are `fits` and `own_classes`.

    Raises:
        UsageError: There is no data, and the model is not of a run.
        ValueError: As `unseen_images`.
    """
    if options.data is None and not run_options(options.model):
        raise UsageError(
            f"{options.model} does not say what it was trained on: give --data, a folder of images "
            "or a data set's name."
        )
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
