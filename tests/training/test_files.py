"""What training writes appears whole or not at all, and what others wrote stays."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training.callback_state import continue_logs
from keras_vit.training.callbacks import BestModel, HistoryLog
from keras_vit.training.results_table import ResultsTable
from keras_vit.training.study import Trial, run_study, study_parser, write_study

X = np.zeros((4, 3))
ROW = {"name": "ViT", "accuracy": 0.5, "identity": "0123456789ab"}


def trained(*callbacks: keras.callbacks.Callback, epochs: int = 1) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True, jit_compile=False)
    model.fit(X, X[:, :1], epochs=epochs, verbose=0, callbacks=list(callbacks))
    return model


def write_page(path: Path) -> None:
    options = study_parser("", "runs").parse_args(["--out", str(path.parent)])
    write_study(options, "new", lambda picture: picture.write_bytes(b"new") and None, "a plot")


def shorten_log(path: Path) -> None:
    continue_logs([HistoryLog(path)], epoch=1)


# Which file each of them writes.
WRITES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "history": ("history.csv", lambda path: trained(HistoryLog(path))),
    "best model": ("best.keras", lambda path: trained(BestModel(path, "loss"))),
    "continued log": ("history.csv", shorten_log),
    "page": ("table.md", write_page),
    "plot": ("table.png", write_page),
}


@pytest.mark.parametrize("case", WRITES)
def test_a_full_disk_leaves_the_file_that_was_there(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, write = WRITES[case]
    path = tmp_path / name
    path.write_bytes(b"epoch,loss\r\n0,1.0\r\n1,0.5\r\n")
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=f"No space left on device: .*{path.stem}"):
            write(path)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob(".*"))  # and nothing beside it
    write(path)
    assert path.read_bytes() != before


def test_a_row_that_does_not_fit_on_the_disk_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ResultsTable(tmp_path / "results.csv")
    table.append(ROW)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, line: write(file, line[:5]))
        with pytest.raises(OSError, match=r"No space left on device: .*results\.csv"):
            table.append({**ROW, "accuracy": 0.75})
    table.append({**ROW, "accuracy": 1.0})
    with pytest.warns(UserWarning, match="1 rows are cut off"):
        assert [row["accuracy"] for row in table.rows()] == [0.5, 1.0]


def test_the_best_model_is_that_of_the_best_epoch(tmp_path: Path) -> None:
    path = tmp_path / "best.keras"
    best = BestModel(path)
    model = trained()
    for epoch, (loss, bias) in enumerate([(0.7, 1.0), (0.5, 2.0), (0.6, 3.0)]):
        model.layers[0].bias.assign([bias])
        best.set_model(model)
        best.on_epoch_end(epoch, {"val_loss": loss})
    assert keras.saving.load_model(path).layers[0].get_weights()[1] == [2.0]
    assert [file.name for file in tmp_path.iterdir()] == ["best.keras"]


def test_history_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    trained(HistoryLog(path), epochs=3)
    log = HistoryLog(path)
    continue_logs([log], epoch=2)
    assert [line[:2] for line in path.read_text().splitlines()] == ["ep", "0,", "1,"]
    trained(log)
    assert [line[:2] for line in path.read_text().splitlines()] == ["ep", "0,", "1,", "0,"]


def test_a_study_deletes_its_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    recipe = keras_vit.recipes.get("digits").scaled(steps=2, batch_size=16)
    sizes = {"patch_size": 8, "hidden_dim": 8, "depth": 1, "num_heads": 1, "mlp_dim": 8}
    trial = Trial("smallest", "ViT", sizes, recipe, {})
    digits = keras_vit.data.load("digits")
    folder = tmp_path / "runs" / f"smallest-{trial.identity(digits)}" / "checkpoints"
    folder.mkdir(parents=True)
    for name in ("notes.txt", "step-000000001.txt"):
        (folder / name).write_text("mine")
    run_study([trial], digits, tmp_path, say=lambda line: None)
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "step-000000001.txt"]
