"""What a Vision Transformer does with a photograph, in one image: the first of the README.

    KERAS_BACKEND=jax python examples/what_it_sees.py --weights ViT-Ti/16:augreg_in21k_ft_in1k \\
        --out docs/what_it_sees.png

From left to right: the photograph; its patches, in the order in which the model reads them; where
the class token looks, by attention rollout; what speaks for the first class, by attention times
gradient; and the five most probable classes. Half a minute on two CPU cores. Without `--photo`, the
photograph is scikit-learn's dahlia (https://www.flickr.com/photos/vultilion/6056698931, CC BY 2.0).
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import keras_vit
from keras_vit.inspection import attention_rollout, class_attribution
from keras_vit.inspection.plots import upsample

GAP = 4  # pixels of white between patches


def photograph(path: Path | None, size: tuple[int, int]) -> np.ndarray:
    """Pixels 0..255 `(height, width, 3)`, cut to the size of the model."""
    if path is None:
        from sklearn.datasets import load_sample_image

        return keras_vit.data.evaluation_image(load_sample_image("flower.jpg"), size)
    image = keras_vit.data.read_image(path, size)
    if isinstance(image, str):
        raise SystemExit(f"{path} cannot be read: {image}.")
    return image


def in_patches(image: np.ndarray, patch: tuple[int, int]) -> np.ndarray:
    """The image with a gap between its patches."""
    rows, columns = image.shape[0] // patch[0], image.shape[1] // patch[1]
    shape = rows * (patch[0] + GAP) - GAP, columns * (patch[1] + GAP) - GAP, 3
    apart = np.full(shape, 255.0)
    for row in range(rows):
        for column in range(columns):
            y, x = row * (patch[0] + GAP), column * (patch[1] + GAP)
            tile = image[row * patch[0] :, column * patch[1] :][: patch[0], : patch[1]]
            apart[y : y + patch[0], x : x + patch[1]] = tile
    return apart


def draw(model: keras_vit.VisionTransformer, image: np.ndarray) -> Figure:
    """The five panels."""
    batch = image[None].astype("float32")
    logits = model.predict(batch, verbose=0)[0]
    probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    first = np.argsort(-probabilities)[:5]
    names = model.class_names or [f"class {i}" for i in range(len(logits))]
    maps = {
        "where the class token looks": attention_rollout(model, batch)[0],
        f"what speaks for “{names[first[0]].split(',')[0]}”": class_attribution(model, batch)[0],
    }
    figure = Figure(figsize=(15, 3.3), layout="constrained", dpi=80)
    panels = figure.subplots(1, 5, width_ratios=[1, 1, 1, 1, 0.9])
    panels[0].imshow(image / 255)
    panels[0].set_title("a photograph")
    panels[1].imshow(in_patches(image, model.patch_size) / 255)
    height, width = (side // p for side, p in zip(image.shape, model.patch_size, strict=False))
    panels[1].set_title(f"{height} x {width} patches")
    for panel, (title, grid) in zip(panels[2:], maps.items(), strict=False):
        panel.imshow(image.mean(-1), cmap="gray", vmin=0, vmax=255)
        panel.imshow(upsample(grid, image.shape[:2]), cmap="magma", alpha=0.65)
        panel.set_title(title)
    for panel in panels[:4]:
        panel.set_axis_off()
    panels[4].barh(range(5), probabilities[first], color="#5f3dc4")
    for i, number in enumerate(first):
        label = f"{names[number].split(',')[0]} {probabilities[number]:.1%}"
        panels[4].text(0.01, i - 0.42, label, va="bottom", fontsize=9)
    panels[4].set(title="five probabilities", ylim=(4.5, -0.85), yticks=[], xlim=(0, 1), xticks=[])
    panels[4].spines[:].set_visible(False)
    for bar in panels[4].patches:
        bar.set_height(0.25)
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", required=True, help="a file, or MODEL:TAG of released weights")
    parser.add_argument("--photo", type=Path, help="an image file; else scikit-learn's flower")
    parser.add_argument("--out", type=Path, required=True, help="the PNG file to write")
    options = parser.parse_args(arguments)
    model = keras_vit.load(options.weights)
    draw(model, photograph(options.photo, model.image_size)).savefig(options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
