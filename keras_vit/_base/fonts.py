"""Characters that matplotlib's font does not have: one warning in place of one per character."""

import functools
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_MISSING = "Glyph .* missing from"  # how matplotlib's warnings begin


@contextmanager
def without_glyph_warnings() -> Iterator[None]:
    """Hides matplotlib's warning per character that it draws as a box; gives one, once, for all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _MISSING)
        yield
    others = [each for each in caught if not re.match(_MISSING, str(each.message))]
    for each in others:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if len(others) < len(caught):
        _warn()


@functools.cache  # a run has several plots of the same names
def _warn() -> None:
    warnings.warn(
        "matplotlib's font does not have all characters of the names: plots show boxes in their "
        "place. Set font.family in a file matplotlibrc to a font that does, such as Noto Sans CJK "
        "JP for Chinese, Japanese and Korean.",
        stacklevel=4,
    )
