"""Answers that are others in a mirror image, known by their names: left and right, x, an angle."""

import re
from collections.abc import Sequence

# Words that change places, whole or in a longer word, in lower case.
_SIDES = (
    *(("left", "right"), ("links", "rechts"), ("gauche", "droite"), ("izquierd", "derech")),
    *(("sinistr", "destr"), ("esquerd", "direit"), ("左", "右")),
    *(("anticlockwise", "clockwise"), ("counterclockwise", "clockwise")),
)
_SHORT = (("l", "r"), ("lh", "rh"), ("os", "od"), ("ccw", "cw"))  # words of their own alone
_MOST = 1000  # beyond, a pair such as left-hander and right-hander is not what it is about
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])|[\W_]+")
# Of numbers: places in the image, also cut by crops, and directions.
_PLACES = re.compile(r"[xyuv]\d*|[cd]?[xy](min|max|center|\d)?|(min|max)[xy]|(eye|nose|corner)[xy]")
_DIRECTIONS = re.compile(
    r"angle|yaw|roll|pan|azimuth|heading|bearing|steering|direction|orientation|rotation|tilt"
)


def swapped_in_mirror(names: Sequence[str]) -> str:
    """Return which names of classes are each other's in a mirror image; "" where none are.

    >>> swapped_in_mirror(["turn left", "turn right", "stop"]), swapped_in_mirror(["l", "m"])
    ("'turn right' for 'turn left'", '')
    """
    if len(names) > _MOST:
        return ""
    words = {tuple(_words(name)): name for name in names}
    whole = {name.lower(): name for name in names}
    for one, other in (*_SIDES, *_SHORT):
        for key, name in words.items():
            if (one, other) in _SIDES:
                same = whole.get(name.lower().replace(one, other))
            else:
                same = words.get(tuple(other if word == one else word for word in key))
            if same is not None and same != name:
                return f"{same!r} for {name!r}"
    return ""


def moved_in_mirror(names: Sequence[str]) -> str:
    """Return which name of a number is of a place or a direction in the image; "" where none is.

    >>> moved_in_mirror(["eye_x", "eye_y"]), moved_in_mirror(["steering angle"])
    ("another 'eye_x'", "another 'steering angle'")
    >>> moved_in_mirror(["weight", "y"])
    ''
    """
    places = [name for name in names if any(map(_PLACES.fullmatch, _words(name)))]
    angles = [name for name in names if any(map(_DIRECTIONS.fullmatch, _words(name)))]
    # A number that is called y alone may be anything.
    moved = angles + (places if len(places) > 1 else [])
    return f"another {moved[0]!r}" if moved else ""


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.split(name) if word]
