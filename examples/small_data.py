"""What helps a ViT that is trained from scratch on a few thousand images, at equal compute?

    python examples/small_data.py --data FOLDER --markdown docs/small_data.md
    python examples/small_data.py                     # CIFAR-10 of TensorFlow Datasets

Tries, one by one, what the literature proposes for little data: the augmentation of "Better plain
ViT baselines" (Beyer et al. 2022), shifted patches (Lee et al. 2021), convolutions in front of the
patches (Xiao et al. 2021) and attention pooling behind them, as in CCT (Hassani et al. 2021),
3-Augment (DeiT III, Touvron et al. 2022) and CutMix. Every row takes as many multiply-accumulates
as the plain ViT: one that costs more per image sees fewer images. Interrupted, it resumes where it
stopped. Writes results.csv, table.md and table.png to --out. Needs keras3-vit[train].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import matplotlib.pyplot as plt
from keras import ops
from study import (
    Row,
    Trial,
    averaged,
    command_line,
    data_name,
    paragraphs,
    plan,
    ranked,
    run_study,
    select,
    study_parser,
    to_markdown,
    write_study,
)

from keras_vit import data, recipes
from keras_vit.training.recipes import Recipe

PLAIN = "plain ViT"
STEM = {"conv_stem": ((32, 2), (64, 2), (128, 2)), "patch_size": 2}


@keras.saving.register_keras_serializable(package="keras_vit_examples")
class ShiftedPatches(keras.layers.Layer):
    """The image and four copies shifted by half a patch along each diagonal, side by side.

    Lee et al. 2021, "Vision Transformer for Small-Size Datasets", section 3.1. Takes
    `(batch, height, width, channels)`, returns five times as many channels.
    """

    def __init__(self, patch_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patch_size = patch_size

    def call(self, images: Any) -> Any:
        half = self.patch_size // 2
        height, width = images.shape[1:3]
        padded = ops.pad(images, ((0, 0), (half, half), (half, half), (0, 0)))
        shifted = [
            padded[:, top : top + height, left : left + width]
            for top in (0, 2 * half)
            for left in (0, 2 * half)
        ]
        return ops.concatenate([images, *shifted], axis=-1)

    def compute_output_shape(self, shape: Any) -> Any:
        return *shape[:-1], 5 * shape[-1]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "patch_size": self.patch_size}


@dataclass(frozen=True)
class SmallDataTrial(Trial):
    """A trial that may see shifted patches.

    Attributes:
        shifted: Whether the model sees the image and its four shifted copies.
    """

    shifted: bool = False

    def build(self, num_classes: int, channels: int = 3) -> Any:
        if not self.shifted:
            return super().build(num_classes, channels)
        vit = super().build(num_classes, 5 * channels)
        size = self.recipe.image_size
        images = keras.Input((size, size, channels))
        shifted = ShiftedPatches(vit.patch_size[0])(images)
        return keras.Model(images, vit(shifted), name="shifted_patches")

    def cost(self, num_classes: int, channels: int = 3) -> Any:
        return super().cost(num_classes, 5 * channels if self.shifted else channels)


def trials_of(recipe: Recipe, num_classes: int) -> list[SmallDataTrial]:
    """The plain ViT of a recipe, and the variants at its compute."""
    sizes = dict(recipes.get("small_data").model)
    deep = recipes.get("from_scratch")  # twice as many convolutions, four times as many tokens
    augmentation = recipe.augmentation
    rand = replace(augmentation, rand_augment=(2, 10))
    three = replace(augmentation, three_augment=True)
    variants: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        PLAIN: ({}, {}),
        "RandAugment (better plain ViT)": ({}, {"augmentation": rand}),
        "shifted patches": ({"shifted": True}, {}),
        "conv stem": (STEM, {}),
        "conv stem, attention pooling (CCT)": (
            {**STEM, "pooling": "map", "position_embedding": "learned"},
            {},
        ),
        "conv stem, RandAugment": (STEM, {"augmentation": rand}),
        "conv stem, 3-Augment": (STEM, {"augmentation": three}),
        "conv stem, CutMix": (STEM, {"mixup": 0.0, "cutmix": 1.0}),
        "deep stem": (deep.model, {}),
        "deep stem, CutMix (from_scratch)": (deep.model, {"cutmix": deep.cutmix}),
    }
    trials = []
    for name, (changes, training) in variants.items():
        shifted = bool(changes.get("shifted"))
        model = {**sizes, **{k: v for k, v in changes.items() if k != "shifted"}}
        trial = SmallDataTrial(
            name, "ViT-Ti/16", model, replace(recipe, **training), {}, shifted=shifted
        )
        if trials:
            ratio = trials[0].cost(num_classes).macs / trial.cost(num_classes).macs
            scaled = replace(trial.recipe, steps=max(round(recipe.steps * ratio), 1))
            trial = replace(trial, recipe=scaled)
        trials.append(trial)
    return trials


def conclusion(means: Sequence[Row]) -> str:
    """One sentence: whether a variant is better than the plain ViT; empty without one of both."""
    order = ranked(means)
    plain = next((row for row in order if row["name"] == PLAIN), None)
    if plain is None or len(order) < 3:
        return ""
    best, last = order[0], order[-1]
    if best is plain:
        return (
            f"At equal compute, no variant is better than the plain ViT, {plain['accuracy']:.2%}: "
            f"the next, **{order[1]['name']}**, reaches {order[1]['accuracy']:.2%}, the last, "
            f"**{last['name']}**, {last['accuracy']:.2%}.{_of_default(last)}"
        )
    gain = 100 * (float(best["accuracy"]) - float(plain["accuracy"]))
    return (
        f"At equal compute, **{best['name']}** is best, {best['accuracy']:.2%}, {gain:.2f} points "
        f"above the plain ViT; the last, **{last['name']}**, reaches {last['accuracy']:.2%}."
        f"{_of_default(last)}"
    )


def _of_default(last: Mapping[str, Any]) -> str:
    """Why the recipe `from_scratch` is the default although it is last."""
    if "(from_scratch)" not in last["name"]:
        return ""
    passes = recipes.get("from_scratch").epochs
    return (
        " That is the default of `keras-vit train` without weights, which is made for "
        f"{passes} epochs: stopped this early, its augmentation and its deep stem cost more than "
        "they give."
    )


def plot(means: Sequence[Row], title: str, seeds: int, path: Path) -> None:
    """One point per row with the standard deviation of the seeds; points need no axis from 0."""
    figure, axes = plt.subplots(figsize=(5, 0.36 * len(means) + 1.4), layout="constrained")
    places = range(len(means))
    accuracies = [100 * float(row["accuracy"]) for row in means]
    spreads = [100 * float(row["spread"]) for row in means]
    axes.errorbar(accuracies, places, xerr=spreads, fmt="o", ms=6, capsize=3)
    axes.set_yticks(places, [str(row["name"]).replace(", ", ",\n", 1) for row in means])
    axes.invert_yaxis()
    axes.tick_params(labelsize=9)
    spread = f"; lines: standard deviation of {seeds} seeds" if seeds > 1 else ""
    axes.set_title(title, fontsize=11)
    figure.supxlabel(f"accuracy, %{spread}", fontsize=9)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=144)
    plt.close(figure)


def main() -> None:
    parser = study_parser(__doc__, out="runs/small_data", seeds=2, steps=1000, batch_size=64)
    options = parser.parse_args()
    recipe = recipes.get("small_data").scaled(options.steps, options.batch_size)
    splits = data.load(options.data, data_dir=options.data_dir)
    trials = select(trials_of(recipe, splits.num_classes), options)
    if options.plan:
        print(plan(trials, splits))
        return
    rows = run_study(trials, splits, options.out)
    columns = {
        "": "{name}",
        "accuracy": "{accuracy:.2%}",
        "± (seeds)": "{spread:.2%}",
        "parameters": "{parameters:,}",
        "images seen": "{images:,}",
    }
    means = averaged(rows)
    name = f"{len(splits.train):,} images of {data_name(splits.source)}"
    text = paragraphs(
        f"# From scratch on {name}",
        conclusion(means),
        f"`{command_line()}`, {splits.num_classes} classes at {recipe.image_size} pixels in "
        f"{options.precision}, evaluated on {len(splits.val):,} other images; means of "
        f"{options.seeds} seeds. Every row takes the multiply-accumulates of "
        f"{recipe.steps:,} steps of the plain ViT with {recipe.batch_size} images.",
        to_markdown(means, columns),
    )
    write_study(
        options, text, lambda path: plot(means, name, options.seeds, path), "Accuracy by variant"
    )


if __name__ == "__main__":
    main()
