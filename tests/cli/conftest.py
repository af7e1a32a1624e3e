"""What commands of tests train and write."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import keras_vit
from keras_vit.training import recipes
from tests.quick_tensorflow import without_graphs


@pytest.fixture(autouse=True)
def _without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what a module shares, as the training of `test_tasks.py`."""
    without_graphs(monkeypatch)


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
