"""Whoever reads PNG files of 16 bits per channel is warned once, with their names and the fix."""

import warnings
from pathlib import Path

import pytest
from PIL import Image

from keras_vit.data import DataRangeWarning, load, read_image
from keras_vit.data.decode.bit_depth import has_sixteen_bits
from keras_vit.data.decode.image_files import sixteen_bit_files
from keras_vit.evaluation.prediction import predict_files
from keras_vit_cli import commands as cli
from keras_vit_cli import printing
from keras_vit_cli.inspect.inspect_files import inspect_files
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.run import load_splits
from tests import bank
from tests.data.image_fixtures import encode, plain, png_of_twelve_bits, write, write_examples

pytestmark = pytest.mark.backends("torch")  # the bytes of a file say it
DEEP, SHOWN = png_of_twelve_bits(), "keras-vit: warning: x"


def deep_warnings(call) -> list[str]:
    with warnings.catch_warnings(record=True, action="always") as caught:
        call()
    return [str(w.message) for w in caught if issubclass(w.category, DataRangeWarning)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of 8 bits, and five of the images with 16."""
    files = {f"{c}/{i}.png": plain(i) for c in "ab" for i in range(6)}
    return write(tmp_path / "data", files | {f"b/deep{i}.png": DEEP for i in range(5)})


def test_what_has_sixteen_bits(tmp_path: Path) -> None:
    black = Image.new("RGB", (4, 4))
    others = [encode(black.convert(mode), "PNG") for mode in ("1", "P", "RGBA")]
    assert not any(map(has_sixteen_bits, [*others, encode(black, "JPEG"), b"", DEEP[:24]]))
    # Files that cannot be read are left to their reader.
    write(tmp_path, {"a.png": DEEP, "b.jpg": DEEP, "c.PNG": DEEP[:9], "d/e.png": b""})
    files = [tmp_path / name for name in ("a.png", "b.jpg", "c.PNG", "d", "nowhere.png")]
    assert sixteen_bit_files(files) == [tmp_path / "a.png"]


@pytest.mark.parametrize("verify", [True, False])
def test_a_folder_is_one_warning(verify: bool, folder: Path) -> None:
    (message,) = deep_warnings(lambda: load(folder, verify=verify))
    deep = list(folder.glob("b/deep*"))
    assert sum(str(file) in message for file in deep) == 3
    for words in ("(5 of 17 looked at)", "the high 8 bits alone are read", "PIL.Image.fromarray"):
        assert words in message
    for file in deep:
        file.unlink()
    assert deep_warnings(lambda: load(folder, verify=verify)) == []


def test_records_are_one_warning(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    write_examples(tmp_path / "train.tfrecord", [(DEEP, 0), (DEEP, 1)] * 6, "image", "label")
    (tmp_path / "labels.txt").write_text("a\nb\n")
    (message,) = deep_warnings(lambda: load(f"records:{tmp_path}"))
    assert "train.tfrecord" in message


def test_files_that_are_trained_with_predicted_or_inspected(folder: Path, tmp_path: Path) -> None:
    job = Job(data=str(folder), out=folder / "run")
    assert len(deep_warnings(lambda: load_splits(job))) == 1  # a training hides it nowhere
    for kind, shown in ((UserWarning, "file.py:3: UserWarning: x"), (DataRangeWarning, SHOWN)):
        assert printing.format_warning(kind("x"), kind, "file.py", 3).startswith(shown)
    (message,) = deep_warnings(lambda: read_image(folder / "b" / "deep0.png", 16))
    assert message.startswith(f"{folder / 'b' / 'deep0.png'}: a PNG file of 16 bits")
    assert deep_warnings(lambda: read_image(folder / "b" / "0.png", 16)) == []
    pytest.importorskip("matplotlib")
    files, deep = (sorted(folder.glob(f"b/{names}")) for names in ("*.png", "deep*.png"))
    (message,) = deep_warnings(lambda: list(predict_files(bank.tiny(), files, batch_size=2)))
    assert "deep1.png (2 of 8 looked at)" in message
    (message,) = deep_warnings(lambda: inspect_files(bank.tiny(), deep, tmp_path / "out"))
    assert "(5 of 5 looked at)" in message


def test_the_commands(folder: Path, tmp_path: Path) -> None:
    bank.tiny().save(model := str(tmp_path / "model.keras"))
    photo = str(folder / "b/deep0.png")
    for words in (["predict", model, photo], ["evaluate", model, "--data", str(folder)]):
        messages = deep_warnings(lambda words=words: cli.main(words))
        assert len({message for message in messages if "16 bits" in message}) == 1
