"""Files of other formats: what Pillow reads, what is refused, and how the rest is converted."""

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from keras_vit.data import BadImageError, load, pipeline, read_image
from keras_vit.data.decode.pillow import decode_with_pillow
from keras_vit.data.decode.pillow_formats import PILLOW_FORMATS, missing_plugin
from keras_vit_cli import commands as cli
from tests.data.image_fixtures import encode, flat_folder, orientation, plain, write

pytestmark = pytest.mark.backends("torch")  # Pillow alone reads them
RANDOM = np.random.default_rng(0)
PHOTO = Image.fromarray(RANDOM.integers(0, 256, (4, 6, 3), np.uint8)).resize((60, 40))
KINDS = [pytest.param(PILLOW_FORMATS[0], marks=pytest.mark.every_backend), *PILLOW_FORMATS[1:]]
DEEP = Image.fromarray(np.zeros((8, 8), np.uint16))
REFUSED = {
    "more than 8 bits per channel": lambda: encoded("TIFF", DEEP),
    "several pages": lambda: encoded("TIFF", save_all=True, append_images=[PHOTO]),
    "a raw camera file": lambda: encoded("TIFF", tiffinfo={50706: b"\1\4\0\0"}),
}


def encoded(format: str, image: Image.Image = PHOTO, **options: Any) -> bytes:
    if format == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    if format == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow does not write AVIF")
    return encode(image, format, **options)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("turn", [1, 6])
def test_pixels_are_those_of_pillow(kind: Any, turn: int, tmp_path) -> None:
    contents = encoded(kind.pillow, exif=orientation(turn), quality=90)
    with Image.open(io.BytesIO(contents)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    np.testing.assert_array_equal(decode_with_pillow(contents), expected)
    file = tmp_path / f"photo{kind.suffixes[-1]}"
    file.write_bytes(contents)
    # As every command reads a file, whatever the backend.
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


@pytest.mark.parametrize("reason", REFUSED)
def test_what_pillow_would_show_in_part_is_refused(reason: str) -> None:
    with pytest.raises(BadImageError, match=reason):
        decode_with_pillow(REFUSED[reason]())


def test_a_missing_plugin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = encoded("HEIF")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(BadImageError, match=r"pip install 'keras3-vit\[heic\]'"):
        decode_with_pillow(contents)
    assert missing_plugin(PILLOW_FORMATS[0]) is None


def test_files_of_another_format_and_what_is_no_folder(tmp_path: Path, capsys) -> None:
    for suffix, name, reader in (
        (".tif", "TIFF", "Pillow"),
        (".heic", "HEIC", "pillow-heif"),
        (".dcm", "DICOM", "pydicom"),
        (".nii.gz", "NIfTI", "nibabel"),
        (".CR2", "raw camera", "rawpy"),
        (".svs", "whole-slide", "openslide-python"),
    ):
        files = (f"{c}/{i}a{suffix}" for c in ("cat", "dog") for i in range(3))
        folder = write(tmp_path / suffix.replace(".", ""), dict.fromkeys(files, b"x"))
        with pytest.raises(ValueError, match=f"holds 6 {name} files.*Convert.*{reader}"):
            load(folder)
    # By splits, without classes, and without suffixes.
    heic = [f"{split}/{c}/1.heic" for split in ("train", "val") for c in "ab"]
    for name, files, message in (
        ("split", heic, r"train does not hold an image.*2 HEIC files"),
        ("flat", [f"{i}.tif" for i in range(5)], r"5 TIFF files.*a folder per class"),
        ("scanner", ("a/IM0", "a/IM1", "b/IM0", "b/IM1"), "4 DICOM files"),
    ):
        folder = write(tmp_path / name, dict.fromkeys(files, bytes(128) + b"DICM"))
        with pytest.raises(ValueError, match=message):
            load(folder)
    for source, message in (
        ("gs://bucket/photos", r"gcloud storage cp --recursive gs://bucket/photos DATA"),
        ("s3://bucket/photos", r"aws s3 cp --recursive s3://bucket/photos DATA"),
        ("https://example.org/photos.zip", r"curl -LO https://example.org/photos.zip"),
    ):
        with pytest.raises(FileNotFoundError, match=f"not on this machine.*{message}"):
            load(source)
        assert cli.main(["train", "--data", source, "--out", "run", "--epochs", "1"]) == 2
        assert "not on this machine" in capsys.readouterr().err
    for file, message in (
        ("p.zip", r"is an archive. Unpack it.*unzip .*p\.zip -d DATA"),
        ("p q.tar.gz", r"is an archive.*tar -xf '.*p q\.tar\.gz' -C DATA"),
        ("t.csv", r"is a table\. Give the folder of its images.*labels='labels\.csv'"),
        ("s.tif", r"is a TIFF file, which is not read here \(Pillow"),
        ("notes", r"is a file, not a folder of images: give the folder around"),
    ):
        with pytest.raises(FileNotFoundError, match=r"There is no .*"):
            load(tmp_path / file)
        write(tmp_path, {file: plain(0)})
        with pytest.raises(NotADirectoryError, match=message):
            load(tmp_path / file)


def test_what_is_ignored_is_listed(tmp_path: Path) -> None:
    """By `load`, as the command line does; bounded, and with the number of each format."""
    flat_folder(tmp_path)
    with warnings.catch_warnings(action="error"):
        load(tmp_path)
    write(tmp_path, {"a/notes.txt": b"x", "b/x.tif": b"x"})
    with pytest.warns(UserWarning, match=r"2 files are ignored:\n") as caught:
        splits = load(tmp_path)
    message = str(caught[0].message)
    assert all(f"{path}: {reason}" in message for path, reason in splits.report.ignored)
    assert "1 TIFF file," in message
    assert caught[0].filename == __file__
    write(tmp_path, {f"a/{i}.tif": b"x" for i in range(500)})
    with pytest.warns(UserWarning, match="502 files are ignored") as caught:
        load(tmp_path)
    assert str(caught[0].message).count("\n") < 30
    assert "and 482 more: see splits.report.ignored" in str(caught[0].message)
