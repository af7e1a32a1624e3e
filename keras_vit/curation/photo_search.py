"""Photographs of an index that are like other ones."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_vit.curation.feature_index import FeatureIndex
from keras_vit.curation.nearest import Nearest, nearest_neighbors
from keras_vit.data import BadImageError
from keras_vit.data.decode.image_files import read_contents, unreadable_reason
from keras_vit.models.image_model import ImageModel


@dataclass(frozen=True)
class SearchResult:
    """The photographs most like each of some.

    Attributes:
        files: The photographs that could be read, in their order.
        nearest: Rows of the index for each, the nearest first.
        failed: The reason for each of the others.
    """

    files: tuple[Path, ...]
    nearest: Nearest
    failed: Mapping[Path, str]


def find_similar(
    index: FeatureIndex,
    files: Sequence[str | os.PathLike[str]],
    k: int = 12,
    model: ImageModel | Callable[[], ImageModel] | None = None,
    engine: str | None = None,
) -> SearchResult:
    """Find the photographs of an index most like the given files, by the cosine of their features.

    Args:
        index: Where to search.
        files: Image files. One with the bytes of a file of the index has that one's features.
        k: Results per photograph.
        model: The model of the index, or a function that loads it, which is called only where a
            file is not in the index.
        engine: See `nearest_neighbors`.

    Raises:
        IndexMismatchError: The index is of another model.
        ValueError: A file is not in the index, and there is no model; or a number is out of range.

    Example:

    >>> import tempfile, keras_vit
    >>> from PIL import Image
    >>> from keras_vit.curation import embed, find_similar
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "photos").mkdir()
    >>> for color in ("red", "blue"):
    ...     Image.new("RGB", (8, 8), color).save(folder / f"photos/{color}.png")
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 3))
    >>> index = embed(model, folder / "photos", folder / "index")
    >>> result = find_similar(index, [folder / "photos/red.png"], k=1)
    >>> index.files[result.nearest.rows[0, 0]]
    'red.png'
    """
    row_of = {digest: row for row, digest in reversed(list(enumerate(index.sums)))}
    rows: dict[Path, np.ndarray] = {}
    failed: dict[Path, str] = {}
    encoder = None
    for file in dict.fromkeys(map(Path, files)):
        try:
            contents = read_contents(file)
        except (OSError, BadImageError) as error:
            failed[file] = unreadable_reason(error)
            continue
        row = row_of.get(hashlib.sha256(contents).hexdigest())
        if row is not None:
            rows[file] = index.rows(row, row + 1)
            continue
        if encoder is None:  # errors of the model's file are not the image's
            if model is None:
                raise ValueError(
                    f"{file} is not one of the files of {index.folder}: give the model that "
                    "made the index, too."
                )
            loaded = model if isinstance(model, ImageModel) else model()
            encoder = index.encoder(loaded, batch_size=1)
        try:
            rows[file] = encoder(encoder.prepare(contents)[None])
        except BadImageError as error:
            failed[file] = unreadable_reason(error)
    queries = np.concatenate([*rows.values(), np.zeros((0, index.dimension), np.float32)])
    return SearchResult(tuple(rows), nearest_neighbors(index, queries, k, engine), failed)
