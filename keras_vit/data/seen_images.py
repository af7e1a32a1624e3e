"""Images that a model was made with, and for what: a score of these says nothing about others.

An image is known by the digest of its file, whatever its name and folder, and one that was saved
anew or resized by what it looks like.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from keras_vit._base.errors import counted
from keras_vit.data.image_looks import WORDS, looks_like

if TYPE_CHECKING:
    from keras_vit.data.sources.splits import IndexedSplit

# What an image was used for, the strongest first: one that had two uses counts for the first.
TRAINED, TUNED, CALIBRATED, VALIDATED = "trained on", "tuned by", "calibrated on", "validated on"
SAVED_ANEW = "made with, saved anew, resized or turned"
USED = (TRAINED, TUNED, CALIBRATED, SAVED_ANEW)  # a score of these images promises too much
USES = (*USED, VALIDATED)
NEW = "new"
# Bytes of a digest in a model's file: among a million images, a new one is taken for one of them
# once in 280 million times.
PREFIX_BYTES = 6
# Up to so many images are listed in a model's file, in 3 MB; of more, it has the numbers alone.
MOST_LISTED = 100_000

_PREFIX = f"S{2 * PREFIX_BYTES}"
_LOOKS = "looks"


@dataclass(frozen=True, eq=False)
class SeenImages:
    """The images that a model was made with, by the use that was made of them.

    Attributes:
        digests: For each of `USES`, the digests of its images, see `IndexedSplit.digests`, as
            arrays of hexadecimal digits, cut to `PREFIX_BYTES`.
        counts: How many images each use had; above the number of digests where not all are listed.
        looks: Those of the images that a score must not count, uint64 `(images, 2)`, see
            `keras_vit.data.image_looks`; none where they are not known.

    >>> seen = SeenImages.of({"trained on": np.array([b"a1" * 16]), "validated on": None})
    >>> seen.uses(np.array([b"a1" * 16, b"c3" * 16])).tolist()
    ['trained on', 'new']
    """

    digests: Mapping[str, np.ndarray] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    looks: np.ndarray = field(default_factory=lambda: np.zeros((0, WORDS), np.uint64))

    @classmethod
    def of(cls, digests: Mapping[str, np.ndarray | None], looks: Sequence[np.ndarray] = ()) -> Self:
        """Make it from the images' digests by use, None for a use that no image had, and looks."""
        known = {use: np.unique(d.astype(_PREFIX)) for use, d in digests.items() if d is not None}
        known = {use: d for use, d in known.items() if len(d)}
        rows = np.concatenate([np.zeros((0, WORDS), np.uint64), *looks])
        rows = np.unique(rows[rows.any(-1)], axis=0)
        return cls(known, {use: len(d) for use, d in known.items()}, rows)

    @property
    def used(self) -> int:
        """The number of images that a score must not count."""
        return sum(self.counts.get(use, 0) for use in USED)

    @property
    def is_listed(self) -> bool:
        """Whether all of them are known by their digests."""
        return sum(len(self.digests.get(use, ())) for use in USED) >= self.used

    def uses(self, digests: np.ndarray) -> np.ndarray:
        """Return each image's use by its digest, one of `USES` or `"new"`: str `(images,)`."""
        uses = np.full(len(digests), NEW, object)
        for use in reversed(USES):
            if use in self.digests:
                uses[np.isin(digests.astype(_PREFIX), self.digests[use])] = use
        return uses

    def uses_of(self, split: IndexedSplit) -> np.ndarray:
        """Return each image's use by its digest, and of those that are new by what they look like.

        Those of the second kind are `SAVED_ANEW`.
        """
        uses = self.uses(split.digests())
        if len(self.looks) and len(new := np.flatnonzero(uses == NEW)):
            uses[new[looks_like(split.take(new).looks(), self.looks)]] = SAVED_ANEW
        return uses

    def used_among(self, digests: np.ndarray) -> int:
        """Return how many of the images with these digests a score must not count."""
        return int(np.isin(self.uses(digests), USED).sum())

    def uncalibrated(self) -> SeenImages:
        """Return them with those that only set thresholds as images that were looked at."""
        digests, counts = {**self.digests}, {**self.counts}
        moved = digests.pop(CALIBRATED, None)
        counts.pop(CALIBRATED, None)
        return SeenImages(digests, counts, self.looks) | SeenImages.of({VALIDATED: moved})

    def __or__(self, other: SeenImages | None) -> SeenImages:
        """Return the images of both; where both list one, its stronger use counts."""
        if other is None:
            return self
        parts = {use: [s.digests[use] for s in (self, other) if use in s.digests] for use in USES}
        digests = {use: np.concatenate(p) for use, p in parts.items() if p}
        both = SeenImages.of(digests, (self.looks, other.looks))
        if self.is_listed and other.is_listed:
            return both
        sums = {use: self.counts.get(use, 0) + other.counts.get(use, 0) for use in USES}
        counts = {use: count for use, count in sums.items() if count}
        return SeenImages(both.digests, counts, both.looks)

    def to_dict(self, most: int = MOST_LISTED) -> dict[str, Any]:
        """Return, as JSON accepts them, the number of images per use, and in base 64 their digests.

        And the looks. Of more than so many images, the numbers alone.
        """
        is_short = sum(map(len, self.digests.values())) <= most
        looks = base64.b64encode(self.looks.astype("<u8").tobytes()).decode()
        of_looks = {_LOOKS: looks} if is_short and looks else {}
        return of_looks | {
            use: {"count": count, "digests": _packed(self.digests[use])}
            if is_short and use in self.digests
            else {"count": count}
            for use, count in self.counts.items()
        }

    @classmethod
    def from_dict(cls, values: Any) -> SeenImages | None:
        """Return what `to_dict` returned; None for anything else, as in a damaged file."""
        with suppress(TypeError, ValueError, KeyError, AttributeError):
            uses = {use: dict(values[use]) for use in USES if use in values}
            digests = {u: _unpacked(one["digests"]) for u, one in uses.items() if "digests" in one}
            counts = {use: int(one["count"]) for use, one in uses.items()}
            if uses and all(count >= 0 for count in counts.values()):
                looks = np.frombuffer(base64.b64decode(values.get(_LOOKS, "")), "<u8")
                return cls(digests, counts, looks.astype(np.uint64).reshape(-1, WORDS))
        return None


def _packed(digests: np.ndarray) -> str:
    return base64.b64encode(bytes.fromhex(b"".join(digests.tolist()).decode("ascii"))).decode()


def _unpacked(text: str) -> np.ndarray:
    digits, width = base64.b64decode(text, validate=True).hex(), 2 * PREFIX_BYTES
    if len(digits) % width:
        raise ValueError("a digest is cut off")
    parts = [digits[i : i + width] for i in range(0, len(digits), width)]
    return np.array(parts, _PREFIX)


def described(uses: Collection[str] | np.ndarray) -> str:
    """Return how many images each use had, in words: "60 that the model was validated on, 13 new".

    >>> described(["new", "validated on", "new"])
    '1 that the model was validated on, 2 new'
    """
    names, counts = np.unique(np.asarray(uses, str), return_counts=True)
    number = dict(zip(names.tolist(), counts.tolist(), strict=True))
    clauses = [f"{number[use]:,} that the model was {use}" for use in USES if use in number]
    return ", ".join([*clauses, *([f"{number[NEW]:,} new"] if NEW in number else [])])


def none_left(uses: np.ndarray, source: object) -> ValueError:
    """Return the error of a score for which no image is left."""
    return ValueError(
        f"None of the {counted(len(uses), 'image')} of {source} can be scored: {described(uses)}. "
        "A score of images that a model was made with says nothing about others: give images that "
        "it has not seen."
    )
