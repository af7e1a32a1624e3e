"""Masks and depth: heads of a ViT beside scikit-learn on its features and a U-Net, at equal time.

    python -m benchmarks dense --weights FILE --sets nuclei --nuclei FOLDER [--seconds 60]

Sets: "digits" on photographs (examples/digits_on_photographs.py: exact masks of 11 classes);
"brain", with `--brain`, slices of nilearn's MNI template (its folder `datasets/data`: gray and
white matter of one brain, the lower slices to train on, the upper ones to test on); "subject", with
`--subject` as well, all of these slices to train on, those of another subject and scanner to test
on (MRIcron's template `ch2bet.nii.gz`, whose tissues are a mixture of three normal distributions of
its intensities); "nuclei", with `--nuclei`, stardist's pair `img2d.tif` and `mask2d.tif` (its
folder `data/images`: three quarters to train on, the rest to test on); "motorcycle", with
`--motorcycle`, scikit-image's photograph with disparities (its folder `data`): depth, the left 60 %
to train on, the right 30 % to test on. Each contestant trains for as many seconds of the processor,
all cores together, except scikit-learn's logistic regression on the patch features, enlarged to
pixels, or ridge regression of depth, which takes what it takes. The U-Net begins at random and has
about as many weights as ViT-Ti/16. Prints the scores on the test images, the mean over seeds and
its standard error. What is finished lies in --out, and is not computed again.
"""

import argparse
import gzip
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from PIL import Image

import keras_vit
from examples.digits_on_photographs import draw
from examples.study import finished
from keras_vit import data
from keras_vit.data.sources.array_splits import ArraySplit
from keras_vit.evaluation import predict_split
from keras_vit.evaluation.markdown import table
from keras_vit.tasks import Depth, Segmentation
from keras_vit.training.fitting import augmentation_of

SKLEARN, UNET = "scikit-learn", "U-Net from scratch"
HEADS = {"linear": "linear_pixels", "dpt": "dpt_pixels", "eomt": "eomt_pixels"}
CONTESTANTS = (SKLEARN, *HEADS, UNET)
SCORES = {"segmentation": ("mean_iou", "pixel_accuracy"), "depth": ("delta1", "abs_rel", "rmse")}
WIDTH, PEAK, BATCH = 28, 1e-3, 8  # of the U-Net: 6 million weights
PIXELS = 20_000  # that the logistic regression is fitted to
TISSUES = ("other", "gray matter", "white matter")
TIMED, FIRST = 20, 5  # steps that are timed, to tell the time of one; the first compile

Set = tuple[ArraySplit, ArraySplit]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks dense", description=__doc__)
    parser.add_argument("--weights", required=True, help="of ViT-Ti/16: a file, or MODEL:TAG")
    parser.add_argument("--sets", nargs="+", default=["digits"], choices=SETS, help="of these")
    for name, help in FOLDERS.items():
        parser.add_argument(f"--{name}", type=Path, help=f"folder of {help}")
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
    folders = {name: getattr(options, name) for name in FOLDERS}
    for name in options.sets:
        for folder in NEEDS[name]:
            if folders[folder] is None:
                parser.error(f"--sets {name} needs --{folder} FOLDER")
    for name in options.sets:
        lines = []
        for contestant in options.contestants:
            if contestant == "eomt" and name == "motorcycle":
                continue  # queries are masks with a class
            rows: list[Any] = []
            for seed in range(options.seeds):
                loss = f"-{options.loss}" if options.loss else ""
                words = f"{name}-{contestant}{loss}-{options.seconds:g}-{seed}".replace(" ", "_")
                file = options.out / f"{words}.json"
                of = [folders[folder] for folder in NEEDS[name]]
                depends = {"weights": options.weights, **dict(zip(NEEDS[name], of, strict=True))}
                trained = partial(train_on, options, contestant, name, of, seed)
                rows.append(finished(file, depends, trained))
                print(f"{name}, {contestant}, seed {seed}: {rows[-1]}", flush=True)
            lines.append((contestant, *cells_of(rows)))
        print(table((name, *list(rows[0])), lines, "l" + "r" * len(rows[0])))
    return 0


def train_on(
    options: argparse.Namespace, contestant: str, name: str, folders: list[Path], seed: int
) -> dict[str, Any]:
    return run(options, contestant, SETS[name](seed, *folders), seed)


def run(options: argparse.Namespace, contestant: str, splits: Set, seed: int) -> dict[str, Any]:
    """Train once; return the scores on the test images, and the steps."""
    train, test = splits
    keras.utils.set_random_seed(seed)
    if contestant == SKLEARN:
        answers, steps = pixel_by_pixel(options, train, test, seed), 0
    elif contestant == UNET:
        answers, steps = unet(options.seconds, train, test, seed)
    else:
        answers, steps = head(options, contestant, train, test, seed)
    scores = train.task.scores(test.labels(), answers, resamples=2)
    names = SCORES[train.task.kind]
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


def pixel_by_pixel(
    options: argparse.Namespace, train: ArraySplit, test: ArraySplit, seed: int
) -> np.ndarray:
    """Fit scikit-learn's logistic regression, or ridge of log depths, to pixels; answer others."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = classifier(options, train, map_head="linear")
    tokens = model.feature_model("encoder_norm")
    rows, columns = (side // patch for side, patch in zip(model.image_size, (16, 16), strict=True))
    random, size, depth = np.random.default_rng(seed), model.image_size, is_depth(train)

    def pixels(image: np.ndarray) -> np.ndarray:
        patches = ops.convert_to_numpy(tokens.predict(image[None], verbose=0))[:, 1:]
        grid = patches.reshape(1, rows, columns, -1)
        return ops.convert_to_numpy(ops.image.resize(grid, size)).reshape(-1, grid.shape[-1])

    x, y, each = [], [], PIXELS // len(train)
    for image, labels in zip(*train.as_arrays(), strict=True):
        known = np.flatnonzero(labels > 0) if depth else np.arange(labels.size)
        places = random.choice(known, min(each, known.size), replace=False)
        x.append(pixels(image)[places])
        y.append(labels.ravel()[places])
    targets = np.concatenate(y)
    estimator = Ridge() if depth else LogisticRegression(max_iter=500)
    fitted = make_pipeline(StandardScaler(), estimator)
    fitted.fit(np.concatenate(x), np.log(targets) if depth else targets)
    answers = np.zeros((len(test), *size, train.task.size), "float32")
    for answer, image in zip(answers, pixels_of(test), strict=True):
        if depth:
            answer[..., 0] = np.exp(fitted.predict(pixels(image))).reshape(size)
        else:
            answer[..., fitted.classes_] = fitted.predict_proba(pixels(image)).reshape(*size, -1)
    return answers


def unet(seconds: float, train: ArraySplit, test: ArraySplit, seed: int) -> tuple[np.ndarray, int]:
    """Train a U-Net (Ronneberger et al. 2015) for the time, by the batches that heads have."""
    model, size = unet_model(train), pixels_of(train).shape[1:3]
    model.compile(keras.optimizers.AdamW(PEAK, weight_decay=1e-3), train.task.loss())
    recipe = keras_vit.recipes.get(HEADS["linear"])  # without crops for depth, as heads
    augmentation, _ = augmentation_of(None, recipe, train.task, lambda line: None)
    batches = iter(
        data.pipeline(train, size, BATCH, True, seed=seed, augment=augmentation, repeat=True)
    )
    steps, started = -FIRST, math.inf
    while (part := max(time.process_time() - started, 0) / seconds) < 1:
        rate = (
            min(part / 0.04, 1) * (1 + math.cos(math.pi * part)) / 2
        )  # as recipes: warm-up, cosine
        model.optimizer.learning_rate = PEAK * rate
        model.train_on_batch(*map(np.asarray, next(batches)))
        steps += 1
        if not steps:  # as of heads, the time of the first ones does not count; their rate is 0
            started = time.process_time()
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
    head = layers.Conv2D(train.task.size, 1, dtype="float32")
    model = keras.Model(inputs, head(x))
    if is_depth(train):  # as heads begin
        head.bias.assign(train.task.initial_bias(train.labels()))
    return model


def digits(seed: int) -> Set:
    """96 photographs with digits to train on, others for each seed, and 48 to test on."""
    names = ("background", *map(str, range(10)))
    parts = [[draw(rng) for _ in range(n)] for rng, n in ((rng_of(1 + seed), 96), (rng_of(0), 48))]
    return pair(names, *(tuple(map(np.stack, zip(*part, strict=True))) for part in parts))


def brain(seed: int, folder: Path) -> Set:
    """The lower 60 % of the slices to train on, a gap, the upper 30 % to test on."""
    return pair(TISSUES, *whole(seed, folder, (0, 0.6), (0.7, 1)))


def whole(seed: int, folder: Path, *parts: tuple[float, float]) -> list[tuple[Any, Any]]:
    """Return images and masks of every second axial slice, or of parts of them from below."""
    volumes = [volume(folder / f"mni_icbm152_{n}_tal_nlin_sym_09a_converted.nii.gz") for n in
               ("t1", "gm", "wm")]  # fmt: skip
    t1, gray, white = (np.transpose(v, (2, 1, 0))[::2, 4:228, 2:194] for v in volumes)
    other = 255 - np.minimum(gray.astype(int) + white, 255)
    masks = np.argmax([other, gray, white], axis=0).astype(np.uint8)
    tissue = np.flatnonzero((masks > 0).mean(axis=(1, 2)) > 0.02)
    images, found = np.repeat(t1[..., None], 3, axis=-1), []
    for low, high in parts or ((0, 1),):
        places = tissue[int(low * len(tissue)) : int(high * len(tissue))]
        places = rng_of(seed).permutation(places) if low == 0 else places
        found.append((images[places], masks[places]))
    return found


def volume(file: Path) -> np.ndarray:
    """Return the voxels of a NIfTI-1 file of uint8, `(x, y, z)`."""
    content = gzip.decompress(file.read_bytes())
    shape = np.frombuffer(content[42:48], "<i2")
    begin = int(np.frombuffer(content[108:112], "<f4")[0])
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape, order="F")


def subject(seed: int, folder: Path, other: Path) -> Set:
    """All slices of the template to train on, every fourth one of another subject to test on.

    Nobody has drawn the tissues of that one: three normal distributions are fitted to the
    intensities of its brain, of which the darkest is liquid, then gray and white matter.
    """
    from sklearn.mixture import GaussianMixture

    (train,), bet = whole(seed, folder), volume(other / "ch2bet.nii.gz")
    some = rng_of(0).choice(bet[bet > 0], 20_000)[:, None].astype(float)
    fitted = GaussianMixture(3, n_init=3, random_state=0).fit(some)
    of_level = fitted.means_.ravel().argsort().argsort()[fitted.predict(np.arange(256.0)[:, None])]
    slices = np.pad(np.transpose(bet, (2, 1, 0))[::4], ((0, 0), (3, 4), (5, 6)))
    slices = slices[(slices > 0).mean(axis=(1, 2)) > 0.02]
    masks = np.where(slices > 0, of_level[slices], 0).astype(np.uint8)
    # As bright as the template.
    bright, dark = (np.percentile(v[v > 0], 99) for v in (train[0], slices))
    slices = np.minimum(slices * (bright / dark), 255).astype(np.uint8)
    return pair(TISSUES, train, (np.repeat(slices[..., None], 3, axis=-1), masks))


def motorcycle(seed: int, folder: Path) -> Set:
    """Depth, 100 over the disparity, in parts of 160 x 160 pixels, of which those to test on share
    no pixel with the others."""
    image = np.asarray(Image.open(folder / "motorcycle_left.png"))[..., :3]
    with np.load(folder / "motorcycle_disp.npz", allow_pickle=False) as file:
        disparity = file["arr_0"]
    depth = np.where(np.isfinite(disparity) & (disparity > 0), 100 / disparity, 0)
    lines = np.linspace(0, 500 - 160, 8).astype(int)
    places = [[(y, x) for y in lines for x in np.linspace(*ends, 6).astype(int)]
              for ends in ((0, 444 - 160), (519, 741 - 160))]  # fmt: skip
    parts = []
    for some in (rng_of(seed).permutation(places[0]), places[1]):
        cut = [np.s_[y : y + 160, x : x + 160] for y, x in some]
        parts.append((np.stack([image[c] for c in cut]), np.stack([depth[c] for c in cut])))
    return pair(Depth().fitted(parts[0][1]), *parts)


def nuclei(seed: int, folder: Path) -> Set:
    """The left three quarters of one image in 12 parts to train on, the right one in 4 to test."""
    image, mask = (np.asarray(Image.open(folder / n)) for n in ("img2d.tif", "mask2d.tif"))
    image = np.repeat(image.clip(0, 255).astype(np.uint8)[..., None], 3, axis=-1)
    corners = [(y, x) for x in range(0, 512, 128) for y in range(0, 512, 128)]
    images = np.stack([image[y : y + 128, x : x + 128] for y, x in corners])
    masks = np.stack([mask[y : y + 128, x : x + 128] > 0 for y, x in corners]).astype(np.uint8)
    order = rng_of(seed).permutation(12)
    return pair(("background", "nucleus"), (images[order], masks[order]), (images[12:], masks[12:]))


def pair(names: Sequence[str] | Depth, *parts: Any) -> Set:
    task = names if isinstance(names, Depth) else Segmentation(tuple(names))
    train, test = (
        ArraySplit(name, task, images, labels, augment="maps")
        for name, (images, labels) in zip(("train", "test"), parts, strict=True)
    )
    return train, test


def is_depth(split: ArraySplit) -> bool:
    return split.task.kind == "depth"


def pixels_of(split: ArraySplit) -> np.ndarray:
    return split.as_arrays()[0]


def rng_of(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


SETS: dict[str, Any] = {
    "digits": digits, "brain": brain, "subject": subject, "nuclei": nuclei, "motorcycle": motorcycle
}  # fmt: skip
FOLDERS = {
    "brain": "nilearn's mni_icbm152_*.nii.gz",
    "subject": "MRIcron's ch2bet.nii.gz",
    "nuclei": "stardist's img2d.tif",
    "motorcycle": "scikit-image's motorcycle_left.png",
}
NEEDS = {"digits": (), "subject": ("brain", "subject")}
NEEDS |= {name: (name,) for name in FOLDERS if name not in NEEDS}


def cells_of(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the mean of each score with its standard error, and the mean of the steps."""
    cells = []
    for name in list(rows[0])[:-1]:
        values = [row[name] for row in rows]
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        cells.append(f"{statistics.fmean(values):.3f} ± {error:.3f}")
    steps = round(statistics.fmean(row["steps"] for row in rows))
    return (*cells, f"{steps:,}" if steps else "")
