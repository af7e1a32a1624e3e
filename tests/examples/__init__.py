"""The scripts in `examples/`, which import each other from the folder they are in."""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

from tests.conftest import REPOSITORY

EXAMPLES = str(REPOSITORY / "examples")
Run = Callable[..., str]  # of the fixture `run_example`


def load_example(name: str) -> ModuleType:
    """A script of the folder as a module, or a skipped test where matplotlib is missing."""
    pytest.importorskip("matplotlib")
    if EXAMPLES not in sys.path:
        sys.path.append(EXAMPLES)
    return importlib.import_module(name)


def plotted(plot: Callable[..., None], *arguments: Any) -> Any:
    """The figure that a function writes: narrow, with letters of 9 points, as a phone needs it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    with patch.object(Figure, "savefig", autospec=True, side_effect=Figure.savefig) as save:
        plot(*arguments)
    figure = save.call_args_list[0].args[0]
    FigureCanvasAgg(figure).draw()  # gives every part its place
    assert figure.get_figwidth() <= 5.5
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 9
    return figure
