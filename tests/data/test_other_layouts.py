"""Folders and tables as other tools write them: read for what they are, or refused; one
source of several images, by their names, is on one side of the split.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_vit import data, tasks
from keras_vit.data.sources.named_sources import source_of
from tests.backend import refused

SIZE = (12, 10)
COLORS = {"background": (0, 0, 0), "cat": (250, 50, 83), "dog": (51, 221, 255)}
LABELMAP = "# label:color_rgb:parts:actions\n" + "".join(
    f"{name}:{','.join(map(str, color))}::\n" for name, color in COLORS.items()
)
NUMBERS = np.arange(120).reshape(10, 12) % 3
SQUARE = "0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.5\n"


def write(folder: Path, files: dict[str, Any]) -> Path:
    """Files of texts, JSON, pixels of a mask, or a number of which a photograph is made."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, int):
            pixels = np.random.default_rng(content).integers(0, 255, (2, 2, 3), np.uint8)
            Image.fromarray(pixels).resize(SIZE).save(path)
        elif isinstance(content, np.ndarray):
            Image.fromarray(content.astype(np.uint8)).save(path)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def in_both(photo: str, beside: str, content: Any, count: int = 4) -> dict[str, Any]:
    """A photograph and what is beside it, for each of several numbers `{i}`."""
    photos = {photo.format(i=i): i for i in range(count)}
    return photos | {
        beside.format(i=i): content.format(i=i % 2) if isinstance(content, str) else content
        for i in range(count)
    }


def coco(split: str, label: int) -> dict[str, Any]:
    """As Roboflow exports it: a category of the kind first, and ids from 0 in each split."""
    outline = [[1, 1, 8, 1, 8, 8, 1, 8]]
    names = {0: ("animals", "none"), 1: ("cat", "animals"), 2: ("dog", "animals")}
    each = [{"image_id": i, "category_id": label, "segmentation": outline} for i in range(3)]
    return {f"{split}/{i}.jpg": i + 10 * label for i in range(3)} | {
        f"{split}/_annotations.coco.json": {
            "images": [{"id": i, "file_name": f"{i}.jpg"} for i in range(3)],
            "annotations": each,
            "categories": [{"id": i, "name": n, "supercategory": s} for i, (n, s) in names.items()],
        }
    }


def rows(header: str, line: str, split: str, count: int = 4) -> dict[str, Any]:
    lines = [line.format(i=i, odd=i % 2, even=1 - i % 2, name="ab"[i % 2]) for i in range(count)]
    seed = {"train": 0, "valid": 10, "validation": 10, "test": 20}[split]
    photos = {f"{split}/{i}.jpg": seed + i for i in range(count)}
    return photos | {
        f"{split}/{header.partition('|')[0]}": header.partition("|")[2] + "".join(lines)
    }


MASKS = "segmentation"
COLORED = np.array(list(COLORS.values()))[NUMBERS]
# What it is called: the files, the folder, its labels, then the kind, the names and the splits.
READ: dict[str, tuple[dict[str, Any], str, str | None, str, tuple[str, ...], dict[str, int]]] = {
    "Hugging Face's metadata.csv in each split": (
        rows("metadata.csv|file_name,label\n", "{i}.jpg,{name}\n", "train")
        | rows("metadata.csv|file_name,label\n", "{i}.jpg,{name}\n", "validation"),
        *(".", "metadata.csv", "classification", ("a", "b"), {"train": 4, "val": 4}),
    ),
    "one table of the folders of splits": (
        in_both("train/{i}.jpg", "test/{i}.png", 9)
        | {
            "l.csv": "file,label\n"
            + "".join(f"train/{i}.jpg,{'ab'[i % 2]}\n" for i in range(4))
            + "test/0.png,a\n"
        },
        *(".", "l.csv", "classification", ("a", "b"), {"train": 4, "val": 1}),
    ),
    "Roboflow's _classes.csv in each split": (
        rows("_classes.csv|filename, a, b\n", "{i}.jpg, 1, {odd}\n", "train")
        | rows("_classes.csv|filename, a, b\n", "{i}.jpg, {odd}, {even}\n", "valid")
        | rows("_classes.csv|filename, a, b\n", "{i}.jpg, {odd}, {even}\n", "test"),
        *(".", "_classes.csv", "multilabel", ("a", "b"), {"train": 4, "val": 4, "test": 4}),
    ),
    "COCO in each split": (
        coco("train", 1) | coco("valid", 2),
        *(".", "_annotations.coco.json", MASKS, ("background", "cat", "dog")),
        {"train": 3, "val": 3},
    ),
    "YOLO's names in data.yaml": (
        in_both("images/{i}.jpg", "labels/{i}.txt", "{i} " + SQUARE)
        | {"data.yaml": "nc: 2\nnames: {0: cat, 1: dog}\n"},
        *("images", "labels", MASKS, ("background", "cat", "dog"), {"train": 3, "val": 1}),
    ),
    "CVAT's colors": (
        in_both("JPEGImages/{i}.jpg", "SegmentationClass/{i}.png", COLORED)
        | {"labelmap.txt": LABELMAP},
        *("JPEGImages", "SegmentationClass", MASKS, tuple(COLORS), {"train": 3, "val": 1}),
    ),
    "black and white masks, named after their photographs": (
        in_both("images/{i}.jpg", "masks/{i}_mask.png", 255 * (NUMBERS > 1))
        | {"masks/labelmap.txt": "background:0,0,0::\nlesion:255,255,255::\n"},
        *("images", "masks", MASKS, ("background", "lesion"), {"train": 3, "val": 1}),
    ),
}


@pytest.mark.parametrize("case", READ)
def test_what_other_tools_write_is_read(case: str, tmp_path: Path) -> None:
    files, folder, labels, kind, names, counts = READ[case]
    top = write(tmp_path, files)
    where = labels if labels is None or folder == "." else top / labels
    splits = data.load(top / folder, labels=where, reader="grain")
    assert (splits.task.kind, splits.class_names) == (kind, names)
    assert {name: len(split) for name, split in splits.splits.items()} == counts


def test_colors_are_the_numbers_of_their_names(tmp_path: Path) -> None:
    top = write(tmp_path, READ["CVAT's colors"][0])
    options: dict[str, Any] = {"labels": top / "SegmentationClass", "reader": "grain"}
    splits = data.load(top / "JPEGImages", **options)
    np.testing.assert_array_equal(splits.train.label_map(0), NUMBERS)
    assert splits.task.colors == tuple(COLORS.values())
    with Image.open(top / "SegmentationClass/1.png") as image:
        image.quantize(16).save(
            top / "SegmentationClass/1.png"
        )  # a palette, in an order of its own
    turned = tasks.Segmentation(("dog", "background", "cat"))
    splits = data.load(top / "JPEGImages", task=turned, **options)
    for index in range(len(splits.train)):
        np.testing.assert_array_equal(splits.train.label_map(index), np.array([1, 2, 0])[NUMBERS])
    Image.fromarray(np.full((10, 12, 3), 7, np.uint8)).save(top / "SegmentationClass/3.png")
    with pytest.raises(ValueError, match=r"3\.png: has the color 7,7,7, which is not in labelmap"):
        data.load(top / "JPEGImages", **options)


def test_a_list_in_another_order_is_other_numbers(tmp_path: Path) -> None:
    files = in_both("images/{i}.jpg", "masks/{i}.png", NUMBERS) | {"masks/classes.txt": "a\nb\nc"}
    top, turned = write(tmp_path, files), tasks.Segmentation(("b", "a", "c"))
    with pytest.raises(ValueError, match=r"has a, b, c, and the classes are b, a, c"):
        data.load(top / "images", labels=top / "masks", task=turned, reader="grain")


# The files, the folder, its labels, and what the error has.
REFUSED: dict[str, tuple[dict[str, Any], str, str | None, str]] = {
    "images and masks": (
        in_both("images/{i}.jpg", "masks/{i}.png", NUMBERS),
        *(".", None, r"images and masks, which are the names of photographs.*labels='.*masks'"),
    ),
    "images and masks of a split": (
        in_both("train/images/{i}.jpg", "train/masks/{i}.png", NUMBERS),
        *(".", None, r"train has images and masks"),
    ),
    "VOC": (
        in_both("JPEGImages/{i}.jpg", "SegmentationClass/{i}.png", NUMBERS)
        | {"Annotations/0.xml": "<a/>"},
        *(".", None, r"JPEGImages and SegmentationClass"),
    ),
    "CamVid": (
        in_both("train/{i}.jpg", "train_labels/{i}_L.png", NUMBERS),
        *(".", None, r"train and train_labels"),
    ),
    "masks in JPEG files": (
        in_both("images/{i}.jpg", "masks/{i}.jpg", NUMBERS),
        *("images", "masks", r"0\.png is not there, and 0\.jpg is"),
    ),
    "tables in splits that are not given": (
        rows("metadata.csv|file_name,label\n", "{i}.jpg,{name}\n", "train")
        | rows("metadata.csv|file_name,label\n", "{i}.jpg,{name}\n", "validation"),
        *(".", None, r"There is train/metadata\.csv.*labels='metadata\.csv'"),
    ),
    "tables in splits that differ": (
        rows("metadata.csv|file_name,label\n", "{i}.jpg,{name}\n", "train")
        | rows("metadata.csv|file_name,kind\n", "{i}.jpg,{name}\n", "validation"),
        *(".", "metadata.csv", r"do not have the same columns: kind, label is in one of them"),
    ),
    "ranges": (
        in_both("{i}.jpg", "l.csv", 'file,age\n0.jpg,"(0, 2)"\n1.jpg,"(4, 6)"\n2.jpg,"(0, 2)"\n'),
        *(".", "l.csv", r"pairs of rising numbers, such as '0, 2': are they ranges\?"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_something_else_is_refused(case: str, tmp_path: Path) -> None:
    files, folder, labels, message = REFUSED[case]
    top = write(tmp_path, files)
    where = labels if labels is None or folder == "." else top / labels
    refused(message, data.load, top / folder, labels=where, reader="grain")


@pytest.mark.parametrize("labels", [None, "l.csv"])
def test_one_image_with_two_labels_is_warned_of(labels: str | None, tmp_path: Path) -> None:
    names = [f"{c}/{i}.png" for c in "ab" for i in range(4)]
    numbers = [0, 1, 2, 3, 4, 5, 6, 0]  # a/0.png is b/3.png
    table = {"l.csv": "".join(["file,label\n", *(f"{name},{name[0]}\n" for name in names)])}
    write(tmp_path, dict(zip(names, numbers, strict=True)) | table)
    with pytest.warns(
        UserWarning, match=r"1 file with the content of one with another.*a/0\.png and .*b/3\.png"
    ):
        data.load(tmp_path, labels=labels, reader="grain")


@pytest.mark.parametrize("reader", ["grain", "tensorflow"])
def test_sizes_of_files_that_show_the_class_are_warned_of(reader: str, tmp_path: Path) -> None:
    if reader == "tensorflow":
        pytest.importorskip("tensorflow")
    suffixes = {"wolf": "png", "dog": "jpg"}
    write(
        tmp_path / "a", {f"{c}/{i}.{s}": i + len(c) for c, s in suffixes.items() for i in range(20)}
    )
    with pytest.warns(UserWarning, match=r"100% of the training images, such as 10 x 12.*'dog'"):
        data.load(tmp_path / "a", reader=reader)
    write(tmp_path / "b", {f"{c}/{i}.png": i + 50 * len(c) for c in suffixes for i in range(20)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.load(tmp_path / "b", reader=reader)


# As data sets on the net name their files.
NAMES = {
    "patient12_slice3": "patient12",
    "sub-01_ses-2_t1_040": "sub-01",
    "TCGA_CS_4941_19960909_1": "tcga_cs_4941",
    "person1000_virus_1681": "person1000",
    "GOPR0012_frame_34": "gopr0012",
    "daisy-7_jpg.rf.0a9f": "daisy-7",
    "rose_aug_2": "rose",
    **{
        name: name for name in ("img_2034", "path_3_12", "case_00012", "rot_90", "cat.12", "tile_3")
    },
}


def photos(folder: Path, *names: str) -> Path:
    return write(folder, {name: number for number, name in enumerate(names)})


def patients(splits: data.Splits, name: str) -> set[str]:
    return {source_of(f"{file.parent.name}_{file.stem}") for file in splits[name].files}


@pytest.mark.parametrize("name", NAMES)
def test_what_an_image_is_of(name: str) -> None:
    assert source_of(name) == NAMES[name]


@pytest.mark.parametrize("layout", ["classes", "table", "masks"])
def test_one_source_is_on_one_side(layout: str, tmp_path: Path) -> None:
    names = [f"{'ab'[i % 2]}/patient{i // 4}_{i}.png" for i in range(40)]
    if layout != "classes":  # a folder is a patient
        names = [f"patient{i // 4}/{i}.png" for i in range(40)]
    photos(tmp_path / "photos", *names)
    labels = None
    if layout == "table":
        labels = tmp_path / "labels.csv"
        labels.write_text("".join(["file,label\n", *(f"{n},{'ab'[len(n) % 2]}\n" for n in names)]))
    if layout == "masks":
        labels = tmp_path / "masks"
        write(labels, dict.fromkeys(names, NUMBERS))
    with pytest.warns(UserWarning, match=r"40 images are of 10 sources by their names"):
        splits = data.load(tmp_path / "photos", labels=labels, reader="grain")
    assert not patients(splits, "train") & patients(splits, "val")
    assert 4 <= len(splits.val) <= 12
    assert len(splits.train.groups) == len(splits.train)


def test_what_names_do_not_settle_is_told(tmp_path: Path) -> None:
    photos(tmp_path / "a", *(f"{c}/frame_{i}.png" for c in "xy" for i in range(5)))
    with pytest.warns(UserWarning, match=r"10 images seem to be the frames of a recording"):
        data.load(tmp_path / "a", reader="grain")
    photos(tmp_path / "b", *(f"{c}/clip{c}_{i}.png" for c in "12" for i in range(5)))
    with pytest.warns(UserWarning, match=r"10 images are of 2 sources.*too few to keep apart"):
        data.load(tmp_path / "b", reader="grain")
    names = [f"{s}/{c}/case1_{s}{i}.png" for s in ("train", "val") for c in "xy" for i in range(3)]
    photos(tmp_path / "c", *names, "train/x/case2_1.png")
    with pytest.warns(UserWarning, match=r"6 of 6 images that are validated on are of sources"):
        data.load(tmp_path / "c", reader="grain")
    photos(tmp_path / "d", *(f"{c}/IMG_{c}_{i}.png" for c in "xy" for i in range(5)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.load(tmp_path / "d", reader="grain")
