"""On which backends a test runs, and in which command: one table for the whole suite."""

from collections import Counter
from collections.abc import Iterable

import keras
import pytest

BACKENDS = ("tensorflow", "jax", "torch")
# Where the tests of a folder or file run that run once; the longest beginning counts. Torch builds
# and calls small models fastest; what reads with tf.data or writes SavedModels is TensorFlow's.
HOMES = {
    "": "torch",
    "keras_vit/": "tensorflow",
    "keras_vit_cli/": "tensorflow",
    "tests/cli/": "tensorflow",
    "tests/data/": "tensorflow",
    "tests/docs/": "jax",
    "tests/examples/": "tensorflow",
    "tests/export/": "tensorflow",
    "tests/distribution/": "jax",
    "tests/test_faults.py": "tensorflow",
    "tests/test_output_folder.py": "tensorflow",
}
# Whose tests run in `make test-all` alone, as those marked `thorough` and those with a browser.
THOROUGH = ("tests/docs/", "tests/examples/", "tests/test_benchmark")


def is_thorough(item: pytest.Item) -> bool:
    return item.nodeid.startswith(THOROUGH) or "browser" in getattr(item, "fixturenames", ())


def backends_of(item: pytest.Item) -> tuple[str, ...]:
    """The backends on which a test runs: those of its mark, or the home of its file."""
    if item.get_closest_marker("every_backend"):
        return BACKENDS
    if mark := item.get_closest_marker("backends"):
        if not mark.args or not set(mark.args) <= set(BACKENDS):
            raise pytest.UsageError(
                f"{item.nodeid}: backends{mark.args}: name some of {', '.join(BACKENDS)}"
            )
        return tuple(mark.args)
    return (HOMES[max((h for h in HOMES if item.nodeid.startswith(h)), key=len)],)


def counts(items: Iterable[pytest.Item]) -> Counter[tuple[str, ...]]:
    """How many tests run on which backends."""
    return Counter(map(backends_of, items))


COUNTS = pytest.StashKey[tuple[Counter[tuple[str, ...]], set[str]]]()  # and the files of the tests


def of_this_backend(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that run on the backend of this process, and the others."""
    here: list[pytest.Item] = []
    elsewhere: list[pytest.Item] = []
    for item in items:
        (here if keras.backend.backend() in backends_of(item) else elsewhere).append(item)
    return here, elsewhere
