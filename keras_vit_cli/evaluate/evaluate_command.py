"""`keras-vit evaluate`: which of the tables is printed, and of what."""

import time
from pathlib import Path
from typing import Any

from rich.table import Table

from keras_vit._base.output_folder import OutputFolder
from keras_vit.exporting import ExportedModel
from keras_vit_cli.evaluate.tables import own_results, transfer_rows
from keras_vit_cli.model_files import open_classifier
from keras_vit_cli.options.evaluate import EvaluateOptions
from keras_vit_cli.printing import noted, print_table, print_text
from keras_vit_cli.report.run_files import write_report
from keras_vit_cli.scored_images import scored_images


def evaluate(options: EvaluateOptions) -> int:
    """Prints how good a model or its features are.

    Images that the model was made with are left out, as far as it has a record of them.

    Raises:
        ValueError: The split is unknown, no image is left, or an exported file does not have
            features.
    """
    began = time.time()
    if options.out is not None:
        output = _output(options)
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
    print_text(f"{classifier.name} on {images.source}\n{images.line}")
    if on_features:
        assert images.train is not None  # `scored_images` has seen to it
        rows = Table("on frozen features", "accuracy", "")
        for row in transfer_rows(classifier, images.train, images.split, options):
            rows.add_row(*row)
        print_table(rows)
        return 0
    results = own_results(classifier, images.split, options.batch_size, options.windows)
    print_text("\n\n".join([str(results.report), *map(str, results.report.promises)]))
    if options.out is not None:
        facts: dict[str, Any] = {"seconds": round(time.time() - began, 1), "scored": images.line}
        facts |= {"doubts": doubts} if doubts else {}
        with output.opened(overwrite=options.overwrite) as workspace:
            write_report(workspace, results, facts, name=output.place.name, run=options.model)
            output.finish()
        output.publish(print_text)
        print_text(f"written to {options.out}: report.html, report.json, report.md")
    return 0


def _output(options: EvaluateOptions) -> OutputFolder:
    assert options.out is not None
    source = [] if options.data is None else [Path(options.data)]
    return OutputFolder(
        options.out,
        "evaluation",
        results=("report.json", "report.md", "report.html", "*.png"),
        protected=[Path(options.model), *source],
    )
