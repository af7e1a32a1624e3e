"""Files that training writes appear whole or not at all."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.training.callback_state import continue_logs
from keras_vit.training.callbacks import BestModel, HistoryLog
from keras_vit.training.state_file import write_state
from tests.training.common import QUICK

X = np.zeros((4, 3))


def trained(*callbacks: keras.callbacks.Callback, epochs: int = 1) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **QUICK)
    model.fit(X, X[:, :1], epochs=epochs, verbose=0, callbacks=list(callbacks))
    return model


def shorten_log(path: Path) -> None:
    continue_logs([HistoryLog(path)], epoch=1)


# Which file each of them writes.
WRITES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "history": ("history.csv", lambda path: trained(HistoryLog(path))),
    "best model": ("best.keras", lambda path: trained(BestModel(path, "loss"))),
    "continued log": ("history.csv", shorten_log),
    "state": ("state.safetensors", lambda path: write_state(path, {"a": np.arange(4)}, {})),
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
    assert not list(tmp_path.glob(".*"))  # no temporary file
    write(path)
    assert path.read_bytes() != before


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
