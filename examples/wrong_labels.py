"""Which score finds wrong labels? Labels of a folder are changed, and ranked by several scores.

    keras-vit embed FOLDER --model FILE --out index
    python examples/wrong_labels.py --index index
    python examples/wrong_labels.py --index index --known

Of the images of one split, 5 and 20 % get another label: any other ("symmetric"), or that of the
class whose mean feature is the most similar ("similar"). Prints average precision and AUROC of each
score for finding them, as means over the seeds with their standard deviation. The last of "the
same" is the margin where the estimated wrong labels of a class go to one other class, and elsewhere
the mean of margin and self-confidence. The labels of a folder are not all right to begin with: what
was wrong before counts as right here. --known counts instead how many of the wrong labels of the
flowers' val.txt, which docs/photographs.md lists, are among the 20 worst there. Takes about two
minutes for 1,800 images on one free core. Needs keras3-vit[search]; the scores of cleanlab are
equal to that package's (tests/curation/test_label_errors.py).
"""

import argparse
from pathlib import Path

import numpy as np
from study import command_line, mean_and_spread, to_markdown

from keras_vit.curation import (
    FeatureIndex,
    find_label_errors,
    label_quality,
    neighbor_probabilities,
    probe_probabilities,
)
from keras_vit.curation.nearest import unit_rows

KINDS, RATES = ("symmetric", "similar"), (0.05, 0.2)
OURS = "probes and nearest neighbors, margin"
# Roses and tulips of val.txt that do not show the flower of their label.
KNOWN = """
2535466143 2535466393 2536282942 15566697073 15999816377 4292443009 16316557109 16484100863
2448812029 3637371174 4546299243 7094415739 6038098425 13513616525 13514131694 13514136074
"""

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--index", type=Path, required=True, help="what keras-vit embed wrote")
parser.add_argument("--split", default="train", help="whose labels are changed")
parser.add_argument("--seeds", type=int, default=5, help="how many draws of the changed labels")
parser.add_argument("--known", action="store_true", help="count the flowers' own wrong labels")
parser.add_argument("--top", type=int, default=20, help="how many of the worst --known looks at")


def changed(
    features: np.ndarray, labels: np.ndarray, kind: str, rate: float, seed: int
) -> np.ndarray:
    """Labels of which a part is another class."""
    random, classes = np.random.default_rng(seed), int(labels.max()) + 1
    rows = random.permutation(len(labels))[: round(rate * len(labels))]
    if kind == "symmetric":
        new = (labels[rows] + random.integers(1, classes, len(rows))) % classes
    else:
        unit = unit_rows(features)
        means = unit_rows(np.stack([unit[labels == c].mean(axis=0) for c in range(classes)]))
        new = (means @ means.T - 2 * np.eye(classes)).argmax(axis=1)[labels[rows]]
    result = labels.copy()
    result[rows] = new
    return result


def scores(features: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Each score of each label, low where it is probably wrong."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = probe_probabilities(features, labels, seed=seed)
    near = neighbor_probabilities(features, labels)
    both = (probe + near) / 2
    margin, confidence = label_quality(labels, both), label_quality(labels, both, "self_confidence")
    mean = (margin + confidence) / 2
    seen = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(features, labels)
    return {
        OURS: margin,
        "the same, self-confidence": confidence,
        "the same, mean of both": mean,
        "the same, margin or mean by the estimated noise": label_quality(labels, both, "by_noise"),
        "nearest neighbors, margin": label_quality(labels, near),
        "cleanlab: probes, normalized margin": label_quality(labels, probe),
        "cleanlab: probes, self-confidence": label_quality(labels, probe, "self_confidence"),
        "small loss of a probe trained on all": label_quality(
            labels, seen.predict_proba(features), "self_confidence"
        ),
    }


def study(features: np.ndarray, labels: np.ndarray, seeds: int) -> str:
    """A table of the scores for each kind and part of changed labels."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    rows: dict[str, dict[str, str]] = {}
    columns = {"score": "{score}"}
    for kind in KINDS:
        for rate in RATES:
            results: dict[str, list[tuple[float, float]]] = {}
            for seed in range(seeds):
                labels_now = changed(features, labels, kind, rate, seed)
                wrong = labels_now != labels
                for name, score in scores(features, labels_now, seed).items():
                    pair = (average_precision_score(wrong, -score), roc_auc_score(wrong, -score))
                    results.setdefault(name, []).append(pair)
                print(f"{kind}, {rate:.0%}, seed {seed}: {results[OURS][-1][0]:.3f}", flush=True)
            for name, pairs in results.items():
                row = rows.setdefault(name, {"score": name})
                for what, values in zip(("AP", "AUROC"), zip(*pairs, strict=True), strict=True):
                    row[f"{kind} {rate:.0%} {what}"] = mean_and_spread(values)
            for what in ("AP", "AUROC"):
                name = f"{kind} {rate:.0%} {what}"
                columns[name] = "{" + name + "}"
    return to_markdown(list(rows.values()), columns)


def known_errors(index: FeatureIndex, top: int) -> str:
    """How many of the known wrong labels are among the worst of val.txt."""
    errors = find_label_errors(index, index.labels)
    val = np.flatnonzero(np.array([split == "val" for split in index.splits]))
    worst = val[np.argsort(errors.quality[val], kind="stable")][:top]
    names = [Path(index.files[row]).name.partition("_")[0] for row in worst]
    hits = sum(name in KNOWN.split() for name in names)
    lines = [
        f"{name in KNOWN.split():d}  {errors.quality[row]:.3f}  {index.files[row]}, rather "
        f"{index.class_names[errors.suggested[row]]}"
        for name, row in zip(names, worst, strict=True)
    ]
    return "\n".join([*lines, f"{hits} of {len(KNOWN.split())} known ones among {top}"])


def main() -> None:
    options = parser.parse_args()
    index = FeatureIndex.open(options.index)
    if options.known:
        print(known_errors(index, options.top))
        return
    rows = np.array([split == options.split for split in index.splits]) & (index.labels >= 0)
    features, labels = index.rows()[rows], index.labels[rows].astype(int)
    if not len(labels):
        raise SystemExit(f"{options.index} does not have labeled images in {options.split!r}.")
    print(f"\n`{command_line()}`, {len(labels):,} images, {options.seeds} seeds:\n")
    print(study(features, labels, options.seeds))


if __name__ == "__main__":
    main()
