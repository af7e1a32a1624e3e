"""Tables of labels that can be computed from photographs, and what a baseline reaches.

    python examples/photograph_tables.py --photos photos/flowers --out tables     # a minute
    keras-vit train --data photos/flowers --labels tables/attributes.csv \
        --weights ViT-Ti/16:augreg_in21k_ft_in1k --image-size 112 --augment none --epochs 6 \
        --out runs/attributes  # 8 minutes; mean average precision 0.835, the baseline's 0.695
    keras-vit train --data photos/flowers --labels tables/brightness.csv \
        --weights ViT-Ti/16:augreg_in21k_ft_in1k --freeze-backbone --out runs/brightness

`attributes.csv` has several labels per photograph: the color that most of its colored pixels have,
`portrait` or `landscape`, and `bright` or `dark` where the mean of its pixels is above 140 or below
90. `brightness.csv` has that mean (a number, 0 to 255). What to validate on is the folder's
`val.txt`, or every fifth photograph. Prints the scores of scikit-learn's usual models on thumbnails
of 16 x 16 pixels, to compare with `report.md`. The mean of a thumbnail's pixels is that of its
photograph: ridge regression has the brightness almost exactly, and a ViT does not. Needs
keras3-vit[train].
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import average_precision_score, mean_absolute_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

SIDE = 16
DARK, BRIGHT = 90, 140  # of the mean of all pixels, 0..255
# Upper ends of the hues, of 256, that have a name; the last one begins the circle again.
COLORS = {"red": 14, "yellow": 46, "green": 116, "blue": 176, "violet": 235, "red again": 256}


def describe(image: Image.Image) -> tuple[list[str], float]:
    """The attributes of an image, and the mean of its pixels."""
    small = image.resize((64, 64), Image.Resampling.BOX)
    hue, saturation, value = np.moveaxis(np.asarray(small.convert("HSV")), -1, 0)
    colored = hue[(saturation > 80) & (value > 50)]
    counts = np.bincount(np.digitize(colored, list(COLORS.values())), minlength=len(COLORS))
    counts[0] += counts[-1]
    names = [list(COLORS)[int(counts[:-1].argmax())]] if len(colored) else []
    names.append("portrait" if image.height > image.width else "landscape")
    brightness = float(np.asarray(image).mean())
    names += ["bright"] * (brightness > BRIGHT) + ["dark"] * (brightness < DARK)
    return names, brightness


def write(photos: Path, out: Path) -> None:
    """The two tables; prints the scores of the baselines."""
    files = sorted(p.relative_to(photos) for p in photos.glob("*/*.jpg"))
    listed = photos / "val.txt"
    held_out = set(listed.read_text("utf-8").split()) if listed.is_file() else None
    rows, thumbnails = [], []
    for i, file in enumerate(files):
        image = Image.open(photos / file).convert("RGB")
        is_val = i % 5 == 0 if held_out is None else file.as_posix() in held_out
        rows.append((file.as_posix(), *describe(image), "val" if is_val else "train"))
        thumbnail = image.resize((SIDE, SIDE), Image.Resampling.BOX)
        thumbnails.append(np.asarray(thumbnail, float).ravel() / 255)
    out.mkdir(parents=True)
    for name, column in (("attributes", 1), ("brightness", 2)):
        with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as table:
            cells = csv.writer(table)
            cells.writerow(["file", name, "split"])
            for row in rows:
                label = "|".join(row[1]) if column == 1 else f"{row[2]:.2f}"
                cells.writerow([row[0], label, row[3]])
    x, val = np.stack(thumbnails), np.array([row[3] == "val" for row in rows])
    names = sorted({name for row in rows for name in row[1]})
    labels = np.array([[name in row[1] for name in names] for row in rows])
    print(f"{out / 'attributes.csv'}: {_attributes(x, labels, val)}")
    print(f"{out / 'brightness.csv'}: {_brightness(x, np.array([row[2] for row in rows]), val)}")


def _attributes(x: np.ndarray, labels: np.ndarray, val: np.ndarray) -> str:
    scores = []
    for column in labels.T:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
        scores.append(model.fit(x[~val], column[~val]).decision_function(x[val]))
    present = labels[val].any(axis=0)
    precision = average_precision_score(labels[val][:, present], np.transpose(scores)[:, present])
    return f"mean_average_precision {precision:.3f} (logistic regression per label)"


def _brightness(x: np.ndarray, numbers: np.ndarray, val: np.ndarray) -> str:
    ridge = RidgeCV(np.logspace(-4, 4, 17)).fit(x[~val], numbers[~val])
    error = mean_absolute_error(numbers[val], ridge.predict(x[val]))
    constant = np.abs(numbers[val] - np.median(numbers[~val])).mean()
    return f"mae {error:.2f} (ridge regression), {constant:.2f} (the median of all)"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=Path, required=True, help="folder of CLASS/*.jpg")
    parser.add_argument("--out", type=Path, default=Path("tables"), help="folder to write")
    options = parser.parse_args(words)
    if options.out.exists():
        parser.error(f"{options.out} exists: give another folder as --out.")
    if not any(options.photos.glob("*/*.jpg")):
        parser.error(f"{options.photos} does not have CLASS/*.jpg: give a folder of photographs.")
    write(options.photos, options.out)


if __name__ == "__main__":
    main()
