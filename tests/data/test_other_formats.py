"""What users have instead of folders of JPEG files: every answer names it, and the way on."""

import warnings
from pathlib import Path

import pytest

from keras_vit.data import load
from keras_vit_cli import commands as cli
from tests.data.image_fixtures import flat_folder, plain, write

pytestmark = pytest.mark.backends("torch")  # no file is read


def test_files_of_another_format_and_what_is_no_folder(tmp_path: Path, capsys) -> None:
    for suffix, name, reader in (
        (".tif", "TIFF", "Pillow"),
        (".TIFF", "TIFF", "scale the array to 0..255"),
        (".avif", "AVIF", "Pillow 11.3"),
        (".heic", "HEIC", "pillow-heif"),
        (".jp2", "JPEG 2000", "Pillow"),
        (".jxl", "JPEG XL", "pillow-jxl-plugin"),
        (".dcm", "DICOM", "pydicom"),
        (".nii.gz", "NIfTI", "nibabel"),
        (".CR2", "raw camera", "rawpy"),
        (".svs", "whole-slide", "openslide-python"),
        (".exr", "OpenEXR or HDR", "cv2"),
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
        ("records:gs://bucket/train-0", r"gcloud storage cp"),
        ("https://example.org/photos.zip", r"curl -LO https://example.org/photos.zip"),
    ):
        with pytest.raises(FileNotFoundError, match=f"not on this machine.*{message}"):
            load(source)
        assert cli.main(["train", "--data", source, "--out", "run", "--epochs", "1"]) == 2
        assert "not on this machine" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="gs://bucket/photos is not on this machine"):
        load(Path("gs://bucket/photos"))
    for file, message in (
        ("p.zip", r"is an archive. Unpack it.*unzip .*p\.zip -d DATA"),
        ("p q.tar.gz", r"is an archive.*tar -xf '.*p q\.tar\.gz' -C DATA"),
        ("t.csv", r"is a table\. Give the folder of its images.*labels='labels\.csv'"),
        ("i.png", r"is a file, not a folder of images: give the folder around"),
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
