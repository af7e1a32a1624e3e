"""The folder of a combined model: the file of each model whose head it has, whole."""

import json
from collections.abc import Mapping
from pathlib import Path

from keras_vit._base.files import write_text
from keras_vit._base.output_folder import OutputFolder
from keras_vit.models import ImageModel
from keras_vit.models.answers import HEAD_NAME
from keras_vit.models.combined import CombinedModel, combine
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.checkpoint_file import COMBINED
from keras_vit.weights.loading import load
from keras_vit.weights.writer import save_weights

MOST_BYTES = 2**16  # of the names of heads


def save_combined(
    models: Mapping[str, ImageModel],
    path: str | Path,
    *,
    eval_transform: str | None = None,
    overwrite: bool = False,
) -> CombinedModel:
    """Combine models and write them into one folder, each as a file of its own.

    So every command takes each of them, `FOLDER/NAME.keras`, and all of them together are the
    combined model. (The encoder is in each file. In an exported one it is once.)

    Returns:
        The combined model.

    Raises:
        ValueError: They cannot be combined, or the path is not a place for a folder.
        FileExistsError: Something is there.
    """
    output = OutputFolder(Path(path), "combined model", results=("*.keras", COMBINED))
    output.check(overwrite=overwrite)
    combined = combine(models, eval_transform=eval_transform, name=output.place.name)
    with output.opened(overwrite=overwrite) as workspace:
        for name, model in models.items():
            copy = model.copy()
            copy.eval_transform = combined.eval_transform
            save_weights(copy, workspace / f"{name}.keras")
        write_text(workspace / COMBINED, json.dumps({"heads": [*models]}))
        output.finish()
        output.publish()
    return combined


def is_combined(path: Path) -> bool:
    """Return whether a path is the folder of a combined model."""
    return (path / COMBINED).is_file()


def load_combined(path: str | Path) -> CombinedModel:
    """Load the combined model in a folder; the encoders of its files are compared again.

    Raises:
        CheckpointError: It is damaged, or of something else.
        FileNotFoundError: The file of a head is missing.
        ValueError: A file was replaced by one that does not fit the others.
    """
    path = Path(path)
    try:
        with (path / COMBINED).open("rb") as file:
            names = json.loads(file.read(MOST_BYTES))["heads"]
        if not (isinstance(names, list) and all(HEAD_NAME.fullmatch(name) for name in names)):
            raise ValueError(f"heads={names!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path / COMBINED} does not have the names of heads, and is damaged: {error!r}. "
            "Combine the models again."
        ) from error
    models = {name: load(path / f"{name}.keras") for name in names}
    return combine(models, name=path.resolve().name)
