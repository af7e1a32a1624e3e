"""The contact sheet of rollouts: five flowers, their hand-drawn boxes, and how much mass they hold.

    python docs/inspection/contact_sheet.py --weights model.safetensors --photographs flowers/

writes `docs/inspection/rollout.png` from AugReg's ViT-Ti/16 in half a minute. The photographs are
not ours to publish: the sheet shows only heat maps and boxes.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import keras_vit
from keras_vit.data import read_image
from keras_vit.inspection.plots import upsample

HERE = Path(__file__).parent
OTHERS = 16  # photographs of each class to compare with


def boxes() -> dict[str, tuple[int, int, int, int]]:
    """The photographs and their boxes: left, top, right, bottom in pixels."""
    table = json.loads((HERE / "boxes.json").read_text())
    return {name: tuple(box) for name, box in table.items() if name != "about"}


def fractions(
    rollout: np.ndarray, box: tuple[int, int, int, int], patch: int
) -> tuple[float, float]:
    """The fraction of the rollout's mass inside a box, and of the area that the box takes."""
    pixels = np.kron(rollout / rollout.sum(), np.full((patch, patch), 1 / patch**2))
    left, top, right, bottom = box
    mass = float(pixels[top:bottom, left:right].sum())
    return mass, (right - left) * (bottom - top) / pixels.size


def others(folder: Path, per_class: int = OTHERS) -> list[str]:
    """Further photographs of each class, whatever they show: what any image's rollout has.

    Attention prefers the corners, and photographers the center.
    """
    classes = dict.fromkeys(name.split("/")[0] for name in boxes())
    files = [file for c in classes for file in sorted((folder / c).glob("*.jpg"))[200:][:per_class]]
    return [file.relative_to(folder).as_posix() for file in files]


def rollouts(model: Any, folder: Path, names: list[str]) -> np.ndarray:
    """Attention rollout of files as the model's evaluation prepares them."""
    size = model.input_shape[1:3]
    images = [read_image(folder / name, size, transform=model.eval_transform) for name in names]
    for name, image in zip(names, images, strict=True):
        if isinstance(image, str):
            raise OSError(f"{folder / name} cannot be read: {image}")
    return keras_vit.inspection.attention_rollout(model, np.stack(images))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True, help="ViT-Ti/16 of AugReg")
    parser.add_argument("--photographs", type=Path, required=True, help="the flowers' folder")
    parser.add_argument("--out", type=Path, default=HERE / "rollout.png")
    options = parser.parse_args()
    model = keras_vit.load(options.weights)
    maps = rollouts(model, options.photographs, list(boxes()))
    usual = rollouts(model, options.photographs, others(options.photographs)).mean(axis=0)

    figure = Figure(figsize=(11, 2.75), layout="constrained", dpi=100)
    axes = figure.subplots(1, len(maps))
    for axis, (name, box), rollout in zip(axes, boxes().items(), maps, strict=True):
        left, top, right, bottom = box
        size = tuple(side * model.patch_size[0] for side in rollout.shape)
        axis.imshow(upsample(rollout, size), cmap="inferno")
        axis.add_patch(
            Rectangle((left, top), right - left, bottom - top, fill=False, ec="cyan", lw=2)
        )
        mass, area = fractions(rollout, box, model.patch_size[0])
        usual_times = fractions(usual, box, model.patch_size[0])[0] / area
        print(
            f"{name}: {mass:.1%} of the mass on {area:.1%} of the area, {mass / area:.2f} times; "
            f"in others {usual_times:.2f}"
        )
        axis.set_title(f"{name.split('_')[0]}\n{mass:.0%} of mass, {area:.0%} of area", fontsize=9)
        axis.axis("off")
    corners = ", ".join(f"{usual[y, x] / usual.mean():.2f}" for y in (0, -1) for x in (0, -1))
    print(f"corners in others: {corners} times the average patch")
    figure.savefig(options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
