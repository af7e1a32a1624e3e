"""Photographs with handwritten digits on them, and exact masks of eleven classes: a set to try.

    python examples/digits_on_photographs.py digits --images 120
    keras-vit train --data digits/photos --labels digits/masks --weights ViT-Ti/16:augreg_in21k --out runs/digits
    keras-vit predict runs/digits digits/photos --out rows.csv --maps maps

Digits of scikit-learn, three to an image, in bright colors on parts of its two photographs; what is
behind them is class 0, "background". Takes seconds. docs/tasks.md has what a training reaches.
"""  # noqa: E501

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

SIZE, DIGIT, DIGITS = (128, 160), 48, 3  # pixels of an image and of a digit, and how many


def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a photograph with digits, uint8 `(height, width, 3)`, and its mask."""
    digits, photographs = load_digits(), load_sample_images().images
    photograph = photographs[rng.integers(len(photographs))]
    top, left = (rng.integers(0, a - b) for a, b in zip(photograph.shape[:2], SIZE, strict=True))
    image = photograph[top : top + SIZE[0], left : left + SIZE[1]].astype(np.float32)
    mask = np.zeros(SIZE, np.uint8)
    for _ in range(DIGITS):
        which = rng.integers(len(digits.images))
        small = Image.fromarray((digits.images[which] * 15.9).astype(np.uint8))
        strokes = np.asarray(small.resize((DIGIT, DIGIT), Image.Resampling.BICUBIC)) > 90
        top, left = (rng.integers(0, side - DIGIT) for side in SIZE)
        place = np.s_[top : top + DIGIT, left : left + DIGIT]
        image[place][strokes] = rng.uniform(150, 255, 3)
        mask[place][strokes] = digits.target[which] + 1
    return image.clip(0, 255).astype(np.uint8), mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where to write; it must not exist")
    parser.add_argument("--images", type=int, default=120, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    options = parser.parse_args()
    if options.images < 2:
        parser.error("--images must be 2 or more")
    for kind in ("photos", "masks"):
        (options.folder / kind).mkdir(parents=True)
    rng = np.random.default_rng(options.seed)
    for i in range(options.images):
        image, mask = draw(rng)
        Image.fromarray(image).save(options.folder / "photos" / f"{i:04}.jpg", quality=95)
        Image.fromarray(mask).save(options.folder / "masks" / f"{i:04}.png")
    names = ["background", *map(str, range(10))]
    (options.folder / "masks" / "classes.txt").write_text("\n".join(names) + "\n")
    print(f"written to {options.folder}: {options.images} photographs with masks")


if __name__ == "__main__":
    main()
