"""The classifiers that commands are given, models or exported files, and images to score them."""

import hashlib
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_vit._base.manifest import sha256
from keras_vit.data import Split
from keras_vit.evaluation.unseen_images import OF_FILES, OF_TABLE, Scored, unseen_images
from keras_vit.exporting import ExportedModel, load_classifier
from keras_vit.models import ImageModel

# What an `EvalTransform` that does not say it does.
UNSAID = {"decoder": "tensorflow", "views": "one"}


def open_classifier(
    path: str | Path,
    decoder: str | None = None,
    views: str | None = None,
    *,
    several: bool = False,
) -> Any:
    """Return a model, or a file that `keras-vit export` wrote, with another decoder or other views.

    With `several`, also the combined model in a folder.

    Raises:
        ValueError: An exported file sees what its model saw, and `views` are others.
    """
    model = load_classifier(path, several=several)
    if model.is_calibrated and (decoder, views) != (None, None):
        warn_of_other_images(model, decoder, views)
    model = with_decoder(model, decoder)
    if views is None or (isinstance(model, ExportedModel) and views == "one"):
        return model
    if isinstance(model, ExportedModel):
        raise ValueError(
            f"{model.name} is an exported file, which sees what its model saw: export the model "
            f"with keras-vit train --views {views}, or leave --views out."
        )
    model.eval_transform = replace(model.eval_transform, views=views)
    return model


def name_of_model(path: Path) -> str:
    """Return the name of a model's file; every run calls its "model", in a folder with a name."""
    # The links of the hub's cache are not followed: they lead to files called by their sums.
    place = Path(os.path.abspath(path))
    name = place.name if place.is_dir() else place.stem
    return place.parent.name if name.partition(".")[0] == "model" else name


def sum_of_files(path: Path) -> str:
    """Return the SHA-256 sum of a file; of a folder that of the lines of `sha256sum`, sorted."""
    if path.is_file():
        return sha256(path)
    names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
    lines = "".join(f"{sha256(path / name)}  {name}\n" for name in names)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def with_decoder(model: Any, decoder: str | None) -> Any:
    """Return a model, whose files are from now on decoded so; None changes nothing."""
    if decoder is not None:
        model.eval_transform = replace(model.eval_transform, decoder=decoder)
    return model


def keep_decoder(model: ImageModel, split: Split) -> None:
    """Notes in a model that the images it was trained or calibrated on are Pillow's pixels.

    Otherwise a SavedModel of it would decode JPEG files by TensorFlow, and answer a few otherwise.
    """
    by_pillow = split.reader == "grain" and split.bands is None and split.files is not None
    if by_pillow and model.eval_transform.decoder is None:
        model.eval_transform = replace(model.eval_transform, decoder="pillow")


def warn_of_other_images(
    model: ImageModel | ExportedModel, decoder: str | None, views: str | None
) -> None:
    asked = {"decoder": decoder, "views": views}
    changed = {
        f"--{name} {value}"
        for name, value in asked.items()
        if value is not None and value != (getattr(model.eval_transform, name) or UNSAID[name])
    }
    if changed:
        warnings.warn(
            f"{model.name} has sets, intervals or a novelty score that were calibrated without "
            f"{' '.join(sorted(changed))}: their coverage may be another. keras-vit evaluate shows "
            "it on labeled images.",
            stacklevel=3,
        )


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
    names = (*OF_FILES, *OF_TABLE)
    return unseen_images(
        model,
        options.data,
        path=options.model,
        split=split_name,
        fits=fits,
        own_classes=own_classes,
        **{name: getattr(options, name) for name in names if hasattr(options, name)},
    )
