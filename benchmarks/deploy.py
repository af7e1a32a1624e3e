"""A trained classifier in every exported format, beside Keras, timm and transformers.

`python -m benchmarks deploy runs/flowers --data FLOWERS --out docs/performance/deploy` exports the
model in each format and precision into a temporary folder, predicts the validation images with
each, and lets all take turns at batches of 1 and 8. It prints a table, and writes `deploy.json`.
Run it with `KERAS_BACKEND=tensorflow`, the extras onnx, litert, openvino and torch, and, for the
peers, transformers and timm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._report import versions_of

# By name: format and precision. The first row is what the others are compared with.
REFERENCE = "Keras, TensorFlow"
EXPORTS: dict[str, tuple[str, str | None]] = {
    "SavedModel": ("tf_saved_model", None),
    "ONNX Runtime": ("onnx", None),
    "ONNX Runtime, int8": ("onnx", "int8"),
    "LiteRT": ("litert", None),
    "LiteRT, int8": ("litert", "int8"),
    "OpenVINO": ("openvino", None),
    "OpenVINO, int8": ("openvino", "int8"),
    "torch.export": ("torch", None),
}
PATHS = {
    "tf_saved_model": "1",
    "onnx": "m.onnx",
    "litert": "m.tflite",
    "openvino": "2",
    "torch": "m.pt2",
}
BATCHES = (1, 8)
PACKAGES = (
    "keras",
    "tensorflow",
    "onnxruntime",
    "ai-edge-litert",
    "openvino",
    "torch",
    "timm",
    "transformers",
)
Predict = Callable[[np.ndarray], np.ndarray]
Row = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks deploy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a trained run, or a .keras file")
    parser.add_argument("--data", required=True, help="labeled images, as for keras-vit train")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn")
    parser.add_argument("--out", type=Path, default=Path("runs/deploy"), help="folder to write")
    options = parser.parse_args(arguments)
    measured = measure(options.model, options.data, options.rounds, options.seconds)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "deploy.json").write_text(json.dumps(measured, indent=1) + "\n")
    print(table(measured))
    return 0


def measure(path: Path, data: str, rounds: int, seconds: float) -> Row:
    """Size, accuracy, and the rate of every round at each batch size."""
    import keras_vit
    from keras_vit.evaluation.prediction import pipeline_arguments
    from keras_vit.exporting.comparison import calibration_images

    model = keras_vit.load(path)
    model = model.copy(dtype="float32")  # as the exports; it may have been trained in bfloat16
    splits = keras_vit.data.load(data)
    batches = keras_vit.data.pipeline(splits.val, batch_size=32, **pipeline_arguments(model))
    images, labels = map(np.concatenate, zip(*batches.as_numpy_iterator(), strict=True))
    images = np.clip(np.rint(images), 0, 255).astype("uint8")
    calibration = calibration_images(model, splits.train)
    with tempfile.TemporaryDirectory() as folder:
        contestants = list(_contestants(model, Path(folder), calibration))
        predicted = {name: _classes(name, predict, images) for name, predict, _ in contestants}
        rows: list[Row] = [
            {
                "contestant": name,
                "megabytes": size,
                "accuracy": float((predicted[name] == labels).mean()),
                "same_class": float((predicted[name] == predicted[REFERENCE]).mean()),
            }
            for name, _, size in contestants
        ]
        for batch_size in BATCHES:
            batch = images[:batch_size]
            for predict in (c[1] for c in contestants):
                predict(batch)
            for turn in range(rounds):
                pairs = list(zip(rows, contestants, strict=True))
                for row, (_, predict, _) in pairs if turn % 2 == 0 else pairs[::-1]:
                    rates = row.setdefault(f"images_per_second_{batch_size}", [])
                    rates.append(_rate(predict, batch, seconds))
    versions = versions_of(PACKAGES)
    return {"model": model.name, "images": len(images), "versions": versions, "rows": rows}


def _classes(name: str, predict: Predict, images: np.ndarray) -> np.ndarray:
    scores = np.concatenate([predict(images[i : i + 8]) for i in range(0, len(images), 8)])
    print(name, flush=True)
    return scores.argmax(-1)


def _rate(predict: Predict, batch: np.ndarray, seconds: float) -> float:
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        predict(batch)
        count += len(batch)
    return count / elapsed


def _contestants(
    model: Any, folder: Path, calibration: np.ndarray
) -> Iterator[tuple[str, Predict, float | None]]:
    """Names, what predicts a batch of pixels, and megabytes."""
    import keras

    import keras_vit
    from keras_vit.exporting import load_exported
    from keras_vit.exporting.comparison import size_of

    weights = 4 * model.count_params() / 1e6
    yield REFERENCE, lambda x: np.asarray(model.predict_on_batch(x)), weights
    for name, (format, quantize) in EXPORTS.items():
        path = folder / (quantize or "float32") / PATHS[format]
        wants = quantize and format == "openvino"
        keras_vit.export(
            model, path, format, quantize=quantize, calibration=calibration if wants else None
        )
        yield name, load_exported(path).predict_on_batch, size_of(path) / 1e6
    assert keras.backend.backend() == "tensorflow", "run it with KERAS_BACKEND=tensorflow"
    yield from _peers(model, folder, weights)


def _peers(model: Any, folder: Path, weights: float) -> Iterator[tuple[str, Predict, float]]:
    """The same weights in the models of timm and transformers, where they are installed."""
    import keras_vit
    from keras_vit._base.processors import available_processors

    try:
        import torch
        import transformers
    except ImportError:
        return
    torch.set_num_threads(available_processors())

    def of(network: Any) -> Predict:
        network.eval()

        def predict(images: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
                outputs = network(pixels)
                return np.asarray(getattr(outputs, "logits", outputs))

        return predict

    (folder / "hf").mkdir()
    keras_vit.weights.save_weights(model, folder / "hf", layout="huggingface")
    peer = transformers.ViTForImageClassification.from_pretrained(folder / "hf")
    yield "transformers, torch", of(peer), weights
    try:
        import timm
    except ImportError:
        return
    (folder / "timm").mkdir()
    keras_vit.weights.save_weights(model, folder / "timm", layout="timm")
    yield "timm, torch", of(timm.create_model(f"local-dir:{folder / 'timm'}")), weights


def table(measured: Row) -> str:
    """The contestants as a Markdown table: rates as multiples of Keras's in the same turns."""
    rows = measured["rows"]
    lines = [
        f"{measured['model']}, {measured['images']} validation images",
        "",
        "| | MB | accuracy | the same class | images/s at 1 | images/s at 8 | ms at 1 |",
        "|---|---|---|---|---|---|---|",
    ]
    reference = rows[0]
    for row in rows:
        speeds = []
        for batch in BATCHES:
            key = f"images_per_second_{batch}"
            ratios = [a / b for a, b in zip(row[key], reference[key], strict=True)]
            speeds.append(f"{statistics.median(ratios):.2f} x")
        latency = 1e3 / statistics.median(row["images_per_second_1"])
        lines.append(
            f"| {row['contestant']} | {row['megabytes']:.1f} | {row['accuracy']:.1%} "
            f"| {row['same_class']:.1%} | "
            f"{speeds[0]} | {speeds[1]} | {latency:.1f} |"
        )
    return "\n".join(lines)
