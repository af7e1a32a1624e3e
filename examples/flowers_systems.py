"""ViT, hybrid, BiT and Mixer from scratch on flowers: plain, with SAM, and with AugReg.

    python examples/flowers_systems.py --data FOLDER --markdown docs/flowers_systems.md
    python examples/flowers_systems.py                 # downloads tf_flowers, 3,670 photographs

Four models of about 600,000 parameters at 64 pixels, each trained four times on equally many
images. With 1,800 photographs to train on that is half an hour on two CPU cores. Interrupted, it
resumes where it stopped. Writes results.csv, table.md and table.png to --out. Needs
keras3-vit[train].
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from study import (
    Row,
    Trial,
    Value,
    averaged,
    command_line,
    mean_and_spread,
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
from keras_vit.training.recipes import AUGREG, Recipe

ENCODER = {
    "hidden_dim": 128,
    "depth": 4,
    "num_heads": 4,
    "mlp_dim": 256,
    "position_embedding": "sincos2d",
}
# A model, the sizes that replace its own, and SAM's rho: for ViT and Mixer that of Chen et al.'s
# S/16, the nearest size; for the others the 0.05 with which SAM was published (Foret et al. 2021).
SYSTEMS: dict[str, tuple[str, dict[str, Any], float]] = {
    "ViT": ("ViT-Ti/16", {"patch_size": 16, **ENCODER}, recipes.SAM_RHO["ViT-S/16"]),
    "hybrid": ("R+ViT-Ti/16", {"patch_size": 4, "resnet_width": 32, **ENCODER}, 0.05),
    "BiT": ("BiT-R50x1", {"depths": (1, 1, 1), "width": 32}, 0.05),
    "Mixer": (
        "Mixer-S/16",
        {
            "patch_size": 16,
            "hidden_dim": 128,
            "depth": 8,
            "tokens_mlp_dim": 64,
            "channels_mlp_dim": 256,
        },
        recipes.SAM_RHO["Mixer-S/16"],
    ),
}
PLAIN, SAM = "plain", "SAM"
TREATMENTS = (PLAIN, SAM, "AugReg light1", "AugReg medium1")

# Crops and flips, and nothing else that regularizes but weight decay.
RECIPE = replace(
    recipes.get("small_data").scaled(steps=500, batch_size=64), mixup=0.0, label_smoothing=0.0
)


def treated(recipe: Recipe, treatment: str, rho: float, same_compute: bool) -> Recipe:
    """The plain recipe, with SAM, or with an augmentation of AugReg's."""
    if treatment == PLAIN:
        return recipe
    if treatment == SAM:
        # A sharpness-aware step takes two gradients.
        halved = recipe.scaled(steps=max(recipe.steps // 2, 1)) if same_compute else recipe
        return replace(halved, rho=rho)
    magnitude, mixup = AUGREG[treatment.removeprefix("AugReg ")]
    assert magnitude is not None, f"{treatment} augments nothing"
    augmentation = replace(recipe.augmentation, rand_augment=(2, magnitude))
    return replace(recipe, augmentation=augmentation, mixup=mixup)


def trials_of(recipe: Recipe, same_compute: bool) -> list[Trial]:
    """One trial per system and treatment."""
    return [
        Trial(
            f"{system}, {treatment}",
            model,
            sizes,
            treated(recipe, treatment, rho, same_compute),
            {"system": system, "treatment": treatment},
        )
        for system, (model, sizes, rho) in SYSTEMS.items()
        for treatment in TREATMENTS
    ]


def table(rows: Sequence[Row]) -> str:
    """Accuracies of the systems by treatment, and the systems' sizes."""
    accuracies: dict[tuple[Value, Value], list[float]] = {}
    for row in rows:
        of_trial = accuracies.setdefault((row["system"], row["treatment"]), [])
        of_trial.append(float(row["accuracy"]))
    systems = {row["system"]: row for row in rows}
    lines: list[Row] = [
        {
            "system": system,
            **{t: mean_and_spread(accuracies.get((system, t), [math.nan])) for t in TREATMENTS},
            "parameters": row["parameters"],
            "mmacs": float(row["macs"]) / 1e6,
        }
        for system, row in systems.items()
    ]
    columns = {
        "from scratch": "{system}",
        **{t: f"{{{t}:}}" for t in TREATMENTS},
        "parameters": "{parameters:,}",
        "MMACs per image": "{mmacs:.1f}",
    }
    return to_markdown(lines, columns)


def conclusion(rows: Sequence[Row]) -> str:
    """The best row, and the best treatment of each system; empty where none has trained."""
    order = ranked(averaged(rows))
    if not order:
        return ""
    best: dict[str, str] = {}  # from a system to its best treatment
    for row in order:
        best.setdefault(str(row["system"]), str(row["treatment"]))
    parts = []
    for treatment in TREATMENTS:
        systems = [system for system in SYSTEMS if best.get(system) == treatment]
        if systems:
            *most, last = systems
            names = f"{', '.join(most)} and {last}" if most else last
            parts.append(f"{treatment} is best for {names}")
    return (
        f"**{order[0]['name']}** reaches the highest accuracy, {order[0]['accuracy']:.2%}. Of the "
        f"ways to train, {'; '.join(parts)}."
    )


def plot(rows: Sequence[Row], error: float, path: Path) -> None:
    """One bar per system and treatment, with the standard error of one accuracy."""
    means = averaged(rows)
    systems = list(dict.fromkeys(row["system"] for row in means))
    figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
    for number, treatment in enumerate(TREATMENTS):
        heights = {
            r["system"]: 100 * float(r["accuracy"]) for r in means if r["treatment"] == treatment
        }
        positions = [systems.index(system) + 0.2 * (number - 1.5) for system in heights]
        axes.bar(positions, heights.values(), 0.19, yerr=100 * error, capsize=2, label=treatment)
    axes.set_xticks(range(len(systems)), [str(system) for system in systems])
    axes.set_ylabel("accuracy, % (lines: standard error)", fontsize=9)
    axes.tick_params(labelsize=9)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(ncols=2, loc="outside upper center", fontsize=9, frameon=False)
    figure.savefig(path, dpi=144)
    plt.close(figure)


def main() -> None:
    parser = study_parser(__doc__, out="runs/flowers_systems", data="tf_flowers")
    parser.add_argument("--image-size", type=int, default=64, help="pixels")
    parser.add_argument(
        "--same-compute",
        action="store_true",
        help="SAM takes half the steps, so that it costs as many gradients as the others",
    )
    options = parser.parse_args()
    recipe = replace(RECIPE, image_size=options.image_size)
    recipe = recipe.scaled(options.steps, options.batch_size)
    splits = data.load(options.data, data_dir=options.data_dir)
    trials = select(trials_of(recipe, options.same_compute), options)
    if options.plan:
        print(plan(trials, splits))
        return
    rows = run_study(trials, splits, options.out)
    error = math.sqrt(0.25 / len(splits.val))
    seeds = "one seed" if options.seeds == 1 else f"means of {options.seeds} seeds"
    sam = "SAM half as many" if options.same_compute else "SAM computes two gradients per step"
    text = paragraphs(
        "# Flowers from scratch: four systems, four ways to train them",
        conclusion(rows),
        f"`{command_line()}`, on {len(splits.train):,} photographs of "
        f"{splits.num_classes} classes at {options.image_size} pixels, evaluated on "
        f"{len(splits.val)} others; {seeds}. Every model sees {rows[0]['images']:,} images; {sam}. "
        f"The standard error of one accuracy is up to {error:.1%}, from the choice of the "
        f"photographs alone.",
        table(rows),
    )
    write_study(
        options, text, lambda path: plot(rows, error, path), "Accuracy by system and treatment"
    )


if __name__ == "__main__":
    main()
