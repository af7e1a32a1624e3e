"""VTAB-1k: fine-tune a model on nineteen tasks of a thousand images, and print the accuracies.

    python -m examples.vtab MODEL --data-dir TFDS --out runs/vtab
    python -m examples.vtab MODEL --data-dir TFDS --out runs/vtab --tasks svhn dtd --steps 500

From the root of the repository. MODEL is a file, the folder of a run, or released weights such as
ViT-B/16:augreg_in21k. The data sets are TensorFlow Datasets that are prepared in --data-dir;
nothing is downloaded. The defaults are those of the ViT paper's appendix B.1.1; of several
--learning-rates the best on 200 validation images is trained on all thousand, and tested once.
Interrupted, it goes on with the tasks that are missing in --out. Needs keras3-vit[train].
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import keras_vit
from examples.vtab.runner import Setting, finetuning, run_vtab
from examples.vtab.tasks import VTAB_TASKS, task
from keras_vit.data import DatasetUnavailableError
from keras_vit.evaluation.features import features_digest

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("model", help="a file, the folder of a run, or MODEL:TAG")
parser.add_argument("--data-dir", required=True, help="folder of prepared TensorFlow Datasets")
parser.add_argument("--out", type=Path, required=True, help="folder of results")
parser.add_argument("--tasks", nargs="+", metavar="TASK", help="such as svhn dtd (default: all 19)")
parser.add_argument("--steps", type=int, default=2500, help="updates per task")
parser.add_argument("--image-size", type=int, default=384, help="height and width in pixels")
parser.add_argument("--batch-size", type=int, default=512, help="images per update")
parser.add_argument("--learning-rates", type=float, nargs="+", default=[0.01], help="rates to try")
parser.add_argument("--accumulate", type=int, default=1, help="parts a batch is computed in")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 where tasks are missing, since their data is not prepared."""
    options = parser.parse_args(arguments)
    try:
        sweep = tuple(
            Setting(
                learning_rate=rate,
                steps=options.steps,
                batch_size=options.batch_size,
                image_size=options.image_size,
                warmup=min(Setting().warmup, options.steps // 5),
                accumulate=options.accumulate,
            )
            for rate in options.learning_rates
        )
        tasks = VTAB_TASKS if options.tasks is None else [task(name) for name in options.tasks]
        model = keras_vit.load(options.model)
        report = run_vtab(
            finetuning(model),
            options.out,
            sweep=sweep,
            tasks=tasks,
            data_dir=options.data_dir,
            identity=features_digest(model),
        )
    except (ValueError, OSError, DatasetUnavailableError) as error:
        raise SystemExit(f"examples.vtab: {error}") from error
    print(report)
    return 1 if report.missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
