"""`keras-vit evaluate`: a model on its own classes, or its features on new ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit import data
from keras_vit._base.errors import check_choice, counted
from keras_vit.evaluation.features import features, weights_digest
from keras_vit.evaluation.fewshot import SEEDS, SHOTS, check_shots, fewshot_table
from keras_vit.evaluation.prediction import predict_outcomes
from keras_vit.evaluation.probes import check_classes, check_neighbours, knn_accuracy, linear_probe
from keras_vit.evaluation.report import ClassificationReport, classification_report
from keras_vit_cli.evaluate import vtab_tasks
from keras_vit_cli.evaluate.vtab import Setting, VTABReport, finetuning, run_vtab
from keras_vit_cli.options.evaluate import EvaluateOptions

Row = tuple[str, str, str]


def own_classes(model: Any, split: data.Split, batch_size: int = 32) -> ClassificationReport:
    """The report of a classifier on a split with the same classes.

    Raises:
        ValueError: The model does not have the classes of the split.
    """
    classes = len(split.class_names)
    named = model.class_names is not None
    if model.num_classes != classes or (named and tuple(model.class_names) != split.class_names):
        raise ValueError(
            f"{model.name} predicts {model.num_classes} classes"
            f"{f' ({_shorten(model.class_names)})' if named else ''}, and the data has {classes} "
            f"({_shorten(split.class_names)}). Evaluate its features instead: --probe, --knn or "
            "--fewshot."
        )
    outcomes = predict_outcomes(model, split, batch_size)
    return classification_report(outcomes.labels, outcomes.predictions, split.class_names)


def transfer_rows(
    model: Any,
    splits: data.Splits,
    *,
    test: str = "val",
    shots: Sequence[int] | None = None,
    num_neighbours: int | None = None,
    probe: bool = False,
    seeds: Sequence[int] = SEEDS,
    cache_dir: str | Path | None = None,
    batch_size: int = 32,
) -> list[Row]:
    """Accuracies of k-NN and linear classifiers on a model's features, one row per measure.

    Args:
        model: See `features`, also for `cache_dir` and `batch_size`.
        splits: Classifiers are trained on `splits.train`.
        test: The split to evaluate on.
        shots: Few-shot examples per class; empty for the released code's 1, 5, 10 and 25; None for
            no few-shot evaluation.
        num_neighbours: Number of nearest neighbours; None for no k-NN.
        probe: Fit a linear probe.
        seeds: Seeds of the few-shot examples.

    Returns:
        Rows of measure, accuracy in per cent, and details.

    Raises:
        ValueError: There is no split `test`, or an argument is out of range.
    """
    test_split = splits[check_choice(test, "test", splits)]
    # Errors that the labels alone reveal come before hours of features.
    labels = splits.train.labels()
    if probe:
        check_classes(labels)
    if num_neighbours is not None:
        check_neighbours(len(labels), num_neighbours, "--knn: ")
    shots = SHOTS if shots is not None and not len(shots) else shots
    for count in shots or ():
        check_shots(labels, count, "--fewshot: ")
    train = features(model, splits.train, cache_dir, batch_size)
    examples = (*train, *features(model, test_split, cache_dir, batch_size))
    rows: list[Row] = []
    if probe:
        result = linear_probe(*examples)
        rows.append(("linear probe", f"{result.accuracy:.2%}", f"C = {result.strength:g}"))
    if num_neighbours is not None:
        accuracy = knn_accuracy(*examples, k=num_neighbours)
        rows.append((f"{num_neighbours} nearest neighbours", f"{accuracy:.2%}", "cosine"))
    if shots is not None:
        for row in fewshot_table(*examples, shots=shots, seeds=seeds):
            spread = f"± {100 * row.spread:.2f} over {counted(len(seeds), 'seed')}"
            rows.append((f"{row.shots}-shot", f"{row.mean:.2%}", spread))
    return rows


def vtab_report(model: Any, options: EvaluateOptions) -> VTABReport:
    """`run_vtab` with `finetuning`, sweeping over learning rates.

    Raises:
        ValueError: A task is unknown, or `out` holds another model's results.
        DatasetUnavailableError: No task's data is prepared.
    """
    assert options.out is not None  # `parse` has seen to it
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
    names = options.tasks
    return run_vtab(
        finetuning(model),
        options.out,
        sweep=sweep,
        tasks=vtab_tasks.TASKS if names is None else [vtab_tasks.task(name) for name in names],
        data_dir=options.data_dir,
        identity=weights_digest(model),
    )


def _shorten(names: Sequence[str], shown: int = 5) -> str:
    return ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")
