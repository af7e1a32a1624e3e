"""`keras-vit calibrate`: prediction sets or intervals, from images that were not trained on."""

import os
from pathlib import Path
from typing import Any

from keras_vit import load, save_weights
from keras_vit._base.errors import counted, listed
from keras_vit.data import Split
from keras_vit.data.seen_images import CALIBRATED, SeenImages
from keras_vit.evaluation import features, fit_novelty
from keras_vit.evaluation.novelty import classifier_head
from keras_vit.evaluation.prediction import check_takes_pixels_to_answers, predict_split
from keras_vit.evaluation.unseen_images import check_same_task
from keras_vit.models.answers import answers_of, task_of
from keras_vit.tasks import Classification, Task
from keras_vit.tasks.conformal import fewest_examples
from keras_vit.training.training_set import looks_of
from keras_vit_cli.model_files import keep_decoder, scored_images
from keras_vit_cli.options.score_options import CalibrateOptions
from keras_vit_cli.printing import print_next, print_text


def calibrate(options: CalibrateOptions) -> None:
    """Writes the model with prediction sets or intervals in its task.

    Raises:
        ValueError: There are too few images that the model was not made with, or its task has
            neither sets nor intervals; or `out` is not a .keras file.
        FileExistsError: `out` is there, and `overwrite` is False.
    """
    path = Path(os.path.abspath(options.model))
    stem = path.stem if path.is_file() else path.name
    out = options.out or path.with_name(f"{stem}-calibrated.keras")
    if out.suffix != ".keras":
        raise ValueError(f"--out {out} must end in .keras, such as {out.with_suffix('.keras')}.")
    if out.exists() and not options.overwrite:
        raise FileExistsError(f"{out} exists. Give --overwrite, or another --out.")
    model = load(options.model).uncalibrated()
    check_takes_pixels_to_answers(model)
    task = task_of(model)
    if task.kind not in ("classification", "regression"):
        task.with_coverage((), (), options.coverage)  # says why not
    images = scored_images(model, options, split_name=options.split)
    check_same_task(model, images.split)
    print_text(f"{model.name} on {images.source}\n{images.line}")
    keep_decoder(model, images.split)
    labels, outputs = predict_split(model, images.split, options.batch_size)
    targets, answers = images.split.task.to_targets(labels), answers_of(model, outputs)
    of_classes = isinstance(task, Classification)
    how = (options.method, not options.marginal) if of_classes else ()
    model.task = task = task.with_coverage(targets, answers, options.coverage, *how)
    of = counted(len(answers), "image")
    print_text(f"calibrated on {of} for a coverage of {options.coverage:.4g}\n{_described(task)}")
    print_text(_fit_novelty(model, images.split, options))
    if images.digests is not None:
        # From now on, a score of these images promises too much.
        calibrated = SeenImages.of({CALIBRATED: images.digests}, looks_of(images.split))
        model.seen_images = calibrated | model.seen_images
    save_weights(model, out, overwrite=options.overwrite)
    print_text(f"written to {out}")
    print_next("predict", out, "photo.jpg")


def _fit_novelty(model: Any, split: Split, options: CalibrateOptions) -> str:
    """Fits the novelty on half of the images, and its threshold on the others; what it did."""
    rows = features(model, split, None, options.batch_size)[0]
    alarms = 1 - options.coverage
    least = 2 * fewest_examples(options.coverage)
    if len(rows) < least:
        return f"novelty: left out, as it takes {least} images"
    model.set_novelty(fit_novelty(rows[::2], rows[1::2], alarms, classifier_head(model)))
    return f"novelty: above 1 for at most {alarms:.4g} of new images like these"


def _described(task: Task) -> str:
    """Describe the thresholds or margins, and for which images the coverage holds."""
    if not isinstance(task, Classification) or task.sets is None:
        margins = zip(task.shown_names, getattr(task, "margins", ()), strict=True)
        return "\n".join(f"{name}: plus and minus {margin:.4g}" for name, margin in margins)
    sets = task.sets
    others = [name for i, name in enumerate(task.shown_names) if i not in set(sets.conditional)]
    if not sets.conditional:
        return "one threshold for all classes: the coverage holds for all images together"
    classes = counted(len(sets.conditional), "class", "classes")
    text = f"{classes} with a threshold and a coverage of its own"
    if not others:
        return text
    least = fewest_examples(sets.coverage)
    return f"{text}; with fewer than {least} images, and one threshold together: {listed(others)}"
