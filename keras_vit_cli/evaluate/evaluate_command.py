"""`keras-vit evaluate`: which of the tables is printed, and of what."""

from rich.table import Table

from keras_vit._base.errors import check_choice
from keras_vit.data import load
from keras_vit.export import ExportedModel
from keras_vit.models.views import eval_transform_of
from keras_vit.weights import load_model
from keras_vit_cli.evaluate.tables import own_answers, own_classes, transfer_rows, vtab_report
from keras_vit_cli.model_files import open_classifier
from keras_vit_cli.options.evaluate import EvaluateOptions
from keras_vit_cli.printing import print_table, print_text
from keras_vit_cli.table_options import table_options


def evaluate(options: EvaluateOptions) -> int:
    """Prints how good a model or its features are; returns 1 where VTAB tasks are missing.

    Raises:
        ValueError: The split is unknown, or an exported file does not have features.
    """
    if options.vtab:
        report = vtab_report(load_model(options.model), options)
        print_text(report)
        return 1 if report.missing else 0
    assert options.data is not None  # `parse` has seen to it
    classifier = open_classifier(options.model, options.decoder, options.views)
    on_features = options.probe or options.knn is not None or options.fewshot is not None
    if on_features and isinstance(classifier, ExportedModel):
        raise ValueError(
            f"{classifier.name} is an exported file, which returns classes alone: give the model "
            "it was made from for --probe, --knn and --fewshot."
        )
    task = getattr(classifier, "task", None)
    table = table_options(options, task and task.kind)
    splits = load(
        options.data,
        **table,
        data_dir=options.data_dir,
        max_pixels=options.max_pixels,
        reader=options.reader,
        bands=eval_transform_of(classifier).bands,
        nodata=eval_transform_of(classifier).nodata,
    )
    check_choice(options.split, "split", splits)
    print_text(f"{classifier.name} on {splits!r}")
    if not on_features:
        is_classifier = task is None or task.kind == "classification"
        reports_of = own_classes if is_classifier else own_answers
        reports = reports_of(classifier, splits[options.split], options.batch_size)
        print_text("\n\n".join(str(report) for report in reports if report is not None))
        return 0
    rows = Table("on frozen features", "accuracy", "")
    for row in transfer_rows(classifier, splits, options):
        rows.add_row(*row)
    print_table(rows)
    return 0
