"""Colors of classes: those of a palette, or a table that color-blind readers can use."""

from collections.abc import Sequence

import numpy as np

# Okabe and Ito (2008), "Color Universal Design": black, orange, sky blue, bluish green, yellow,
# blue, vermillion, reddish purple.
OKABE_ITO = np.array(
    [
        *([0, 0, 0], [230, 159, 0], [86, 180, 233], [0, 158, 115]),
        *([240, 228, 66], [0, 114, 178], [213, 94, 0], [204, 121, 167]),
    ]
)
UNKNOWN = (255, 255, 255)  # of pixels without a class
_APART = 16  # levels in a channel, below which two colors look alike

Color = tuple[int, int, int]


def color_table(colors: Sequence[Color] = ()) -> np.ndarray:
    """Return a color for each number of a class, uint8 `(256, 3)`; the last is of unknown pixels.

    Args:
        colors: Of the first classes. Others have Okabe and Ito's eight, and from the ninth on
            again, lighter or darker.

    >>> color_table([(1, 2, 3)])[[0, 1, 8]].tolist()
    [[1, 2, 3], [230, 159, 0], [242, 207, 127]]
    """
    turn, hue = np.divmod(np.arange(255 - len(OKABE_ITO)), len(OKABE_ITO) - 1)  # without black
    toward = np.where(turn % 2, 0, 255)[:, None]
    part = 1 - 1 / (2 + turn // 2)
    others = OKABE_ITO[1 + hue]
    table = np.vstack([OKABE_ITO, others + (toward - others) * part[:, None], [UNKNOWN]])
    if len(colors):
        table[: len(colors)] = colors
    return table.astype(np.uint8)


def distinct_colors(palette: Sequence[int], size: int) -> tuple[Color, ...]:
    """Return the first colors of an image's palette, or () where two of them look alike.

    >>> distinct_colors([0, 0, 0, 200, 0, 0], 2), distinct_colors([0, 0, 0, 1, 1, 1], 2)
    (((0, 0, 0), (200, 0, 0)), ())
    """
    colors = np.reshape(palette[: 3 * size], (-1, 3)).astype(int)
    apart = np.abs(colors[:, None] - colors).max(axis=-1) >= _APART
    if len(colors) < size or not (apart | np.eye(len(colors), dtype=bool)).all():
        return ()
    return tuple((int(r), int(g), int(b)) for r, g, b in colors)
