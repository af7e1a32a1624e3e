"""`load`: digits, folders in every layout and disorder; photographs kept decoded."""

import hashlib
import os
import re
import shutil
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_vit
from keras_vit import data
from keras_vit.curation.photo_sources import find_photos
from keras_vit.data import BadImageError, batch_plan, load, pipeline, read_image
from keras_vit.data.sources import cached_files
from keras_vit.data.sources import folder as folder_source
from keras_vit.data.sources.cached_files import cached_photographs, note_of_cache
from keras_vit.training.run_identity import RunMismatchError
from keras_vit_cli.arguments import parse
from keras_vit_cli.options.option import UsageError
from tests import bank
from tests.backend import refused, warned
from tests.data.image_fixtures import IMAGE, encode, flat_folder, photographs, plain, write

pytest.importorskip("tensorflow")
PIPE = "a named pipe, not a regular file"
NOT_UTF_8 = "is not UTF-8 text. Save the list as UTF-8"
UTF_16 = b"\xff\xfe" + "a/000.png".encode("utf-16-le")
OUTSIDE = "train.txt, line 1: .* does not start with"
TWICE = "000.png is listed in val.txt and in train.txt: an image belongs to one split"
NO_IMAGE = "not a JPEG, PNG, BMP, GIF, WebP, TIFF, AVIF or HEIC file"
MOVING = encode(IMAGE, "WEBP", save_all=True, append_images=[IMAGE.rotate(180)])
BAD = {
    "a/cut.jpg": (encode(IMAGE, "JPEG")[:400], "the JPEG file is damaged or incomplete"),
    "a/cut.png": (encode(IMAGE, "PNG")[:60], "the PNG file is damaged or incomplete"),
    "a/empty.jpg": (b"", "the file is empty"),
    "b/phone.jpg": (
        b"\0\0\0\x18ftypheic" + bytes(90),
        "a HEIC file, not a JPEG, PNG, BMP, GIF or WebP file; Grain reads it (reader='grain')",
    ),
    "b/large.png": (
        encode(Image.new("1", (9000, 9000)), "PNG"),
        "the image has 9000 x 9000 pixels, more than max_pixels=67108864 in all",
    ),
    "b/text.jpg": (b"not a photograph at all", NO_IMAGE),
    "b/moving.webp": (MOVING, "an animated WebP file, which is not supported"),
}


def names(split) -> list[str]:
    return [f"{file.parent.name}/{file.name}" for file in split.files]


def sixteenths(images: np.ndarray) -> np.ndarray:
    # A step of scikit-learn is 15.9 of ours: rounding loses nothing.
    return np.rint(images.reshape(-1, 64) / 255.0 * 16)


def test_digits_are_those_of_scikit_learn_and_split_reproducibly() -> None:
    splits = load("digits")
    pixels = np.concatenate([splits[name].as_arrays()[0] for name in splits])
    assert (pixels.dtype, pixels.shape, pixels.max()) == (np.uint8, (1797, 8, 8, 1), 255)
    expected, labels = load_digits(return_X_y=True)
    assert sorted(map(tuple, sixteenths(pixels))) == sorted(map(tuple, expected))
    assert (splits.class_names, len(splits.val)) == (tuple("0123456789"), 360)
    for digit, count in Counter(labels.tolist()).items():
        assert (splits.val.labels() == digit).sum() == pytest.approx(count / 5, abs=1)
    # scikit-learn's "Recognizing hand-written digits" splits in this way.
    parts = train_test_split(expected, labels, test_size=0.5, shuffle=False)
    halves = load("digits/half")
    for name, images, digits in (("train", parts[0], parts[2]), ("val", parts[1], parts[3])):
        pixels, classes = halves[name].as_arrays()
        np.testing.assert_array_equal(sixteenths(pixels), images)
        np.testing.assert_array_equal(classes, digits)


def test_folders_of_classes_split_stratified(tmp_path: Path) -> None:
    folder = flat_folder(tmp_path / "classes")
    splits, again = (load(str(folder), val_fraction=0.3) for _ in range(2))
    assert splits.class_names == ("a", "b")
    files = sorted(f"{path.parent.name}/{path.name}" for path in folder.glob("*/*"))
    assert sorted(names(splits.train) + names(splits.val)) == files
    assert np.bincount(splits.val.labels()).tolist() == [3, 3]
    assert [names(s) for s in again.values()] == [names(s) for s in splits.values()]
    write(folder, {"b/more.png": plain(1)})
    before, after = names(splits.val), names(load(folder, val_fraction=0.3).val)
    assert [n for n in after if n[0] == "a"] == [n for n in before if n[0] == "a"]
    bus = {f"{c}/{i}.png": plain(i) for c in ("train", "bus") for i in range(5)}
    splits = load(write(tmp_path / "bus", bus))  # a class may be called train
    assert (splits.class_names, len(splits.val)) == (("bus", "train"), 2)


BY_TEST = "has the splits train and test, and not val: test is validated on"
NOT_A_SPLIT = r"1 folder is ignored:\n.*more: a folder beside train that is not a split"
UNLABELED = "test: without class folders: its labels are not known"


@pytest.mark.parametrize(("folders", "expected", "warning"), [
    ("train/ valid/ test/", "train valid test", None),  # as Roboflow writes it
    ("train/ val/ test/", "train val test", None),
    ("TRAIN/ Dev/", "TRAIN Dev", None),
    ("train/ eval/ testing/", "train eval testing", None),
    ("training_set/ test_set/", "training_set test_set", BY_TEST),
    ("train/ val/ valid/", "train val", "valid: val is used as val"),
    ("train/ val/ more/", "train val", NOT_A_SPLIT),
    ("train/ more/", "train train", NOT_A_SPLIT),
    ("train/", "train train", None),
    ("train/ val/ train/1.png", "train val", "1.png: an image beside the class folders"),
    ("train/ val/ test", "train val", UNLABELED),  # as Kaggle gives it
    ("train/ test", "train train", UNLABELED),
    ("train/ val/ val.txt", "train val", "val.txt: a list beside the folders of splits"),
])  # fmt: skip
def test_names_of_splits(folders: str, expected: str, warning: str | None, tmp_path: Path) -> None:
    """By `load`, and by the index of `embed`, whose splits are the same."""
    of_classes = [name for name in folders.split() if name.endswith("/")]
    images = [f"{name}{c}/{i}.png" for name in of_classes for c in "ab" for i in range(5)]
    write(tmp_path, {name: plain(level) for level, name in enumerate(images)})
    for name in set(folders.split()) - set(of_classes):
        write(tmp_path, {name if "." in name else f"{name}/1.png": plain(1)})
    with pytest.warns(match=warning) if warning else warnings.catch_warnings(action="error"):
        splits = load(tmp_path)
    where = [{file.parent.parent.name for file in split.files} for split in splits.values()]
    assert where == [{name} for name in expected.split()]
    assert list(splits) == ["train", "val", "test"][: len(where)]
    assert splits.class_names == ("a", "b")
    for photo in find_photos(tmp_path).walk():
        part, *inner, _ = photo.name.split("/")
        assert (photo.split is None) == (part == "more")
        assert photo.label == (inner[0] if inner and photo.split else None)


def test_digests_are_those_of_files_that_are_read_once(tmp_path: Path, monkeypatch) -> None:
    flat_folder(tmp_path)
    late, val = (load(tmp_path, verify=verify).val for verify in (False, True))
    digests = late.digests().astype(str).tolist()
    assert digests == [hashlib.sha256(file.read_bytes()).hexdigest()[:32] for file in val.files]
    monkeypatch.setattr(folder_source, "read_contents", None)  # they were read to verify them
    assert val.digests().astype(str).tolist() == digests


def test_a_folder_that_is_only_evaluated_is_one_split(tmp_path: Path) -> None:
    flat_folder(tmp_path / "flat")
    write(tmp_path, {f"one/a/{i}.png": plain(i) for i in range(3)})
    write(tmp_path, {f"parts/{part}/{part}/1.png": plain(1) for part in ("train", "val", "test")})
    (tmp_path / "flat" / "empty").mkdir()
    with pytest.warns(match=r"1 class is left out:\n.*empty: a class without an image$"):
        flat = load(tmp_path / "flat", val_fraction=None, on_bad_file="raise")
    assert repr(flat) == f"Splits('{tmp_path / 'flat'}', 2 classes: all 20)"
    assert np.bincount(flat["all"].labels()).tolist() == [10, 10]
    one = load(tmp_path / "one", val_fraction=None)["all"]
    assert (one.class_names, one.labels().tolist()) == (("a",), [0, 0, 0])
    parts = load(tmp_path / "parts", val_fraction=None)  # what the data says of splits stays
    found = [(name, names(part)) for name, part in parts.items()]
    assert found == [(part, [f"{part}/1.png"]) for part in ("train", "val", "test")]
    assert repr(load("digits", val_fraction=None)) == "Splits('digits', 10 classes: all 1797)"
    refused("does not have a split 'val': it has all", lambda: flat.val, error=KeyError)
    (tmp_path / "none" / "a").mkdir(parents=True)
    for folder, message in (
        ("none", "none does not hold an image in a class folder"),
        ("none/a", "0 class folders and one or more are needed"),
    ):
        refused(message, load, tmp_path / folder, val_fraction=None)


def test_suffixes_links_what_is_ignored_and_lists_in_every_unicode_encoding(tmp_path) -> None:
    kinds = {"1.JPG": "JPEG", "2.jpeg": "JPEG", "3.WebP": "WEBP", "4.bmp": "BMP", "5.gif": "GIF"}
    kinds |= {"6.jfif": "JPEG", "7.JPE": "JPEG", "8.dib": "BMP"}
    # By their first bytes: names that are a digest, or a number at the end.
    kinds |= {"d41d8c": "WEBP", "3e25": "GIF", "1.2.840": "JPEG", "bmp": "BMP", "IMG_1": "PNG"}
    write(flat_folder(tmp_path), {f"a/{f}": encode(IMAGE, k) for f, k in kinds.items()})
    write(tmp_path, {f"a/{name}": b"" for name in (".hidden.jpg", "notes.txt", "../readme.md")})
    hidden = ("a/@eaDir/x.png", "__MACOSX/a/x.png", ".cache/x.png")
    write(tmp_path, {"a/deeper/six.png": plain(6), **dict.fromkeys(hidden, plain(1))})
    write(tmp_path, {"a/IMG_2": b"x", "a/copy.jpg~": encode(IMAGE, "JPEG")})
    (tmp_path / "a" / "link.png").symlink_to(tmp_path / "b" / "001.png")
    for reader in ("tensorflow", "grain"):
        splits = load(tmp_path, reader=reader)
        assert (splits.class_names, len(splits.report)) == (("a", "b"), 0)
        assert len(splits.train) + len(splits.val) == 20 + len(kinds) + 1
        ignored = {path.name: reason for path, reason in splits.report.ignored}
        assert list(ignored) == ["IMG_2", "copy.jpg~", "deeper", "notes.txt"]
        assert "its first bytes are JPEG's: rename it to .jpg" in ignored["copy.jpg~"]
        assert "notes.txt: not one of ." in str(splits.report)
    write(tmp_path, {"a/é 木.png": plain(1), "test.txt": b"b/003.png"})
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        train = "b\\001.png\r\n\na/é 木.png\r\n".encode(encoding)  # a backslash of Windows
        splits = load(write(flat_folder(tmp_path), {"train.txt": train, "val.txt": b"a/002.png\n"}))
        assert names(splits.train) == ["b/001.png", "a/é 木.png"]
        assert (names(splits.val), names(splits["test"])) == (["a/002.png"], ["b/003.png"])
        assert splits.train.labels().tolist() == [1, 0]


def test_lists_that_are_refused(tmp_path: Path) -> None:
    folder = flat_folder(tmp_path / "photos")
    write(tmp_path, {"p16.png": plain(16)})
    (folder / "b" / "link.png").symlink_to(folder / "a" / "000.png")
    (folder / "b" / "hard.png").hardlink_to(folder / "a" / "000.png")
    os.mkfifo(folder / "a" / "pipe.png")
    for train, val, message in (
        (b"a/../../p16.png", b"b/001.png", OUTSIDE),
        (b"/etc/hostname", b"b/001.png", OUTSIDE),
        (b"b/001.png\na/000.png", b"a/../a/./000.png", TWICE),
        (b"a/000.png", b"b/link.png", "link.png is listed .* is the same file"),
        (b"a/000.png", b"b/hard.png", "hard.png is listed .* same file"),
        (b"b/001.png\na/\xe9.png", b"b/001.png", f"train.txt, line 2 {NOT_UTF_8}"),
        (UTF_16[2:], b"b/001.png", "train.txt, line 1 is not UTF-8 text"),
        (UTF_16[:-1], b"b/001.png", "train.txt, line 1 is not UTF-16 text"),
        (b"a/pipe.png", b"b/001.png", "train.txt, line 1: .* is a named pipe, not a regular"),
    ):
        write(folder, {"train.txt": train, "val.txt": val})
        refused(message, load, folder)


def test_what_is_not_a_regular_file_is_not_read_and_names_need_not_be_utf_8(tmp_path) -> None:
    flat_folder(tmp_path)
    os.mkfifo(tmp_path / "a" / "pipe.jpg")  # whoever opens it waits for a writer
    (tmp_path / "a" / "zeros.jpg").symlink_to("/dev/zero")
    for i in range(4):
        Path(os.fsdecode(bytes(tmp_path / "a") + b"/\xff%d.png" % i)).write_bytes(plain(i))
    for verify in (True, False):
        splits = load(tmp_path, verify=verify)
        assert len(splits.train) + len(splits.val) == 24
        ignored = {path.name: reason for path, reason in splits.report.ignored}
        assert ignored == {"pipe.jpg": PIPE, "zeros.jpg": "a device, not a regular file"}
        assert sum("\udcff" in file.name for file in splits.train.files) >= 3
        assert sum(len(y) for _, y in pipeline(splits.train, 8, 8)) == len(splits.train)
    assert read_image(tmp_path / "a" / "pipe.jpg", 8) == PIPE


def test_bad_files_and_classes_without_an_image(tmp_path: Path) -> None:
    contents = {name: contents for name, (contents, _) in BAD.items()}
    folder = write(flat_folder(tmp_path / "wüst"), contents)
    (folder / "b" / "broken link.png").symlink_to(folder / "nowhere.png")
    bad = "8 of 28 files cannot be decoded"
    with pytest.warns(UserWarning, match=f"{bad} and are skipped.*see splits.report") as told:
        splits = load(folder)
    assert told[0].filename == __file__
    reasons = {f"{path.parent.name}/{path.name}": reason for path, reason in splits.report}
    expected = {name: reason for name, (_, reason) in BAD.items()}
    assert reasons == {**expected, "b/broken link.png": "No such file or directory"}
    assert all(f"{name}: {reason}" in str(splits.report) for name, reason in expected.items())
    assert len({*names(splits.train), *names(splits.val)} - set(reasons)) == 20
    said = refused(bad, load, folder, on_bad_file="raise", error=BadImageError)
    assert all(name in said for name in BAD)
    # The only image of a class is one to train on; a class needs one that can be read.
    folder = write(flat_folder(tmp_path / "none"), {"c/1.jpg": b"x", "лютик/1.png": plain(1)})
    left_out = pytest.warns(UserWarning, match="1 class is left out")
    with pytest.warns(UserWarning, match="1 of 22 files"), left_out:
        splits = load(folder)
    assert (splits.class_names, len(splits.report)) == (("a", "b", "лютик"), 1)
    assert list(splits.report.ignored) == [(folder / "c", NO_IMAGE)]
    assert "лютик/1.png" in names(splits.train)
    assert set(splits.val.labels()) == {0, 1}
    of_splits = images("train/a/1 train/b/1 val/a/1 val/b/1 val/only_here/1")
    splits = warned("1 class is left out:\n.*only_here", load, write(tmp_path / "val", of_splits))
    assert splits.class_names == ("a", "b")


def test_progress_is_shown_only_on_a_terminal(tmp_path: Path, capsys, monkeypatch) -> None:
    load(flat_folder(tmp_path))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich then takes any file for a terminal
    monkeypatch.setenv("TERM", "xterm")
    load(tmp_path)
    shown = capsys.readouterr().err
    assert "checking files" in shown
    # The bar gives way to a finished line with the result.
    last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown)
    assert last.endswith("checked 20 files: all can be decoded\n")


def images(names: str) -> dict[str, bytes]:
    return {f"{name}.png": plain(1) for name in names.split()}


LISTED = {**images("a/1 b/1"), "train.txt": b"a/1.png"}
NOTES = {"b/notes.txt": b""}
NO_IMAGE = "a class without an image to train on"


def test_disorder_and_missing_folders_are_explained(tmp_path: Path) -> None:
    split = images("train/a/1 train/b/1 val/a/1")
    rows: dict[str, tuple[dict[str, bytes], str]] = {
        "empty": ({"readme": b""}, "0 class folders and a classifier"),
        "one class": (images("a/1"), "1 class folder and a classifier"),
        "too far out": (images("all/a/1 all/b/1"), "There, all has a, b: give .*/all"),
        "one split": (images("train/1 train/2"), "the split train without class folders: .*labels"),
        "flat splits": (images("train/1 val/1"), "the splits train, val without class folders"),
        "no images": (images("a/1 a/2 c/1 c/2") | NOTES, "1 class cannot be used:\n.*b: a class"),
        "one class left": (images("a/1 a/2") | NOTES, "and 1 image to validate on; a classifier"),
        "no val.txt": (LISTED, "has train.txt but no val.txt"),
        "no file": ({**LISTED, "val.txt": b"\nb/7.png"}, "val.txt, line 2: .*7.png does not exist"),
        "a label": ({**LISTED, "val.txt": b"b/1.png 1"}, "not exist. For b/1.png, write that"),
        "no suffix": ({**LISTED, "val.txt": b"b/1"}, "not exist. For b/1.png, write that"),
        "unknown class": ({**LISTED, "val.txt": b"c/1.png"}, r"a class folder .*\(a, b\)"),
        "empty listing": ({**LISTED, "val.txt": b"\n"}, "val.txt lists no file"),
        "empty val": (images("train/a/1 train/b/1") | {"val/x.txt": b""}, "val does not hold"),
        "nested": (images("a/cat/1 a/dog/1 b/rose/1"), "it holds folders, cat, dog; move them up"),
        "another case": (split | images("val/B/1"), "B: .* elsewhere: 'b' has some: is 'B' the"),
        "only in val": (split | images("val/c/1"), "val.c: .*, only 1 elsewhere\nAdd images"),
        "two/a": (images("1"), "Then give the folder around it, .*two. Give FOLDER"),
        "one/images": (images("1"), "have to lie in a folder per class"),
    }
    write(tmp_path / "two", images("b/1"))
    for name, (files, message) in rows.items():
        error = FileNotFoundError if "not exist" in message else ValueError
        refused(message, load, write(tmp_path / name, files), on_bad_file="raise", error=error)
    for source in ("./flowers", "photos/flowers", "~/no such folder", Path("x")):
        refused(r"There is no (?s:.*)FOLDER/train/<class>", load, source, error=FileNotFoundError)


SIDE = 60
SIZES = ((80, 120), (200, 100), (50, 40), (SIDE, 90))  # width, height


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return photographs(tmp_path / "photos", SIZES, 13)


BOTH_READERS = pytest.mark.parametrize("reader", ["tensorflow", "grain"], indirect=True)


@pytest.fixture
def reader(request: pytest.FixtureRequest) -> str:
    """Of the tests that one could change, both."""
    return pytest.importorskip(getattr(request, "param", "tensorflow")).__name__


@pytest.fixture
def split(photos: Path, reader: str) -> Any:
    return data.load(photos, reader=reader).train


@pytest.fixture
def keep(split: Any, tmp_path: Path) -> Any:
    """Caches the split; the cached one, and the lines that were printed."""

    def cached(side: int = SIDE, channels: int = 3) -> tuple[Any, list[str]]:
        lines: list[str] = []
        return cached_photographs(split, side, channels, tmp_path / "cache", lines.append), lines

    return cached


def first_batch(split: Any, **options: Any) -> Any:
    return np.asarray(next(iter(data.pipeline(split, 32, len(split), training=True, **options)))[0])


@BOTH_READERS
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels(split: Any, keep: Any, channels: int) -> None:
    """Small photographs keep theirs; larger ones are Pillow's resize of what it decodes."""
    cached, lines = keep(SIDE, channels)
    assert f"{len(split)} training photographs" in lines[0]
    np.testing.assert_array_equal(cached.labels(), split.labels())
    for place, (now, _) in enumerate(cached.decoded(channels)):
        before = split.pixels(place, channels)
        height, width = before.shape[:2]
        if min(height, width) > SIDE:
            image = Image.fromarray(before[..., 0] if channels == 1 else before)
            scale = SIDE / min(height, width)
            size = round(width * scale), round(height * scale)
            resized = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
            before = resized.reshape(*resized.shape[:2], channels)
        np.testing.assert_array_equal(now, before)


@BOTH_READERS
def test_the_same_crops_and_others_may_read_the_cache(split, keep, tmp_path) -> None:
    """Where nothing is reduced, batches are equal bit for bit; the draws are those of the split."""
    cached, _ = keep(4096)
    # TensorFlow decodes the crop of a JPEG file alone, whose border differs by a few levels.
    kept = first_batch(split.with_decoder("pillow"), cache=True)
    np.testing.assert_array_equal(first_batch(cached), kept)
    np.testing.assert_array_equal(first_batch(cached, cache=True), kept)
    # Ways do not meet, and files have the usual mode, whichever of the threads wrote them.
    ways = [keep(side, channels)[0].files for side in (SIDE, SIDE + 1) for channels in (1, 3)]
    files = {file for files in ways for file in files}
    assert len(files) == 4 * len(split)
    (tmp_path / "usual").touch()
    assert {file.stat().st_mode for file in files} == {(tmp_path / "usual").stat().st_mode}


def test_only_what_changed_is_decoded_again(split: Any, keep: Any, tmp_path: Path) -> None:
    cached, _ = keep()
    written = {file: file.stat().st_mtime_ns for file in cached.files}
    expected = list(cached.decoded())
    (line,) = keep()[1]
    assert "B in " not in line
    cached.files[0].write_bytes(cached.files[0].read_bytes()[:-1])  # a power failure
    cached.files[1].unlink()
    size = cached.files[4].stat().st_size
    for length in (54, size):  # all but the header is zeros
        os.truncate(cached.files[4], length)
    shutil.copy(cached.files[6], cached.files[5])  # of other dimensions
    stat = split.files[2].stat()
    os.utime(split.files[2], ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    again, _ = keep()
    assert again.files[2] != cached.files[2]
    assert again.files[3:] == cached.files[3:]
    assert all(file.stat().st_mtime_ns == written[file] for file in again.files[6:])
    for (now, _), (before, _) in zip(again.decoded(), expected, strict=True):
        np.testing.assert_array_equal(now, before)
    again.files[0].unlink()
    os.mkfifo(again.files[0])
    refused("is a named pipe", keep, error=FileExistsError)


def test_an_interrupted_cache_goes_on(split, keep, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cached_files, "_SECONDS", -1.0)
    monkeypatch.setattr(cached_files, "_AT_ONCE", 2)

    def stop(line: str) -> None:
        if " of " in line and "training" not in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_photographs(split, SIDE, 3, tmp_path / "cache", stop)
    # What a kill left goes, not what another run may be writing, or a file of someone else.
    left = [tmp_path / f"cache/{SIDE}px/00/{name}.bmp" for name in (".a.1.part", ".a.2.part", "a")]
    for file, age in zip(left, (4000, 0, 4000), strict=True):
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, (time.time() - age,) * 2)
    cached, lines = keep()
    assert f"{len(split) - 2} of them are new" in lines[0]
    assert len(list(cached.decoded())) == len(split)
    assert [file.exists() for file in left] == [False, True, True]
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refused(r"needs .* kB, and 10 bytes are free in .*KERAS_HOME", keep, SIDE + 1, error=OSError)
    assert not [file for file in tmp_path.glob(f"cache/{SIDE + 1}px/**") if file.is_file()]


def test_a_photograph_that_broke_or_is_gone_is_not_kept(split, keep, capfd) -> None:
    contents = split.files[0].read_bytes()
    for damage in (lambda file: file.write_bytes(contents[:100]), lambda file: file.unlink()):
        damage(split.files[0])
        cached, _ = keep()
        assert "replaced by a gray image" in capfd.readouterr().err
        assert [file.exists() for file in cached.files] == [False] + [True] * (len(split) - 1)
    split.files[0].write_bytes(contents)
    assert keep()[0].files[0].exists()


def test_what_cannot_be_kept_and_advice_where_it_pays(photos: Path, tmp_path, monkeypatch) -> None:
    split, digits = data.load(photos).train, data.load("digits").train
    for split_of, side, reason in (
        (digits, SIDE, "memory or records: leave cache"),
        (data.load(photos, verify=False).train, SIDE, "not verified: leave cache"),
        (split, 0, "cache=0 must be"),
    ):
        refused(reason, cached_photographs, split_of, side, 3, tmp_path / "cache", print)
    assert not (tmp_path / "cache").exists()
    words = ["train", "--data", "photos", "--weights", "a.npz", "--cache", "32"]
    for more, reason in (
        (["--freeze-backbone"], "no effect with --freeze-backbone"),
        (["--image-size", "64"], r"below --image-size 64.*give 128"),
    ):
        refused(reason, parse, [*words, *more], error=UsageError)
    # Advised of large photographs that do not fit in memory, and of no others.
    for name in ("_LARGE", "MEMORY_BYTES"):
        assert note_of_cache(split, 20, 3) == ""
        monkeypatch.setattr(cached_files, name, 0)
    assert note_of_cache(split, SIDE, 3) == ""  # not much smaller
    assert "cache=20 decodes them once, into" in note_of_cache(split, 20, 3)


@pytest.mark.backends("torch")
def test_fit(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    splits, recipe = data.load(photos), keras_vit.recipes.get("digits").scaled(steps=2)
    recipe, lines = replace(recipe, image_size=16, batch_size=4), []

    def fit(cache: int, splits: data.Splits = splits) -> None:
        options = {"cache": cache, "print_fn": lines.append}
        keras_vit.fit(bank.fresh(**bank.TINY), recipe, splits, tmp_path / "run", **options)

    refused("cache=15 pixels are fewer than the image size, 16", fit, 15)
    fit(32)
    assert sum("B in " in line for line in lines) == 1
    assert len(list((tmp_path / "home").rglob("*.bmp"))) == len(splits.train)
    refused("cache", fit, 64, error=RunMismatchError)
    refused("reader", fit, 32, data.load(photos, reader="grain"), error=RunMismatchError)


@BOTH_READERS
def test_prepared_batches_stay_where_images_are_too_large(photos, reader, monkeypatch) -> None:
    splits = data.load(photos, reader=reader)
    expected = [np.asarray(x) for x, _ in data.pipeline(splits.val, 16, 2, cache=False)]
    monkeypatch.setattr(batch_plan, "_decoded_bytes", lambda *_: 1e12)
    batches = data.pipeline(splits.val, 16, 2, cache=None)
    for number in range(2):
        for (images, _), other in zip(batches, expected, strict=True):
            np.testing.assert_array_equal(images, other)
        for file in splits.val.files:
            file.unlink(missing_ok=number > 0)
