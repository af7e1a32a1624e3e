"""`keras-vit evaluate`: a model on its own classes, or its features on new ones."""

from typing import Any

from keras_vit import data
from keras_vit._base.errors import counted, listed
from keras_vit._base.files import cache_folder
from keras_vit.evaluation.features import features
from keras_vit.evaluation.fewshot import SHOTS, check_shots, fewshot_table
from keras_vit.evaluation.prediction import predict_outcomes
from keras_vit.evaluation.probes import check_neighbors, knn_accuracy, linear_probe, smallest_class
from keras_vit.evaluation.report import report_of
from keras_vit.evaluation.unseen_images import check_same_task
from keras_vit_cli.options.evaluate import EvaluateOptions
from keras_vit_cli.report.results import Results, results_of

Row = tuple[str, str, str]


def own_results(
    model: Any, split: data.Split, batch_size: int = 32, windows: str | int | None = None
) -> Results:
    """Score a model on images with labels of its task: its answers, its sets and its novelty.

    Raises:
        ValueError: The labels mean something else than the model answers.
    """
    check_same_task(model, split)
    outcomes, targets = predict_outcomes(model, split, batch_size, windows)
    return results_of(report_of(outcomes, targets), outcomes, split, model, windows)


def transfer_rows(
    model: Any, fitted: data.Split, scored: data.Split, options: EvaluateOptions
) -> list[Row]:
    """Return accuracies of k-NN and linear classifiers on a model's features, one row per measure.

    Returns:
        Rows of measure, accuracy in per cent, and details.

    Raises:
        ValueError: There are too few images for a measure.
    """
    # Errors that the labels alone reveal come before hours of features.
    labels, shots = fitted.labels(), options.fewshot
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"--probe, --knn and --fewshot score classes, and the data has {fitted.task.kind} of "
            f"{listed(fitted.task.shown_names)}: give images with a class each."
        )
    if options.probe:
        smallest_class(labels)
    if options.knn is not None:
        check_neighbors(len(labels), options.knn)
    if shots is not None and not shots:
        shots = SHOTS
    for count in shots or ():
        check_shots(labels, count)
    cache = options.cache_dir or cache_folder() / "features"
    train = features(model, fitted, cache, options.batch_size)
    test = features(model, scored, cache, options.batch_size)
    rows: list[Row] = []
    if options.probe:
        result = linear_probe(*train, *test)
        rows.append(("linear probe", f"{result.accuracy:.2%}", f"C = {result.strength:g}"))
    if options.knn is not None:
        accuracy = knn_accuracy(*train, *test, k=options.knn)
        rows.append((f"{options.knn} nearest neighbors", f"{accuracy:.2%}", "cosine"))
    if shots is not None:
        for row in fewshot_table(*train, *test, shots=shots, seeds=range(options.seeds)):
            spread = f"± {100 * row.spread:.2f} over {counted(options.seeds, 'seed')}"
            rows.append((f"{row.shots}-shot", f"{row.mean:.2%}", spread))
    return rows
