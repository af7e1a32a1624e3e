"""The scaling study: which size of a ViT is worth its compute, compared with other models.

    python examples/scaling_study.py --data FOLDER            # 32-pixel images, FOLDER/<class>/*
    python examples/scaling_study.py                          # CIFAR-10 of TensorFlow Datasets
    python examples/scaling_study.py --data imagenet2012      # the paper's sizes, for accelerators

Section 4.4 and figure 8 of the ViT paper: depth, width, patch size, MLP and all together are varied
around one model, and compared with hybrids, BiT and Mixer; each sees equally many images. On images
of CIFAR-10's size the 24 models take under an hour on two cores. `docs/scaling_study.md` has the
results of --steps 300 on 4,000 images: 37 % for the base model, 44 % for the largest BiT.
Interrupted, it resumes where it stopped. Writes results.csv, one row per model, table.md and
table.png to --out. Needs keras3-vit[train].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib.pyplot as plt
from study import (
    Row,
    Trial,
    command_line,
    plan,
    run_study,
    select,
    study_parser,
    to_markdown,
    write_study,
)

import keras_vit
from keras_vit import data, recipes
from keras_vit.training.recipes import Recipe

Sizes = dict[str, Any]
BASE = "base"

# A named model of each family, whose sizes a trial replaces.
FAMILIES = {
    "ViT": "ViT-Ti/16",
    "hybrid": "R+ViT-Ti/16",
    "BiT": "BiT-R50x1",
    "Mixer": "Mixer-S/16",
}


@dataclass(frozen=True)
class Setup:
    """What is varied around what, and trained how.

    Attributes:
        recipe: The budget of every model.
        base: The ViT in the middle.
        vary: From what is varied to the sizes that replace the base's.
        others: From a family to its models from small to large: a title and sizes, or a name that
            `keras_vit.create` knows and what is not its default.
    """

    recipe: Recipe
    base: Sizes
    vary: dict[str, list[Sizes]]
    others: dict[str, Mapping[str, Sizes]]


def vit(patch_size: int, hidden_dim: int, depth: int, mlp_dim: int, num_heads: int) -> Sizes:
    return {
        "patch_size": patch_size,
        "hidden_dim": hidden_dim,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "num_heads": num_heads,
    }


def mixer(patch_size: int, hidden_dim: int, depth: int) -> Sizes:
    sizes = {"tokens_mlp_dim": hidden_dim // 2, "channels_mlp_dim": 2 * hidden_dim}
    return {"patch_size": patch_size, "hidden_dim": hidden_dim, "depth": depth, **sizes}


# Sines and cosines as positions: what works best on little data.
POSITIONS = {"position_embedding": "sincos2d"}

SMALL = Setup(
    recipe=replace(
        recipes.get("small_data").scaled(steps=600, batch_size=64),
        image_size=32,
        augmentation=data.AUGMENTATIONS["tiny"],
    ),
    base={**vit(4, 96, 4, 192, 4), **POSITIONS},
    vary={
        "depth": [{"depth": depth} for depth in (1, 2, 8)],
        "width": [{"hidden_dim": 48, "num_heads": 2}, {"hidden_dim": 192, "num_heads": 8}],
        "patch size": [{"patch_size": size} for size in (16, 8)],
        "MLP": [{"mlp_dim": width} for width in (48, 96, 384, 768)],
        "all": [vit(16, 48, 1, 96, 2), vit(8, 72, 2, 144, 3), vit(4, 120, 6, 240, 5)],
    },
    others={
        "hybrid": {
            "R+ViT, 2 blocks of 48": {
                **vit(2, 48, 2, 96, 2), "resnet_width": 32, **POSITIONS
            },
            "R+ViT, 3 blocks of 72": {
                **vit(1, 72, 3, 144, 3), "resnet_width": 32, **POSITIONS
            },
            "R+ViT, 5 blocks of 96": {
                **vit(1, 96, 5, 192, 4), "resnet_width": 64, **POSITIONS
            },
        },
        "BiT": {
            "R6x½": {"depths": (1, 1), "width": 32},
            "R9x½": {"depths": (1, 1, 1), "width": 32},
            "R9x1": {"depths": (1, 1, 1), "width": 64},
        },
        "Mixer": {
            "2 blocks of 64": mixer(8, 64, 2),
            "4 blocks of 64": mixer(4, 64, 4),
            "6 blocks of 128": mixer(4, 128, 6),
        },
    },
)  # fmt: skip

# Figure 8's base model, and the models of figure 5 that have a name here, and Mixers.
IMAGENET = Setup(
    recipe=recipes.get("better_plain_vit"),
    base={**vit(32, 1024, 8, 2048, 16), **POSITIONS},
    vary={
        "depth": [{"depth": depth} for depth in (2, 4, 16, 32)],
        "width": [{"hidden_dim": 64 * heads, "num_heads": heads} for heads in (4, 8, 32)],
        "patch size": [{"patch_size": size} for size in (56, 16)],
        "MLP": [{"mlp_dim": width} for width in (512, 1024, 4096, 8192)],
        "all": [vit(56, 512, 4, 1024, 8), vit(16, 1536, 12, 3072, 24)],
    },
    others={
        "hybrid": dict.fromkeys(("R26+ViT-S/32", "R26+ViT-B/32", "R50+ViT-B/16"), POSITIONS),
        "BiT": {"BiT-R50x1": {}, "BiT-R101x1": {}, "BiT-R152x2": {}},
        "Mixer": {"Mixer-S/32": {}, "Mixer-B/32": {}, "Mixer-B/16": {}},
    },
)


def trials_of(setup: Setup) -> list[Trial]:
    """The base, what is varied around it, and the other families."""

    def trial(name: str, family: str, sizes: Sizes, varied: str) -> Trial:
        model = name if name in keras_vit.list_models() else FAMILIES[family]
        return Trial(name, model, sizes, setup.recipe, {"family": family, "varied": varied})

    trials = [trial("ViT base", "ViT", setup.base, BASE)]
    for varied, changes in setup.vary.items():
        for change in changes:
            values = "/".join(str(value) for key, value in change.items() if key != "num_heads")
            name = f"ViT {varied} {values}"
            trials.append(trial(name, "ViT", {**setup.base, **change}, varied))
    for family, models in setup.others.items():
        for name, sizes in models.items():
            label = name if family in name or "ViT" in name else f"{family} {name}"
            trials.append(trial(label, family, sizes, "size"))
    return trials


def plot(rows: Sequence[Row], path: Any) -> None:
    """Left: the ways to scale a ViT, as in figure 8. Right: the families, as in figure 5."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="constrained")

    def line(axes: Any, label: str, belongs: Any, **style: Any) -> None:
        points = sorted((float(r["gmacs"]), 100 * float(r["accuracy"])) for r in rows if belongs(r))
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=label, **style)

    ways = dict.fromkeys(r["varied"] for r in rows if r["family"] == "ViT" and r["varied"] != BASE)
    for way in ways:
        line(left, str(way), lambda r, way=way: r["family"] == "ViT" and r["varied"] in (BASE, way))
    line(left, "base model", lambda r: r["varied"] == BASE, color="black", ls="", ms=9, zorder=3)
    line(right, "every ViT", lambda r: r["family"] == "ViT", color="lightgrey", ls="")
    line(right, "ViT, all scaled", lambda r: r["varied"] in (BASE, "all"))
    for family in dict.fromkeys(r["family"] for r in rows if r["family"] != "ViT"):
        line(right, str(family), lambda r, family=family: r["family"] == family)
    left.set(title="what of a ViT is scaled", ylabel="accuracy, %")
    right.set(title="families")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="compute: GMACs per image × images seen")
        axes.grid(alpha=0.3, which="both")
        if axes.lines:
            axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    options = study_parser(__doc__, out="runs/scaling").parse_args()
    setup = IMAGENET if options.data.startswith("imagenet") else SMALL
    setup = replace(setup, recipe=setup.recipe.scaled(options.steps, options.batch_size))
    splits = data.load(options.data, data_dir=options.data_dir)
    trials = select(trials_of(setup), options)
    if options.plan:
        print(plan(trials, splits))
        return
    rows = run_study(trials, splits, options.out)
    rows = [{**row, "gmacs": float(row["macs"]) * float(row["images"]) / 1e9} for row in rows]
    columns = {
        "model": "{name}",
        "parameters": "{parameters:,}",
        "MMACs per image": "{mmacs:.1f}",
        "GMACs × images": "{gmacs:,.0f}",
        "accuracy": "{accuracy:.2%}",
    }
    table = to_markdown(({**row, "mmacs": float(row["macs"]) / 1e6} for row in rows), columns)
    recipe = setup.recipe
    text = (
        "# Which size of a ViT is worth its compute\n\n"
        f"`{command_line()}`, on {len(splits.train):,} images of {splits.num_classes} "
        f"classes at {recipe.image_size} pixels, evaluated on {len(splits.val):,} others. Depth, "
        "width, patch size, MLP and all together are varied around one ViT, which is compared with "
        f"hybrids, BiT and Mixer. Every model sees {rows[0]['images']:,} images.\n\n{table}"
    )
    write_study(options, text, lambda path: plot(rows, path), "Accuracy over compute")


if __name__ == "__main__":
    main()
