"""Train on flower photographs: your folder, or tf_flowers from TensorFlow Datasets.

    python examples/finetune_flowers.py                    # downloads tf_flowers, 3,670 photographs
    python examples/finetune_flowers.py --data FOLDER      # FOLDER/<class>/*.jpg
    python examples/finetune_flowers.py --data FOLDER --weights FILE --model ViT-Ti/16 --seeds 3

Trains once per seed as `keras-vit train` does, and prints the accuracy and the calibration error on
the validation split: means and standard deviations, which docs/photographs.md has for 1,800
photographs with and without weights. With ViT-Ti/16 about ten minutes per seed on two CPU cores,
from scratch at 64 pixels about twenty. Several seeds write --out_0, --out_1 and so on; --resume
leaves finished ones as they are, and continues an interrupted one. Needs keras3-vit[train].
"""

import argparse
from dataclasses import fields, replace
from pathlib import Path

from study import mean_and_spread

from keras_vit._base.errors import check_positive
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.run import train

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--data", default="tf_flowers", help="a folder, or a TFDS name")
parser.add_argument("--model", help="such as ViT-Ti/16; the recipe's small one by default")
parser.add_argument("--weights", help="a file or MODEL:TAG to start from")
parser.add_argument("--recipe", help="a name of keras_vit.recipes; by default the one that suits")
parser.add_argument("--image-size", type=int, help="pixels; the recipe's by default")
parser.add_argument("--epochs", type=int, help="passes over the photographs")
parser.add_argument("--teacher", help="a trained model to learn from as well")
parser.add_argument("--precision", default="float32", help="dtype policy of the training")
parser.add_argument("--seeds", type=int, default=1, help="number of trainings")
parser.add_argument("--out", type=Path, default=Path("runs/flowers"), help="folder to write")
parser.add_argument("--resume", action="store_true", help="continue what was interrupted")
parser.add_argument("--overwrite", action="store_true", help="replace former runs")


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    check_positive(seeds=options.seeds)
    job_options = {f.name: getattr(options, f.name) for f in fields(Job) if f.name in options}
    accuracies, errors, several = [], [], options.seeds > 1
    for seed in range(options.seeds):
        out = options.out.with_name(f"{options.out.name}_{seed}") if several else options.out
        job = Job(**{**job_options, "out": out, "seed": seed})
        if several and not (out.exists() or job.output.workspace.exists()):
            job = replace(job, resume=False)  # a seed that was not begun
        report = train(job)
        assert report is not None  # there is one process
        assert report.calibration is not None  # the answers are probabilities of classes
        accuracies.append(report.scores["accuracy"].value)
        errors.append(report.calibration.error)
    seeds = f"; seeds 0 to {options.seeds - 1}" if several else ""
    print(
        f"\naccuracy {mean_and_spread(accuracies)}, calibration error {mean_and_spread(errors)}"
        f"{seeds}"
    )
    for seed, accuracy in enumerate(accuracies):
        print(f"seed {seed}: {accuracy:.2%}")


if __name__ == "__main__":
    main()
