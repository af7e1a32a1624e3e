"""Does a ViT need positions, and which; a class token, or a mean, or attention to read it out?

    python examples/ablations.py --data FOLDER      # 32-pixel images, one folder per class
    python examples/ablations.py                    # CIFAR-10 of TensorFlow Datasets

The ViT paper's table 8 (position embeddings) and figure 9 (class token against global average
pooling, which need different learning rates), and the heads that came later. Every row is the mean
of three seeds: an hour of CPU time, half of it on two cores. Interrupted, it resumes where it
stopped. Writes results.csv, table.md and table.png to --out. Needs keras3-vit[train].
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from study import (
    Row,
    Trial,
    averaged,
    command_line,
    curve_of,
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

BASE = {"patch_size": 4, "hidden_dim": 96, "depth": 4, "num_heads": 4, "mlp_dim": 192}
RECIPE = replace(
    recipes.get("small_data").scaled(steps=500, batch_size=64),
    image_size=32,
    augmentation=data.AUGMENTATIONS["tiny"],
)

POSITIONS = {
    "none": "no positions",
    "learned": "learned, 1-D",
    "learned_2d": "learned, 2-D",
    "relative": "relative",
    "sincos2d": "sines and cosines, 2-D",
}
POOLINGS = {"token": "class token", "gap": "mean of the patches", "map": "attention pooling"}
# Figure 9: a class token trains best with 8e-4, the mean with 3e-4.
RATES = {1.0: "", 3 / 8: ", ⅜ of the learning rate"}


def trials_of(recipe: Recipe) -> list[Trial]:
    """Both ablations. The class token with learned positions is in both, and trained once."""
    trials = [
        Trial(
            title,
            "ViT-Ti/16",
            {**BASE, "position_embedding": kind, "pooling": "token"},
            recipe,
            {"ablation": "positions", "kind": kind, "rate": 1.0},
        )
        for kind, title in POSITIONS.items()
    ]
    for kind, title in POOLINGS.items():
        for rate, words in RATES.items():
            trials.append(
                Trial(
                    title + words,
                    "ViT-Ti/16",
                    {**BASE, "position_embedding": "learned", "pooling": kind},
                    replace(recipe, learning_rate=recipe.learning_rate * rate),
                    {"ablation": "pooling", "kind": kind, "rate": rate},
                )
            )
    return trials


def conclusion(ablation: str, means: Sequence[Row]) -> str:
    """The best of an ablation and its lead over the second; empty with fewer than two."""
    order = ranked(means)
    if len(order) < 2:
        return ""
    first, second = order[:2]
    lead = float(first["accuracy"]) - float(second["accuracy"])
    chance = lead <= max(float(first["spread"]), float(second["spread"]))
    return (
        f"Best by {ablation}: **{first['name']}** with {first['accuracy']:.2%}, {100 * lead:.2f} "
        f"points above **{second['name']}**"
        + (", a lead within the seeds' standard deviation." if chance else ".")
    )


def plot(rows: Sequence[Row], folder: Path, path: Path) -> None:
    """Above: positions, one point per seed. Below: the curves of the poolings, as in figure 9."""
    figure, (above, below) = plt.subplots(
        2, figsize=(5, 8), height_ratios=(2, 3), layout="constrained"
    )
    groups: dict[str, list[Row]] = {}  # the seeds of each name
    for row in rows:
        groups.setdefault(f"{row['ablation']}: {row['name']}", []).append(row)
    positions = [group for group in groups.values() if group[0]["ablation"] == "positions"]
    for height, group in enumerate(positions):
        accuracies = [100 * float(row["accuracy"]) for row in group]
        above.plot(accuracies, [height] * len(group), "o", color="tab:blue", alpha=0.5)
        above.plot(np.mean(accuracies), height, "|", color="black", ms=16)
    above.set_yticks(range(len(positions)), [str(group[0]["name"]) for group in positions])
    above.invert_yaxis()
    above.set_title("position embeddings (table 8)", fontsize=11)
    above.set_xlabel("accuracy, % (dots: seeds)", fontsize=9)
    for group in groups.values():
        first = group[0]
        curves: list[Any] = [curve_of(folder, row["identity"]) for row in group]
        if first["ablation"] == "pooling" and all(curves):
            mean = 100 * np.mean(curves, axis=0)
            style = "-" if first["rate"] == 1 else "--"
            color = f"C{list(POOLINGS).index(str(first['kind']))}"
            below.plot(range(1, len(mean) + 1), mean, style, color=color, label=first["name"])
    below.set_title("pooling (figure 9)", fontsize=11)
    below.set_xlabel("epoch", fontsize=9)
    below.set_ylabel("accuracy, %", fontsize=9)
    for axes in (above, below):
        axes.tick_params(labelsize=9)
        axes.grid(alpha=0.3)
    if below.lines:
        figure.legend(loc="outside lower center", fontsize=9, frameon=False)
    figure.savefig(path, dpi=144)
    plt.close(figure)


def main() -> None:
    options = study_parser(__doc__, out="runs/ablations", seeds=3).parse_args()
    recipe = RECIPE.scaled(options.steps, options.batch_size)
    splits = data.load(options.data, data_dir=options.data_dir)
    trials = select(trials_of(recipe), options)
    if options.plan:
        print(plan(trials, splits))
        return
    rows = run_study(trials, splits, options.out)
    columns = {
        "": "{name}",
        "accuracy": "{accuracy:.2%}",
        "± (seeds)": "{spread:.2%}",
        "parameters": "{parameters:,}",
    }
    means = {
        ablation: averaged(row for row in rows if row["ablation"] == ablation)
        for ablation in ("positions", "pooling")
    }
    sentences = " ".join(filter(None, (conclusion(*each) for each in means.items())))
    text = paragraphs(
        "# Positions and pooling",
        sentences,
        f"`{command_line()}`, on {len(splits.train):,} images of {splits.num_classes} classes "
        f"at {recipe.image_size} pixels in {options.precision}, evaluated on {len(splits.val):,} "
        f"others. Every model sees {rows[0]['images']:,} images.",
        *(
            f"## {ablation.capitalize()}\n\n{to_markdown(group, columns)}"
            for ablation, group in means.items()
            if group
        ),
    )
    write_study(options, text, lambda path: plot(rows, options.out, path), "Positions and pooling")


if __name__ == "__main__":
    main()
