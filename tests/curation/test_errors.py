"""What does not fit is refused by every function, with the value and what would be accepted."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keras_vit import curation
from tests.curation.photos import in_memory, no_hashes

X = np.random.default_rng(0).normal(size=(20, 16)).astype("float32")
Y = np.arange(20) % 4
FEW_LABELS = "two classes or more with two labeled images each"
ONE, TWO = np.ones((4, 1)), np.ones((4, 2))


def duplicates(measured: int = 20, **options: Any) -> None:
    curation.find_duplicates(in_memory(X), no_hashes(measured), **options)


@pytest.mark.parametrize(("words", "call"), [
    (r"\(5, 1\) do not match 4 rows", lambda: curation.ridge_answers(TWO, np.ones((5, 1)))),
    ("at least 3", lambda: curation.ridge_answers(np.ones((2, 2)), np.ones((2, 1)))),
    ("An answer is NaN", lambda: curation.ridge_answers(TWO, ONE * np.nan)),
    ("A feature is NaN or infinite", lambda: curation.ridge_answers(np.full((4, 2), np.inf), ONE)),
    ("above 0", lambda: curation.ridge_answers(TWO, ONE, [0.0])),
    ("temperature=0 must be greater", lambda: curation.neighbors_answers(ONE, ONE, temperature=0)),
    ("2 images are not enough for clusters: give 3", lambda: curation.find_clusters(np.eye(2), 3)),
    (r"similar=1.5 is not a cosine", lambda: duplicates(similar=1.5)),
    ("closeness=2", lambda: duplicates(closeness=2)),
    ("2 measures do not fit 20 photographs", lambda: duplicates(2)),
    ("do not fit 20 rows", lambda: curation.find_label_errors(X, Y[:5])),
    (FEW_LABELS, lambda: curation.find_label_errors(X, np.zeros(20, int))),
    ("Groups of shape", lambda: curation.find_label_errors(X, Y, [0])),
    ("do not match", lambda: curation.label_quality(Y, np.ones((20, 1)))),
    ("are not classes of 0 to 1", lambda: curation.confident_errors(Y[2:3], np.ones((1, 2)))),
    ("2 numbers do not fit features of 16", lambda: curation.nearest_neighbors(X, np.ones((1, 2)))),
    ("NaN or infinite", lambda: curation.nearest_neighbors(X, np.full((1, 16), np.nan))),
    ("are not rows", lambda: curation.nearest_neighbors(X, np.ones(16))),
])  # fmt: skip
def test_what_does_not_fit_is_refused(words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=words):
        call()
