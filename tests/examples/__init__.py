"""The scripts in `examples/`, which import each other from the folder they are in."""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

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
