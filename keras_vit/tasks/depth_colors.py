"""Depths as colors: matplotlib's viridis, from dark and near to bright and far."""

import numpy as np

# viridis at 17 equal steps (van der Walt and Smith 2015); between them it is nearly linear.
VIRIDIS = np.array(
    [
        *([68, 1, 84], [72, 24, 106], [71, 45, 123], [66, 64, 134], [59, 82, 139], [51, 99, 141]),
        *([44, 114, 142], [38, 130, 142], [33, 145, 140], [31, 159, 136], [39, 173, 129]),
        *([61, 188, 116], [92, 200, 99], [129, 211, 77], [170, 220, 50], [213, 226, 26]),
        [253, 231, 37],
    ]
)
UNMEASURED = 255  # white
_SHARES = (2, 98)  # percentiles of the first and the last color


def depth_range(depths: np.ndarray) -> tuple[float, float]:
    """Return the depths of the first and the last color, percentiles of those that are measured.

    >>> depth_range(np.array([[0.0, 1.0], [2.0, 3.0]]))
    (1.04, 2.96)
    """
    measured = depths[depths > 0]
    if not measured.size:
        return 0.0, 1.0
    low, high = np.percentile(measured, _SHARES)
    return float(low), float(high)


def depth_colors(depths: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the color of each depth, uint8 `(height, width, 3)`; white where there is none.

    >>> depth_colors(np.array([[0.0, 1.0, 3.0]]), 1, 3)[0].tolist()
    [[255, 255, 255], [68, 1, 84], [253, 231, 37]]
    """
    places = np.clip((depths - low) / max(high - low, 1e-12), 0, 1) * (len(VIRIDIS) - 1)
    steps = np.arange(len(VIRIDIS))
    colors = np.stack([np.interp(places, steps, column) for column in VIRIDIS.T], axis=-1)
    return np.where((depths > 0)[..., None], np.rint(colors), UNMEASURED).astype(np.uint8)
