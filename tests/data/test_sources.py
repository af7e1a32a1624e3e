"""`load`: digits, and folders in every layout and in every disorder."""

import hashlib
import os
import re
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_vit.curation.photo_sources import find_photos
from keras_vit.data import BadImageError, load, pipeline, read_image
from keras_vit.data.decode.image_kinds import suffixes_of
from keras_vit.data.sources import folder as folder_source
from keras_vit.data.sources.splits import FileReport
from tests.data import image_fixtures
from tests.data.image_fixtures import IMAGE, encode, flat_folder, orientation, plain, write

pytest.importorskip("tensorflow")
PIPE = "a named pipe, not a regular file"
NOT_UTF_8 = "is not UTF-8 text. Save the list as UTF-8"
UTF_16 = b"\xff\xfe" + "a/000.png".encode("utf-16-le")
OUTSIDE = "train.txt, line 1: .* does not start with"
TWICE = "000.png is listed in val.txt and in train.txt: an image belongs to one split"
MOVING = encode(IMAGE, "WEBP", save_all=True, append_images=[IMAGE.rotate(180)])
BAD = {
    "a/cut.jpg": (encode(IMAGE, "JPEG")[:400], "the JPEG file is damaged or incomplete"),
    "a/cut.png": (encode(IMAGE, "PNG")[:60], "the PNG file is damaged or incomplete"),
    "a/empty.jpg": (b"", "the file is empty"),
    "b/phone.jpg": (
        b"\0\0\0\x18ftypheic" + bytes(90),
        "a HEIC file, not a JPEG, PNG, BMP, GIF or WebP file; Grain reads it (reader='grain')",
    ),
    "b/text.jpg": (b"not a photograph at all", "not a JPEG, PNG, BMP, GIF or WebP file"),
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
    assert (splits.val.as_arrays()[0] != load("digits", seed=1).val.as_arrays()[0]).any()
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
    assert not set(names(splits.train)) & set(names(splits.val))
    assert np.bincount(splits.val.labels()).tolist() == [3, 3]
    assert [names(s) for s in again.values()] == [names(s) for s in splits.values()]
    assert names(load(folder, val_fraction=0.3, seed=1).val) != names(splits.val)
    # One more image of b leaves a as it was.
    write(folder, {"b/more.png": plain(1)})
    before, after = names(splits.val), names(load(folder, val_fraction=0.3).val)
    assert [n for n in after if n[0] == "a"] == [n for n in before if n[0] == "a"]
    bus = {f"{c}/{i}.png": plain(i) for c in ("train", "bus") for i in range(5)}
    splits = load(write(tmp_path / "bus", bus))  # a class may be called train
    assert (splits.class_names, len(splits.val)) == (("bus", "train"), 2)


BY_TEST = "has the splits train and test, and not val: test is validated on"
NOT_A_SPLIT = r"1 folder is ignored:\n.*more: a folder beside train that is not a split"
UNLABELED = "test: without class folders: its labels are not known"


@pytest.mark.parametrize(
    ("folders", "expected", "warning"),
    [
        ("train/ valid/ test/", "train valid test", None),  # as Roboflow writes it
        ("train/ val/ test/", "train val test", None),
        ("train/ validation/", "train validation", None),
        ("TRAIN/ Dev/", "TRAIN Dev", None),
        ("train/ eval/ testing/", "train eval testing", None),
        ("Training/ Testing/", "Training Testing", BY_TEST),
        ("training_set/ test_set/", "training_set test_set", BY_TEST),
        ("train/ val/ valid/", "train val", "valid: val is used as val"),
        ("train/ val/ more/", "train val", NOT_A_SPLIT),
        ("train/ more/", "train train", NOT_A_SPLIT),
        ("train/", "train train", None),
        ("train/ val/ train/1.png", "train val", "1.png: an image beside the class folders"),
        ("train/ val/ test", "train val", UNLABELED),  # as Kaggle gives it
        ("train/ test", "train train", UNLABELED),
        ("train/ val/ val.txt", "train val", "val.txt: a list beside the folders of splits"),
    ],
)
def test_names_of_splits(folders: str, expected: str, warning: str | None, tmp_path: Path) -> None:
    """By `load`, and by the index of `embed`, whose splits are the same."""
    of_classes = [name for name in folders.split() if name.endswith("/")]
    images = [f"{name}{c}/{i}.png" for name in of_classes for c in "ab" for i in range(5)]
    write(tmp_path, dict.fromkeys(images, plain(1)))
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
    with pytest.raises(KeyError, match="does not have a split 'tests': it has train, val"):
        splits["tests"]


def test_digests_are_those_of_files_that_are_read_once(tmp_path: Path, monkeypatch) -> None:
    flat_folder(tmp_path)
    late, val = (load(tmp_path, verify=verify).val for verify in (False, True))
    expected = [hashlib.sha256(file.read_bytes()).hexdigest()[:32] for file in val.files]
    assert late.digests().astype(str).tolist() == expected
    monkeypatch.setattr(folder_source, "read_contents", None)  # they were read to verify them
    assert val.digests().astype(str).tolist() == expected


def test_a_folder_that_is_only_evaluated_is_one_split(tmp_path: Path) -> None:
    flat_folder(tmp_path / "flat")
    write(tmp_path, {f"one/a/{i}.png": plain(i) for i in range(3)})
    write(tmp_path, {f"parts/{part}/{part}/1.png": plain(1) for part in ("train", "val", "test")})
    write(flat_folder(tmp_path / "lists"), {"train.txt": b"a/000.png", "val.txt": b"b/001.png"})
    (tmp_path / "flat" / "empty").mkdir()
    with pytest.warns(match=r"1 class is left out:\n.*empty: a class without an image$"):
        flat = load(tmp_path / "flat", val_fraction=None, on_bad_file="raise")
    assert repr(flat) == f"Splits('{tmp_path / 'flat'}', 2 classes: all 20)"
    assert np.bincount(flat["all"].labels()).tolist() == [10, 10]
    one = load(tmp_path / "one", val_fraction=None)["all"]
    assert (one.class_names, one.labels().tolist()) == (("a",), [0, 0, 0])
    parts = load(tmp_path / "parts", val_fraction=None)  # what the data says of splits stays
    assert {name: names(part) for name, part in parts.items()} == {
        part: [f"{part}/1.png"] for part in ("train", "val", "test")
    }
    assert parts.class_names == ("test", "train", "val")
    assert names(load(tmp_path / "lists", val_fraction=None)["val"]) == ["b/001.png"]
    assert repr(load("digits", val_fraction=None)) == "Splits('digits', 10 classes: all 1797)"
    with pytest.raises(KeyError, match="does not have a split 'val': it has all"):
        _ = flat.val
    (tmp_path / "none" / "a").mkdir(parents=True)
    with pytest.raises(ValueError, match="none does not hold an image in a class folder"):
        load(tmp_path / "none", val_fraction=None)
    with pytest.raises(ValueError, match="0 class folders and one or more are needed"):
        load(tmp_path / "none" / "a", val_fraction=None)


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
        with pytest.raises(ValueError, match=message):
            load(folder)


def test_what_is_not_a_regular_file_is_not_read_and_names_need_not_be_utf_8(tmp_path) -> None:
    flat_folder(tmp_path)
    os.mkfifo(tmp_path / "a" / "pipe.jpg")  # whoever opens it waits for a writer
    (tmp_path / "a" / "zeros.jpg").symlink_to("/dev/zero")
    for verify in (True, False):
        splits = load(tmp_path, verify=verify)
        assert len(splits.train) + len(splits.val) == 20
        ignored = {path.name: reason for path, reason in splits.report.ignored}
        assert ignored == {"pipe.jpg": PIPE, "zeros.jpg": "a device, not a regular file"}
    assert read_image(tmp_path / "a" / "pipe.jpg", 8) == PIPE
    for i in range(4):
        Path(os.fsdecode(bytes(tmp_path / "a") + b"/\xff%d.png" % i)).write_bytes(plain(i))
    train = load(tmp_path).train
    assert sum("\udcff" in file.name for file in train.files) >= 3
    assert sum(len(labels) for _, labels in pipeline(train, 8, 8)) == len(train)


def test_large_and_turned_images(tmp_path: Path, capfd) -> None:
    flat_folder(tmp_path)
    write(tmp_path, {"a/large.png": encode(Image.new("1", (9000, 9000)), "PNG")})
    with pytest.warns(UserWarning, match="9000 x 9000 pixels, more than max_pixels=67108864"):
        splits = load(tmp_path)
    assert [path.name for path, _ in splits.report] == ["large.png"]
    unread = load(tmp_path, verify=False, val_fraction=0.05)
    assert sum(len(y) for _, y in pipeline(unread.train, 8, 4)) == len(unread.train) - 1
    assert 'large.png" cannot be decoded and is skipped' in capfd.readouterr().err
    kinds = ("PNG", "WebP")
    turned = {f"b/turned.{kind}": encode(IMAGE, kind, exif=orientation(6)) for kind in kinds}
    folder = write(flat_folder(tmp_path / "turned"), turned)
    for verify in (True, False):
        split = load(folder, verify=verify, val_fraction=0.05).train
        examples = split.dataset().map(lambda file, label: (file, label, file))
        images = split.images(examples).as_numpy_iterator()
        shapes = {Path(os.fsdecode(file)).name: image.shape for image, _, file in images}
        assert shapes["turned.PNG"] == shapes["turned.WebP"] == (32, 24, 3)


def test_bad_files_and_classes_without_an_image(tmp_path: Path) -> None:
    contents = {name: contents for name, (contents, _) in BAD.items()}
    folder = write(flat_folder(tmp_path / "bad"), contents)
    (folder / "b" / "broken link.png").symlink_to(folder / "nowhere.png")
    bad = "7 of 27 files cannot be decoded"
    with pytest.warns(UserWarning, match=f"{bad} and are skipped") as warned:
        splits = load(folder)
    assert "see splits.report" in str(warned[0].message)
    assert warned[0].filename == __file__
    reasons = {f"{path.parent.name}/{path.name}": reason for path, reason in splits.report}
    expected = {name: reason for name, (_, reason) in BAD.items()}
    assert reasons == {**expected, "b/broken link.png": "No such file or directory"}
    assert all(f"{name}: {reason}" in str(splits.report) for name, reason in expected.items())
    assert len({*names(splits.train), *names(splits.val)} - set(reasons)) == 20
    with pytest.raises(BadImageError, match=bad) as error:
        load(folder, on_bad_file="raise")
    assert all(name in str(error.value) for name in BAD)
    assert isinstance(error.value, ValueError)
    # A long list is cut where it is printed.
    files = tuple((Path(f"{i}.jpg"), "empty") for i in range(1000))
    assert str(FileReport(files, files[:3])).splitlines()[21] == "unreadable  and 980 more"
    folder = write(flat_folder(tmp_path / "none"), {"c/1.jpg": b"x", "c/2.jpg": b"y"})
    left_out = pytest.warns(UserWarning, match="1 class is left out")
    with pytest.warns(UserWarning, match="2 of 22 files"), left_out:
        splits = load(folder)
    assert (splits.class_names, len(splits.report)) == (("a", "b"), 2)
    assert list(splits.report.ignored) == [(folder / "c", NO_IMAGE)]
    # The only image of a class is one to train on.
    splits = load(write(flat_folder(tmp_path / "one"), {"c/1.png": plain(1)}))
    assert splits.class_names == ("a", "b", "c")
    assert "c/1.png" in names(splits.train)
    assert set(splits.val.labels()) == {0, 1}


def test_progress_is_shown_only_on_a_terminal(tmp_path: Path, capsys, monkeypatch) -> None:
    flat_folder(tmp_path)
    load(tmp_path)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich then takes any file for a terminal
    monkeypatch.setenv("TERM", "xterm")
    load(tmp_path)
    shown = capsys.readouterr().err
    assert "checking files" in shown
    # The bar gives way to a finished line with the result.
    last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown)
    assert last.endswith("checked 20 files: all can be decoded\n")
    next(tmp_path.glob("*/*.*")).write_bytes(b"broken")
    with pytest.warns(UserWarning, match="cannot be decoded"):
        load(tmp_path)
    assert "checked 20 files: 1 cannot be decoded\n" in capsys.readouterr().err


def images(names: str) -> dict[str, bytes]:
    return {f"{name}.png": plain(1) for name in names.split()}


AB = images("a/1 b/1")
LISTED = {**AB, "train.txt": b"a/1.png"}
NOTES, VAL_NOTES = {"b/notes.txt": b""}, {"val/notes.txt": b""}
TWO_CLASSES = "class folders and a classifier needs two"
NO_IMAGE = "a class without an image to train on"
NONE_IN_VAL = "val does not hold an image in a class folder"
ONLY_IN_VAL = rf"val.c: {NO_IMAGE}, only 1 elsewhere\nAdd images"
ONE_EMPTY = rf"1 class cannot be used:\n.*b: {NO_IMAGE}"
NESTED = "animals: a class without an image to train on: it holds folders, cat, dog; move them up"
ONE_LEFT = "1 class with images to train on and 1 image to validate on; a classifier"
UNKNOWN = r"train.txt, line 1: 'c/1.png' does not start with a class folder .*\(a, b\)"


def test_disorder_and_missing_folders_are_explained(tmp_path: Path) -> None:
    rows: dict[str, tuple[dict[str, bytes], str]] = {
        "empty": ({"readme": b""}, f"0 {TWO_CLASSES}"),
        "one class": (images("a/1"), f"1 {TWO_CLASSES}"),
        "one split": (images("train/1 train/2"), "the split train without class folders: .*labels"),
        "flat splits": (images("train/1 val/1"), "the splits train, val without class folders"),
        "no images": (images("a/1 a/2 c/1 c/2") | NOTES, ONE_EMPTY),
        "one class left": (images("a/1 a/2") | NOTES, ONE_LEFT),
        "no val.txt": (LISTED, "has train.txt but no val.txt"),
        "no file": ({**LISTED, "val.txt": b"\nb/7.png"}, "val.txt, line 2: .*7.png does not exist"),
        "unknown class": ({**AB, "train.txt": b"c/1.png", "val.txt": b"b/1.png"}, UNKNOWN),
        "empty listing": ({**LISTED, "val.txt": b"\n"}, "val.txt lists no file"),
        "empty val": (images("train/a/1 train/b/1") | VAL_NOTES, NONE_IN_VAL),
        "nested": (images("animals/cat/1 animals/dog/1 plants/rose/1"), NESTED),
        "another case": (
            images("train/a/1 train/b/1 val/a/1 val/B/1"),
            "B: .* elsewhere: b has some",
        ),
        "only in val": (images("train/a/1 train/b/1 val/a/1 val/c/1"), ONLY_IN_VAL),
    }
    for name, (files, message) in rows.items():
        error = FileNotFoundError if "not exist" in message else ValueError
        with pytest.raises(error, match=message):
            load(write(tmp_path / name, files), on_bad_file="raise")
    for source in ("./flowers", "photos/flowers", "~/no such folder", Path("x")):
        with pytest.raises(FileNotFoundError, match=r"There is no (?s:.*)FOLDER/train/<class>"):
            load(source)
    folder = write(tmp_path / "two", AB)
    with pytest.raises(ValueError, match=f"Then give the folder around it, {folder}. Give FOLDER"):
        load(folder / "a")
    alone = write(tmp_path / "one", {"images/1.png": plain(1)})
    with pytest.raises(ValueError, match="have to lie in a folder per class"):
        load(alone / "images")


@pytest.mark.filterwarnings("ignore:2 classes")
def test_faults_are_left_out_and_reported_and_no_hindrance(tmp_path: Path, capfd) -> None:
    disorder = image_fixtures.disorderly_folder(tmp_path / "wüst")
    empty = pytest.warns(UserWarning, match="(?s)2 classes are left out:.*only here")
    with pytest.warns(UserWarning, match="4 of 73 files cannot be decoded and are skipped"), empty:
        splits = checked = load(disorder)
    assert splits.class_names == image_fixtures.CLASSES
    assert (len(splits.train), len(splits.val)) == (3 * 19 + 3, 8)
    assert set(splits.val.labels()) == {0, 1}
    broken = {f"train/{name}/broken.jpg" for name in splits.class_names} | {"val/лютик/text.jpg"}
    unreadable = {str(path.relative_to(disorder)): reason for path, reason in splits.report}
    assert set(unreadable) == broken
    assert all(unreadable.values())
    ignored = {str(path.relative_to(disorder)): reason for path, reason in splits.report.ignored}
    known = f"not one of {' '.join(suffixes_of('tensorflow'))}"
    renamed = f"{known}; its first bytes are JPEG's: rename it to .jpg"
    others = {"train/лютик/photo.jpgx": renamed, "train/лютик/Thumbs.db": known}
    empty = {"train/empty": NO_IMAGE, "val/only here": f"{NO_IMAGE}, only 1 elsewhere"}
    assert ignored == others | empty
    for splits in (checked, load(disorder, verify=False)):
        training = pipeline(splits.train, 16, 8, True)
        assert sum(len(y) for _, y in training.as_numpy_iterator()) == 3 * 19 + 3
        assert sum(len(x) for x, _ in pipeline(splits.val, 16, 8).as_numpy_iterator()) == 8
        # Without a check beforehand, the files are named as they are met.
        met = "cannot be decoded and is skipped" in capfd.readouterr().err
        assert met == (splits is not checked)
