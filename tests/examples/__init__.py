"""The scripts in `examples/`, which import each other from the folder they are in."""

import importlib
import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.conftest import REPOSITORY

EXAMPLES = str(REPOSITORY / "examples")


def load_example(name: str) -> ModuleType:
    """A script of the folder as a module, or a skipped test where matplotlib is missing."""
    pytest.importorskip("matplotlib")
    if EXAMPLES not in sys.path:
        sys.path.append(EXAMPLES)
    return importlib.import_module(name)


def recorded_train(
    jobs: list[Any], result: Callable[[Any], tuple[float, float]]
) -> Callable[[Any], Any]:
    """A `train` that appends its job to `jobs` and writes the report of a result.

    Args:
        result: Accuracy and calibration error of a job.
    """

    def train(job: Any) -> Any:
        jobs.append(job)
        accuracy, error = result(job)
        job.out.mkdir(parents=True, exist_ok=True)
        calibration = {"calibration": {"expected_calibration_error": error}}
        (job.out / "report.json").write_text(json.dumps(calibration))
        return SimpleNamespace(accuracy=accuracy)

    return train
