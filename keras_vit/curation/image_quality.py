"""What pixels say of a photograph without any model: dark, blurred, tiny; and its hash."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from keras_vit._base.errors import check_positive
from keras_vit._base.processors import available_processors
from keras_vit.curation.feature_index import FeatureIndex, modified_times
from keras_vit.curation.kept_measures import KeptMeasures
from keras_vit.curation.nearest import nearest_neighbors
from keras_vit.curation.perceptual_hash import perceptual_hash
from keras_vit.data import BadImageError
from keras_vit.data.decode.image_files import displayed_image, read_contents, unreadable_reason

DARK, BLURRED, TINY = 60.0, 40.0, 32
# The longer side that sharpness is measured at: a model does not see the grain of a large file.
_MEASURED = 256
_AHEAD = 64  # files that are decoded at once


class ImageMeasures(NamedTuple):
    """What was measured of one image.

    Attributes:
        height: Pixels, upright.
        width: Pixels.
        brightness: In 0..255, the gray level that 5 % of the pixels are above.
        sharpness: The variance of the Laplacian of gray levels, where the longer side has at most
            256 pixels.
        hash: See `perceptual_hash`.
        mirrored: The hash of the mirror image.
    """

    height: int
    width: int
    brightness: float
    sharpness: float
    hash: int
    mirrored: int


@dataclass(frozen=True)
class PhotoMeasures:
    """What was measured of every photograph of an index: arrays `(n,)`, see `ImageMeasures`.

    A file that is gone or was cut off since the index was made has zeros, and a reason in `failed`.
    """

    height: np.ndarray
    width: np.ndarray
    brightness: np.ndarray
    sharpness: np.ndarray
    hash: np.ndarray
    mirrored: np.ndarray
    failed: dict[int, str]

    def _where(self, condition: np.ndarray, order: np.ndarray) -> np.ndarray:
        rows = np.flatnonzero(condition & (self.height > 0))
        return rows[np.argsort(order[rows], kind="stable")]

    def dark(self, below: float = DARK) -> np.ndarray:
        """Return rows whose brightness is below a gray level, the darkest first."""
        return self._where(self.brightness < below, self.brightness)

    def blurred(self, below: float = BLURRED) -> np.ndarray:
        """Return rows whose sharpness is below a number, the most blurred first."""
        return self._where(self.sharpness < below, self.sharpness)

    def tiny(self, below: int = TINY) -> np.ndarray:
        """Return rows with a side of fewer pixels, the smallest first."""
        side = np.minimum(self.height, self.width)
        return self._where(side < below, side)


def measure_image(pixels: np.ndarray) -> ImageMeasures:
    """Measures one image.

    Args:
        pixels: uint8 `(height, width, 3)`, as `keras_vit.data` decodes it. Of raster files their
            bands stretched to 0..255, so that none of them is dark.

    Source: the variance of the Laplacian is LAPV of Pech-Pacheco et al., "Diatom Autofocusing in
        Brightfield Microscopy" (2000), with the kernel of four adjacent pixels, as OpenCV's.

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import measure_image
    >>> measure_image(np.full((20, 30, 3), 9, "uint8"))[:4]
    (20, 30, 9.0, 0.0)
    """
    from PIL import Image

    height, width = pixels.shape[:2]
    gray = Image.fromarray(pixels).convert("L")
    gray.thumbnail((_MEASURED, _MEASURED), Image.Resampling.BILINEAR)
    levels = np.asarray(gray, np.float64)
    near = np.pad(levels, 1, mode="reflect") if min(levels.shape) > 1 else np.pad(levels, 1, "edge")
    laplacian = near[:-2, 1:-1] + near[2:, 1:-1] + near[1:-1, :-2] + near[1:-1, 2:] - 4 * levels
    return ImageMeasures(
        height,
        width,
        float(np.percentile(levels, 95)),
        float(laplacian.var()),
        *perceptual_hash(pixels),
    )


def measure_photos(
    index: FeatureIndex,
    report: Callable[[int], None] = lambda count: None,
    *,
    keep: bool = False,
) -> PhotoMeasures:
    """Decodes every photograph of an index once, in threads, and measures it.

    Args:
        index: Of the photographs.
        report: Called now and then with the number of files that are done.
        keep: Whether to keep the measures as `measures.bin` in the folder of the index, and to take
            those that are there: then the next call, after a kill, too, decodes new and changed
            files alone, and does not read those whose size and time of change are as in the index.

    Raises:
        OSError: With `keep`, the folder of the index cannot be written.

    Example:

    >>> import tempfile, keras_vit
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from keras_vit.curation import embed, measure_photos
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "photos").mkdir()
    >>> for color in ("red", "black"):
    ...     Image.new("RGB", (8, 8), color).save(folder / f"photos/{color}.png")
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 3))
    >>> measures = measure_photos(embed(model, folder / "photos", folder / "index"))
    >>> measures.dark().tolist(), measures.tiny().tolist()
    ([0], [0, 1])
    """
    count = len(index)
    types = {"height": np.int32, "width": np.int32, "hash": np.uint64, "mirrored": np.uint64}
    arrays = {f: np.zeros(count, types.get(f, np.float32)) for f in ImageMeasures._fields}
    failed: dict[int, str] = {}
    new: list[tuple[bytes, ImageMeasures]] = []
    with KeptMeasures(index.folder) if keep else nullcontext() as records:
        for row, (measured, digest) in enumerate(_measured(index, records)):
            if isinstance(measured, str):
                failed[row] = measured
            else:
                for name, value in measured._asdict().items():
                    arrays[name][row] = value
                if digest is not None:
                    new.append((digest, measured))
            if row % _AHEAD == _AHEAD - 1 or row == count - 1:
                report(row + 1)
                if records is not None:
                    records.add(new)
                new.clear()
    return PhotoMeasures(**arrays, failed=failed)


# The measures of a file or the reason why there are none; its sum, where there is no record yet.
_Measured = tuple[ImageMeasures | str, bytes | None]


def _measured(index: FeatureIndex, records: KeptMeasures | None) -> Iterator[_Measured]:
    """Yield what was measured, in the order of rows, with few files in memory at a time."""
    pixels = index.info["preparation"]["max_pixels"]
    times = modified_times(index) if records is not None else np.zeros(0)

    def known(digest: bytes) -> ImageMeasures | None:
        measures = records and records.find(digest)
        return ImageMeasures(*measures) if measures else None

    def measure(row: int) -> _Measured:
        path = index.path(row)
        try:
            if records is not None:
                status = os.stat(path)
                is_same = (status.st_size, status.st_mtime_ns) == (index.sizes[row], times[row])
                if is_same and (measures := known(bytes.fromhex(index.sums[row]))):
                    return measures, None
            contents = read_contents(path)
            digest = hashlib.sha256(contents).digest()
            if measures := known(digest):
                return measures, None
            return measure_image(displayed_image(contents, index.bands, pixels)), digest
        except (OSError, BadImageError) as error:
            return unreadable_reason(error), None

    ahead: deque[Future[_Measured]] = deque()
    with ThreadPoolExecutor(min(4, available_processors())) as threads:
        for row in range(len(index)):
            ahead.append(threads.submit(measure, row))
            if len(ahead) == _AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def outlier_distances(features: FeatureIndex | np.ndarray, k: int = 10) -> np.ndarray:
    """Return 1 less the mean cosine of each row to its nearest neighbors, float32 `(n,)`.

    Raises:
        ValueError: A number is out of range, or a feature is not finite.

    Source: Ramaswamy, Rastogi and Shim, "Efficient Algorithms for Mining Outliers" (2000).

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import outlier_distances
    >>> outlier_distances(np.array([[9, 1], [9, 2], [-1, 9]]), k=1).argmax()
    np.int64(2)
    """
    check_positive(k=k)
    if len(features) < 2:
        return np.zeros(len(features), np.float32)
    return (1 - nearest_neighbors(features, k=k).similarities.mean(axis=1)).astype(np.float32)


def find_outliers(distances: np.ndarray, spreads: float = 1.5) -> np.ndarray:
    """Return the rows that are far from all others, the farthest first: beyond Tukey's fence.

    Args:
        distances: `(n,)`, as from `outlier_distances`.
        spreads: How many interquartile ranges the fence is above the upper quartile.

    Source: Tukey, "Exploratory Data Analysis" (1977).

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import find_outliers
    >>> find_outliers(np.array([1.0, 2.0, 3.0, 2.0, 90.0]))
    array([4])
    """
    if not len(distances):
        return np.zeros(0, np.int64)
    low, high = np.percentile(distances, (25, 75))
    rows = np.flatnonzero(distances > high + spreads * (high - low))
    return rows[np.argsort(-distances[rows], kind="stable")]
