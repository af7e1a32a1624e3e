"""`keras-vit compare`: several models on the same images that none of them was made with."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.table import Table

from keras_vit._base.errors import listed
from keras_vit._base.output_folder import OutputFolder
from keras_vit.data.seen_images import NEW, VALIDATED
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation.prediction import predict_outcomes
from keras_vit.evaluation.unseen_images import Scored, check_same_task, seen_images_of, without_used
from keras_vit.models.answers import task_of
from keras_vit_cli.compare.compare_page import write_comparison
from keras_vit_cli.compare.compared import LETTERS, Compared
from keras_vit_cli.model_files import open_classifier, scored_images
from keras_vit_cli.options.score_options import CompareOptions
from keras_vit_cli.printing import print_table, print_text


def compare(options: CompareOptions) -> None:
    """Write a page of how models differ, on images that none of them was made with.

    Raises:
        ValueError: The models do not have one task, or no image is left.
    """
    output = OutputFolder(
        options.out,
        "comparison",
        results=("report.json", "report.md", "report.html", "*.png"),
        protected=[Path(each) for each in (*options.models, options.data) if each is not None],
    )
    output.check(overwrite=options.overwrite)
    classifiers = [open_classifier(path) for path in options.models]
    _check_one_task(classifiers, options.models)
    images = _images(classifiers, options)
    print_text(images.line)
    outcomes = []
    for letter, path, classifier in zip(LETTERS, options.models, classifiers, strict=False):
        print_text(f"{letter}: {path}")
        check_same_task(classifier, images.split)
        one, targets = predict_outcomes(classifier, images.split, options.batch_size)
        outcomes.append(one)
    main = task_of(classifiers[0]).main_score(targets)
    compared = Compared(outcomes, main, options.models, images)
    with output.opened(overwrite=options.overwrite) as workspace:
        write_comparison(workspace, compared)
        output.finish()
    output.publish(print_text)
    table = Table("score", *compared.letters)
    for name, values in compared.scores.items():
        table.add_row(name, *(f"{score.value:.4g}" for score in values))
    print_table(table)
    print_text("\n".join([*compared.verdicts, f"written to {options.out}: report.html"]))


def _check_one_task(classifiers: list[Any], paths: tuple[str, ...]) -> None:
    first = task_of(classifiers[0])
    for path, classifier in zip(paths, classifiers, strict=True):
        task = task_of(classifier)
        if (task.kind, task.shown_names) != (first.kind, first.shown_names):
            raise ValueError(
                f"{path} answers {task.kind} of {task.size} and {paths[0]} {first.kind} of "
                f"{first.size}, or other names or another order of them: give models of one task."
            )


def _images(classifiers: list[Any], options: CompareOptions) -> Scored:
    """Return the labeled images that may be scored of the first model, and of all the others."""
    of_first = SimpleNamespace(**vars(options), model=options.models[0])
    scored = scored_images(classifiers[0], of_first, split_name=options.split)
    lines, split = [f"A: {scored.line}"], scored.split
    others = zip(LETTERS[1:], options.models[1:], classifiers[1:], strict=False)
    for letter, path, classifier in others:
        seen = seen_images_of(classifier, path)
        split, line = without_used(split, seen, path, scored.source, (VALIDATED, NEW))
        lines.append(f"{letter}: {line}")
    counts = dict[str, int]()
    for letter, path, classifier in zip(LETTERS, options.models, classifiers, strict=False):
        if isinstance(split, IndexedSplit) and (seen := seen_images_of(classifier, path)):
            counts[letter] = int((seen.uses_of(split) == VALIDATED).sum())
    if len(set(counts.values())) > 1:
        shown = listed([f"{count:,} by {letter}" for letter, count in counts.items()])
        lines.append(
            f"note: of these images, {shown} were validated on: what was chosen by them, such as "
            "the best epoch or one of many runs, scores better on them than on new ones"
        )
    return replace(scored, split=split, line="\n".join(lines))
