"""What other tools write is read for what it is, or refused; sources of images by their names."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_vit import data, tasks
from keras_vit.data.sources.named_sources import source_of
from tests.backend import refused, warned

SIZE = (12, 10)
COLORS = {"background": (0, 0, 0), "cat": (250, 50, 83), "dog": (51, 221, 255)}
LABELMAP = "#label:rgb:parts:actions\nbackground:0,0,0::\ncat:250,50,83::\ndog:51,221,255::\n"
BLACK, YOLO = "background:0,0,0::\nlesion:255,255,255::\n", "nc: 2\nnames: {0: cat, 1: dog}\n"
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


def in_both(photos: str, beside: str, content: Any = NUMBERS, **more: str) -> dict[str, Any]:
    """Four photographs `{i}` of a folder, what is beside each, and texts of any file."""
    files: dict[str, Any] = dict(more)
    for i in range(4):
        files[f"{photos}/{i}.jpg"] = i
        one = content.format(i=i % 2) if isinstance(content, str) else content
        files[beside.format(i=i) if "{i}" in beside else f"{beside}/{i}.png"] = one
    return files


def coco(split: str, label: int) -> dict[str, Any]:
    """As Roboflow exports it: a category of the kind first, and ids from 0 in each split."""
    outline = [[1, 1, 8, 1, 8, 8, 1, 8]]
    names = {0: ("animals", "none"), 1: ("cat", "animals"), 2: ("dog", "animals")}
    record = {
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in range(3)],
        "annotations": [
            {"image_id": i, "category_id": label, "segmentation": outline} for i in range(3)
        ],
        "categories": [{"id": i, "name": n, "supercategory": s} for i, (n, s) in names.items()],
    }
    photos = {f"{split}/{i}.jpg": i + 10 * label for i in range(3)}
    return {**photos, f"{split}/_annotations.coco.json": record}


def tables(name: str, header: str, **lines: str) -> dict[str, Any]:
    """In each of some splits, four photographs of its own and a table of lines of this form."""
    files: dict[str, Any] = {}
    for seed, (split, line) in enumerate(lines.items()):
        files |= {f"{split}/{i}.jpg": 10 * seed + i for i in range(4)}
        cells = [line.format(i=i, odd=i % 2, even=1 - i % 2, name="ab"[i % 2]) for i in range(4)]
        files[f"{split}/{name}"] = "\n".join([header, *cells])
    return files


def load(top: Path, where: str, **options: Any) -> data.Splits:
    """`where` is the folder of photographs, and behind a space what has their labels."""
    folder, _, labels = where.partition(" ")
    place = top / labels if labels and folder != "." else labels or None
    return data.load(top / folder, labels=place, reader="grain", **options)


MASKS, COUNTS = "segmentation", {"train": 3, "val": 1}
COLORED, LESIONS = np.array(list(COLORS.values()))[NUMBERS], 255 * (NUMBERS > 1)
OF_FACE = tables("metadata.csv", "file_name,label", train="{i}.jpg,{name}", validation="{i}.jpg,b")
ODD, BOTH = "{i}.jpg, 1, {odd}", "{i}.jpg, {odd}, {even}"
LIST = "file,label\ntrain/0.jpg,a\ntrain/1.jpg,b\ntrain/2.jpg,a\ntrain/3.jpg,b\ntest/0.png,a\n"
VOC = "JPEGImages SegmentationClass"
# What it is called: the files, where they are, then the kind, the names and the splits.
READ: dict[str, tuple[dict[str, Any], str, str, str, dict[str, int]]] = {
    "Hugging Face's metadata.csv in each split": (
        *(OF_FACE, ". metadata.csv", "classification", "a b", {"train": 4, "val": 4}),
    ),
    "one table of the folders of splits": (
        in_both("train", "test", 9, **{"l.csv": LIST}),
        *(". l.csv", "classification", "a b", {"train": 4, "val": 1}),
    ),
    "Roboflow's _classes.csv in each split": (
        tables("_classes.csv", "filename, a, b", train=ODD, valid=BOTH, test=BOTH),
        *(". _classes.csv", "multilabel", "a b", {"train": 4, "val": 4, "test": 4}),
    ),
    "COCO in each split": (
        coco("train", 1) | coco("valid", 2),
        *(". _annotations.coco.json", MASKS, "background cat dog", {"train": 3, "val": 3}),
    ),
    "YOLO's names in data.yaml": (
        in_both("images", "labels/{i}.txt", "{i} " + SQUARE, **{"data.yaml": YOLO}),
        *("images labels", MASKS, "background cat dog", COUNTS),
    ),
    "CVAT's colors": (
        in_both(*VOC.split(), COLORED, **{"labelmap.txt": LABELMAP}),
        *(VOC, MASKS, "background cat dog", COUNTS),
    ),
    "black and white masks, named after their photographs": (
        in_both("images", "masks/{i}_mask.png", LESIONS, **{"masks/labelmap.txt": BLACK}),
        *("images masks", MASKS, "background lesion", COUNTS),
    ),
}


@pytest.mark.parametrize("case", READ)
def test_what_other_tools_write_is_read(case: str, tmp_path: Path) -> None:
    files, where, kind, names, counts = READ[case]
    splits = load(write(tmp_path, files), where)
    assert (splits.task.kind, " ".join(splits.class_names)) == (kind, names)
    assert {name: len(split) for name, split in splits.splits.items()} == counts


def test_colors_and_numbers_are_those_of_their_names(tmp_path: Path) -> None:
    top = write(tmp_path, READ["CVAT's colors"][0])
    splits, mask = load(top, VOC), top / "SegmentationClass/1.png"
    np.testing.assert_array_equal(splits.train.label_map(0), NUMBERS)
    assert splits.task.colors == tuple(COLORS.values())
    with Image.open(mask) as image:
        image.quantize(16).save(mask)  # a palette, in an order of its own
    splits = load(top, VOC, task=tasks.Segmentation(("dog", "background", "cat")))
    for index in range(len(splits.train)):
        np.testing.assert_array_equal(splits.train.label_map(index), np.array([1, 2, 0])[NUMBERS])
    Image.fromarray(np.full((10, 12, 3), 7, np.uint8)).save(top / "SegmentationClass/3.png")
    refused(r"3\.png: has the color 7,7,7, which is not in labelmap", load, top, VOC)
    # A list in another order is other numbers.
    top = write(tmp_path / "list", in_both("images", "masks", **{"masks/classes.txt": "a\nb\nc"}))
    turned = tasks.Segmentation(("b", "a", "c"))
    refused("has a, b, c, and the classes are b, a, c", load, top, "images masks", task=turned)


RANGES = 'file,age\n0.jpg,"(0, 2)"\n1.jpg,"(4, 6)"\n2.jpg,"(0, 2)"\n'
# The files, where they are, and what the error has.
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "images and masks": (
        in_both("images", "masks"),
        *(".", r"images and masks, which are the names of photographs.*labels='.*masks'"),
    ),
    "of a split": (in_both("train/images", "train/masks"), ".", "train has images and masks"),
    "VOC": (
        in_both(*VOC.split(), **{"Annotations/0.xml": "<a/>"}),
        *(".", "JPEGImages and SegmentationClass"),
    ),
    "CamVid": (in_both("train", "train_labels/{i}_L.png"), ".", "train and train_labels"),
    "masks in JPEG files": (
        in_both("images", "masks/{i}.jpg"),
        *("images masks", r"0\.png is not there, and .*0\.jpg is"),
    ),
    "tables in splits that are not given": (
        *(OF_FACE, ".", r"There is train/metadata\.csv.*labels='metadata\.csv'"),
    ),
    "tables in splits that differ": (
        OF_FACE | {"validation/metadata.csv": "file_name,kind\n0.jpg,a\n1.jpg,b"},
        *(". metadata.csv", "do not have the same columns: kind, label is in one of them"),
    ),
    "ranges": (
        {f"{i}.jpg": i for i in range(4)} | {"l.csv": RANGES},
        *(". l.csv", r"pairs of rising numbers, such as '0, 2': are they ranges\?"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_something_else_is_refused(case: str, tmp_path: Path) -> None:
    files, where, message = REFUSED[case]
    refused(message, load, write(tmp_path, files), where)


@pytest.mark.parametrize("where", [".", ". l.csv"])
def test_one_image_with_two_labels_is_warned_of(where: str, tmp_path: Path) -> None:
    names = [f"{c}/{i}.png" for c in "ab" for i in range(4)]
    numbers = [0, 1, 2, 3, 4, 5, 6, 0]  # a/0.png is b/3.png
    table = {"l.csv": "".join(["file,label\n", *(f"{name},{name[0]}\n" for name in names)])}
    write(tmp_path, dict(zip(names, numbers, strict=True)) | table)
    message = r"1 file with the content of one with another.*a/0\.png and .*b/3\.png"
    warned(message, load, tmp_path, where)


@pytest.mark.parametrize("reader", ["grain", "tensorflow"])
def test_sizes_of_files_that_show_the_class_are_warned_of(reader: str, tmp_path: Path) -> None:
    if reader == "tensorflow":
        pytest.importorskip("tensorflow")
    suffixes = {"wolf": "png", "dog": "jpg"}
    files = {f"{c}/{i}.{s}": i + len(c) for c, s in suffixes.items() for i in range(20)}
    write(tmp_path / "a", files)
    warned(r"100% of the training.* 10 x 12.*'dog'", data.load, tmp_path / "a", reader=reader)
    write(tmp_path / "b", {f"{c}/{i}.png": i + 50 * len(c) for c in suffixes for i in range(20)})
    with warnings.catch_warnings(action="error"):
        data.load(tmp_path / "b", reader=reader)


# As data sets on the net name their files.
NAMES = {
    "patient12_slice3": "patient12",
    "sub-01_ses-2_t1_040": "sub-01",
    "TCGA_CS_4941_19960909_1": "tcga_cs_4941",
    "person1000_virus_1681": "person1000",
    "GOPR0012_frame_34": "gopr0012",
    "IMG_20240101_BURST003": "img_20240101",
    "daisy-7_jpg.rf.0a9f": "daisy-7",
    "rose_aug_2": "rose",
    "Flip_rot90_rose": "rose",
    "rose_30_new30degFlipLR": "rose_30",
    "aug_4_1234": "aug_4",
}
NAMES |= {n: n for n in ("img_2034", "path_3_12", "case_00012", "rot_90", "cat.12", "tile_3")}


def photos(folder: Path, *names: str) -> Path:
    return write(folder, {name: number for number, name in enumerate(names)})


def patients(splits: data.Splits, name: str) -> set[str]:
    return {source_of(f"{file.parent.name}_{file.stem}") for file in splits[name].files}


@pytest.mark.parametrize("where", ["photos", "photos labels.csv", "photos masks"])
def test_one_source_is_on_one_side(where: str, tmp_path: Path) -> None:
    names = [f"{'ab'[i % 2]}/patient{i // 4}_{i}.png" for i in range(40)]
    if where != "photos":  # a folder is a patient
        names = [f"patient{i // 4}/{i}.png" for i in range(40)]
    photos(tmp_path / "photos", *names)
    write(tmp_path / "masks", dict.fromkeys(names, NUMBERS))
    rows = "\n".join(["file,label", *(f"{name},{'ab'[len(name) % 2]}" for name in names)])
    write(tmp_path, {"labels.csv": rows})
    splits = warned("40 images are of 10 sources by their names", load, tmp_path, where)
    assert not patients(splits, "train") & patients(splits, "val")
    assert 4 <= len(splits.val) <= 12
    assert len(splits.train.groups) == len(splits.train)


def test_what_an_image_is_of_and_what_names_do_not_settle(tmp_path: Path) -> None:
    assert {name: source_of(name) for name in NAMES} == NAMES
    photos(tmp_path / "a", *(f"{c}/frame_{i}.png" for c in "xy" for i in range(5)))
    warned("10 images seem to be the frames of a recording", load, tmp_path, "a")
    photos(tmp_path / "b", *(f"{c}/clip{c}_{i}.png" for c in "12" for i in range(5)))
    warned("10 images are of 2 sources.*too few to keep apart", load, tmp_path, "b")
    names = [f"{s}/{c}/case1_{s}{i}.png" for s in ("train", "val") for c in "xy" for i in range(3)]
    photos(tmp_path / "c", *names, "train/x/case2_1.png")
    warned("6 of 6 images that are validated on are of sources", load, tmp_path, "c")
    photos(tmp_path / "d", *(f"{c}/IMG_{c}_{i}.png" for c in "xy" for i in range(5)))
    numbers = [f"{s}/{c}/{i}.png" for s in ("train", "val") for c in "xy" for i in range(20)]
    photos(tmp_path / "e", *numbers, "train/x/7_flip.png")  # of one image: the others are not alike
    with warnings.catch_warnings(action="error"):
        load(tmp_path, "d")
        load(tmp_path, "e")
