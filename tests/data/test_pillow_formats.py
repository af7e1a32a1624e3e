"""Files of other formats: what Pillow reads, what is refused, and how the rest is converted."""

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from keras_vit.data import BadImageError, DataRangeWarning, load, pipeline, read_image
from keras_vit.data.decode.bit_depth import has_sixteen_bits
from keras_vit.data.decode.image_files import sixteen_bit_files
from keras_vit.data.decode.image_kinds import PILLOW_FORMATS
from keras_vit.data.decode.pillow import decode_with_pillow, missing_plugin
from keras_vit.evaluation.prediction import predict_files
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.run import load_splits
from tests import bank
from tests.backend import refused
from tests.data import image_fixtures
from tests.data.image_fixtures import encode, flat_folder, orientation, plain, write, write_examples
from tests.inspection.models import inspect_files

pytestmark = pytest.mark.backends("torch")  # Pillow alone reads them
RANDOM = np.random.default_rng(0)
PHOTO = Image.fromarray(RANDOM.integers(0, 256, (4, 6, 3), np.uint8)).resize((60, 40))
KINDS = [pytest.param(PILLOW_FORMATS[0], marks=pytest.mark.every_backend), *PILLOW_FORMATS[1:]]
DEEP = Image.fromarray(np.zeros((8, 8), np.uint16))
REFUSED = {
    "more than 8 bits per channel": lambda: encoded("TIFF", DEEP),
    r"more than 8 bits per channel \(mode RGB": lambda: colors_of_sixteen_bits(),
    "several pages": lambda: encoded("TIFF", save_all=True, append_images=[PHOTO]),
    "a raw camera file": lambda: encoded("TIFF", tiffinfo={50706: b"\1\4\0\0"}),
}


def encoded(format: str, image: Image.Image = PHOTO, **options: Any) -> bytes:
    if format == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    if format == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow does not write AVIF")
    return encode(image, format, **options)


def colors_of_sixteen_bits() -> bytes:
    file, pixels = io.BytesIO(), np.full((8, 8, 3), 2551, np.uint16)
    pytest.importorskip("tifffile").imwrite(file, pixels, photometric="rgb")
    return file.getvalue()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("turn", [1, 6])
def test_pixels_are_those_of_pillow(kind: Any, turn: int, tmp_path) -> None:
    contents = encoded(kind.pillow, exif=orientation(turn), quality=90)
    with Image.open(io.BytesIO(contents)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    np.testing.assert_array_equal(decode_with_pillow(contents), expected)
    file = tmp_path / f"photo{kind.suffixes[-1]}"
    file.write_bytes(contents)
    np.testing.assert_array_equal(read_image(file, expected.shape[:2]), expected)


def test_a_folder_of_them(tmp_path) -> None:
    for format, suffix in (("TIFF", "tif"), ("JPEG", "jpg")):
        write(tmp_path, {f"{'ab'[i % 2]}/{i}.{suffix}": encoded(format) for i in range(8)})
    with pytest.warns(UserWarning, match="Or let Grain read TIFF as it is: reader='grain'"):
        assert sum(map(len, load(tmp_path, reader="tensorflow").values())) == 8
    splits = load(tmp_path, reader="grain")
    assert sum(map(len, splits.values())) == 16
    assert not splits.report
    images, _ = next(iter(pipeline(splits.train, 40, 12)))
    assert images.shape == (12, 40, 40, 3)


def test_what_pillow_would_show_in_part_is_refused_and_a_missing_plugin_named(monkeypatch) -> None:
    for reason, make in REFUSED.items():
        refused(reason, decode_with_pillow, make(), error=BadImageError)
    contents = encoded("HEIF")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    refused(r"pip install 'keras3-vit\[heic\]'", decode_with_pillow, contents, error=BadImageError)
    assert missing_plugin(PILLOW_FORMATS[0]) is None


def test_files_of_another_format_and_what_is_no_folder(tmp_path: Path, command) -> None:
    for suffix, name, reader in (
        (".tif", "TIFF", "Pillow"),
        (".heic", "HEIC", "pillow-heif"),
        (".dcm", "DICOM", "pydicom"),
        (".CR2", "raw camera", "rawpy"),
        (".svs", "whole-slide", "openslide-python"),
    ):
        files = (f"{c}/{i}a{suffix}" for c in ("cat", "dog") for i in range(3))
        folder = write(tmp_path / suffix.replace(".", ""), dict.fromkeys(files, b"x"))
        refused(f"holds 6 {name} files.*Convert.*{reader}", load, folder)
    heic = [f"{split}/{c}/1.heic" for split in ("train", "val") for c in "ab"]
    for name, files, message in (
        ("split", heic, r"train does not hold an image.*2 HEIC files"),
        ("flat", [f"{i}.tif" for i in range(5)], r"5 TIFF files.*a folder per class"),
        ("archives", ("a/1.zip", "b/1.tar"), r"1\.zip is an archive. Unpack it"),
        ("scanner", ("a/IM0", "a/IM1", "b/IM0", "b/IM1"), "4 DICOM files"),
    ):
        folder = write(tmp_path / name, dict.fromkeys(files, bytes(128) + b"DICM"))
        refused(message, load, folder)
    for source, message in (
        ("gs://bucket/photos", r"gcloud storage cp --recursive gs://bucket/photos DATA"),
        ("https://example.org/photos.zip", r"curl -LO https://example.org/photos.zip"),
    ):
        refused(f"not on this machine.*{message}", load, source, error=FileNotFoundError)
    assert "not on this machine" in command("train --out run --data", source, status=2)
    for file, message in (
        ("p.zip", r"is an archive. Unpack it.*unzip .*p\.zip -d DATA"),
        ("p q.tar.gz", r"is an archive.*tar -xf '.*p q\.tar\.gz' -C DATA"),
        ("t.csv", r"is a table\. Give the folder of its images.*labels='labels\.csv'"),
        ("s.tif", r"is a TIFF file, which is not read here \(Pillow"),
        ("notes", r"is a file, not a folder of images: give the folder around"),
    ):
        write(tmp_path, {file: plain(0)})
        refused(message, load, tmp_path / file, error=NotADirectoryError)


def test_what_is_ignored_is_listed(tmp_path: Path) -> None:
    """By `load`, as the command line does; bounded, and with the number of each format."""
    flat_folder(tmp_path)
    write(tmp_path, {f"a/{i}.tif": b"x" for i in range(500)} | {"a/notes.txt": b"x"})
    with pytest.warns(UserWarning, match="501 files are ignored:\n") as caught:
        splits = load(tmp_path)
    message = str(caught[0].message)
    assert "500 TIFF files," in message
    assert message.count("\n") < 30
    assert "and 481 more: see splits.report.ignored" in message
    path, reason = splits.report.ignored[0]
    assert f"{path}: {reason}" in message
    assert caught[0].filename == __file__


# Whoever reads PNG files of 16 bits per channel is warned once, with their names and the fix.
TWELVE = image_fixtures.png_of_twelve_bits()


def deep_warnings(call) -> list[str]:
    with warnings.catch_warnings(record=True, action="always") as caught:
        call()
    return [str(w.message) for w in caught if issubclass(w.category, DataRangeWarning)]


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Two classes of 8 bits, and five of the images with 16."""
    files = {f"{c}/{i}.png": plain(i) for c in "ab" for i in range(6)}
    return write(tmp_path / "data", files | {f"b/deep{i}.png": TWELVE for i in range(5)})


def test_what_has_sixteen_bits(tmp_path: Path) -> None:
    black = Image.new("RGB", (4, 4))
    others = [encode(black.convert(mode), "PNG") for mode in ("1", "P", "RGBA")]
    assert not any(map(has_sixteen_bits, [*others, encode(black, "JPEG"), b"", TWELVE[:24]]))
    # Files that cannot be read are left to their reader.
    write(tmp_path, {"a.png": TWELVE, "b.jpg": TWELVE, "c.PNG": TWELVE[:9], "d/e.png": b""})
    files = [tmp_path / name for name in ("a.png", "b.jpg", "c.PNG", "d", "nowhere.png")]
    assert sixteen_bit_files(files) == [tmp_path / "a.png"]


@pytest.mark.parametrize("verify", [True, False])
def test_a_folder_and_records_are_one_warning_each(verify: bool, scans: Path, tmp_path) -> None:
    (message,) = deep_warnings(lambda: load(scans, verify=verify))
    deep = list(scans.glob("b/deep*"))
    assert sum(str(file) in message for file in deep) == 3
    for words in ("(5 of 17 looked at)", "the high 8 bits alone are read", "PIL.Image.fromarray"):
        assert words in message
    for file in deep:
        file.unlink()
    assert deep_warnings(lambda: load(scans, verify=verify)) == []
    pytest.importorskip("tensorflow")
    write_examples(tmp_path / "train.tfrecord", [(TWELVE, 0), (TWELVE, 1)] * 6, "image", "label")
    (tmp_path / "labels.txt").write_text("a\nb\n")
    (message,) = deep_warnings(lambda: load(f"records:{tmp_path}"))
    assert "train.tfrecord" in message


def test_files_that_are_trained_with_predicted_or_inspected(scans, tmp_path, command) -> None:
    job = Job(data=str(scans), out=scans / "run")
    assert len(deep_warnings(lambda: load_splits(job))) == 1  # a training hides it nowhere
    (message,) = deep_warnings(lambda: read_image(scans / "b" / "deep0.png", 16))
    assert message.startswith(f"{scans / 'b' / 'deep0.png'}: a PNG file of 16 bits")
    pytest.importorskip("matplotlib")
    files, deep = (sorted(scans.glob(f"b/{names}")) for names in ("*.png", "deep*.png"))
    (message,) = deep_warnings(lambda: list(predict_files(bank.tiny(), files, batch_size=2)))
    assert "deep1.png (2 of 8 looked at)" in message
    (message,) = deep_warnings(lambda: inspect_files(bank.tiny(), deep, tmp_path / "out"))
    assert "(5 of 5 looked at)" in message
    bank.tiny().save(model := str(tmp_path / "model.keras"))
    for words in (("predict", model, scans / "b/deep0.png"), ("evaluate", model, "--data", scans)):
        messages = deep_warnings(lambda words=words: command(*words))
        assert len({message for message in messages if "16 bits" in message}) == 1
