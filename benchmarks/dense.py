"""Masks: heads of a ViT beside a pixel classifier on its features and a U-Net, at equal time.

    python -m benchmarks dense --weights FILE --sets nuclei --nuclei FOLDER [--seconds 60]

Sets: "digits" on photographs (examples/digits_on_photographs.py: exact masks of 11 classes);
"brain", with `--brain`, slices of nilearn's MNI template (its folder `datasets/data`: gray and
white matter of one brain, the lower slices to train on, the upper ones to test on); "nuclei", with
`--nuclei`, stardist's pair `img2d.tif` and `mask2d.tif` (its folder `data/images`: three quarters
to train on, the rest to test on). Each contestant trains for as many seconds of the processor, all
cores together, except scikit-learn's logistic regression on the patch features, enlarged to pixels,
which takes what it takes. The U-Net begins at random and has about as many weights as ViT-Ti/16.
Prints the mean IoU on the test images, the mean over seeds and its standard error. What is finished
lies in --out, and is not computed again.
"""

import argparse
import gzip
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from PIL import Image

import keras_vit
from examples.digits_on_photographs import draw
from keras_vit import data
from keras_vit._base.files import write_text
from keras_vit.data.sources.array_splits import ArraySplit
from keras_vit.evaluation import predict_split
from keras_vit.evaluation.markdown import table
from keras_vit.tasks import Segmentation

LOGISTIC, UNET = "logistic regression", "U-Net from scratch"
HEADS = {"linear": "linear_pixels", "dpt": "dpt_pixels", "eomt": "eomt_pixels"}
CONTESTANTS = (LOGISTIC, *HEADS, UNET)
WIDTH, PEAK, BATCH = 28, 1e-3, 8  # of the U-Net: 6 million weights
PIXELS = 20_000  # that the logistic regression is fitted to
TIMED, FIRST = 20, 5  # steps that are timed, to tell the time of one; the first compile

Set = tuple[ArraySplit, ArraySplit]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks dense", description=__doc__)
    parser.add_argument("--weights", required=True, help="of ViT-Ti/16: a file, or MODEL:TAG")
    parser.add_argument("--sets", nargs="+", default=["digits"], choices=SETS, help="of these")
    parser.add_argument("--brain", type=Path, help="folder of nilearn's mni_icbm152_*.nii.gz")
    parser.add_argument("--nuclei", type=Path, help="folder of stardist's img2d.tif")
    parser.add_argument("--seconds", type=float, default=60, help="of the processor")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--loss", choices=Segmentation.losses, help="of the heads (default: the recipe's)"
    )
    parser.add_argument(
        "--contestants", nargs="+", default=CONTESTANTS, choices=CONTESTANTS, help="of these"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/dense"))
    options = parser.parse_args(arguments)
    folders = {"digits": None, "brain": options.brain, "nuclei": options.nuclei}
    for name in options.sets:
        if name != "digits" and folders[name] is None:
            parser.error(f"--sets {name} needs --{name} FOLDER")
    lines = []
    for name in options.sets:
        for contestant in options.contestants:
            rows = []
            for seed in range(options.seeds):
                loss = f"-{options.loss}" if options.loss else ""
                words = f"{name}-{contestant}{loss}-{options.seconds:g}-{seed}".replace(" ", "_")
                file = options.out / f"{words}.json"
                if not file.is_file():
                    file.parent.mkdir(parents=True, exist_ok=True)
                    splits = SETS[name](folders[name], seed)
                    write_text(file, json.dumps(run(options, contestant, splits, seed)))
                rows.append(json.loads(file.read_text("utf-8")))
                print(f"{name}, {contestant}, seed {seed}: {rows[-1]}", flush=True)
            lines.append((name, contestant, *cells_of(rows)))
    print(table(("images", "", "mean IoU", "pixel accuracy", "steps"), lines, "llrrr"))
    return 0


def run(options: argparse.Namespace, contestant: str, splits: Set, seed: int) -> dict[str, Any]:
    """Train once; return the scores on the test images, and the steps."""
    train, test = splits
    keras.utils.set_random_seed(seed)
    if contestant == LOGISTIC:
        answers, steps = logistic(options, train, test, seed), 0
    elif contestant == UNET:
        answers, steps = unet(options.seconds, train, test, seed)
    else:
        answers, steps = head(options, contestant, train, test, seed)
    scores = train.task.scores(test.labels(), answers, resamples=2)
    names = ("mean_iou", "pixel_accuracy")
    return {name: scores[name].value for name in names} | {"steps": steps}


def head(
    options: argparse.Namespace, kind: str, train: ArraySplit, test: ArraySplit, seed: int
) -> tuple[np.ndarray, int]:
    """Train a head by its recipe for the time, and answer the test images."""
    splits = data.Splits("images", train.class_names, {"train": train, "val": test.take([0, 1])})
    recipe = keras_vit.recipes.get(HEADS[kind])
    recipe = replace(recipe, loss=options.loss or recipe.loss)

    def trained(steps: int) -> tuple[Any, list[float]]:
        model, times = classifier(options, train, map_head=kind), []
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: times.append(time.process_time())
        )
        with tempfile.TemporaryDirectory() as folder:
            keras_vit.fit(
                model,
                recipe.scaled(steps=steps, batch_size=BATCH),
                splits,
                folder,
                seed=seed,
                progress=False,
                monitor=None,
                print_fn=lambda line: None,
                callbacks=[callback],
            )
        return model, times

    # The median: another process on the machine disturbs single steps.
    times = trained(TIMED)[1][FIRST:]
    steps = max(int(options.seconds / statistics.median(np.diff(times))), TIMED)
    model, _ = trained(steps)
    return train.task.answers(predict_split(model, test)[1]), steps


def classifier(options: argparse.Namespace, train: ArraySplit, **arguments: Any) -> Any:
    shape = pixels_of(train).shape[1:]
    return keras_vit.load(options.weights, task=train.task, input_shape=shape, **arguments)


def logistic(
    options: argparse.Namespace, train: ArraySplit, test: ArraySplit, seed: int
) -> np.ndarray:
    """Fit scikit-learn's logistic regression to pixels; return the probabilities of others."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = classifier(options, train, map_head="linear")
    tokens = model.feature_model("encoder_norm")
    rows, columns = (side // patch for side, patch in zip(model.image_size, (16, 16), strict=True))
    random, size = np.random.default_rng(seed), model.image_size

    def pixels(image: np.ndarray) -> np.ndarray:
        patches = ops.convert_to_numpy(tokens.predict(image[None], verbose=0))[:, 1:]
        grid = patches.reshape(1, rows, columns, -1)
        return ops.convert_to_numpy(ops.image.resize(grid, size)).reshape(-1, grid.shape[-1])

    x, y, each = [], [], PIXELS // len(train)
    for image, mask in zip(*train.as_arrays(), strict=True):
        places = random.choice(mask.size, each, replace=False)
        x.append(pixels(image)[places])
        y.append(mask.ravel()[places])
    fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    fitted.fit(np.concatenate(x), np.concatenate(y))
    answers = np.zeros((len(test), *size, train.task.size), "float32")
    for answer, image in zip(answers, pixels_of(test), strict=True):
        found = fitted.predict_proba(pixels(image)).reshape(*size, -1)
        answer[..., fitted.classes_] = found
    return answers


def unet(seconds: float, train: ArraySplit, test: ArraySplit, seed: int) -> tuple[np.ndarray, int]:
    """Train a U-Net (Ronneberger et al. 2015) for the time, by the batches that heads have."""
    model, size = unet_model(train), pixels_of(train).shape[1:3]
    model.compile(keras.optimizers.AdamW(PEAK, weight_decay=1e-3), train.task.loss())
    augmentation = keras_vit.recipes.get(HEADS["linear"]).augmentation
    batches = iter(
        data.pipeline(train, size, BATCH, True, seed=seed, augment=augmentation, repeat=True)
    )
    steps, started = 0, time.process_time()
    while (part := (time.process_time() - started) / seconds) < 1:
        rate = (
            min(part / 0.04, 1) * (1 + math.cos(math.pi * part)) / 2
        )  # as recipes: warm-up, cosine
        model.optimizer.learning_rate = PEAK * rate
        model.train_on_batch(*map(np.asarray, next(batches)))
        steps += 1
    return train.task.answers(model.predict(pixels_of(test), batch_size=BATCH, verbose=0)), steps


def unet_model(train: ArraySplit) -> keras.Model:
    """Return four stages down and up again, each of two convolutions with batch norm."""

    def stage(x: Any, width: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    inputs = keras.Input(pixels_of(train).shape[1:])
    x, skipped = layers.Rescaling(1 / 127.5, offset=-1)(inputs), []
    widths = [WIDTH * 2**i for i in range(5)]
    for width in widths[:-1]:
        x = stage(x, width)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = stage(x, widths[-1])
    for (_, width), skip in zip(pairwise(widths[::-1]), skipped[::-1], strict=True):
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = stage(layers.Concatenate()([skip, x]), width)
    return keras.Model(inputs, layers.Conv2D(train.task.size, 1, dtype="float32")(x))


def digits(folder: None, seed: int) -> Set:
    """96 photographs with digits to train on, others for each seed, and 48 to test on."""
    names = ("background", *map(str, range(10)))
    parts = [[draw(rng) for _ in range(n)] for rng, n in ((rng_of(1 + seed), 96), (rng_of(0), 48))]
    return pair(names, *(tuple(map(np.stack, zip(*part, strict=True))) for part in parts))


def brain(folder: Path, seed: int) -> Set:
    """Every second axial slice: the lower 60 % to train on, a gap, the upper 30 % to test on."""
    volumes = [volume(folder / f"mni_icbm152_{n}_tal_nlin_sym_09a_converted.nii.gz") for n in
               ("t1", "gm", "wm")]  # fmt: skip
    t1, gray, white = (np.transpose(v, (2, 1, 0))[::2, 4:228, 2:194] for v in volumes)
    other = 255 - np.minimum(gray.astype(int) + white, 255)
    masks = np.argmax([other, gray, white], axis=0).astype(np.uint8)
    tissue = np.flatnonzero((masks > 0).mean(axis=(1, 2)) > 0.02)
    images = np.repeat(t1[..., None], 3, axis=-1)
    lower, upper = tissue[: int(0.6 * len(tissue))], tissue[int(0.7 * len(tissue)) :]
    parts = [(images[p], masks[p]) for p in (rng_of(seed).permutation(lower), upper)]
    return pair(("other", "gray matter", "white matter"), *parts)


def volume(file: Path) -> np.ndarray:
    """Return the voxels of a NIfTI-1 file of uint8, `(x, y, z)`."""
    content = gzip.decompress(file.read_bytes())
    shape = np.frombuffer(content[42:48], "<i2")
    begin = int(np.frombuffer(content[108:112], "<f4")[0])
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape, order="F")


def nuclei(folder: Path, seed: int) -> Set:
    """The left three quarters of one image in 12 parts to train on, the right one in 4 to test."""
    image, mask = (np.asarray(Image.open(folder / n)) for n in ("img2d.tif", "mask2d.tif"))
    image = np.repeat(image.clip(0, 255).astype(np.uint8)[..., None], 3, axis=-1)
    corners = [(y, x) for x in range(0, 512, 128) for y in range(0, 512, 128)]
    images = np.stack([image[y : y + 128, x : x + 128] for y, x in corners])
    masks = np.stack([mask[y : y + 128, x : x + 128] > 0 for y, x in corners]).astype(np.uint8)
    order = rng_of(seed).permutation(12)
    return pair(("background", "nucleus"), (images[order], masks[order]), (images[12:], masks[12:]))


def pair(names: Sequence[str], *parts: Any) -> Set:
    train, test = (
        ArraySplit(name, Segmentation(tuple(names)), *part, augment="maps")
        for name, part in zip(("train", "test"), parts, strict=True)
    )
    return train, test


def pixels_of(split: ArraySplit) -> np.ndarray:
    return split.as_arrays()[0]


def rng_of(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


SETS: dict[str, Any] = {"digits": digits, "brain": brain, "nuclei": nuclei}


def cells_of(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the mean of each score with its standard error, and the mean of the steps."""
    cells = []
    for name in ("mean_iou", "pixel_accuracy"):
        values = [row[name] for row in rows]
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        cells.append(f"{statistics.fmean(values):.3f} ± {error:.3f}")
    steps = round(statistics.fmean(row["steps"] for row in rows))
    return (*cells, f"{steps:,}" if steps else "")
