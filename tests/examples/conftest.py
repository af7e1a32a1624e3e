"""Runs an example as its command does."""

from typing import Any

import pytest

from keras_vit import data
from tests.examples import Run


@pytest.fixture(scope="module")
def digits() -> data.Splits:
    return data.load("digits")


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls `main` of a module with these words and names replaced: what it prints."""

    def run(script: Any, *words: Any, **replaced: Any) -> str:
        for name, value in replaced.items():
            monkeypatch.setattr(script, name, value)
        monkeypatch.setattr("sys.argv", [f"{script.__name__}.py", *map(str, words)])
        script.main()
        return capsys.readouterr().out

    return run
