"""Images of one patient, video or photograph, by their names, are on one side of the split."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_vit import data
from keras_vit.data.sources.named_sources import source_of

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


def write(folder: Path, names: list[str]) -> None:
    rng = np.random.default_rng(len(names))
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (4, 4, 3), np.uint8)).resize((24, 24)).save(path)


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
    write(tmp_path / "photos", names)
    labels = None
    if layout == "table":
        labels = tmp_path / "labels.csv"
        labels.write_text("".join(["file,label\n", *(f"{n},{'ab'[len(n) % 2]}\n" for n in names)]))
    if layout == "masks":
        labels = tmp_path / "masks"
        for name in names:
            mask = labels / name
            mask.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.tile(np.arange(24, dtype=np.uint8) // 12, (24, 1))).save(mask)
    with pytest.warns(UserWarning, match=r"40 images are of 10 sources by their names"):
        splits = data.load(tmp_path / "photos", labels=labels, reader="grain")
    assert not patients(splits, "train") & patients(splits, "val")
    assert 4 <= len(splits.val) <= 12
    assert len(splits.train.groups) == len(splits.train)


def test_what_names_do_not_settle_is_told(tmp_path: Path) -> None:
    write(tmp_path / "a", [f"{c}/frame_{i}.png" for c in "xy" for i in range(5)])
    with pytest.warns(UserWarning, match=r"10 images seem to be the frames of a recording"):
        data.load(tmp_path / "a", reader="grain")
    write(tmp_path / "b", [f"{c}/clip{c}_{i}.png" for c in "12" for i in range(5)])
    with pytest.warns(UserWarning, match=r"10 images are of 2 sources.*too few to keep apart"):
        data.load(tmp_path / "b", reader="grain")
    for split in ("train", "val"):
        write(tmp_path / "c", [f"{split}/{c}/case1_{split}{i}.png" for c in "xy" for i in range(3)])
    write(tmp_path / "c", ["train/x/case2_1.png"])
    with pytest.warns(UserWarning, match=r"6 of 6 images that are validated on are of sources"):
        data.load(tmp_path / "c", reader="grain")
    write(tmp_path / "d", [f"{c}/IMG_{c}_{i}.png" for c in "xy" for i in range(5)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.load(tmp_path / "d", reader="grain")
