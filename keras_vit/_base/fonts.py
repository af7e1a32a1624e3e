"""Fonts of names in plots: class and file names may be in any script."""

import functools
import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

# Families with many scripts, on Linux, macOS and Windows; any other installed font comes after.
PREFERRED = (
    "Noto Sans CJK",
    "Noto Sans",
    "Source Han Sans",
    "WenQuanYi",
    "IPA",
    "Droid Sans Fallback",
    "Hiragino",
    "PingFang",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Arial Unicode MS",
)
# It has a box for every character, and the text of none.
LAST_RESORT = "Last Resort"
NORMAL_WEIGHT = 400
_MISSING = r"Glyph .* missing from"  # how matplotlib's warnings begin


def families_for(names: Iterable[str]) -> list[str]:
    """Font families that together have the characters of some names, matplotlib's default first.

    A character that no installed font has is drawn as a box; a warning names it, once.

    Example:

    >>> from keras_vit._base.fonts import families_for
    >>> families_for(["daisy", "Gänseblümchen"])
    ['DejaVu Sans']
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font

    default = findfont(FontProperties())
    families = [get_font(default).family_name]
    missing = set("".join(names)) - _characters(default)
    for family, path in _installed() if missing else ():
        if added := missing & _characters(path):
            families.append(family)
            missing -= added
        if not missing:
            break
    if missing:
        _warn_of("".join(sorted(missing)))
    return families


@contextmanager
def without_glyph_warnings() -> Iterator[None]:
    """Hides what matplotlib reports about fonts while it draws names.

    That is a warning per box, of which `families_for` gave one for all, and a line in the log per
    font of a script that does not come in a normal or a bold weight.
    """
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _MISSING)
            yield
    finally:
        log.setLevel(level)


@functools.cache
def _installed() -> tuple[tuple[str, str], ...]:
    """Family and file of the upright fonts, the preferred ones first, then by weight."""
    from matplotlib.font_manager import findSystemFonts, fontManager, weight_dict

    # matplotlib's list is that of the day when it was first imported: fonts may have come since.
    for path in set(findSystemFonts()) - {font.fname for font in fontManager.ttflist}:
        with suppress(OSError, RuntimeError):
            fontManager.addfont(path)

    def rank(font: Any) -> tuple[int, int]:
        matches = (i for i, name in enumerate(PREFERRED) if font.name.startswith(name))
        weight = weight_dict.get(font.weight, font.weight)
        return next(matches, len(PREFERRED)), abs(weight - NORMAL_WEIGHT)

    fonts = [
        font
        for font in fontManager.ttflist
        if font.style == "normal" and not font.name.startswith(LAST_RESORT)
    ]
    return tuple(dict.fromkeys((font.name, font.fname) for font in sorted(fonts, key=rank)))


@functools.cache
def _characters(path: str) -> frozenset[str]:
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError):  # removed, or a format that FreeType does not read
        return frozenset()


@functools.cache  # a run has several plots of the same names
def _warn_of(missing: str) -> None:
    warnings.warn(
        f"No installed font has {missing!r}: plots show boxes in their place. Install one that "
        "does, such as Noto Sans CJK for Chinese, Japanese and Korean.",
        stacklevel=4,
    )
