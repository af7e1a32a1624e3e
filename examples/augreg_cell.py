"""One cell of AugReg's grid, or several, on your data: one row of a table per cell.

    python examples/augreg_cell.py --data FOLDER --augmentation medium1 --weight-decay 0.1
    python examples/augreg_cell.py --data FOLDER --model ViT-S/16 --image-size 224 --steps 5000 \\
        --augmentation none light1 medium1 --weight-decay 0.03 0.1 --dropout 0 0.1

"How to train your ViT?" (Steiner et al. 2022) trains ten models for every augmentation, weight
decay, and dropout with stochastic depth. Rows are named like its files. Further cells, also of
other processes, may share --out and its results.csv. The defaults are one cell of a small model at
64 pixels: two minutes on two CPU cores. Needs keras3-vit[train].
"""

import argparse
import math
from dataclasses import replace

from study import Trial, plan, read_rows, run_study, select, study_parser, to_markdown

from keras_vit import data, recipes
from keras_vit.training.recipes import AUGREG, AUGREG_DROPOUT, AUGREG_WEIGHT_DECAY

# For two CPU cores: the ViT of the recipe "small_data" with the study's own head and positions.
SMALL = "small"
SIZES = ("patch_size", "hidden_dim", "depth", "num_heads", "mlp_dim")


def trial_of(
    options: argparse.Namespace,
    augmentation: str,
    weight_decay: float,
    dropout: float,
    num_classes: int,
) -> Trial:
    """One cell: the study's recipe at the size of this machine."""
    recipe = replace(
        recipes.get(f"augreg/{augmentation}").scaled(options.steps, options.batch_size),
        image_size=options.image_size,
        weight_decay=weight_decay,
        dropout=dropout,
        stochastic_depth=dropout,
        # The study's -10 suits 21,843 classes; this makes the first loss as small for any number.
        head_bias=-math.log(num_classes),
    )
    model, sizes = options.model, {}
    if model == SMALL:
        model = "ViT-Ti/16"
        sizes = {size: recipes.get("small_data").model[size] for size in SIZES}
    short = options.model.replace("+ViT-", "_").replace("ViT-", "").replace("/", "_")
    name = f"{short}-aug_{augmentation}-wd_{weight_decay:g}-do_{dropout:g}-sd_{dropout:g}"
    about = {
        "model": options.model,
        "augmentation": augmentation,
        "weight_decay": weight_decay,
        "dropout": dropout,
        "image_size": options.image_size,
        "steps": recipe.steps,
        "batch_size": recipe.batch_size,
    }
    return Trial(name, model, sizes, recipe, about)


def main() -> None:
    parser = study_parser(__doc__, out="runs/augreg", steps=500, batch_size=64)
    add = parser.add_argument
    add("--model", default=SMALL, help='"small", or a ViT or hybrid such as R+ViT-Ti/16')
    add("--image-size", type=int, default=64, help="pixels; the study has 224")
    add("--augmentation", nargs="+", choices=AUGREG, default=["medium1"], help="RandAugment, mixup")
    add("--weight-decay", nargs="+", type=float, default=AUGREG_WEIGHT_DECAY[-1:], help="0.03, 0.1")
    add("--dropout", nargs="+", type=float, default=AUGREG_DROPOUT[:1], help="and stochastic depth")
    options = parser.parse_args()
    if options.model != SMALL and "ViT-" not in options.model:
        parser.error(f"--model {options.model}: AugReg trains ViTs and hybrids, such as ViT-S/16.")
    splits = data.load(options.data, data_dir=options.data_dir)
    cells = [
        trial_of(options, augmentation, weight_decay, dropout, splits.num_classes)
        for augmentation in options.augmentation
        for weight_decay in options.weight_decay
        for dropout in options.dropout
    ]
    trials = select(cells, options)
    if options.plan:
        print(plan(trials, splits))
        return
    run_study(trials, splits, options.out)
    columns = {
        "cell": "{name}",
        "data": "{data}",
        "pixels": "{image_size:}",
        "steps": "{steps:,}",
        "batch": "{batch_size:,}",
        "seed": "{seed:}",
        "accuracy": "{accuracy:.2%}",
        "seconds": "{seconds:.0f}",
    }
    print(f"\n{to_markdown(read_rows(options.out), columns)}")
    print(f"\nwritten to {options.out / 'results.csv'}")


if __name__ == "__main__":
    main()
