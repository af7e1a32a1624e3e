"""Photographs that stand twice: the same bytes, or nearly the same image.

sums ─────────────────────────────────────────────► the same file
features ──── nearest by cosine ────┐
hashes ────── nearest by bits ──────┼── candidates ── cosine and bits of each ──► near
mirrored hashes ── nearest by bits ─┘
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keras_vit._base.errors import check_positive, check_rate
from keras_vit.curation.feature_index import FeatureIndex
from keras_vit.curation.image_quality import PhotoMeasures
from keras_vit.curation.nearest import BLOCK, nearest_neighbors, unit_rows

CLOSENESS, BITS, SIMILAR = 0.4, 8, 0.6


@dataclass(frozen=True)
class Duplicates:
    """Pairs of photographs that show the same, sorted by row.

    Attributes:
        pairs: int64 `(m, 2)`, the rows of each pair, the smaller first.
        is_copy: bool `(m,)`, whether both files have the same bytes. A file with many copies is in
            a pair with the first of them alone.
        similarities: float32 `(m,)`, the cosine of their features.
        bits: int32 `(m,)`, differing bits of 64 of their hashes, or of one and the mirror image of
            the other where these are fewer.
        groups: int64 `(n,)`, the smallest row that each row is joined to by pairs: its own where it
            stands alone.
    """

    pairs: np.ndarray
    is_copy: np.ndarray
    similarities: np.ndarray
    bits: np.ndarray
    groups: np.ndarray

    def members(self) -> list[np.ndarray]:
        """Return the rows of each group of two or more, the largest group first."""
        order = np.argsort(self.groups, kind="stable")
        _, starts, counts = np.unique(self.groups[order], return_index=True, return_counts=True)
        parts = [order[s : s + c] for s, c in zip(starts, counts, strict=True) if c > 1]
        return sorted(parts, key=len, reverse=True)

    def across_splits(self, splits: Sequence[str | None]) -> np.ndarray:
        """Return which pairs have a row in two splits, bool `(m,)`."""
        return np.array([len({splits[a], splits[b], None}) == 3 for a, b in self.pairs], bool)

    def with_two_labels(self, labels: np.ndarray) -> np.ndarray:
        """Return which pairs have two labels, bool `(m,)`; -1 is not a label."""
        one, other = labels[self.pairs[:, 0]], labels[self.pairs[:, 1]]
        return (one != other) & (one >= 0) & (other >= 0)


def find_duplicates(
    index: FeatureIndex,
    measures: PhotoMeasures,
    *,
    closeness: float = CLOSENESS,
    bits: int = BITS,
    similar: float = SIMILAR,
    k: int = 10,
) -> Duplicates:
    """Finds photographs that are there twice: copied, saved again, resized, cropped or mirrored.

    Two are near where their hashes differ in few bits, which finds what was resized, saved again or
    mirrored; or where they are much closer to each other than to others, which finds what was
    cropped, and other photographs of one scene: the distance of their features, 1 less the cosine,
    is at most `closeness` of that to the tenth nearest neighbor of each. A fixed cosine would have
    to be another one for each model and folder. The defaults were chosen on photographs of flowers
    (`python examples/planted_duplicates.py`).

    Args:
        index: Of the photographs.
        measures: Of the same index, from `measure_photos`.
        closeness: The largest part, from 0 to 1; 0 to go by hashes alone.
        bits: How many of 64 bits may differ; -1 to go by features alone.
        similar: The least cosine of any pair: plain images have the same hash, whatever they are.
        k: How many candidates each photograph has, by features and by hash, and by which of the
            nearest neighbors closeness is measured. In a folder of fewer, hashes alone decide.

    Raises:
        ValueError: A number is out of range, or the measures are of another index.

    Example:

    >>> import tempfile, keras_vit
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from keras_vit.curation import embed, find_duplicates, measure_photos
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "photos").mkdir()
    >>> for name, color in (("a", "red"), ("b", "blue"), ("c", "red")):
    ...     Image.new("RGB", (8, 8), color).save(folder / f"photos/{name}.png")
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 3))
    >>> index = embed(model, folder / "photos", folder / "index")
    >>> duplicates = find_duplicates(index, measure_photos(index))
    >>> duplicates.pairs[duplicates.is_copy].tolist()
    [[0, 2]]
    """
    check_positive(k=k)
    check_rate(closeness=closeness)
    if not -1 <= similar <= 1:
        raise ValueError(f"similar={similar!r} is not a cosine: give one from -1 to 1.")
    if not -1 <= bits <= 64:
        raise ValueError(f"bits={bits!r} must be from 0 to 64, or -1.")
    if len(measures.hash) != len(index):
        raise ValueError(
            f"{len(measures.hash)} measures do not fit {len(index)} photographs: measure this "
            "index again."
        )
    count, first = len(index), _first_rows(index.sums)
    hashes, mirrored = _signs(measures.hash), _signs(measures.mirrored)
    by_features = nearest_neighbors(index, k=k)
    # How far the last of the nearest neighbors is; in a smaller folder, nothing is close.
    reach = np.zeros(count, np.float32)
    if count > k:
        reach = 1 - by_features.similarities[:, -1]
    keys = [_keys(first[:, None]), _keys(by_features.rows)]
    del by_features
    keys += [_keys(nearest_neighbors(hashes, each, k).rows) for each in (None, mirrored)]
    candidates = np.unique(np.concatenate(keys))
    parts = []
    for start in range(0, max(len(candidates), 1), BLOCK):
        pairs = np.stack(np.divmod(candidates[start : start + BLOCK], max(count, 1)), axis=1)
        one, other = pairs.T
        cosines, differing = _compare(index, hashes, mirrored, pairs)
        distances = reach[pairs].min(axis=1)
        is_near = (1 - cosines <= closeness * distances) & (distances > 0)
        # A file that is gone does not have a hash.
        is_near |= (differing <= bits) & (measures.height[pairs] > 0).all(axis=1)
        is_near &= (cosines >= similar) & (first[one] != first[other])
        is_copy = first[other] == one
        keep = is_copy | is_near
        parts.append((pairs[keep], is_copy[keep], cosines[keep], differing[keep]))
    pairs, is_copy, similarities, differing = (
        np.concatenate(part) for part in zip(*parts, strict=True)
    )
    return Duplicates(pairs, is_copy, similarities, differing, _components(pairs, count))


def _first_rows(sums: Sequence[str]) -> np.ndarray:
    """Return the first row with the same bytes as each, int64 `(n,)`."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(s, row) for row, s in enumerate(sums)], np.int64)


def _signs(hashes: np.ndarray) -> np.ndarray:
    """64 numbers 1 or -1 per hash, whose inner product counts the bits that agree."""
    octets = hashes.astype(">u8").view(np.uint8).reshape(-1, 8)
    return np.unpackbits(octets, axis=1).astype(np.int8) * np.int8(2) - np.int8(1)


def _keys(near: np.ndarray) -> np.ndarray:
    """Return a number for each pair of a row and a nearest neighbor `(n, k)`, except itself.

    Of rows a < b it is a * n + b: eight bytes per pair, where there are many.
    """
    here = np.arange(len(near))[:, None]
    keys = np.minimum(here, near) * len(near) + np.maximum(here, near)
    return keys[here != near]


def _compare(
    index: FeatureIndex, hashes: np.ndarray, mirrored: np.ndarray, pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosine of each pair, and the differing bits."""
    one, other = pairs.T
    a, b = (unit_rows(index.features[each]) for each in (one, other))
    differ = (hashes[one] != hashes[other]).sum(axis=1)
    differ_mirrored = (mirrored[one] != hashes[other]).sum(axis=1)
    bits = np.minimum(differ, differ_mirrored).astype(np.int32)
    return (a * b).sum(axis=1).clip(-1, 1), bits


def _components(pairs: np.ndarray, count: int) -> np.ndarray:
    """Return the smallest row that each row is joined to."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    joined = coo_array((np.ones(len(pairs), bool), pairs.T), (count, count))
    _, part = connected_components(joined, directed=False)
    return np.unique(part, return_index=True)[1][part]
