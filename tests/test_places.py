"""Nothing is written through a link, into a pipe or over a folder; a full disk names the file."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit import export, save_weights
from keras_vit._base.files import atomic_write, write_bytes
from keras_vit._base.manifest import write_manifest
from keras_vit.curation.kept_measures import KeptMeasures
from keras_vit.data.sources.cached_files import _write_one
from keras_vit.tasks import Classification
from keras_vit.training.callbacks import BestModel, HistoryLog
from keras_vit.training.state_file import write_state
from keras_vit_cli.exit_status import ended_by_sigterm
from keras_vit_cli.predict.answer_files import answered, line_writer, parquet_writer
from keras_vit_cli.predict.schema import Schema
from keras_vit_cli.report.run_plots import draw_curves, save_figure
from keras_vit_cli.search.result_page import write_result_page
from keras_vit_cli.search.result_table import write_csv
from tests import bank
from tests.faults import limited_files

SCHEMA = Schema(Classification(("cat", "dog")), 1)
ROW = SCHEMA.row("a.jpg", np.ones(2))


def write_lines(path: Path) -> None:
    format = path.suffix[1:]
    earlier = answered(path, format, SCHEMA) if path.stem == "resumed" else None
    with line_writer(path, format, SCHEMA, earlier and earlier.end) as write:
        write([ROW])


def write_parquet(path: Path) -> None:
    with parquet_writer(path, SCHEMA) as write:
        write([ROW])


def end_epoch(callback: keras.callbacks.Callback) -> None:
    callback.set_model(bank.tiny())
    callback.on_train_begin()
    callback.on_epoch_end(0, {"val_loss": 1.0})


WRITERS: dict[str, Callable[[Path], object]] = {
    "SHA256SUMS": lambda path: write_manifest(path.parent, "run", complete=False),
    "answers.csv": write_lines,
    "answers.parquet": write_parquet,
    "best.keras": lambda path: end_epoch(BestModel(path)),
    "curves.png": lambda path: save_figure(draw_curves({"loss": [1.0]}), path),
    "history.csv": lambda path: end_epoch(HistoryLog(path)),
    "kept.bmp": lambda path: _write_one(np.zeros((60, 60, 3), np.uint8), path, 60),
    "m.keras": lambda path: save_weights(bank.tiny(), path),
    "m.npz": lambda path: save_weights(bank.tiny(), path, "google"),
    "m.pte": lambda path: export(bank.tiny(), path, "executorch", overwrite=True),
    "m.pt2": lambda path: export(bank.tiny(), path, "torch", overwrite=True),
    "m.safetensors": lambda path: save_weights(bank.tiny(), path, "timm"),
    "measures.bin": lambda path: KeptMeasures(path.parent),
    "page.html": lambda path: write_result_page(path, "", "", [], {}),
    "resumed.jsonl": write_lines,
    "step.safetensors": lambda path: write_state(path, {"a": np.zeros(9999)}, {}),
    "table.csv": lambda path: write_csv(path, ["file"], [["a.jpg"]] * 999),
}
OBSTACLES: tuple[Callable[[Path], object], ...] = (
    lambda path: path.symlink_to("../mine"),
    lambda path: path.symlink_to("../nowhere"),
    os.mkfifo,
    Path.mkdir,
)


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_no_file_is_not_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("my only copy")
    for number, make in enumerate(OBSTACLES):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        make(path)
        with pytest.raises((OSError, ValueError), match=name):
            WRITERS[name](path)
        assert os.listdir(path.parent) == [name]
    assert (tmp_path / "mine").read_text() == "my only copy"
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(OSError, match=name), limited_files(2):
        WRITERS[name](tmp_path / name)
    assert not list(tmp_path.glob(".*"))


def test_what_others_wrote_stays_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "measures.bin"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"measures\.bin was not written by"):
        KeptMeasures(tmp_path)
    overtaken = pytest.raises(FileExistsError, match=r"not replaced: what was written is in .*bin")
    with overtaken, atomic_write(path, new=True) as temporary:
        temporary.write_text("new")
    with pytest.raises(SystemExit), ended_by_sigterm(), atomic_write(tmp_path / "a.bin"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert not list(tmp_path.glob(".*"))
    assert sorted(file.read_text() for file in tmp_path.glob("*.bin")) == ["mine", "new"]


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda *a: (calls.append("fsync"), fsync(*a)))
    monkeypatch.setattr(os, "replace", lambda *a: (calls.append("replace"), replace(*a)))
    write_bytes(tmp_path / "a.bin", b"new")
    assert calls == ["fsync", "replace", "fsync"]  # the file, and its name
