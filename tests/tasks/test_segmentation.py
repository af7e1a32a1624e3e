"""A class for every pixel: losses, scores, files, readers, training and answers."""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import keras
import matplotlib.path
import numpy as np
import pytest
from PIL import Image
from scipy.special import softmax
from sklearn.metrics import confusion_matrix

import keras_vit
from keras_vit import data, tasks
from keras_vit.data import EvalTransform
from keras_vit.data.augment.augmentation import Augmentation
from keras_vit.data.decode import pillow
from keras_vit.data.sources.polygons import polygon_pixels
from keras_vit.evaluation.prediction import predict_files
from keras_vit.layers import MapResize
from keras_vit.tasks.pixel_losses import MeanIoU, PixelCrossentropy
from tests import bank
from tests.backend import rows

TASK = tasks.Segmentation(("sky", "tree", "road"))


def scenes(folder: Path, count: int = 12, size: tuple[int, int] = (40, 48)) -> Path:
    """Photographs with a bright square and a dark stripe, and their masks beside."""
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
            file = folder / kind / f"{'ab'[i % 2]}" / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    (folder / "masks" / "classes.txt").write_text("sky\ntree\nroad\n")
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
    expected = [
        torch.nn.functional.cross_entropy(
            torch.tensor(x).permute(2, 0, 1)[None], torch.tensor(y)[None], ignore_index=255
        ).item()
        for x, y in zip(logits[:3], labels[:3], strict=True)
    ]
    loss = PixelCrossentropy(reduction="none")
    values = keras.ops.convert_to_numpy(loss(labels, logits))
    np.testing.assert_allclose(values, [*expected, 0], rtol=1e-5)
    restored = keras.losses.deserialize(keras.losses.serialize(PixelCrossentropy(dice=0.5)))
    assert restored.dice == 0.5
    with pytest.raises(ValueError, match=r"dice=-1 must be at least 0"):
        PixelCrossentropy(dice=-1)


def test_dice_is_its_formula() -> None:
    labels, logits = maps(np.random.default_rng(1))
    expected = []
    for y, p, k in zip(labels, softmax(logits, -1), labels != 255, strict=True):
        of_class = [
            1 - (2 * p[k & (y == c), c].sum() + 1) / ((y == c).sum() + p[k, c].sum() + 1)
            for c in np.unique(y[k])
        ]
        expected.append(np.mean(of_class))
    losses = (PixelCrossentropy(dice, reduction="none")(labels, logits) for dice in (0, 2))
    plain, both = map(keras.ops.convert_to_numpy, losses)
    np.testing.assert_allclose((both - plain) / 2, expected, rtol=1e-4)


@pytest.mark.every_backend
def test_scores_are_those_of_scikit_learns_confusion_matrix() -> None:
    labels, logits = maps(np.random.default_rng(2))
    answers = TASK.answers(logits)
    known = labels != 255
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
    report = keras_vit.evaluation.report(TASK, labels, answers)
    most = np.bincount(labels[known]).argmax()
    assert report.constant["pixel_accuracy"].value == pytest.approx((labels[known] == most).mean())
    assert "IoU" in str(report)


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
    pixels = pillow._pixels
    monkeypatch.setattr(pillow, "_pixels", lambda image: decoded.append(1) or pixels(image))
    splits = data.load(folder / "photos", labels=folder / "masks", reader="grain")
    assert len(decoded) == 12  # each photograph once; of its size, the header is enough
    assert splits.task == TASK
    assert len(splits.train) + len(splits.val) == 12
    assert splits.train.labels().sum(axis=1).max() == 40 * 48 - 5
    # Gray, with a palette, of 16 bits: the same numbers.
    file = splits.train.sources[0]
    expected = splits.train.label_map(0)
    mask = Image.open(file)
    palette = mask.convert("P")
    palette.putdata(list(np.asarray(mask).ravel()))
    palette.putpalette([7, 8, 9] * 256)
    for picture in (palette, Image.fromarray(np.asarray(mask).astype(np.uint16))):
        picture.save(file)
        np.testing.assert_array_equal(splits.train.label_map(0), expected)
    for name in ("train", "val"):  # folders at the top are splits
        for kind in ("photos", "masks"):
            (folder / kind / {"train": "a", "val": "b"}[name]).rename(folder / kind / name)
    splits = data.load(folder / "photos", labels="../masks", reader="grain")
    assert [len(splits[name]) for name in ("train", "val")] == [6, 6]


SHAPES = {"tree": [[4, 3], [30, 3], [30, 20], [4, 20]], "road": [[10, 8], [44, 13], [13.3, 36.6]]}


def write_labelme(file: Path, shapes: dict[str, list[list[float]]] = SHAPES, **more: Any) -> None:
    rows = [{"label": k, "points": v, "shape_type": "polygon", **more} for k, v in shapes.items()]
    text = json.dumps({"shapes": rows, "imageHeight": 40, "imageWidth": 48})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


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
    photos, labels = folder / "photos", {"coco": write_coco(folder)}
    for photo in photos.rglob("*.png"):
        inside = photo.relative_to(photos)
        write_labelme((folder / "labelme" / inside).with_suffix(".json"))
        yolo = (folder / "yolo" / inside).with_suffix(".TXT")
        rows = [(np.array(v) / [48, 40]).ravel() for v in SHAPES.values()]
        yolo.parent.mkdir(parents=True, exist_ok=True)
        lines = (" ".join(map(str, [i, *row])) for i, row in zip((1, 0), rows, strict=True))
        yolo.write_text("\n".join(lines))
    (folder / "yolo" / "classes.txt").write_text("road\ntree\n")
    triangle = polygon_pixels(np.array(SHAPES["road"]), (40, 48))
    center = np.stack(np.meshgrid(np.arange(48) + 0.5, np.arange(40) + 0.5), -1).reshape(-1, 2)
    exact = matplotlib.path.Path(SHAPES["road"]).contains_points(center).reshape(40, 48)
    assert (triangle != exact).mean() < 0.005  # corners are rounded to a fifth of a pixel
    expected = np.zeros((40, 48), np.uint8)
    expected[3:20, 4:30] = 2
    expected[triangle] = 1  # drawn later
    for photo in photos.rglob("*.png"):  # as files of PASCAL VOC
        file = folder / "voc" / photo.relative_to(photos)
        file.parent.mkdir(parents=True, exist_ok=True)
        mask = Image.fromarray(expected, "P")
        mask.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
        mask.save(file, transparency=0)
    (folder / "voc" / "classes.txt").write_text("background\nroad\ntree\n")
    for name in ("coco", "labelme", "yolo", "voc"):
        place = labels.get(name, folder / name)
        split = data.load(photos, labels=place, reader="grain", val_fraction=None)["all"]
        assert split.task.names == ("background", "road", "tree")
        for i in range(4):
            np.testing.assert_array_equal(split.label_map(i), expected)
    assert split.task.colors == ((0, 0, 0), (128, 0, 0), (0, 128, 0))
    assert tasks.get(split.task.get_config()).colors == split.task.colors
    # Classes without a background: what no shape covers is not known.
    same = tasks.Segmentation(("road", "tree"))
    split = data.load(photos, labels=labels["coco"], reader="grain", task=same)["train"]
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
    counts = np.diff(np.flatnonzero(np.diff(triangle.T.ravel(), prepend=0, append=0)))
    first = int(triangle.T.ravel().argmax())
    listed = [first, *map(int, counts)]
    listed.append(40 * 48 - sum(listed))
    for runs in (text, {"size": [40, 48], "counts": listed}):
        notes = [{"image_id": 0, "category_id": 9, "segmentation": runs}]
        place = write_coco(folder, annotations=notes)
        split = data.load(folder / "photos", labels=place, reader="grain", val_fraction=None)["all"]
        np.testing.assert_array_equal(split.label_map(0) == 2, triangle)


def test_drawings_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = scenes(tmp_path, 4)
    photos, place = folder / "photos", folder / "labelme"

    def refused(match: str, labels: Path, error: type[Exception] = ValueError) -> None:
        with pytest.raises(error, match=match):
            data.load(photos, labels=labels, reader="grain")

    files = [place / photo.relative_to(photos) for photo in sorted(photos.rglob("*.png"))]
    files = [file.with_suffix(".json") for file in files]
    write_labelme(files[0], {"tree": [[1, 2], [3, 4]]})
    refused("3 photographs of 4 .*2.json is not there", place)
    write_labelme(files[1], shape_type="line")
    write_labelme(files[2], {"tree": [[1, 2], [3, 4], [1e9, 0]]})
    files[3].write_text('{"shapes": [[]]}')
    refused(
        r"(?s)4 masks of 4 .*0.json: has a polygon of 2 corners.*type 'line'.*far beyond its "
        r"photograph, 48 x 40.*3.json: does not have label and points",
        place,
    )
    for file in files:
        write_labelme(file, {"dog": SHAPES["tree"]})
    (place / "classes.txt").write_text("tree\n")
    refused("has the label 'dog', and the classes are tree", place)
    yolo = folder / "yolo" / "a"
    yolo.mkdir(parents=True)
    (yolo / "0.txt").write_text("0 0.5 0.5 0.1 0.1")
    refused("has a box in line 1", folder / "yolo")
    (folder / "yolo" / "classes.txt").write_text("tree\n")
    (yolo / "0.txt").write_text("1 0 0 1 0 1 1")
    refused(r"has the class 1 in line 1: give 0 to 0", folder / "yolo")
    one = {"image_id": 0, "category_id": 9, "segmentation": [[0, 0, 1, 0, 1, 1]]}
    for notes, match in (
        ([{**one, "category_id": 3}], "has the category 3, which is not listed"),
        ([{**one, "segmentation": []}], "does not have a polygon or run lengths"),
        ([{"image_id": 0}], "coco.json: does not have image_id and category_id"),
    ):
        refused(match, write_coco(folder, annotations=notes))
    size = {"height": 40, "width": 41}
    images = [{"id": i, "file_name": f"photos/{p}", **size} for i, p in enumerate(("a/0.png", "x"))]
    refused("3 photographs of 4 .*have no mask in .*coco.json", write_coco(folder, images=images))
    for photo in sorted(photos.rglob("*.png"))[1:]:
        photo.unlink()
    match = r"(?s)2 masks of 2 .*photos/x: is in .*0.png: is of 41 x 40 pixels, and its photograph"
    refused(match, write_coco(folder, images=images))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pycocotools", None)
        runs = [{**one, "segmentation": {"size": [40, 48], "counts": "0"}}]
        refused(r"keras3-vit\[coco\]", write_coco(folder, annotations=runs), ImportError)


def test_masks_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = scenes(tmp_path)
    photos, masks = folder / "photos", folder / "masks"

    def refused(match: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=match):
            data.load(photos, labels=masks, reader="grain", **options)

    refused(r"task='regression' is for a table", task="regression")
    (masks / "a" / "0.png").rename(tmp_path / "0.png")
    refused(r"1 photograph of 12 .*no mask in .*0.png is not there")
    Image.new("L", (9, 7)).save(masks / "a" / "0.png")
    Image.new("L", (48, 40), 3).save(masks / "a" / "2.png")
    Image.new("RGB", (48, 40)).save(masks / "a" / "4.png")
    (masks / "a" / "6.png").write_bytes(b"\x89PNG\r\n")
    refused(
        r"(?s)4 masks of 12 cannot be used.*0.png: has 9 x 7 pixels, and its photograph 48 x 40"
        r".*2.png: has the number 3, and classes are from 0 to 2.*4.png: colors or transparency"
    )
    (photos / "a" / "6.png").write_bytes(b"")
    refused(r"6.png cannot be read: the file is empty", verify=False)


# What masks of other tools hold, and what is said of it: an error, or else a warning, or nothing.
ODD_NUMBERS: dict[str, tuple[list[list[int]], str]] = {
    "black and white": ([[0, 255]], r"one class alone, 0, and 255.* write labelmap.txt.*nothing"),
    "nothing drawn": ([[0, 0]], r"one class alone, 0\. There is nothing to learn"),
    "blurred edges": (
        [[0, 3, 9]],
        r"^The masks have the numbers 0, 3, 9, so that 7 classes ",
    ),
    "two classes, some unknown": ([[0, 1, 255]], ""),
    "a class that few have": ([[0, 1], [0, 2]], ""),
}


@pytest.mark.parametrize("kind", ODD_NUMBERS)
def test_numbers_that_mean_something_else_are_told(kind: str, tmp_path: Path) -> None:
    folder, (numbers, match) = scenes(tmp_path), ODD_NUMBERS[kind]
    (folder / "masks" / "classes.txt").unlink()
    for i, file in enumerate(sorted((folder / "masks").rglob("*.png"))):
        rows = np.resize(numbers[i % len(numbers)], (40, 1)).astype(np.uint8)
        Image.fromarray(np.repeat(rows, 48, axis=1)).save(file)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        try:
            data.load(folder / "photos", labels=folder / "masks", reader="grain")
            assert "nothing to learn" not in match
        except ValueError as error:
            warnings.warn(str(error), stacklevel=1)
    said = [str(one.message) for one in told if one.category is UserWarning]
    assert len(said) == bool(match), said
    assert not match or re.search(match, said[0])


def test_colors_and_names_that_mean_something_else_are_told(tmp_path: Path) -> None:
    folder = scenes(tmp_path)
    photos, masks = folder / "photos", folder / "masks"
    colors = [9, 9, 9, 250, 0, 0, 0, 0, 250]  # red and blue, numbered anew in one of the files
    for file, palette in (("b/1.png", colors), ("b/3.png", colors[:3] + colors[6:] + colors[3:6])):
        with Image.open(masks / file) as image:
            mask = Image.fromarray(np.asarray(image)).convert("P")
        mask.putdata(list(np.asarray(image).ravel()))
        mask.putpalette(palette + [0] * 759)
        mask.save(masks / file)
    with pytest.warns(UserWarning, match=r"palettes .* differ: 1 is the color \[250, 0, 0\] in "):
        data.load(photos, labels=masks, reader="grain")
    for photo in photos.rglob("*.png"):
        name = "Tree" if photo.stem == "2" else "tree"
        write_labelme(folder / "labelme" / photo.relative_to(photos), {name: SHAPES["tree"]})
    for file in (folder / "labelme").rglob("*.png"):
        file.rename(file.with_suffix(".json"))
    with pytest.raises(ValueError, match=r"Labels differ in case.*: Tree, tree\. Write one"):
        data.load(photos, labels=folder / "labelme", reader="grain")
    kinds = [{"id": 4, "name": "tree"}, {"id": 4, "name": "road"}]
    with pytest.raises(ValueError, match="two categories with one id"):
        data.load(photos, labels=write_coco(folder, categories=kinds), reader="grain")
    (folder / "yolo" / "a").mkdir(parents=True)
    for name in ("0", "IMG_2", "IMG_4"):  # two were renamed
        (folder / "yolo" / "a" / f"{name}.txt").write_text("0 0 0 1 0 1 0.4")
    with pytest.warns(UserWarning, match=r"11 photographs .* be background alone.* IMG_2.txt"):
        data.load(photos, labels=folder / "yolo", reader="grain")


@pytest.mark.parametrize("reader", ["tensorflow", "grain"])
def test_maps_in_memory_are_labels(reader: str) -> None:
    pytest.importorskip("tensorflow" if reader == "tensorflow" else "grain")
    labels = np.random.default_rng(0).integers(0, 3, (6, 8, 8))
    pixels = np.repeat(labels[..., None].astype(np.uint8) * 60, 3, axis=-1)
    split = data.ArraySplit("train", TASK, pixels, labels, "none", reader)
    images, maps = map(np.asarray, next(iter(data.pipeline(split, 8, 6, training=True))))
    np.testing.assert_array_equal(images[..., 0] / 60, maps)
    with pytest.raises(ValueError, match="give one for every pixel"):
        data.ArraySplit("train", TASK, pixels, labels[:, :4])


@pytest.mark.parametrize("reader", ["tensorflow", "grain"])
@pytest.mark.parametrize("training", [True, False])
def test_masks_move_as_their_images(tmp_path: Path, reader: str, training: bool) -> None:
    pytest.importorskip("tensorflow" if reader == "tensorflow" else "grain")
    rng = np.random.default_rng(0)
    for i in range(4):  # the mask, seen in the colors of the photograph
        mask = np.kron(rng.integers(0, 4, (5, 6)), np.ones((12, 10))).astype(np.uint8)
        for kind, pixels in (("photos", np.stack([mask * 60] * 3, -1)), ("masks", mask)):
            (tmp_path / kind).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / kind / f"{i}.png")
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


def test_what_would_not_move_the_masks_is_refused(tmp_path: Path) -> None:
    folder = scenes(tmp_path)
    train = data.load(folder / "photos", labels=folder / "masks", reader="grain").train
    for options, match in (
        ({"training": True, "augment": Augmentation(mixup=0.2)}, "maps, which would stay as they"),
        ({"num_classes": 3}, "leave num_classes out"),
        ({"eval_transform": "crop"}, "crops the border.*'stretch'"),
    ):
        with pytest.raises(ValueError, match=match):
            data.pipeline(train, 32, 4, **options)
    with pytest.raises(ValueError, match="photographs' sizes"):
        data.cached_photographs(train, 64)


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
    assert (restored.task, restored.eval_transform) == (TASK, EvalTransform("stretch"))
    np.testing.assert_array_equal(bank.outputs(restored, images), outputs)
    larger = model.with_input_shape((64, 48, 3)) if kind != "mixer" else model
    assert larger.output_shape == (None, *larger.image_size, 3)
    row = model.with_classifier(4)
    assert row.output_shape == (None, 4)
    assert row.with_classifier(task=TASK).output_shape == model.output_shape


def test_what_an_answer_needs() -> None:
    model, images, row = bank.fresh(task=TASK), bank.pixels(1, 32, 32, 3), bank.small(num_classes=3)
    for call, match in (
        (lambda: bank.fresh(task=TASK, input_shape=(None, None, 3)), "a map of the size of the im"),
        (lambda: bank.fresh(task=TASK, patch_dropout=0.5), r"patch_dropout=0\.5 leaves patches"),
        (lambda: setattr(row, "task", TASK), r"with_classifier\(task=...\) for a new head"),
        (lambda: TASK.check_targets(np.full((1, 2, 2), 7)), "has the class 7: give integers"),
        (lambda: TASK.check_targets(np.zeros((1, 2, 2, 1), int)), "examples, height, width"),
        (lambda: model.with_views("crops"), 'give views="flip"'),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    both = model.with_views("flip").predict(images, verbose=0)
    mirrored = model.with_views("flip").predict(images[:, :, ::-1], verbose=0)
    np.testing.assert_allclose(TASK.answers(both), TASK.answers(mirrored)[:, :, ::-1], atol=1e-5)


def test_training_learns_the_pixels(tmp_path: Path) -> None:
    folder = scenes(tmp_path, 24)
    splits = data.load(folder / "photos", labels=folder / "masks")
    model = keras_vit.VisionTransformer(
        patch_size=4, hidden_dim=32, depth=1, num_heads=4, mlp_dim=64, input_shape=(32, 32, 3),
        task=splits.task, name="small",
    )  # fmt: skip
    recipe = keras_vit.recipes.get("small_data").scaled(steps=40)
    keras_vit.fit(model, recipe, splits, tmp_path / "run", print_fn=str, augment="none")
    report = keras_vit.evaluate(model, splits, print_fn=str)
    assert report.scores["mean_iou"].value > report.constant["mean_iou"].value + 0.2
    files = splits.val.files
    answers = [answer for _, answer in predict_files(model, files)]
    predicted = np.stack(answers).argmax(-1)
    truth = np.stack([splits.val.label_map(i) for i in range(len(files))])
    shrunk = np.stack([np.asarray(Image.fromarray(m).resize((32, 32), 0)) for m in truth])
    assert (predicted == shrunk).mean() > 0.7
    (row,) = keras_vit.predict(model, [files[0]], top=1)
    assert row["predictions"][0].keys() == {"class", "part"}
