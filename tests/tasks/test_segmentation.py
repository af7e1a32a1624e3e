"""A class for every pixel: losses, scores, files, readers, training and answers."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import warnings
import zlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unicodedata import normalize

import keras
import matplotlib.path
import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import binary_erosion
from sklearn.metrics import confusion_matrix

import keras_vit
from keras_vit import data, tasks
from keras_vit.data.augment.augmentation import Augmentation
from keras_vit.data.decode import pillow
from keras_vit.data.image_readers import READERS
from keras_vit.data.sources.mask_folder import read_mask
from keras_vit.data.sources.polygons import polygon_pixels
from keras_vit.evaluation.unseen_images import check_same_task, unseen_images
from keras_vit.layers import MapResize
from keras_vit.tasks.mask_scores import panoptic_quality
from keras_vit.tasks.pixel_losses import MeanIoU, PixelCrossentropy
from keras_vit.tasks.query_segments import panoptic_segments
from tests import bank
from tests.backend import refused, rows, warned
from tests.data.image_fixtures import encode, write
from tests.data.test_decoder import chunk

TASK = tasks.Segmentation(("sky", "tree", "road"))
load = partial(data.load, reader="grain")


def scenes(folder: Path, count: int = 12, size: tuple[int, int] = (40, 48)) -> Path:
    rng = np.random.default_rng(0)
    for i in range(count):
        height, width = size
        mask = np.zeros(size, np.uint8)
        top, left = rng.integers(2, height - 18), rng.integers(2, width - 18)
        mask[top : top + 16, left : left + 16] = 1
        mask[:, width // 2 - 4 : width // 2 + 4] = 2
        colors = np.array([[90, 120, 200], [240, 230, 60], [30, 30, 30]], np.float32)
        image = colors[mask] + rng.normal(0, 8, (*size, 3))
        mask[0, :5] = 255
        for kind, pixels in (("photos", image.clip(0, 255).astype(np.uint8)), ("masks", mask)):
            file = encode(Image.fromarray(pixels), "PNG")
            write(folder / kind, {f"{'ab'[i % 2]}/{i}.png": file})
    (folder / "masks" / "classes.txt").write_text("sky\ntree\nroad\n", "utf-8-sig")
    return folder


def maps(rng: np.random.Generator, ignored: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(0, 3, (4, 5, 6))
    labels[rng.random(labels.shape) < ignored] = 255
    return labels, rng.normal(size=(4, 5, 6, 3)).astype("float32")


@pytest.mark.every_backend
def test_the_loss_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    labels, logits = maps(np.random.default_rng(0))
    labels[3] = 255  # an image of which nothing is known
    loss = torch.nn.CrossEntropyLoss(ignore_index=255)
    expected = [
        loss(torch.tensor(x).permute(2, 0, 1)[None], torch.tensor(y)[None]).item()
        for x, y in zip(logits[:3], labels[:3], strict=True)
    ]
    values = PixelCrossentropy(reduction="none")(labels, logits)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(values), [*expected, 0], rtol=1e-5)


@pytest.mark.every_backend
def test_scores_are_those_of_scikit_learns_confusion_matrix() -> None:
    labels, logits = maps(np.random.default_rng(2))
    answers, known = TASK.answers(logits), labels != 255
    matrix = confusion_matrix(labels[known], logits.argmax(-1)[known])
    iou = np.diag(matrix) / (matrix.sum(0) + matrix.sum(1) - np.diag(matrix))
    scores = TASK.scores(labels, answers, resamples=20)
    assert scores["mean_iou"].value == pytest.approx(iou.mean())
    assert scores["pixel_accuracy"].value == pytest.approx(np.trace(matrix) / matrix.sum())
    np.testing.assert_allclose(TASK.name_scores(TASK.tally(labels, answers))["IoU"], iou)
    metric = MeanIoU(3)
    metric.update_state(labels[:2], logits[:2])
    metric.update_state(labels[[2, 3, 3]], logits[[2, 3, 3]], np.array([1, 1, 0]))
    assert float(metric.result()) == pytest.approx(iou.mean(), rel=1e-5)
    assert "IoU" in str(keras_vit.evaluation.report(TASK, labels, answers))


def boundary_region(mask: np.ndarray) -> np.ndarray:
    """The authors' code (bowenc0221/boundary-iou-api, `mask_to_boundary`), eroded by SciPy."""
    reach = max(round(0.02 * np.sqrt(mask.shape[0] ** 2 + mask.shape[1] ** 2)), 1)
    return mask & ~binary_erosion(np.pad(mask, 1), np.ones((3, 3)), reach)[1:-1, 1:-1]


@pytest.mark.parametrize("size", [(90, 130), (3, 200), (61, 7), (1, 1)])
def test_boundary_iou_is_that_of_its_authors(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    labels, answers = rng.integers(0, 3, (2, 4, *(-(-n // 9) for n in size)))
    labels, answers = (
        np.kron(x, np.ones((9, 9), int))[:, : size[0], : size[1]] for x in (labels, answers)
    )
    labels[1:3, : size[0] // 2, -9:] = 255
    counts = np.zeros((3, 4, 3), int)  # both, true, answered; images; classes
    for i, c in np.ndindex(4, 3):
        known = labels[i] != 255
        pair = [boundary_region(x[i] == c) & known for x in (labels, answers)]
        counts[:, i, c] = [x.sum() for x in (pair[0] & pair[1], *pair)]
    tally = TASK.tally(labels, answers.astype(np.uint8))
    for name, expected in zip(("right", "present", "answered"), counts, strict=True):
        np.testing.assert_array_equal(tally[f"near_{name}"], expected)
    both, true, answered = counts.sum(axis=1)
    iou = both / np.maximum(true + answered - both, 1)
    score = TASK.scores_of(tally, resamples=20)["boundary_iou"]
    assert score.value == pytest.approx(iou[true + answered > 0].mean())
    assert score.low <= score.value <= score.high
    np.testing.assert_allclose(TASK.name_scores(tally)["boundary IoU"], iou)


def test_panoptic_quality_is_that_of_panopticapi_and_torchmetrics() -> None:
    """`golden/panoptic.npz`: segments of mmdet 3.3.0's copy of panopticapi, 255 for void, and PQ,
    SQ and RQ of torchmetrics 1.9.0 with 255 made the class 2."""
    golden = dict(np.load(Path(__file__).parents[1] / "golden/panoptic.npz"))
    true, predicted, theirs = (golden.pop(n) for n in ("true", "predicted", "torchmetrics"))
    ours = panoptic_quality(true, predicted, 4, stuff=(2, 3))
    np.testing.assert_allclose(ours["SQ"] * ours["matched"], golden.pop("iou"))
    for name, expected in golden.items():
        np.testing.assert_array_equal(ours[name], expected)
    true, predicted = (np.where(x[..., :1] == 255, (2, 0), x) for x in (true, predicted))
    ours = panoptic_quality(true, predicted, 5, stuff=(2, 3))
    ours = np.stack([ours[name] for name in ("PQ", "SQ", "RQ")], axis=1)
    np.testing.assert_allclose(ours, [*theirs, 3 * [np.nan]], rtol=1e-6)
    refused(r"\(24, 32, 2\) of int64 and \(24, 32\)", panoptic_quality, true, true[..., 0], 4)


@pytest.mark.parametrize("stuff", [(), (0, 2)])
def test_segments_of_queries_are_those_of_transformers(stuff: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    name = "transformers.models.eomt.image_processing_pil_eomt"
    module = pytest.importorskip(name, exc_type=ImportError)
    size, rng = {"shortest_edge": 24, "longest_edge": 24}, np.random.default_rng(0)
    masks = rng.normal(-3, 1, (6, 12, 8, 8)).astype("float32")
    for mask in masks.reshape(-1, 8, 8):
        top, left = rng.integers(0, 6, 2)
        mask[top : top + 3, left : left + 2] += 6
    classes = rng.normal(0, 5, (6, 12, 4)).astype("float32")
    classes[5, :, :3] = -9  # no object
    outputs = SimpleNamespace(
        masks_queries_logits=torch.tensor(masks), class_queries_logits=torch.tensor(classes)
    )
    theirs = module.EomtImageProcessorPil(size=size).post_process_panoptic_segmentation(
        outputs, [(24, 24)] * 6, stuff_classes=list(stuff)
    )
    for i, expected in enumerate(theirs):
        ours = panoptic_segments(masks[i].transpose(1, 2, 0), classes[i], (24, 24), stuff=stuff)
        found, number = np.full((24, 24, 2), (255, 0)), 0
        for one in expected["segments_info"]:
            is_thing = one["label_id"] not in stuff
            number += is_thing
            pixels = expected["segmentation"].numpy() == one["id"]
            found[pixels] = one["label_id"], number * is_thing
        np.testing.assert_array_equal(ours, found)
        assert len(expected["segments_info"]) >= 2 * (i < 5)
    refused("are not of one image", panoptic_segments, masks[0], classes[0], (24, 24))


@pytest.mark.every_backend
@pytest.mark.parametrize("align_corners", [False, True])
def test_maps_are_resized_as_by_torch(align_corners: bool) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(2, 5, 7, 3)).astype("float32")
    for size in ((11, 20), (3, 7)):
        expected = torch.nn.functional.interpolate(
            torch.tensor(x).permute(0, 3, 1, 2), size, mode="bilinear", align_corners=align_corners
        ).permute(0, 2, 3, 1)
        ours = keras.ops.convert_to_numpy(MapResize(size, align_corners)(x))
        np.testing.assert_allclose(ours, expected.numpy(), atol=2e-6)


def test_masks_are_found_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, decoded = scenes(tmp_path), []
    (folder / "masks" / "a" / "0.png").rename(folder / "masks" / "a" / "0.PNG")
    for kind, form in (("photos", "NFD"), ("masks", "NFC")):
        (folder / kind / "a" / "2.png").rename(folder / kind / "a" / normalize(form, "é.png"))
    pixels = pillow._pixels
    monkeypatch.setattr(pillow, "_pixels", lambda image: decoded.append(1) or pixels(image))
    splits = load(folder / "photos", labels=folder / "masks")
    assert len(decoded) == 12  # each photograph once; of its size, the header is enough
    assert splits.task == TASK
    (folder / "masks/classes.txt").unlink()  # a model of numbers: one more does not occur here
    model, given = bank.fresh(task=tasks.Segmentation(size=4)), {"labels": folder / "masks"}
    check_same_task(model, unseen_images(model, folder / "photos", **given).split)
    model = bank.fresh(task=tasks.Segmentation(size=2))
    refused("the number 2, .* from 0 to 1", unseen_images, model, folder / "photos", **given)
    # Gray, with a palette, of 16 bits: the same numbers.
    file, expected = splits.train.sources[0], splits.train.label_map(0)
    numbers = np.asarray(Image.open(file))
    palette = Image.fromarray(numbers, "P")
    palette.putpalette([7, 8, 9] * 256)
    for picture in (palette, Image.fromarray(numbers.astype(np.uint16))):
        picture.save(file)
        np.testing.assert_array_equal(splits.train.label_map(0), expected)
    for name in ("train", "val"):  # folders at the top are splits
        for kind in ("photos", "masks"):
            (folder / kind / {"train": "a", "val": "b"}[name]).rename(folder / kind / name)
    for kind in ("photos", "masks"):  # a city beside them is of neither
        shutil.copytree(folder / kind / "train", folder / kind / "extra")
    refused("extra/0.png lies in none of .* train and val in", load, folder / "photos", **given)
    assert list(load(folder / "photos", **given, val_fraction=None)) == ["all"]
    for kind in ("photos", "masks"):
        shutil.rmtree(folder / kind / "extra")
    place = (folder / "masks").rename(folder / "photos" / "masks")
    splits = load(os.path.relpath(folder / "photos"), labels=place)
    assert [len(splits[name]) for name in ("train", "val")] == [6, 6]


SHAPES = {"tree": [[4, 3], [30, 3], [30, 20], [4, 20]], "road": [[10, 8], [44, 13], [13.3, 36.6]]}


def write_labelme(file: Path, shapes: dict[str, list[list[float]]] = SHAPES, **more: Any) -> None:
    of = {2: None, 3: "polygon", 4: "rectangle"}  # as X-AnyLabeling has it
    rows = [{"label": k, "points": v, "shape_type": of[len(v)], **more} for k, v in shapes.items()]
    text = json.dumps({"shapes": rows, "imageHeight": 40, "imageWidth": 48})
    write(file.parent, {file.name: text.encode()})


def write_coco(folder: Path, **more: Any) -> Path:
    names = sorted(p.relative_to(folder / "photos") for p in (folder / "photos").rglob("*.png"))
    size = {"height": 40, "width": 48}
    images = [{"id": i, "file_name": f"photos/{name}", **size} for i, name in enumerate(names)]
    kinds = [{"id": 9, "name": "tree"}, {"id": 4, "name": "road"}]
    shapes = [(k, [np.ravel(v).tolist()]) for k, v in zip((9, 4), SHAPES.values(), strict=True)]
    notes = [
        {"id": i, "image_id": i, "category_id": kind, "segmentation": shape}
        for i in range(len(names))
        for kind, shape in shapes
    ]
    record = {"images": images, "categories": kinds, "annotations": notes, **more}
    (folder / "coco.json").write_text(json.dumps(record))
    return folder / "coco.json"


def test_drawings_of_three_tools_are_one_mask(tmp_path: Path) -> None:
    folder = scenes(tmp_path, 4)
    photos, coco = folder / "photos", write_coco(folder)
    names = [photo.relative_to(photos) for photo in photos.rglob("*.png")]
    rows = [(np.array(v) / [48, 40]).ravel() for v in SHAPES.values()]
    lines = [" ".join(map(str, [i, *row])) for i, row in zip((1, 0), rows, strict=True)]
    for name in names:
        write_labelme((folder / "labelme" / name).with_suffix(".json"))
        write(folder / "yolo", {str(name.with_suffix(".TXT")): "\n".join(lines).encode()})
    triangle = polygon_pixels(np.array(SHAPES["road"]), (40, 48))
    center = np.stack(np.meshgrid(np.arange(48) + 0.5, np.arange(40) + 0.5), -1).reshape(-1, 2)
    exact = matplotlib.path.Path(SHAPES["road"]).contains_points(center).reshape(40, 48)
    assert (triangle != exact).mean() < 0.005  # corners are rounded to a fifth of a pixel
    expected = np.zeros((40, 48), np.uint8)
    expected[3:20, 4:30] = 2
    expected[triangle] = 1  # drawn later
    mask = Image.fromarray(expected, "P")  # as files of PASCAL VOC
    mask.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    write(folder / "voc", {str(name): encode(mask, "PNG", transparency=0) for name in names})
    (folder / "yolo" / "classes.txt").write_text("road\ntree\n")
    (folder / "voc" / "classes.txt").write_text("background\nroad\ntree\n")
    for place in (coco, *(folder / name for name in ("labelme", "yolo", "voc"))):
        split = load(photos, labels=place, val_fraction=None)["all"]
        assert split.task.names == ("background", "road", "tree")
        for i in range(4):
            np.testing.assert_array_equal(split.label_map(i), expected)
    assert split.task.colors == ((0, 0, 0), (128, 0, 0), (0, 128, 0))
    # Classes without a background: what no shape covers is not known.
    same = tasks.Segmentation(("road", "tree"))
    split = load(photos, labels=coco, task=same)["train"]
    np.testing.assert_array_equal(split.label_map(0), np.where(expected, expected - 1, 255))


def test_polygons_are_those_of_pycocotools(tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(0)
    for _ in range(200):
        height, width = map(int, rng.integers(1, 60, 2))
        points = rng.uniform(-0.3, 1.3, (rng.integers(3, 9), 2)) * [width, height]
        runs = coco.frPyObjects([points.ravel().tolist()], height, width)
        ours = polygon_pixels(points, (height, width))
        np.testing.assert_array_equal(ours, coco.decode(runs)[..., 0])
    folder = scenes(tmp_path, 4)
    triangle = polygon_pixels(np.array(SHAPES["road"]), (40, 48))
    text = coco.encode(np.asfortranarray(triangle.astype(np.uint8)))
    text["counts"] = text["counts"].decode()
    changes = np.flatnonzero(np.diff(triangle.T.ravel(), prepend=0))
    listed = np.diff(changes, prepend=0, append=40 * 48).tolist()
    for runs in (text, {"size": [40, 48], "counts": listed}):
        notes = [{"image_id": 0, "category_id": 9, "segmentation": runs}]
        place = write_coco(folder, annotations=notes)
        split = load(folder / "photos", labels=place, val_fraction=None)["all"]
        np.testing.assert_array_equal(split.label_map(0) == 2, triangle)


def test_drawings_that_do_not_fit_are_named(tmp_path: Path, monkeypatch: Any) -> None:
    folder = scenes(tmp_path, 4)
    photos, place, yolo = folder / "photos", folder / "labelme", folder / "yolo"
    drawn = partial(load, photos)
    files = [place / photo.relative_to(photos) for photo in sorted(photos.rglob("*.png"))]
    files = [file.with_suffix(".json") for file in files]
    write_labelme(files[0], {"tree": [[1, 2], [3, 4]]})
    refused("3 photographs of 4 .*2.json is not there", drawn, labels=place)
    write_labelme(files[1], shape_type="line")
    write_labelme(files[2], {"tree": [[1, 2], [3, 4], [1e9, 0]]})
    files[3].write_text('{"shapes": [[]]}')
    refused(
        r"(?s)4 masks of 4 .*0.json: has a polygon of 2 corners.*type 'line'.*far beyond its "
        r"photograph, 48 x 40.*3.json: does not have label and points",
        drawn,
        labels=place,
    )
    for file in files:
        write_labelme(file, {"dog": SHAPES["tree"]})
    (place / "classes.txt").write_text("tree\n")
    refused("has the label 'dog', and the classes are tree", drawn, labels=place)
    for line, match in (
        ("0 0.5 0.5 0.1 0.1", "has a box in line 1"),
        ("1 0 0 1 0 1 1", "has the class 1 in line 1: give 0 to 0"),
    ):
        write(yolo, {"a/0.txt": line.encode(), "classes.txt": b"tree\n"})
        refused(match, drawn, labels=yolo)
    one = {"image_id": 0, "category_id": 9, "segmentation": [[0, 0, 1, 0, 1, 1]]}
    images = [{"id": i, "file_name": f"photos/{p}"} for i, p in enumerate(("a/0.png", "x"))]
    images = [{**image, "height": 40, "width": 41} for image in images]
    for record, match in (
        ({"annotations": [{**one, "category_id": 3}]}, "the category 3, which is not listed"),
        ({"annotations": [{**one, "segmentation": []}]}, "does not have a polygon or run lengths"),
        ({"annotations": [{"image_id": 0}]}, "does not have image_id and category_id"),
        ({"categories": [{"id": 4, "name": n} for n in "ab"]}, "two categories with one id"),
        ({"images": images}, "3 photographs of 4 .*have no mask in .*coco.json"),
        ({"images": [{**image, "id": 0} for image in images]}, "has two images with one id"),
    ):
        refused(match, drawn, labels=write_coco(folder, **record))
    for photo in sorted(photos.rglob("*.png"))[1:]:
        photo.unlink()
    match = r"(?s)3 masks of 3 .*photos/x: is in .*0.png: is two images of .*coco.json, 0 and 2: .*"
    match += "0.png: is of 41 x 40 pixels, and its photograph"
    refused(match, drawn, labels=write_coco(folder, images=[*images, {**images[0], "id": 2}]))
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    runs = [{**one, "segmentation": {"size": [40, 48], "counts": "0"}}]
    refused(r"vit\[coco\]", drawn, labels=write_coco(folder, annotations=runs), error=ImportError)


def test_masks_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = scenes(tmp_path)
    photos, masks = folder / "photos", folder / "masks" / "a"
    of_masks = partial(load, photos, labels=masks.parent)
    (masks / "0.png").unlink()
    refused(r"1 photograph of 12 .* has no mask in .*0.png is not there", of_masks)
    refused("png would be its own map: photographs and .png", load, masks, labels=masks)
    Image.new("L", (40, 48)).save(masks / "0.png")
    Image.new("L", (48, 40), 3).save(masks / "2.png")
    Image.new("RGB", (48, 40)).save(masks / "4.png")
    (masks / "6.png").write_bytes(b"\x89PNG\r\n")
    refused(
        r"(?s)4 masks of 12 cannot be used.*0.png: has 40 x 48 pixels, and its photograph 48 x 40"
        r": does its EXIF.*2.png: has the number 3, and classes are from 0 to 2"
        r".*4.png: colors or transparency",
        of_masks,
    )
    (photos / "a" / "6.png").write_bytes(b"")
    refused(r"6.png cannot be read: the file is empty", of_masks, verify=False)


# What masks of other tools hold, and what is said of it: an error, or else a warning, or nothing.
ODD_NUMBERS: dict[str, tuple[list[list[int]], str]] = {
    "black and white": ([[0, 255]], r"one class alone, 0, and 255.* write labelmap.txt.*nothing"),
    "nothing drawn": ([[0, 0]], r"one class alone, 0\. There is nothing to learn"),
    "blurred edges": ([[0, 3, 9]], r"^The masks have the numbers 0, 3, 9, so that 7 classes "),
    "two classes, some unknown": ([[0, 1, 255]], ""),
    "a class that few have": ([[0, 1], [0, 2]], ""),
    "some of black and white": ([[0, 1], [0, 255]], r"^6 masks of 12, .* 0 and 255 alone"),
}


@pytest.mark.parametrize("kind", ODD_NUMBERS)
def test_numbers_that_mean_something_else_are_told(kind: str, tmp_path: Path) -> None:
    folder, (numbers, match) = scenes(tmp_path), ODD_NUMBERS[kind]
    (folder / "masks" / "classes.txt").unlink()
    for i, file in enumerate(sorted((folder / "masks").rglob("*.png"))):
        rows = np.resize(numbers[i % len(numbers)], (40, 1)).astype(np.uint8)
        Image.fromarray(np.repeat(rows, 48, axis=1)).save(file)
    call = partial(load, folder / "photos", labels=folder / "masks")
    told = refused if "nothing" in match else warned
    with warnings.catch_warnings(action="error", category=UserWarning):
        _ = told(match, call) if match else call()


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_gray_masks_have_their_numbers_at_any_bit_depth(bits: int, tmp_path: Path) -> None:
    mask, file = (np.arange(35, dtype=np.uint8) % 2**bits).reshape(7, 5), tmp_path / "a.png"
    each = np.unpackbits(mask[..., None], axis=2)[..., -bits:]  # the bits of each number
    packed = np.packbits(each.reshape(7, -1), axis=1)
    lines = b"".join(b"\0" + row.tobytes() for row in packed)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 7, bits, 0, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + header + body)
    np.testing.assert_array_equal(read_mask(file, None)[0], mask)


def test_colors_and_names_that_mean_something_else_are_told(tmp_path: Path) -> None:
    folder = scenes(tmp_path)
    photos, masks = folder / "photos", folder / "masks"
    colors = [9, 9, 9, 250, 0, 0, 0, 0, 250]  # red and blue, numbered anew in one of the files
    for file, palette in (("b/1.png", colors), ("b/3.png", colors[:3] + colors[6:] + colors[3:6])):
        mask = Image.fromarray(np.asarray(Image.open(masks / file)), "P")
        mask.putpalette(palette + [0] * 759)
        mask.save(masks / file)
    warned(r"palettes .* differ: 1 is the color \[250, 0, 0\] in ", load, photos, labels=masks)
    for photo in photos.rglob("*.png"):
        file = (folder / "labelme" / photo.relative_to(photos)).with_suffix(".json")
        write_labelme(file, {"Tree" if photo.stem == "2" else "tree": SHAPES["tree"]})
    refused("case.*: Tree, tree", load, photos, labels=folder / "labelme")
    # Two of three were renamed.
    names = (f"a/{name}.txt" for name in ("0", "IMG_2", "IMG_4"))
    write(folder / "yolo", dict.fromkeys(names, b"0 0 0 1 0 1 0.4"))
    alone = "11 photographs .* be background alone.* IMG_2.txt"
    warned(alone, load, photos, labels=folder / "yolo")
    (folder / "few").mkdir()  # the folder b has none at all, and would be a split
    (folder / "yolo/a").rename(folder / "few/a")
    for name in ("few/a/IMG_2.txt", "few/a/IMG_4.txt"):
        (folder / name).unlink()
    warned("6 photographs .* alone, as in .*b not one", load, photos, labels=folder / "few")
    (photos / "b").rename(photos / "val")
    refused("6 photographs of 12 .*val/1.txt is not there", load, photos, labels=folder / "few")


@pytest.mark.parametrize("reader", READERS)
def test_maps_in_memory_are_labels(reader: str) -> None:
    pytest.importorskip(reader)
    labels = np.random.default_rng(0).integers(0, 3, (6, 8, 8))
    pixels = np.repeat(labels[..., None].astype(np.uint8) * 60, 3, axis=-1)
    split = data.ArraySplit("train", TASK, pixels, labels, "none", reader)
    images, maps = map(np.asarray, next(iter(data.pipeline(split, 8, 6, training=True))))
    np.testing.assert_array_equal(images[..., 0] / 60, maps)
    refused("give one for every pixel", data.ArraySplit, "train", TASK, pixels, labels[:, :4])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("training", [True, False])
def test_masks_move_as_their_images(tmp_path: Path, reader: str, training: bool) -> None:
    pytest.importorskip(reader)
    rng = np.random.default_rng(0)
    for i in range(4):  # the mask, seen in the colors of the photograph
        mask = np.kron(rng.integers(0, 4, (5, 6)), np.ones((12, 10))).astype(np.uint8)
        for kind, pixels in (("photos", np.stack([mask * 60] * 3, -1)), ("masks", mask)):
            write(tmp_path / kind, {f"{i}.png": encode(Image.fromarray(pixels), "PNG")})
    options: dict[str, Any] = {"labels": tmp_path / "masks", "val_fraction": None}
    split = data.load(tmp_path / "photos", reader=reader, **options)["all"]
    turned = Augmentation(min_area=0.3, rotation=30, zoom=0.2)
    options = {"augment": turned, "eval_transform": "stretch"}
    batches = data.pipeline(split, (32, 40), 4, training, **options)
    images, labels = map(np.asarray, next(iter(batches)))
    assert labels.shape == (4, 32, 40)
    known = labels != 255
    assert known.mean() > (0.6 if training else 0.999)
    seen = images[..., 0] / 60
    # Bilinear edges lie between two classes.
    whole = known & (np.abs(seen - seen.round()) < 0.01)
    assert whole.mean() > 0.4
    assert (seen.round() == labels)[whole].mean() > 0.98


def test_what_would_not_move_the_masks_and_what_an_answer_needs(tmp_path: Path) -> None:
    folder = scenes(tmp_path)
    train = load(folder / "photos", labels=folder / "masks").train
    mixed, batches = Augmentation(mixup=0.2), partial(data.pipeline, train, 32, 4)
    model, images, row = bank.fresh(task=TASK), bank.pixels(1, 32, 32, 3), bank.small(num_classes=3)
    refused("maps, which would stay as they", batches, training=True, augment=mixed)
    refused("leave num_classes out", batches, num_classes=3)
    refused("crops the border.*'stretch'", batches, eval_transform="crop")
    refused("photographs' sizes", data.cached_photographs, train, 64)
    refused("a map of the size of the im", bank.fresh, task=TASK, input_shape=(None, None, 3))
    refused(r"patch_dropout=0\.5 leaves patches", bank.fresh, task=TASK, patch_dropout=0.5)
    refused(r"with_classifier\(task=...\) for a new head", setattr, row, "task", TASK)
    refused("has the class 7: give integers", TASK.check_targets, np.full((1, 2, 2), 7))
    refused("examples, height, width", TASK.check_targets, np.zeros((1, 2, 2, 1), int))
    refused('give views="flip"', model.with_views, "crops")
    both = model.with_views("flip").predict(images, verbose=0)
    mirrored = model.with_views("flip").predict(images[:, :, ::-1], verbose=0)
    np.testing.assert_allclose(TASK.answers(both), TASK.answers(mirrored)[:, :, ::-1], atol=1e-5)


@pytest.mark.parametrize("kind", rows(["token", "mixer", "bit", "hybrid", "dinov3"], ["token"]))
def test_every_model_answers_pixels(kind: str, tmp_path: Path) -> None:
    cls, sizes = bank.OTHERS.get(kind, (keras_vit.VisionTransformer, bank.KIND_SIZES))
    model = cls(**{**sizes, **bank.KINDS[kind], "task": TASK})
    bank.fill(model)
    images = bank.pixels(2, 32, 32, 3)
    outputs = bank.outputs(model, images)
    assert outputs.shape == (2, 32, 32, 3)
    model.save(tmp_path / "model.keras")
    restored = keras_vit.load(tmp_path / "model.keras")
    assert (restored.task, restored.eval_transform) == (TASK, data.EvalTransform("stretch"))
    np.testing.assert_array_equal(bank.outputs(restored, images), outputs)
    larger = model.with_input_shape((64, 48, 3)) if kind != "mixer" else model
    assert larger.output_shape == (None, *larger.image_size, 3)
    row = model.with_classifier(4)
    assert row.with_classifier(task=TASK).output_shape == model.output_shape
