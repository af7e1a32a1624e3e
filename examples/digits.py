"""A Vision Transformer compared with scikit-learn's classifiers on its handwritten digits.

    python examples/digits.py                 # what `make digits` runs: seed 0
    python examples/digits.py --seeds 5       # means of seeds 0 to 4, as in the README

Trains twice per seed as `keras-vit train --data digits` does, once per split, and prints the
accuracies, and the calibration error of the ViT. The second split is that of scikit-learn's
example, which reports 96.9 % for its SVC; the first is another one for each seed. One to two
minutes per seed on two CPU cores; writes runs/digits and runs/digits_half. Needs keras3-vit[train].
"""

import argparse
from pathlib import Path

from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from study import mean_and_spread

from keras_vit import data
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.run import train

SPLITS = {"stratified 80/20": "digits", "first/second half": "digits/half"}


def sklearn_accuracies(splits: data.Splits) -> dict[str, float]:
    """Accuracies on raw pixels of the SVC of scikit-learn's example and of k-NN."""
    # The example's gamma is for gray levels 0..16.
    (train_x, train_y), (val_x, val_y) = (
        (images.reshape(len(images), -1) * (16 / 255), labels)
        for images, labels in (splits.train.as_arrays(), splits.val.as_arrays())
    )
    classifiers = {"SVC": SVC(gamma=0.001), "3 nearest neighbors": KNeighborsClassifier(3)}
    return {
        name: float(classifier.fit(train_x, train_y).score(val_x, val_y))
        for name, classifier in classifiers.items()
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/digits"), help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace former runs")
    parser.add_argument("--seeds", type=int, default=1, help="number of trainings per split")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds} must be at least 1")
    lines = []
    for title, name in SPLITS.items():
        results: dict[str, list[float]] = {}
        for seed in range(options.seeds):
            out = options.out.with_name(name.replace("digits", options.out.name).replace("/", "_"))
            out = out.with_name(f"{out.name}_{seed}") if seed else out
            report = train(Job(name, out, seed=seed, overwrite=options.overwrite))
            accuracies = {
                "ViT": report.scores["accuracy"].value,
                **sklearn_accuracies(data.load(name, seed=seed)),
                "calibration error of the ViT": report.calibration.error,
            }
            for classifier, value in accuracies.items():
                results.setdefault(classifier, []).append(value)
        scores = [f"{name} {mean_and_spread(values)}" for name, values in results.items()]
        lines.append(f"{title}: {', '.join(scores)}")
    print("", *lines, sep="\n")
    if options.seeds > 1:
        print(f"means and standard deviations of seeds 0 to {options.seeds - 1}")


if __name__ == "__main__":
    main()
