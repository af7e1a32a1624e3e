"""Names that are too wide for their place, shortened so that they still differ."""

from collections.abc import Callable, Mapping, Sequence
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
    return _without_middle(printable(name), fits)[0]


def shorten_apart(names: Sequence[str], fits: Sequence[Fits]) -> list[str]:
    """Shorten names as `shorten`, but show those that would look alike from where they differ.

    >>> names = [f"Canis_lupus_familiaris_{color}_from_above" for color in ("brown", "black")]
    >>> shorten_apart(names, 2 * [lambda text: len(text) <= 16])
    ['Can…s_brown_fro…', 'Can…s_black_fro…']
    """
    names = [printable(name) for name in names]
    cuts = [_without_middle(name, fit) for name, fit in zip(names, fits, strict=True)]
    shown = [text for text, *_ in cuts]
    for choose in (min, max):  # the first difference shows the others as well where there is room
        again = list(shown)
        for i, (_, head, tail) in enumerate(cuts):
            alike = [
                _first_difference(names[i], other)
                for j, other in enumerate(names)
                if other != names[i] and _looks_alike(names[i], other, head, tail, cuts[j])
            ]
            if alike:
                again[i] = _from_difference(names[i], choose(alike), fits[i])
        if len(set(again)) == len(set(names)):
            break
    return again


def _without_middle(name: str, fits: Fits) -> tuple[str, int, int]:
    """Return the name, and how many letters of its beginning and of its end are shown."""
    if len(name) <= LONGEST and fits(name):
        return name, len(name), len(name)

    def cut(letters: int) -> tuple[str, int, int]:
        head, tail = -(-letters // 2), letters // 2
        return f"{name[:head]}…{name[len(name) - tail :]}", head, tail

    low, high = 2, min(len(name) - 1, LONGEST)
    while low < high:
        middle = -(-(low + high) // 2)
        low, high = (middle, high) if fits(cut(middle)[0]) else (low, middle - 1)
    return cut(low)


def _looks_alike(
    name: str, other: str, head: int, tail: int, cut_of_other: tuple[str, int, int]
) -> bool:
    """Return whether the shown parts of two names are the same, as far as both are shown."""
    if head == len(name) or cut_of_other[1] == len(other):
        return False  # one of them is shown as it is
    head, tail = min(head, cut_of_other[1]), min(tail, cut_of_other[2])
    return name[:head] == other[:head] and name[len(name) - tail :] == other[len(other) - tail :]


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
