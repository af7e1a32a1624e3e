"""What the code blocks of the documentation take for granted, small: models, files, images."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.models import variants
from keras_vit.models.other_names import of_other_package
from keras_vit.training import recipes
from keras_vit.weights import cache
from keras_vit.weights.released import Weights
from tests import bank
from tests.data.image_fixtures import write

CLASSES = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
fill = partial(bank.fill, scale=0.05)
SMALL = variants.Width(hidden_dim=24, depth=2, num_heads=3, mlp_dim=48)

# Text that is replaced in a block before it runs, and its replacement.
REPLACED = {
    '["block_3", "block_11"]': '["block_0", "block_1"]',
    '(model, "file")': '(model, "model.safetensors")',
    "fit(...)": "fit(images, labels, batch_size=4, verbose=0)",
    "class_names=[...]": f"class_names={list(CLASSES)}",
    '"/data/': '"data/',
    '("finetune_small")': '("finetune_small").scaled(steps=2, batch_size=4)',
    '"runs/measured")': '"runs/measured", budget=1)',  # the head alone
    "steps=500, batch_size=64": "steps=2, batch_size=4",
    "total_steps=500": "total_steps=2",
    '("digits")': '("digits", val_fraction=0.9)',
}


@contextmanager
def small_models(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes every named ViT small: the blocks show calls, and other tests the sizes."""
    patch.setattr(variants, "WIDTHS", dict.fromkeys(variants.WIDTHS, SMALL))
    patch.setattr(cache, "cached_file", released_file)
    try:
        yield
    finally:
        patch.undo()
        keras.distribution.set_distribution(None)


def released_file(row: Weights) -> Path:
    name = "/".join(row.url.split("/")[3:5])
    named = of_other_package(name) if "huggingface.co" in row.url else None
    shape = (row.pixels, row.pixels, 3)
    arguments = {**row.arguments, "num_classes": row.num_classes, "input_shape": shape}
    model = keras_vit.create(name if named else row.model, **arguments)
    fill(model)
    family = row.layout.split("_")[0]
    layout = family if family in ("timm", "huggingface") else row.layout
    file = Path(row.file_name)
    file.unlink(missing_ok=True)
    keras_vit.save_weights(model, file, layout=layout)
    return file


def classifier(**arguments: Any) -> Any:
    model = keras_vit.ViTTi16(num_classes=5, **{"input_shape": (32, 32, 3), **arguments})
    model.class_names = CLASSES
    fill(model)
    return model


def names(folder: Path, page: str) -> dict[str, Any]:
    """The names that the blocks of a page use and do not define; writes the files they read."""
    write_photographs(folder)
    model, images = classifier(input_shape=(224, 224, 3)), bank.pixels(8, 224, 224, 3)
    values: dict[str, Any] = {"keras": keras, "keras_vit": keras_vit, "np": np, "model": model}
    values |= {"images": images, "pixels": images, "labels": np.arange(8) % 5}
    return values | OF_PAGE.get(page, lambda folder: {})(folder)


def write_photographs(folder: Path, per_class: int = 4) -> None:
    """`photo.jpg`, and `photos/` with some of every class, also in tables of every task."""
    random, rows = np.random.default_rng(1), []
    for name in CLASSES:
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = random.integers(0, 256, (40, 48, 3)).astype("uint8")
            Image.fromarray(pixels).save(folder / "photos" / name / f"{number}.jpg")
            rows.append((f"{name}/{number}.jpg", f"{name}|flower", len(rows) / 2, number % 3))
    tables = {"labels": ("tags", 1), "tags": ("tags", 1), "ages": ("age", 2)}
    for table, (column, place) in {**tables, "grades": ("grade", 3)}.items():
        lines = [f"file,{column}", *(f"{row[0]},{row[place]}" for row in rows)]
        (folder / "photos" / f"{table}.csv").write_text("\n".join(lines))
    Image.open(folder / "photos" / "daisy" / "0.jpg").save(folder / "photo.jpg")


def _models(folder: Path) -> dict[str, Any]:
    source = keras_vit.ViTTi16(num_classes=5)
    keras_vit.save_weights(source, "Ti_16.npz", layout="google")
    keras_vit.save_weights(source, "model.safetensors", layout="timm")
    return {}


def _accuracy(folder: Path) -> dict[str, Any]:
    models = {name: classifier() for name in ("first", "second", "start", "tuned", "model")}
    for seed, name in enumerate(("first", "second", "start", "tuned")):
        fill(models[name], seed)
    logits = np.random.default_rng(2).normal(0, 2, (8, 5))
    return {**models, "logits": logits, "images": np.zeros((8, 32, 32, 3), "uint8")}


def _data(folder: Path) -> dict[str, Any]:
    (folder / "data" / "imagenet21k").mkdir(parents=True)
    return {"images": [((folder / "photo.jpg").read_bytes(), 0)]}


def _distillation(folder: Path) -> dict[str, Any]:
    recipe = recipes.get("finetune_small").scaled(steps=2, batch_size=4)
    trained = {"student": classifier(), "teacher": classifier(), "recipe": recipe}
    return {**trained, "total_steps": 20, "images": np.zeros((8, 32, 32, 3), "uint8")}


def _export(folder: Path) -> dict[str, Any]:
    for module in ("onnxruntime", "ai_edge_litert", "openvino", "torch", "executorch"):
        pytest.importorskip(module)
    model = bank.tiny(num_classes=5, input_shape=(32, 32, 3))
    files = {"onnx": "photos.onnx", "litert": "photos.tflite", "torch": "photos.pt2"}
    files["executorch"] = "photos.pte"
    for format, file in {**files, "openvino": "photos/1"}.items():
        keras_vit.export(model, file, format)
    return {"pixels": np.zeros((1, 32, 32, 3), "uint8")}


def _folders(folder: Path) -> dict[str, Any]:
    import transformers

    hub = folder / ".cache/huggingface/hub/models--google--vit-base-patch16-224"
    write(hub, {"refs/main": b"0" * 40})
    source = classifier(input_shape=(224, 224, 3))
    for place in ("FOLDER", hub / "snapshots" / ("0" * 40)):
        keras_vit.save_weights(source, place, layout="huggingface")
    values: dict[str, Any] = {"transformers": transformers}
    if importlib.util.find_spec("timm") is None:  # tests/weights/test_folders.py opens them
        values["timm"] = SimpleNamespace(create_model=lambda *_, **__: None)
    return values


def _weights(folder: Path) -> dict[str, Any]:
    keras_vit.save_weights(classifier(), "FOLDER", layout="huggingface")
    np.save("texts.npy", np.random.default_rng(3).normal(0, 1, (2, 512)))
    sides = {"images": 224, "large_images": 518}
    return {name: np.zeros((1, side, side, 3), "uint8") for name, side in sides.items()}


OF_PAGE = {
    f"docs/{make.__name__[1:]}.md": make
    for make in (_accuracy, _data, _distillation, _export, _folders, _models, _weights)
}
