"""Records what `tests/test_earlier_files.py` reads: models, killed runs and exports of a commit.

    KERAS_BACKEND=jax python -m tests.golden.earlier.record FOLDER

Three models of every kind of file that users keep: `.keras` files with their logits, runs of
`keras-vit train` that were killed after a checkpoint with the weights at which the same run ends
uninterrupted, and exported files with their probabilities.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
from PIL import Image

import keras_vit

SIZES = {"patch_size": 4, "hidden_dim": 8, "depth": 2, "num_heads": 1, "mlp_dim": 16}
MODELS = {
    "rotary_map": {"rotary": "eva02", "pooling": "map", "num_registers": 2},
    "relative_gap": {"position_embedding": "relative", "pooling": "gap", "layer_scale": 0.1},
    "clip_pixels": {"depth": 1, "normalization": "clip", "classifier_activation": "softmax"},
}
RUNS = {"plain": [], "sam_bfloat16": ["--sam", "--precision", "mixed_bfloat16"]}
RUNS |= {"teacher": ["--teacher", "teacher.keras"]}
EXPORTS = {"saved_model": "tf_saved_model", "model.onnx": "onnx", "model.pt2": "torch"}
TRAIN = [
    *("train", "--data", "photos", "--out", "run", "--weights", "start.keras"),
    *("--recipe", "finetune_few", "--batch-size", "8", "--epochs", "20", "--held-out", "0"),
    *("--image-size", "16", "--learning-rate", "0.01", "--checkpoint-every", "0"),
]


def record(folder: Path) -> None:
    keras.utils.set_random_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype("uint8")
    answers = {"images": images}
    for name, options in MODELS.items():
        model = vit(num_classes=3, **options)
        model.save(folder / f"{name}.keras")
        answers[name] = model.predict(images, verbose=0)
    model = vit(num_classes=3, depth=1)
    model.class_names = ("green", "red", "other")
    logits = model.predict(images, verbose=0)
    answers["exports"] = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for name, format in EXPORTS.items():
        keras_vit.export_model(model, folder / name, format=format)
    packed(folder / "saved_model")
    vit(num_classes=2, depth=1).save(folder / "start.keras")
    teacher = vit(num_classes=2, depth=1)
    teacher.class_names = ("green", "red")
    teacher.save(folder / "teacher.keras")
    photographs(folder / "photos")
    packed(folder / "photos")
    for name, options in RUNS.items():
        answers |= {f"{name}/{i}": w for i, w in enumerate(run(folder, name, options))}
    np.savez_compressed(folder / "answers.npz", **answers)


def vit(**options: object) -> keras.Model:
    model = keras_vit.VisionTransformer(**{**SIZES, "input_shape": (16, 16, 3), **options})
    random = np.random.default_rng(1)
    model.set_weights([w + random.normal(0, 0.1, w.shape) for w in model.get_weights()])
    return model


def photographs(folder: Path) -> None:
    random = np.random.default_rng(0)
    for channel, name in enumerate(("green", "red")):
        (folder / name).mkdir(parents=True)
        for i in range(12):
            pixels = random.integers(0, 120, (16, 16, 3)).astype("uint8")
            pixels[..., 1 - channel] += 60
            Image.fromarray(pixels).save(folder / name / f"{i:02}.png")


def run(folder: Path, name: str, options: list[str]) -> list[np.ndarray]:
    """Leaves a killed run as `NAME.zip`; returns the weights of the whole one."""
    work = folder / "work"
    work.mkdir()
    for file in ("start.keras", "teacher.keras"):
        shutil.copy(folder / file, work)
    shutil.unpack_archive(folder / "photos.zip", work / "photos")
    command = [sys.executable, "-m", "keras_vit_cli", *TRAIN, *options]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    subprocess.run(command, cwd=work, env=environment, check=True)
    weights = keras.saving.load_model(work / "run/model.keras", compile=False).get_weights()
    shutil.rmtree(work / "run")
    killed = subprocess.Popen(command, cwd=work, env=environment, start_new_session=True)
    while len(list((work / "run.partial/checkpoints").glob("step-*"))) < 2:
        time.sleep(0.002)
        assert killed.poll() is None
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    print(name, sorted(p.name for p in (work / "run.partial").rglob("*")))
    shutil.move(work / "run.partial", folder / name)
    for late in folder.glob(f"{name}/checkpoints/step-00000006*"):
        late.unlink()  # of the run's end, where it was killed after that
    packed(folder / name)
    shutil.rmtree(work)
    return weights


def packed(folder: Path) -> None:
    shutil.make_archive(str(folder), "zip", folder)
    shutil.rmtree(folder)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
