"""A whole model from a file or a run's folder: what the command line and a resumed run load."""

from pathlib import Path

from keras_vit.checkpoints.building import from_checkpoint
from keras_vit.checkpoints.keras_file import load_keras_model
from keras_vit.checkpoints.sums import check_file
from keras_vit.models import ImageModel

# What `keras-vit train` and `save_weights(layout="huggingface")` write into a folder.
IN_FOLDER = ("model.keras", "model.safetensors")


def load_model(
    path: str | Path, *, sha256: str | None = None, max_parameters: int | None = None
) -> ImageModel:
    """The model in a file, not compiled; nothing that the file claims is believed unchecked.

    A `.keras` file comes back as it was saved; of other files the model is built by
    `from_checkpoint`. What is compared before anything is built: the SHA-256 sum that a file of
    this package carries, the one in a `SHA256SUMS` beside it, the sizes in the configuration with
    those of the tensors. No Python object is unpickled, and no class is imported.

    Args:
        path: A `.keras`, `.safetensors`, `.npz`, `.pth`, `.pt` or `.bin` file, the folder of a run
            with `model.keras` in it, or `"MODEL:TAG"` of released weights. `.weights.h5` has no
            architecture: build the model and use `load_weights`.
        sha256: The sum that the file must have.
        max_parameters: The most parameters that the model may have; None for as many as the file
            holds.

    Raises:
        CheckpointError: The file is damaged, hostile, of something else, or has values that are
            not finite. One line that names the file, and the tensor or the byte.
        FileNotFoundError: There is no such file.
        ValueError: `sha256` is not a sum.

    Example:

    >>> import keras_vit, tempfile
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
    >>> folder = tempfile.mkdtemp()
    >>> model.save(folder + "/model.keras")
    >>> keras_vit.checkpoints.load_model(folder).hidden_dim
    16
    """
    path = Path(path)
    if path.is_dir():
        files = [path / name for name in IN_FOLDER if (path / name).exists()]
        if not files:
            raise FileNotFoundError(
                f"There is no {' or '.join(IN_FOLDER)} in {str(path)!r}. Give a file of a model, "
                "or a folder that keras-vit train wrote."
            )
        path = files[0]
    if path.suffix != ".keras":
        return from_checkpoint(path, sha256=sha256, max_parameters=max_parameters)
    check_file(path, sha256)
    return load_keras_model(path, max_parameters)
