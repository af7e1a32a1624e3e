"""`keras-vit pretrain`: weights before and after training on images without labels.

images ──┬──► not labeled, or labeled and to train on ──► pretrain ──► weights after ──┐
         └──► labeled and held out: features before ──► compare_features ◄── features after
                                                                └──► the better weights, report
"""

import json
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

import keras_vit
from keras_vit._base.errors import ReportedWarning, counted, printable
from keras_vit._base.files import atomic_write, write_text
from keras_vit._base.output_folder import OutputFolder
from keras_vit.curation import FeatureComparison, compare_features
from keras_vit.curation.photo_sources import find_photos
from keras_vit.data import Splits
from keras_vit.data.image_readers import resolve_reader
from keras_vit.data.sources.folder import FileSplit
from keras_vit.data.sources.other_formats import shown_left_out
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.data.sources.verification import checked_files
from keras_vit.evaluation import features
from keras_vit.evaluation.prediction import check_takes_pixels
from keras_vit.evaluation.unseen_images import seen_images_of, table_arguments, without_used
from keras_vit.models import ImageModel
from keras_vit.tasks import Classification
from keras_vit.training import pretrain as train_on_instances
from keras_vit.training import recipes
from keras_vit.training.measured_fit import STEP_COST, passes_within
from keras_vit.training.pretraining import BLOCKS, DIET, VISREG
from keras_vit.training.training_set import note_images, some_of, units_of, without_copies
from keras_vit.training.visreg import VIEWS
from keras_vit_cli.library_words import in_options
from keras_vit_cli.model_files import keep_decoder
from keras_vit_cli.options.pretrain import AFTER, AUTO, BETTER, NONE, PretrainOptions
from keras_vit_cli.pretrain.pretrain_report import conclusion, markdown, rows_of
from keras_vit_cli.printing import print_next, print_text, print_unreadable
from keras_vit_cli.train.record import begin, is_finished

RESULTS = ("model.keras", "config.json", "report.json", "report.md")
DEFAULT_MODEL = "ViT-Ti/16"
MANY = 5000  # images, from which on "auto" takes VISReg where there are no weights
MOST = 5000  # labeled images that vote, and that are scored
LEAST = 20  # that are scored: of fewer, chance alone makes large differences


def _output(job: PretrainOptions) -> OutputFolder:
    """Return the folder, and the one where it is until it is complete."""
    named = [path for path in (job.weights, job.labels) if path not in (None, NONE)]
    return OutputFolder(
        job.out,
        "pretraining",
        staging=f"{Path(os.path.abspath(job.out)).name}.partial",
        results=RESULTS,
        scratch=("checkpoints/*",),
        protected=[Path(str(path)).expanduser() for path in (job.photos, *named)],
        resumable=True,
    )


class Images(NamedTuple):
    """What a folder has.

    Attributes:
        train: What is trained on, without labels.
        labeled: Those of them that have labels, or some, which vote; and those that are not trained
            on, by whose answers weights are compared. None without labels.
        unreadable: Why files are left out, by their paths.
        copies: How many files were left out as copies of others.
    """

    train: FileSplit
    labeled: tuple[IndexedSplit, IndexedSplit] | None
    unreadable: Mapping[str, str]
    copies: int


def pretrain(job: PretrainOptions) -> None:
    """Trains weights on images without labels, and keeps those that labels show to be better.

    "No gain" is an answer: then the model in `out` is the one that was given, without its head.

    Raises:
        FileExistsError: `out` is not empty, or there is an interrupted run of it, and neither
            `resume` nor `overwrite` is set; or it has other files.
        ValueError: There are no labels to compare by, or too few, and `keep` is `"better"`; there
            are fewer than two images; or an option does not suit the model.
    """
    output = _output(job)
    if not is_finished(job, output, print_text):
        with output.opened(overwrite=job.overwrite, resume=job.resume) as folder:
            begin(job, folder, print_text)
            if not output.is_finished():
                _run(job, folder)
                output.finish()
            output.publish(print_text)
    facts = json.loads((output.place / "report.json").read_text("utf-8"))
    rows = rows_of(facts)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print_text("  ".join(map(str.ljust, row, widths)).rstrip())
    print_text(conclusion(facts))
    print_text(f"{facts['seconds']:.0f} s; written to {job.out}: model.keras, report.md")
    print_next("embed", job.photos, "--model", job.out, "--out", "index")


def _run(job: PretrainOptions, folder: Path) -> None:
    started = time.time()
    keras.utils.set_random_seed(job.seed)
    before = _first_model(job)
    images = _images(job, before)
    print_unreadable(images.unreadable, f"{job.out}/report.json")
    keep_decoder(before, images.train)
    first = _features(before, images)  # and what does not fit is said before any training
    after = before.copy()
    after.seen_images = before.seen_images
    method = _method(job, len(images.train))
    recipe = _recipe(job, method, after, len(images.train), folder / "checkpoints")
    history = train_on_instances(
        after,
        images.train,
        folder / "checkpoints",
        recipe=recipe,
        method=method,
        blocks=_blocks(job),
        seed=job.seed,
        print_fn=lambda line: print_text(in_options(line, "pretrain")),
        identity=job.identity,
        cache=job.cache,
        checkpoint_seconds=job.checkpoint_seconds,
    )
    comparison = None
    if images.labeled is not None:
        comparison = _compare(images.labeled, first, _features(after, images))
    is_kept = job.keep == AFTER or (comparison is not None and comparison.is_gain)
    if is_kept:
        held_out = images.labeled[1] if images.labeled else images.train.take(np.zeros(0, int))
        after.seen_images = before.seen_images  # those of training were noted, without the others
        note_images(after, Splits(str(job.photos), (), {"train": images.train, "val": held_out}))
    facts = {
        "kept": "after" if is_kept else "before",
        "weights": job.weights,
        "keep": job.keep,
        "method": method,
        "images": len(images.train),
        "copies": images.copies,
        "unreadable": dict(images.unreadable),
        "epochs": recipe.epochs,
        "blocks": _blocks(job),
        "voters": len(images.labeled[0]) if images.labeled else 0,
        "comparison": comparison and _as_json(comparison),
        "history": history,
        "seconds": round(time.time() - started, 1),
    }
    better: Any = after if is_kept else before
    with atomic_write(folder / "model.keras") as temporary:
        better.save(temporary)
    write_text(folder / "report.json", json.dumps(facts, indent=2))
    write_text(folder / "report.md", markdown(facts))


def _method(job: PretrainOptions, count: int) -> str:
    """Return the method; "auto" takes VISReg for many images without weights."""
    if job.method != AUTO or job.weights != NONE:
        return DIET if job.method == AUTO else job.method
    method = VISREG if count >= MANY else DIET
    print_text(
        f"method: {method}, with {counted(count, 'image')} and random weights; released weights, "
        "where they suit the images, are far better"
    )
    return method


def _blocks(job: PretrainOptions) -> int | None:
    return None if job.weights == NONE else job.blocks or BLOCKS


def _first_model(job: PretrainOptions) -> ImageModel:
    """Return the model before training, without a head: its answers would be stale after it."""
    size = job.image_size
    arguments: dict[str, Any] = {"num_classes": 0}
    if size is not None:
        first = keras.config.image_data_format() == "channels_first"
        arguments["input_shape"] = (3, size, size) if first else (size, size, 3)
    if job.weights == NONE:
        return keras_vit.create(job.model or DEFAULT_MODEL, **arguments)
    model = keras_vit.load(job.weights, **arguments)
    model.seen_images = seen_images_of(model, job.weights)
    if None in model.image_size or model.eval_transform.bands is not None:
        raise ValueError(
            f"{printable(job.weights)} takes images of any size, or bands: give image_size=224, or "
            "weights for photographs."
        )
    check_takes_pixels(model)
    return model


def _recipe(
    job: PretrainOptions, method: str, model: ImageModel, count: int, folder: Path
) -> recipes.Recipe:
    """Return the recipe with the options of the job, and with the epochs that its budget allows."""
    recipe = recipes.get(method if job.weights == NONE else f"{method}_cp")
    size: Any = model.image_size
    names = ("epochs", "learning_rate", "batch_size")
    changes = {name: value for name in names if (value := getattr(job, name)) is not None}
    recipe = replace(recipe, image_size=max(size), **changes)
    if job.budget is None:
        return recipe
    depth = sum(layer.name.startswith("block_") for layer in model.layers)
    blocks = _blocks(job)
    part = 1.0 if blocks is None else min(blocks / max(depth, 1), 1.0)
    # A step is a pass forward, and one of twice the cost back through what is trained.
    cost = 1 + (STEP_COST - 1) * part
    passes = passes_within(model, recipe, job.budget, folder / "plan.json", cost)
    views = VIEWS if method == VISREG else 1
    epochs = int(np.clip(passes / (views * count), 1, recipe.epochs))
    print_text(f"budget: {epochs} of {recipe.epochs} epochs")
    return replace(recipe, epochs=epochs)


def _images(job: PretrainOptions, model: ImageModel) -> Images:
    listed = find_photos(job.photos)
    photos = list(listed.walk())
    if listed.left_out:
        print_text(f"left out: {shown_left_out(listed.left_out)}")
    labeled = _labeled(job, listed.root, any(photo.label for photo in photos))
    held_out = [split for name, split in labeled.items() if name != "train"] if labeled else []
    apart = {os.path.realpath(file) for split in held_out for file in split.files or ()}
    to_train = [listed.root / photo.name for photo in photos if photo.split in (None, "train")]
    files = [file for file in to_train if os.path.realpath(file) not in apart]
    reader = resolve_reader(job.reader)
    checked = checked_files(files, job.max_pixels, reader)
    unreadable = {str(file): reason for file, reason in checked.unreadable}
    files = [file for file in files if str(file) not in unreadable]
    task = Classification(size=max(len(files), 2))
    train = FileSplit("train", task, files, np.arange(len(files)), True, reader=reader)
    sums = train.digests()
    others = [split.digests() for split in held_out if isinstance(split, IndexedSplit)]
    known = np.concatenate([sums[:0], *others])
    first = np.unique(sums, return_index=True)[1]
    chosen = np.sort(first[~np.isin(sums[first], known)])
    copies = len(sums) - len(chosen)
    if copies:
        print_text(f"left out: {counted(copies, 'copy', 'copies')} of other images")
    train = train.take(chosen)
    print_text(f"{counted(len(train), 'image')} to train on, without labels")
    parts: Any = None
    if labeled is not None:
        voters: Any = labeled.train
        scored: Any = without_copies(labeled.val, voters)
        line = counted(len(scored), "image")
        if job.weights != NONE:
            scored, line = without_used(scored, model.seen_images, job.weights, job.photos)
        print_text(f"compared by labeled images that are not trained on: {line}")
        parts = some_of(voters, MOST), some_of(scored, MOST)
        if scored.groups is not None:
            print_text("note: intervals do not know of groups: of few they are too narrow")
    if job.keep == BETTER and (count := len(parts[1]) if parts else 0) < LEAST:
        # After hours of training, nothing would show whether the result is better.
        raise ValueError(
            f"There are {counted(count, 'labeled image')} to compare the weights by, and it takes "
            f"{LEAST}: give labels='labels.csv' of more, a larger val_fraction, or keep='after', "
            "which keeps the trained weights whether they are better or not."
        )
    return Images(train, parts, unreadable, copies)


def _labeled(job: PretrainOptions, root: Path, has_labels: bool) -> Splits | None:
    """Return the images with labels; None where none has one."""
    if job.labels == NONE or (job.labels is None and not has_labels):
        return None
    table = table_arguments(vars(job))
    if job.labels is None and job.photos.is_file():
        table = {"labels": job.photos}  # which has the labels, too
    options = {
        name: getattr(job, name) for name in ("val_fraction", "seed", "max_pixels", "reader")
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReportedWarning)  # those files are reported here
        splits = keras_vit.data.load(root, **table, **options)
    if splits.train.per_pixel or not isinstance(splits.train, FileSplit):
        raise ValueError(
            f"{printable(job.labels or job.photos)} does not have a label per image file: give a "
            "table of such labels, or labels='none' with keep='after'."
        )
    print_text(f"labels: {splits!r}")
    if splits.task_reason:
        print_text(f"task {splits.task.kind}: {splits.task_reason}")
    return splits


def _features(model: ImageModel, images: Images) -> np.ndarray | None:
    """Return the features of the labeled images, those that are scored last."""
    if images.labeled is None:
        return None
    return np.concatenate([features(model, part)[0] for part in images.labeled])


def _compare(
    labeled: tuple[IndexedSplit, IndexedSplit], before: Any, after: Any
) -> FeatureComparison:
    task = labeled[0].task
    targets = np.concatenate([task.to_targets(part.labels()) for part in labeled])
    scored = np.arange(len(labeled[0]), len(targets))
    # Images of one patient, or copies, would be known by each other, which training teaches best.
    groups = units_of(*labeled)
    return compare_features(before, after, targets, task, scored, groups=groups)


def _as_json(comparison: FeatureComparison) -> dict[str, Any]:
    before, after = comparison.before, comparison.after
    scores = {
        name: {
            "before": getattr(before, name)[before.measure].to_list(),
            "after": getattr(after, name)[before.measure].to_list(),
            "difference": getattr(comparison, name).to_list(),
        }
        for name in ("knn", "probe")
    }
    return {"measure": before.measure, "scored": before.examples, **scores}
