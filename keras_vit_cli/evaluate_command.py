"""`keras-vit evaluate`: a model on its own classes, or its features on new ones."""

import time
from pathlib import Path
from typing import Any

from rich.table import Table

from keras_vit._base.errors import counted, listed
from keras_vit._base.files import cache_folder
from keras_vit._base.output_folder import OutputFolder
from keras_vit.data import Split
from keras_vit.evaluation.features import features
from keras_vit.evaluation.fewshot import SHOTS, check_shots, fewshot_table
from keras_vit.evaluation.prediction import predict_outcomes
from keras_vit.evaluation.probes import check_neighbors, knn_accuracy, linear_probe, smallest_class
from keras_vit.evaluation.report import report_of
from keras_vit.evaluation.unseen_images import check_same_task
from keras_vit.exporting import ExportedModel
from keras_vit_cli.model_files import open_classifier, scored_images
from keras_vit_cli.options.score_options import EvaluateOptions
from keras_vit_cli.printing import noted, print_table, print_text
from keras_vit_cli.report.results import Results, results_of
from keras_vit_cli.report.run_files import write_report


def evaluate(options: EvaluateOptions) -> int:
    """Prints how good a model or its features are.

    Images that the model was made with are left out, as far as it has a record of them.

    Raises:
        ValueError: The split is unknown, no image is left, or an exported file does not have
            features.
    """
    began = time.time()
    if options.out is not None:
        output = OutputFolder(
            options.out,
            "evaluation",
            results=("report.json", "report.md", "report.html", "*.png"),
            protected=[Path(each) for each in (options.model, options.data) if each is not None],
        )
        output.check(overwrite=options.overwrite)
    classifier = open_classifier(options.model, options.decoder, options.views)
    on_features = options.probe or options.knn is not None or options.fewshot is not None
    if on_features and isinstance(classifier, ExportedModel):
        raise ValueError(
            f"{classifier.name} is an exported file, which returns classes alone: give the model "
            "it was made from for --probe, --knn and --fewshot."
        )
    with noted("evaluate") as doubts:
        images = scored_images(
            classifier,
            options,
            split_name=options.split,
            fits=on_features,
            own_classes=not on_features,
        )
    ways = {name: getattr(options, name) for name in ("windows", "views", "decoder")}
    seen = ", ".join(f"--{name} {value}" for name, value in ways.items() if value is not None)
    scored = f"{images.line}; seen by {seen}" if seen else images.line
    print_text(f"{classifier.name} on {images.source}\n{scored}")
    if on_features:
        if images.train is None:
            raise ValueError(
                f"--probe, --knn and --fewshot are fitted on train, and {images.source} does not "
                "have it: give a folder with train/ too, or one of classes, which is split."
            )
        rows = Table("on frozen features", "accuracy", "")
        for row in transfer_rows(classifier, images.train, images.split, options):
            rows.add_row(*row)
        print_table(rows)
        return 0
    results = own_results(classifier, images.split, options.batch_size, options.windows)
    print_text("\n\n".join([str(results.report), *map(str, results.report.promises)]))
    if options.out is not None:
        facts: dict[str, Any] = {"seconds": round(time.time() - began, 1), "scored": scored}
        facts |= {"doubts": doubts} if doubts else {}
        with output.opened(overwrite=options.overwrite) as workspace:
            write_report(workspace, results, facts, name=output.place.name, run=options.model)
            output.finish()
        output.publish(print_text)
        print_text(f"written to {options.out}: report.html, report.json, report.md")
    return 0


def own_results(
    model: Any, split: Split, batch_size: int = 32, windows: str | int | None = None
) -> Results:
    """Score a model on images with labels of its task: its answers, its sets and its novelty.

    Raises:
        ValueError: The labels mean something else than the model answers.
    """
    check_same_task(model, split)
    outcomes, targets = predict_outcomes(model, split, batch_size, windows)
    return results_of(report_of(outcomes, targets), outcomes, split, model, windows)


def transfer_rows(
    model: Any, fitted: Split, scored: Split, options: EvaluateOptions
) -> list[tuple[str, str, str]]:
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
    rows: list[tuple[str, str, str]] = []
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
