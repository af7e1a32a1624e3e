"""Which recipe for how many photographs? Fine-tuning with 8, 80 and all images per class.

    python examples/few_photographs.py --data FOLDER --weights FILE
    python examples/few_photographs.py --data FOLDER --weights FILE --shots 10 --final

Trains each recipe on that many training images per class, drawn anew for each seed, and evaluates
on other training images, so that the choice does not see the validation split; --final evaluates on
that. "probe" is a linear head on frozen features. Prints accuracies and calibration errors as means
over the seeds with their standard deviation, and which recipe the number of images chooses where
`keras-vit train --recipe auto` does not measure (`python -m benchmarks few_labels` measures it).
Interrupted, it goes on with the runs that are missing. Needs keras3-vit[train].
"""

import argparse
import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from study import Row, command_line, finished, mean_and_spread, pages, to_markdown

from keras_vit import data
from keras_vit._base.files import write_text
from keras_vit.evaluation import calibration, predict_split
from keras_vit.models.answers import answers_of
from keras_vit.training.auto_recipe import choose_recipe
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.job_recipe import recipe_of
from keras_vit_cli.train.run import Run

PROBE = "probe"
OTHERS = 600  # training images that a choice is evaluated on, at most

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--data", required=True, help="a folder of class folders")
parser.add_argument(
    "--weights", default="ViT-Ti/16:augreg_in21k_ft_in1k", help="a file, or MODEL:TAG"
)
parser.add_argument("--shots", type=int, nargs="+", default=[8, 80], help="images per class")
parser.add_argument(
    "--recipes", nargs="+", default=[PROBE, "finetune_few", "finetune_small"], help="names"
)
parser.add_argument("--seeds", type=int, default=3, help="how many draws of the images")
parser.add_argument("--precision", default="float32", help="dtype policy of the training")
parser.add_argument("--final", action="store_true", help="evaluate on the validation split")
parser.add_argument("--out", type=Path, default=Path("runs/few_photographs"))
parser.add_argument("--markdown", type=Path, help="another file for the table")


def subset(splits: data.Splits, shots: int, seed: int, final: bool) -> data.Splits:
    """Splits with `shots` training images per class, and others to evaluate on."""
    labels, random = splits.train.labels(), np.random.default_rng(seed)
    by_class = [random.permutation(np.flatnonzero(labels == c)) for c in range(splits.num_classes)]
    chosen = np.sort(np.concatenate([places[:shots] for places in by_class]))
    if final:
        val = splits.val
    else:
        others = OTHERS // splits.num_classes
        rest = [places[max(shots, len(places) - others) :] for places in by_class]
        val = splits.train.take(np.sort(np.concatenate(rest)))
        if not len(val):
            raise ValueError(
                f"--shots {shots} leaves no training image to evaluate on: give fewer, or --final."
            )
    return replace(splits, splits={"train": splits.train.take(chosen), "val": val})


def run(
    options: argparse.Namespace, splits: data.Splits, name: str, seed: int, folder: Path
) -> Row:
    """Trains once; returns the row."""
    images_per_class = len(splits.train) / splits.num_classes
    probe, recipe = name == PROBE, None if name in (PROBE, "auto") else name
    job = Job(
        options.data,
        folder,
        weights=options.weights,
        recipe=recipe,
        seed=seed,
        precision=options.precision,
        freeze_backbone=probe,
        held_out=0.0,  # all images are trained on, and none decides whether the probe is kept
    )
    started = time.monotonic()
    training = Run(job, print)
    training.recipe, training.folder = recipe_of(job, images_per_class), folder
    training.train_on(splits)
    labels, scores = predict_split(training.model, splits.val)
    probabilities = answers_of(training.model, scores)
    return {
        "accuracy": float((probabilities.argmax(-1) == labels).mean()),
        "error": calibration(labels, probabilities).error,
        "minutes": (time.monotonic() - started) / 60,
        **training.facts,
    }


def main() -> None:
    options = parser.parse_args()
    splits = data.load(options.data)
    rows: list[dict[str, Any]] = []
    for shots in options.shots:
        chosen = choose_recipe(shots, has_weights=True)
        for name in options.recipes:
            results = []
            for seed in range(options.seeds):
                part = subset(splits, shots, seed, options.final)
                kind = "final" if options.final else "choice"
                folder = options.out / f"{kind}-{shots}-{name.replace('/', '_')}-{seed}"
                depends = {key: getattr(options, key) for key in ("data", "weights", "precision")}
                trained = partial(run, options, part, name, seed, folder)
                results.append(finished(folder / "row.json", depends, trained))
                print(f"{shots} per class, {name}, seed {seed}: {results[-1]['accuracy']:.2%}")
            rows.append(
                {
                    "shots": shots,
                    "name": name,
                    "accuracy": mean_and_spread([row["accuracy"] for row in results]),
                    "error": mean_and_spread([row["error"] for row in results]),
                    "minutes": statistics.fmean(row["minutes"] for row in results),
                    "auto": "chosen" if chosen.recipe == name else "",
                }
            )
    columns = {
        "images per class": "{shots:,}",
        "recipe": "{name}",
        "accuracy": "{accuracy}",
        "calibration error": "{error}",
        "minutes": "{minutes:.1f}",
        "by number": "{auto}",
    }
    evaluated = "the validation split" if options.final else f"up to {OTHERS} other training images"
    text = (
        f"`{command_line()}`, {splits.num_classes} classes: the mean of {options.seeds} "
        f"seeds and their standard deviation, evaluated on {evaluated}.\n\n"
        f"{to_markdown(rows, columns)}\n"
    )
    print(f"\n{text}")
    for page in pages(options):
        write_text(page, text)


if __name__ == "__main__":
    main()
