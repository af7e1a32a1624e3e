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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib.pyplot as plt
from study import (
    Row,
    Trial,
    command_line,
    paragraphs,
    plan,
    ranked,
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


def conclusion(rows: Sequence[Row], val_images: int) -> str:
    """The best model and the best ViT, with their compute; empty where none has trained."""
    order = ranked(rows)
    if not order:
        return ""
    best, vit = order[0], next((row for row in order if row["family"] == "ViT"), None)
    text = (
        f"**{best['name']}** reaches the highest accuracy, {best['accuracy']:.2%}, at "
        f"{best['gmacs']:,.0f} GMACs × images"
    )
    if vit is not None and vit is not best:
        text += (
            f"; of the ViTs **{vit['name']}** does, {vit['accuracy']:.2%} at {vit['gmacs']:,.0f}"
        )
    error = 100 * math.sqrt(0.25 / val_images)
    return (
        f"{text}. Each accuracy has a standard error of up to {error:.1f} points from the choice "
        f"of the {val_images:,} images alone."
    )


def plot(rows: Sequence[Row], path: Any) -> None:
    """Above: the ways to scale a ViT, as in figure 8. Below: the families, as in figure 5."""
    figure, (above, below) = plt.subplots(
        2, figsize=(5, 8.4), sharex=True, sharey=True, layout="constrained"
    )

    def line(axes: Any, label: str, belongs: Any, **style: Any) -> None:
        points = sorted((float(r["gmacs"]), 100 * float(r["accuracy"])) for r in rows if belongs(r))
        if points:
            axes.plot(*zip(*points, strict=True), **{"marker": "o", "label": label, **style})

    ways = dict.fromkeys(r["varied"] for r in rows if r["family"] == "ViT" and r["varied"] != BASE)
    for way in ways:
        line(
            above, str(way), lambda r, way=way: r["family"] == "ViT" and r["varied"] in (BASE, way)
        )
    line(above, "base model", lambda r: r["varied"] == BASE, color="black", ls="", ms=9, zorder=3)
    line(below, "every ViT", lambda r: r["family"] == "ViT", color="lightgrey", ls="")
    line(below, "ViT, all scaled", lambda r: r["varied"] in (BASE, "all"))
    for family in dict.fromkeys(r["family"] for r in rows if r["family"] != "ViT"):
        line(below, str(family), lambda r, family=family: r["family"] == family)
    above.set_title("what of a ViT is scaled", fontsize=11)
    below.set_title("families", fontsize=11)
    for axes in (above, below):
        axes.set_xscale("log")
        axes.set_xlabel("compute: GMACs per image × images seen", fontsize=9)
        axes.set_ylabel("accuracy, %", fontsize=9)
        axes.tick_params(labelsize=9, labelbottom=True)
        axes.grid(alpha=0.3, which="both")
        if axes.lines:
            # Below the axes, where it covers no point.
            place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16)}
            axes.legend(fontsize=9, ncols=3, frameon=False, **place)
    figure.savefig(path, dpi=144)
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
        "accuracy": "{accuracy:.2%}",
        "parameters": "{parameters:,}",
        "MMACs per image": "{mmacs:.1f}",
        "GMACs × images": "{gmacs:,.0f}",
    }
    table = to_markdown(({**row, "mmacs": float(row["macs"]) / 1e6} for row in rows), columns)
    recipe, base = setup.recipe, setup.base
    text = paragraphs(
        "# Which size of a ViT is worth its compute",
        conclusion(rows, len(splits.val)),
        f"`{command_line()}`, on {len(splits.train):,} images of {splits.num_classes} "
        f"classes at {recipe.image_size} pixels, evaluated on {len(splits.val):,} others. Depth, "
        "width, patch size, MLP and all together are varied around one ViT, which is compared with "
        f"hybrids, BiT and Mixer. Every model sees {rows[0]['images']:,} images.",
        f"The base has patches of {base['patch_size']} pixels, a width of {base['hidden_dim']}, "
        f"{base['depth']} blocks and MLPs of {base['mlp_dim']}. A row's name has the values that "
        f"replace these; the four of “ViT all” are patch size, width, blocks and MLP.",
        table,
    )
    write_study(options, text, lambda path: plot(rows, path), "Accuracy over compute")


if __name__ == "__main__":
    main()
