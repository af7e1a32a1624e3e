"""Names that are too wide for their place, shortened so that they still differ."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from keras_vit._base.errors import printable
from keras_vit._base.fonts import without_glyph_warnings

CONTEXT = 3  # letters before the first difference of two names
LONGEST = 500  # letters of a name that are considered

Fits = Callable[[str], bool]


def fits_in(points: float, font: Mapping[str, Any], before: str = "", after: str = "") -> Fits:
    """Return whether a name between two texts is at most so many points wide."""
    return lambda name: text_width(before + name + after, font) <= points


def shorten(name: str, fits: Fits) -> str:
    """Return a printable name, without its middle where that does not fit.

    The end of a file's name distinguishes it as often as its beginning does.

    >>> shorten("IMG_2019_05_03_in_the_garden_0042.jpg", lambda text: len(text) <= 17)
    'IMG_2019…0042.jpg'
    """
    name = printable(name)
    if len(name) <= LONGEST and fits(name):
        return name

    def cut(letters: int) -> str:
        return f"{name[: -(-letters // 2)]}…{name[len(name) - letters // 2 :]}"

    low, high = 2, min(len(name) - 1, LONGEST)
    while low < high:
        middle = -(-(low + high) // 2)
        low, high = (middle, high) if fits(cut(middle)) else (low, middle - 1)
    return cut(low)


def shorten_apart(names: Sequence[str], fits: Sequence[Fits]) -> list[str]:
    """Shorten names as `shorten`, but show those that would look alike from where they differ.

    >>> names = [f"Canis_lupus_familiaris_{color}_from_above" for color in ("brown", "black")]
    >>> shorten_apart(names, 2 * [lambda text: len(text) <= 16])
    ['Can…s_brown_fro…', 'Can…s_black_fro…']
    """
    names = [printable(name) for name in names]
    in_place = cache(shorten)  # of another name, too: what it would look like in this one's place
    shown = list(map(in_place, names, fits))
    for choose in (min, max):  # the first difference shows the others as well where there is room
        again = list(shown)
        for i, name in enumerate(names):
            alike = [
                _first_difference(name, other)
                for other in names
                if other != name and in_place(other, fits[i]) == shown[i]
            ]
            if alike:
                again[i] = _from_difference(name, choose(alike), fits[i])
        if len(set(again)) == len(set(names)):
            break
    return again


def _first_difference(name: str, other: str) -> int:
    pairs = enumerate(zip(name, other, strict=False))
    shorter = min(len(name), len(other))
    return next((i for i, (a, b) in pairs if a != b), shorter)


def _from_difference(name: str, difference: int, fits: Fits) -> str:
    """Return the first letters of a name and, after a gap, where it differs from another."""
    start = max(difference - CONTEXT, CONTEXT)
    gap = "…" if start > CONTEXT else ""
    shown = f"{name[:CONTEXT]}{gap}{name[start:]}"[:LONGEST]
    if fits(shown):
        return shown
    while len(shown) > 2 * CONTEXT and not fits(shown + "…"):
        shown = shown[:-1]
    return shown + "…"


def text_width(text: str, font: Mapping[str, Any]) -> float:
    """Return the width of a line in points."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    with without_glyph_warnings():
        points = RendererAgg(1, 1, 72)
        return points.get_text_width_height_descent(text, FontProperties(**font), False)[0]
