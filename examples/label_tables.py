"""Data sets with tables of labels, made of scikit-learn's digits, and what a baseline reaches.

    python examples/label_tables.py --out data          # a few seconds; three folders
    keras-vit train --data data/pairs --labels data/pairs/labels.csv --augment none
    keras-vit train --data data/angles --labels data/angles/labels.csv --augment none
    keras-vit train --data data/counts --labels data/counts/labels.csv --augment none \
        --task ordinal

`pairs`: two digits side by side, each of which is a label (several labels per image). `angles`: a
digit, turned by -60 to 60 degrees (a number). `counts`: none to five dots (grades in an order). The
column `split` says what to validate on. Prints the scores of scikit-learn's usual models on the
same pixels, to compare with `report.md`: logistic regression per label, ridge regression, and
logistic regression on the grades. Needs keras3-vit[train].
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import average_precision_score, cohen_kappa_score, mean_absolute_error

SIDE = 16
IMAGES, VALIDATION = 1500, 300
Example = tuple[Image.Image, str]


def pairs(chance: np.random.Generator) -> Iterator[Example]:
    """Two digits side by side, and their names joined by a bar."""
    images, labels = _digits()
    while True:
        left, right = chance.integers(0, len(images), 2)
        both = np.concatenate([images[left], images[right]], axis=1)
        names = sorted({str(labels[left]), str(labels[right])})
        yield Image.fromarray(both), "|".join(names)


def angles(chance: np.random.Generator) -> Iterator[Example]:
    """A turned digit, and by how many degrees. Of the digits that show which side is up."""
    images, labels = _digits()
    upright = images[np.isin(labels, [2, 3, 4, 5, 7])]
    while True:
        angle = float(chance.uniform(-60, 60))
        image = Image.fromarray(upright[chance.integers(0, len(upright))])
        large = image.resize((2 * SIDE, 2 * SIDE), Image.Resampling.BICUBIC)
        turned = large.rotate(angle, Image.Resampling.BICUBIC)
        yield turned.resize((SIDE, SIDE), Image.Resampling.BILINEAR), f"{angle:.2f}"


def counts(chance: np.random.Generator) -> Iterator[Example]:
    """Dots that do not touch, and how many."""
    while True:
        number = int(chance.integers(0, 6))
        image = Image.new("L", (2 * SIDE, 2 * SIDE))
        cells = chance.choice(16, number, replace=False)
        for cell in cells:
            x, y = 8 * (cell % 4) + chance.integers(1, 4), 8 * (cell // 4) + chance.integers(1, 4)
            size = chance.integers(2, 4)
            level = int(chance.integers(90, 256))
            ImageDraw.Draw(image).ellipse((x, y, x + size, y + size), fill=level)
        yield image, str(number)


SETS: dict[str, tuple[Callable[..., Iterator[Example]], str]] = {
    "pairs": (pairs, "digits"),
    "angles": (angles, "angle"),
    "counts": (counts, "dots"),
}


def write(name: str, folder: Path, seed: int) -> None:
    """The images of a set, and its `labels.csv`."""
    make, column = SETS[name]
    folder.mkdir(parents=True)
    examples = make(np.random.default_rng(seed))
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["file", column, "split"])
        for i in range(IMAGES):
            image, label = next(examples)
            image.save(folder / f"{i:04d}.png")
            rows.writerow([f"{i:04d}.png", label, "val" if i < VALIDATION else "train"])


def baseline(name: str, folder: Path) -> str:
    """The scores of scikit-learn's usual model on the validation images of a set."""
    with (folder / "labels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    x = np.stack([np.asarray(Image.open(folder / row["file"]), float).ravel() for row in rows])
    texts = [row[SETS[name][1]] for row in rows]
    val = np.array([row["split"] == "val" for row in rows])
    x /= 255
    if name == "pairs":
        y = np.array([[str(digit) in text.split("|") for digit in range(10)] for text in texts])
        scores = [_logistic(x[~val], column[~val]).decision_function(x[val]) for column in y.T]
        precision = average_precision_score(y[val], np.transpose(scores))
        return f"mean_average_precision {precision:.3f} (logistic regression per label)"
    y = np.array(texts, float)
    if name == "angles":
        predicted = RidgeCV(np.logspace(-2, 4, 13)).fit(x[~val], y[~val]).predict(x[val])
        error = mean_absolute_error(y[val], predicted)
        return f"mae {error:.2f} degrees (ridge regression)"
    predicted = _logistic(x[~val], y[~val]).predict(x[val])
    kappa = cohen_kappa_score(y[val], predicted, weights="quadratic")
    error = mean_absolute_error(y[val], predicted)
    return f"quadratic_kappa {kappa:.3f}, grade_mae {error:.3f} (logistic regression)"


def _logistic(x: np.ndarray, y: np.ndarray) -> Any:
    return LogisticRegression(max_iter=2000).fit(x, y)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """The digits at twice their size, uint8."""
    digits = load_digits()
    small = np.rint(digits.images * (255 / 16)).astype("uint8")
    images = [Image.fromarray(image).resize((SIDE, SIDE)) for image in small]
    return np.stack([np.asarray(image) for image in images]), digits.target


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("data"), help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    for name in SETS:
        if (options.out / name).exists():
            parser.error(f"{options.out / name} exists: give another folder as --out.")
    for name in SETS:
        write(name, options.out / name, options.seed)
        print(f"{options.out / name}: {IMAGES} images; {baseline(name, options.out / name)}")


if __name__ == "__main__":
    main()
