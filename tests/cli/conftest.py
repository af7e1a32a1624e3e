"""Fixtures that call `keras-vit` in this process."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import keras_vit
from keras_vit.training import recipes
from keras_vit_cli import commands
from tests.quick_tensorflow import without_graphs


class Command:
    """`keras-vit` in this process; `error` is what the last call wrote to standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.error = capsys, ""

    def __call__(self, words: Any, *more: object, status: int = 0) -> str:
        """Checks the status; returns what was printed, or the error of 2. `more` holds spaces."""
        self._capsys.readouterr()
        actual = commands.main([*words.split(), *map(str, more)])
        printed, self.error = self._capsys.readouterr()
        assert actual == status, printed + self.error
        if status != 2:
            return printed
        assert "Traceback" not in self.error
        lines = [line for line in self.error.splitlines() if not line.startswith("  ")]
        assert lines[-1].startswith("keras-vit: ")  # and further lines of it are indented
        return self.error


@pytest.fixture(autouse=True)
def _without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what a module shares, as the training of `test_cli.py`."""
    without_graphs(monkeypatch)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is empty, and where downloads would be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def inside(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("KERAS_HOME", str(home / "cache"))


@pytest.fixture(scope="module")
def small_recipe() -> Iterator[None]:
    """One block instead of many: what is tested is what the commands make of their arguments."""
    recipe = recipes.get("from_scratch_tiny")
    small = {**recipe.model, "hidden_dim": 32, "mlp_dim": 64, "depth": 1, "num_heads": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(recipes.RECIPES, "from_scratch_tiny", replace(recipe, model=small))
        yield


@pytest.fixture
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SavedModel takes a third of a short training; others have one."""
    monkeypatch.setattr(keras_vit, "export", lambda *_, **__: None)
