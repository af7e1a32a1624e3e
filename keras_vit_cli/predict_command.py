"""`keras-vit predict`: the most probable classes of images, as a table."""

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from keras_vit._base.errors import printable
from keras_vit.evaluation.prediction import predict_files
from keras_vit.models.answers import task_of
from keras_vit_cli.model_files import open_classifier
from keras_vit_cli.options.predict import PredictOptions


def predict(options: PredictOptions) -> int:
    """Prints the classes of each file; returns 1 where one cannot be read.

    Raises:
        ValueError: A probability is not finite.
    """
    table = Table("image", "class", "probability")
    failed = 0
    classifier = open_classifier(options.model, options.decoder, options.views)
    task = task_of(classifier)
    for file, answer in predict_files(classifier, options.files, max_pixels=options.max_pixels):
        name = Text(printable(file))  # plain strings would be markup
        if isinstance(answer, str):
            failed += 1
            table.add_row(name, Text(printable(f"cannot be read: {answer}")), "", style="red")
            table.add_section()
            continue
        rows = task.describe(answer, options.top)["predictions"]
        for i, (class_name, probability, *_) in enumerate(row.values() for row in rows):
            if not math.isfinite(probability):
                raise ValueError(
                    f"The model in {options.model} predicts {probability} for {file}: its weights "
                    "are damaged, or its training diverged. Train it again, or take another file."
                )
            shown_name = name if i == 0 else ""
            table.add_row(shown_name, Text(printable(class_name)), f"{probability:.2%}")
        table.add_section()
    Console().print(table)
    return 1 if failed else 0
