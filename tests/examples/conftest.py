"""Runs an example as its command does."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def run_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Calls `main` of a module with these words, and returns what it printed."""

    def run(script: Any, *words: Any) -> str:
        monkeypatch.setattr("sys.argv", [f"{script.__name__}.py", *map(str, words)])
        script.main()
        return capsys.readouterr().out

    return run
