"""A few images per class: `--recipe measured` beside a recipe by number and a logistic regression.

    python -m benchmarks few_labels --data FOLDER --weights FILE [--shots 2 8] [--seeds 3]
    python -m benchmarks few_labels --data tissue --images NILEARN --weights FILE --image-size 96

Draws so many training images per class, the same for all contestants of a seed, and evaluates on
the validation images, which nothing is chosen by. `--data` is a folder, or one of three sets unlike
photographs: "textures", "tissue" and "nuclei" (`--images`: the folders of the benchmark `dense`).
"by number" is the recipe that `auto` takes where it does not measure (`finetune_few` below 25
images per class, else `finetune_small`), with its own choice between linear probe and fine-tuned
weights; "logistic regression" is scikit-learn's, with its own settings, on the pooled features of
the images. "timm" and "Keras guide" fine-tune the same weights by the ways of their users, for as
many seconds of the processor as the longest of the others took, or `--seconds`. Prints the mean
accuracy, of the paired differences to "logistic regression" and "by number" the mean and its
standard error, and the steps of others' ways. What is finished lies in --out, and is not computed
again; with other data, weights or such options it needs another --out.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._few_label_peers import PEERS
from benchmarks._few_label_sets import SETS
from examples.study import finished
from keras_vit import data
from keras_vit._base.files import cache_folder
from keras_vit.evaluation import features, predict_split
from keras_vit.evaluation.markdown import table
from keras_vit.models.answers import answers_of
from keras_vit.training.auto_recipe import MEASURED, choose_recipe
from keras_vit_cli.train.build import build
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.job_recipe import recipe_of, suited_recipe
from keras_vit_cli.train.run import Run

MEASURE, BY_NUMBER, LOGISTIC = MEASURED, "by number", "logistic regression"
CONTESTANTS = (LOGISTIC, BY_NUMBER, MEASURE)
DEPENDS = ("data", "images", "weights", "image_size")  # what results depend on, and those of some
OF = {MEASURE: ("budget",), **dict.fromkeys(PEERS, ("seconds",))}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks few_labels", description=__doc__)
    parser.add_argument("--data", required=True, help=f"a folder, or {', '.join(SETS)}")
    parser.add_argument("--images", help="the folder that tissue or nuclei are made from")
    parser.add_argument("--weights", required=True, help="a file, or MODEL:TAG")
    parser.add_argument("--shots", type=int, nargs="+", default=[2, 8], help="images per class")
    parser.add_argument("--seeds", type=int, default=3, help="how many draws of the images")
    parser.add_argument("--budget", type=float, help="seconds that measured may fine-tune")
    parser.add_argument("--image-size", type=int, help="pixels (default: the recipe's)")
    parser.add_argument("--seconds", type=float, help="of the processor, for others' ways")
    names = (*CONTESTANTS, *PEERS)
    parser.add_argument("--contestants", nargs="+", default=CONTESTANTS, choices=names)
    parser.add_argument("--out", type=Path, default=Path("runs/few_labels"))
    options = parser.parse_args(arguments)
    # Those last whose time is that of the others.
    options.contestants = sorted(options.contestants, key=lambda name: name in PEERS)
    if options.contestants[0] in PEERS and not options.seconds:
        parser.error(
            f"--contestants {' '.join(options.contestants)} train for as long as the longest of "
            f"the others, of which none is asked for: give --seconds, or {', '.join(CONTESTANTS)}"
        )
    splits = SETS[options.data](options) if options.data in SETS else data.load(options.data)
    lines = []
    for shots in options.shots:
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in options.contestants}
        for seed in range(options.seeds):
            part = subset(splits, shots, seed)
            for name in options.contestants:
                file = options.out / f"{shots}-{seed}-{name.replace(' ', '_')}.json"
                longest = max([row[-1]["seconds"] for row in rows.values() if row], default=0)
                seconds = max(options.seconds or longest, 1)
                trained = partial(run, options, part, name, shots, seed, seconds)
                depends = {key: getattr(options, key) for key in DEPENDS + OF.get(name, ())}
                rows[name].append(finished(file, depends, trained))
                print(f"{shots} per class, seed {seed}, {name}: {rows[name][-1]}", flush=True)
        lines += [(str(shots), *cells_of(name, rows)) for name in options.contestants]
    header = ("per class", "", "accuracy", f"less {LOGISTIC}", f"less {BY_NUMBER}", "steps")
    print(table(header, lines, "rlrrrr"))
    return 0


def subset(splits: data.Splits, shots: int, seed: int) -> data.Splits:
    """Splits with `shots` training images per class."""
    labels, random = splits.train.labels(), np.random.default_rng(seed)
    by_class = [random.permutation(np.flatnonzero(labels == c)) for c in range(splits.num_classes)]
    chosen = np.sort(np.concatenate([places[:shots] for places in by_class]))
    train: Any = splits.train
    return replace(splits, splits={"train": train.take(chosen), "val": splits.val})


def run(
    options: argparse.Namespace,
    splits: data.Splits,
    name: str,
    shots: int,
    seed: int,
    seconds: float,
) -> dict[str, Any]:
    """Trains once; returns the accuracy, what was kept, the seconds, and the steps of peers."""
    started, steps = time.process_time(), 0
    by_number = choose_recipe(shots, has_weights=True).recipe
    folder = options.out / f"{shots}-{seed}-{name.replace(' ', '_')}"
    job = Job(
        options.data,
        folder,
        weights=options.weights,
        recipe=MEASURED if name == MEASURE else by_number,
        seed=seed,
        budget=options.budget if name == MEASURE else None,
        image_size=options.image_size,
    )
    if name in PEERS:
        size = recipe_of(job).image_size
        (accuracy, steps), kept = PEERS[name](options.weights, size, splits, seconds, seed), ""
    elif name == LOGISTIC:
        accuracy, kept = logistic(job, splits), ""
    else:
        training = Run(job, print)
        training.folder, training.recipe = folder, recipe_of(job)
        _, training.recipe = suited_recipe(job, training.recipe, splits, print)
        # Each epoch validates, which takes longer than to train on so few.
        val: Any = splits.val
        training.train_on(replace(splits, splits={**splits.splits, "val": val.take(range(2))}))
        labels, scores = predict_split(training.model, splits.val)
        accuracy = float((answers_of(training.model, scores).argmax(-1) == labels).mean())
        kept = training.facts.get("choice", {}).get("selected", "")
    spent = round(time.process_time() - started)
    return {"accuracy": accuracy, "kept": kept, "seconds": spent, "steps": steps}


def logistic(job: Job, splits: data.Splits) -> float:
    from sklearn.linear_model import LogisticRegression

    model = build(job, recipe_of(job), splits.task, splits.train.channels)
    x, y = features(model, splits.train, cache_folder() / "features")
    val_x, val_y = features(model, splits.val, cache_folder() / "features")
    return float(LogisticRegression(max_iter=2000).fit(x, y).score(val_x, val_y))


def cells_of(name: str, rows: dict[str, list[dict[str, Any]]]) -> tuple[str, ...]:
    own = [row["accuracy"] for row in rows[name]]
    differences = []
    for peer in (LOGISTIC, BY_NUMBER):
        pairs = zip(own, (row["accuracy"] for row in rows.get(peer, [])), strict=False)
        of_seeds = [100 * (mine - theirs) for mine, theirs in pairs]
        error = statistics.stdev(of_seeds) / len(of_seeds) ** 0.5 if len(of_seeds) > 1 else 0.0
        is_pair = peer != name and of_seeds
        differences.append(
            f"{statistics.fmean(of_seeds):+.2f} ± {error:.2f}" if is_pair else "",
        )
    steps = statistics.fmean(row.get("steps", 0) for row in rows[name])
    accuracy = f"{statistics.fmean(own):.2%}"
    return (name, accuracy, *differences, f"{steps:,.0f}" if steps else "")
