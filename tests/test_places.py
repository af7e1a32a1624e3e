"""Nothing is written through a link, into a pipe or over a folder; a full disk names the file."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from keras_vit import save_weights
from keras_vit._base.files import atomic_write
from keras_vit._base.manifest import write_manifest
from keras_vit.curation.kept_measures import KeptMeasures
from keras_vit.data.sources.cached_files import _write_one
from keras_vit.training.state_file import write_state
from keras_vit_cli.exit_status import ended_by_sigterm
from keras_vit_cli.search.result_table import write_csv
from tests import bank

WRITERS: dict[str, Callable[[Path], object]] = {
    "SHA256SUMS": lambda path: write_manifest(path.parent, "run", complete=False),
    "kept.bmp": lambda path: _write_one(np.zeros((60, 60, 3), np.uint8), path, 60),
    "m.keras": lambda path: save_weights(bank.tiny(), path),
    "m.npz": lambda path: save_weights(bank.tiny(), path, "google"),
    "measures.bin": lambda path: KeptMeasures(path.parent),
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
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, limits[1]))  # a full disk
    try:
        with pytest.raises(OSError, match=name):
            WRITERS[name](tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
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
