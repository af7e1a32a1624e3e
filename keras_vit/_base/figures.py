"""Figures of matplotlib, where it is installed."""

from typing import Any

from keras_vit._base.version import install_command


def new_figure(width: float, height: float, dpi: int = 120) -> Any:
    """Return a matplotlib Figure that pyplot does not know: no window, and no global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Plots need matplotlib: {install_command('plots')}", name="matplotlib"
        ) from error
    return Figure(figsize=(width, height), layout="constrained", dpi=dpi)
