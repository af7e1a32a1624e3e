# %% [markdown]
# # A segmenter from a folder in ten minutes
#
# A folder of images, a folder of masks, a released ViT-Ti/16 and one command: of every pixel of a
# page, whether it is paper, handwriting or a photograph. `make guides GUIDES=segmenter`, after
# `.venv/bin/pip install torch==2.13.0`, takes less than ten minutes on two CPU cores; it downloads
# 23 MB of weights, unless `KERAS_VIT_TI16` names a file that you have. A test promises a mean IoU
# of at least 0.85 on pages that the model has not seen, and on one that is four times as high and
# wide.

# %% tags=["hide-input"]
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image as Shown
from IPython.display import display
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

work = Path(tempfile.mkdtemp())
weights = os.environ.get("KERAS_VIT_TI16", "ViT-Ti/16:augreg_in21k_ft_in1k")
if Path(weights).is_file():
    (work / "vit_tiny.safetensors").symlink_to(weights)
    weights = "vit_tiny.safetensors"


def run(command: str, first: str = "") -> None:
    """Runs a command, and shows it and what it prints from a line on, but for progress."""
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).with_name(words[0]))
    done = subprocess.run(words, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    printed = done.stdout[max(done.stdout.find(first), 0) :]
    lines = (line for line in printed.splitlines() if "val_" in line or " step " not in line)
    print(f"$ {command}", *lines, sep="\n")


# %% [markdown]
# ## Images and masks
#
# A mask is a PNG file with the number of a class in each pixel, and has the name of its image. Your
# own masks come from any tool that draws: [labelme, CVAT, COCO and YOLO](../tasks.md#masks) are
# read. Here pages are drawn: lines of scikit-learn's handwritten digits, and parts of its two
# photographs. The pages to evaluate on have other digits and other parts.

# %% tags=["hide-input"]
PAPER, WRITING, PHOTOGRAPH = range(3)
digits, photographs = load_digits().images, load_sample_images().images


def draw(random, parts, height=320, width=240, digits=digits):
    """Returns a page, uint8 `(height, width, 3)`, and its mask."""
    page = random.uniform(200, 250, 3) + random.normal(0, 2, (height, width, 3))
    mask = np.zeros((height, width), np.uint8)
    top = random.integers(8, 30)
    while top < height - 60:
        bottom = min(top + random.integers(50, 110), height - 8)
        left, right = random.integers(8, width // 3), random.integers(2 * width // 3, width - 8)
        if random.random() < 0.5:
            photograph = photographs[random.integers(2)]
            high, wide = bottom - top, min(right - left, 160)
            y, x = (random.integers(*part) for part in parts)
            part = photograph[y : y + 2 * high : 2, x : x + 2 * wide : 2]
            high, wide = part.shape[:2]
            page[top : top + high, left : left + wide] = part
            mask[top : top + high, left : left + wide] = PHOTOGRAPH
        else:
            ink, size = random.uniform(0, 90, 3), random.integers(10, 18)
            for y in range(top, bottom - size, size + 3):
                for x in range(left, right - size, size - 2):
                    if random.random() < 0.15:
                        continue  # a space between words
                    digit = Image.fromarray(np.uint8(random.choice(digits) * 15.9))
                    stroke = np.asarray(digit.resize((size, size)), float)[..., None] / 255
                    here = page[y : y + size, x : x + size]
                    here[:] = here * (1 - stroke) + ink * stroke
                mask[top : y + size, left : x + size] = WRITING
        top = bottom + random.integers(12, 40)
    return page.clip(0, 255).astype(np.uint8), mask


random = np.random.default_rng(0)
UPPER, LOWER = ((0, 90), (0, 300)), ((130, 210), (0, 300))  # of the photographs
examples = []
for split, number, parts, some in (
    ("train", 80, UPPER, digits[:1200]),
    ("val", 30, LOWER, digits[1200:]),
):
    for kind in ("pages", "masks"):
        (work / kind / split).mkdir(parents=True)
    for i in range(number):
        page, mask = draw(random, parts, digits=some)
        Image.fromarray(page).save(work / f"pages/{split}/{i:03}.jpg", quality=90)
        Image.fromarray(mask).save(work / f"masks/{split}/{i:03}.png")
        examples.append((page, mask))
(work / "masks/classes.txt").write_text("paper\nhandwriting\nphotograph\n")

figure, rows = plt.subplots(2, 5, figsize=(8, 4.4), layout="constrained")
for (above, below), (page, mask) in zip(rows.T, examples, strict=False):
    above.imshow(page)
    below.imshow(mask, cmap="viridis", vmin=0, vmax=2)
    for axis in (above, below):
        axis.set(xticks=[], yticks=[])
rows[0, 0].set_ylabel("page")
rows[1, 0].set_ylabel("mask")
plt.show()

# %% [markdown]
# ## One command
#
# `--head dpt` fuses the maps of four blocks of the frozen ViT, so that borders need not follow its
# patches. Without it, the head is a linear layer on each patch, whose steps take less time:
# [which head](../tasks.md#masks) learns most depends on the images.

# %%
os.environ["TERM"] = "dumb"  # no colors
os.environ["KERAS_BACKEND"] = "torch"  # the fastest of the three on such CPUs
run(
    "keras-vit train --data pages --labels masks --model ViT-Ti/16 "
    f"--weights {weights} --head dpt --epochs 20 --out runs/pages"
)

# %% [markdown]
# ## How good is it?
#
# The report has the IoU of each class with a 95 % interval, beside the best constant answer. The
# pages of the lowest IoU are in `overlays.png`: look at them first. Stripes are what is wrong.

# %%
report = json.loads((work / "runs/pages/report.json").read_text("utf-8"))["report"]
for name, (value, low, high) in report["scores"].items():
    print(f"{name:<24}{value:6.3f}   {low:.3f} to {high:.3f}")
overlays = Image.open(work / "runs/pages/overlays.png").convert("RGB")
overlays.crop((0, 0, overlays.width, overlays.height // 2)).save(work / "worst.jpg")
display(Shown(work / "worst.jpg", width=640))

# %% [markdown]
# ## A page of another size
#
# The model has images of 224 x 224 pixels. `--windows own` lets it see a page of any size by
# windows of its own size that overlap, in an amount of memory that does not grow with the page's
# area. The file of a mask is a palette image in the colors of the classes, of the page's size.

# %%
large, truth = draw(random, LOWER, height=1280, width=960, digits=digits[1200:])
Image.fromarray(large).save(work / "large.png")
run("keras-vit predict runs/pages large.png --windows own --out rows.csv --maps maps")
found = Image.open(work / "maps/large.png")
answer = np.asarray(found)
both = [
    np.sum((answer == c) & (truth == c)) / np.sum((answer == c) | (truth == c)) for c in (0, 1, 2)
]
large_iou = float(np.mean(both))
colors = np.reshape(found.getpalette(), (-1, 3))[truth]

figure, axes = plt.subplots(1, 3, figsize=(8, 3.8), layout="constrained")
for axis, picture, title in zip(
    axes, (large, colors, found.convert("RGB")), ("page", "truth", "predicted"), strict=True
):
    axis.imshow(picture)
    axis.set(xticks=[], yticks=[], title=title)
figure.suptitle(f"mean IoU {large_iou:.2f}")
plt.show()

# %% [markdown]
# ## Ship it
#
# Every exported file returns `probabilities` and `classes` of each pixel, and `check` runs it in
# its own engine against the answers that it carries.

# %%
run("keras-vit export runs/pages --out exported/pages/1")
run("keras-vit check exported/pages/1")

# %% [markdown]
# ## What to try next
#
# - Masks that people drew have errors: `keras-vit audit pages/ --masks masks/`
#   [finds them](../curation.md#wrong-masks).
# - Which class *and* which pixels, for one pass of the encoder:
#   [`combine`](../tasks.md#several-heads-one-pass).
# - A distance or a height in place of a class, [depth](../tasks.md), with released models of it
#   that [draw depth from a photograph](../weights.md#depth) without any training.
# - A decoder of your own, or boxes: [features for segmentation and detection](dense.ipynb).

# %%
result = {"mean_iou": report["scores"]["mean_iou"][0], "large_iou": large_iou}
result
