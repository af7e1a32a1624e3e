"""`keras-vit choose`: which weights, layer, pooling and image size are worth fine-tuning.

labeled images ──► for each of the weights, sizes and layers: index ──► scores, time, memory
                                                                 └──► table, choice.csv, choice.png
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np

from keras_vit import data, load
from keras_vit._base.errors import counted, listed, printable
from keras_vit._base.output_folder import OutputFolder
from keras_vit.curation import FeatureIndex, index_of, judge_features
from keras_vit.curation.photo_encoder import Encoder
from keras_vit.data import Split
from keras_vit.data.decode.image_files import read_contents
from keras_vit.data.seen_images import SeenImages
from keras_vit.evaluation.unseen_images import seen_images_of, table_arguments, without_used
from keras_vit.models.cost import cost_of
from keras_vit.tasks import Task
from keras_vit.weights.catalog import license_of
from keras_vit_cli.choose.choice_files import (
    PLOT,
    TABLE,
    Choice,
    draw,
    short_names,
    table_of,
    write_table,
)
from keras_vit_cli.model_files import with_decoder
from keras_vit_cli.options.photo_options import ChooseOptions
from keras_vit_cli.options.shared import OF_TABLE
from keras_vit_cli.printing import print_next, print_table, print_text, print_unreadable, words_of
from keras_vit_cli.report.run_plots import save_figure

_ROUNDS = 5  # batches that are timed


@dataclass(frozen=True)
class Labeled:
    """The images to compare on.

    Attributes:
        targets: One per file, as `task.check_targets` takes them.
        task: What they mean.
        source: What is embedded: the whole folder, whose index other calls can use and add to, or
            the files that were drawn.
        groups: The group of each file, such as its patient; None where there are none.
    """

    files: list[str]
    targets: np.ndarray
    task: Task
    source: Path | list[Path]
    groups: np.ndarray | None


def choose(options: ChooseOptions) -> int:
    """Prints and writes the comparison; the exit status is 1 where images cannot be read.

    Raises:
        FileExistsError: `out` has other files, or an earlier comparison without `overwrite`.
        ValueError: The folder does not have labeled images, or a layer, pooling or size does not
            suit a model.
    """
    output = OutputFolder(options.out, "choice", results=(TABLE, PLOT), protected=[options.photos])
    output.check(overwrite=options.overwrite)
    labeled = _labeled_images(options, _check_candidates(options))
    choices: list[Choice] = []
    unreadable: dict[str, str] = {}
    for weights in options.among:
        for encoder in encoders_of(weights, options):
            choice, failed = judge(weights, encoder, labeled, options)
            choices.append(choice)
            unreadable |= failed
            print_text(f"{choice}")
    choices.sort(key=lambda choice: -choice.probe.value)
    print_table(table_of(choices))
    with output.opened(overwrite=options.overwrite) as workspace:
        write_table(workspace / TABLE, choices)
        save_figure(draw(choices), workspace / PLOT)
        output.finish()
        output.publish()
    print_unreadable(unreadable)
    print_text(f"written to {options.out}: {TABLE}, {PLOT}")
    best = choices[0]
    height, width = best.image_size
    size = ("--image-size", height) if height == width else ()  # train takes squares
    print_next(
        "train",
        "--data",
        options.photos,
        *words_of(options, "labels", *OF_TABLE),
        "--weights",
        best.weights,
        *size,
    )
    return 1 if unreadable else 0


def _check_candidates(options: ChooseOptions) -> Mapping[str, SeenImages]:
    """Raises an error for what does not suit a model; returns the records of those with one."""
    pooled, seen = False, {}
    for weights in options.among:
        for encoder in encoders_of(weights, options):
            pooled |= encoder.pooling is not None
        record = seen_images_of(encoder.model, weights)
        if record is not None:
            seen[weights] = record
    if options.poolings is not None and not pooled:
        raise ValueError(
            "--poolings has no effect: every one of --layers has one vector per image. Leave it "
            "out, or give a layer such as block_8."
        )
    return seen


def _labeled_images(options: ChooseOptions, seen: Mapping[str, SeenImages]) -> Labeled:
    """Return the images that `keras-vit train` trains on, or as many of them as are asked for.

    Those that a candidate was made with are left out: its features know them.
    """
    table = table_arguments(vars(options))
    splits = data.load(options.photos, **table, max_pixels=options.max_pixels, verify=False)
    split = splits.train
    if split.per_pixel:
        raise ValueError(
            f"choose compares weights by answers per image, and {split.task.kind} answers every "
            "pixel: give a table as labels, or compare the reports of short runs of train."
        )
    if split.files is None:
        raise ValueError(
            f"{printable(options.photos)} is not a folder of image files: give one, with "
            "CLASS/*.jpg or with --labels."
        )
    if seen:
        of_all, made = reduce(SeenImages.__or__, seen.values()), listed(list(seen))
        split, line = without_used(split, of_all, made, options.photos)
        print_text(f"{printable(made)} on {options.photos}: {line}")
    return labeled_files(split, len(split) < len(splits.train), options)


def labeled_files(split: Split, is_part: bool, options: ChooseOptions) -> Labeled:
    """Return the images of a split, or as many drawn ones as `options.images`; print which.

    `is_part`: The folder may have others, which are not to be embedded.
    """
    task, files = split.task, list(map(Path, split.files or ()))
    targets, groups = task.to_targets(split.labels()), getattr(split, "groups", None)
    source: Path | list[Path] = files if is_part else options.photos
    shown = f"{len(files):,} training images of {options.photos}"
    if len(files) > options.images:
        sample = np.flatnonzero(task.split(targets, options.images / len(files)))
        shown = f"{len(sample):,} of {shown}"
        files, targets = [files[i] for i in sample], targets[sample]
        groups = None if groups is None else groups[sample]
        source = files
    print_text(f"{shown}: {task.kind} of {counted(task.size, task.nouns[0], task.nouns[1])}")
    return Labeled([os.path.abspath(file) for file in files], targets, task, source, groups)


def encoders_of(weights: str, options: ChooseOptions) -> Iterator[Encoder]:
    """Yield the weights up to each layer, for each size of images.

    Raises:
        ValueError: A layer, pooling or size does not suit the model.
    """
    model = with_decoder(load(weights), options.decoder)
    for size in options.sizes or (None,):
        if size is None and None in model.image_size:
            raise ValueError(f"{printable(weights)} takes images of any size: give --sizes.")
        sized = model
        if size is not None and model.image_size != (size, size):
            shape = (size, size, model.channels)
            first = model.data_format == "channels_first"
            sized = model.with_input_shape((model.channels, size, size) if first else shape)
        for layer in options.layers or ("pre_logits",):
            has_tokens = len(sized.feature_model(layer).output_shape) > 2
            for pooling in options.poolings or ("mean",) if has_tokens else (None,):
                yield Encoder(sized, layer, pooling, options.batch_size, options.max_pixels)


def judge(
    weights: str, encoder: Encoder, labeled: Labeled, options: ChooseOptions
) -> tuple[Choice, Mapping[str, str]]:
    """Return what features know and cost, and the images that cannot be read."""
    index = index_of(
        encoder.model,
        labeled.source,
        layer=encoder.layer,
        pooling=encoder.pooling,
        batch_size=options.batch_size,
        max_pixels=options.max_pixels,
    )
    rows, known = _rows_of(index, labeled.files)
    scores = judge_features(
        np.asarray(index.features[rows], np.float32),
        labeled.targets[known],
        labeled.task,
        options.neighbors,
        groups=None if labeled.groups is None else labeled.groups[known],
    )
    cost = cost_of(encoder.model, options.batch_size)
    names = set(labeled.files)
    failed = {
        file: reason
        for file, reason in index.unreadable.items()
        if os.path.join(index.photos, file) in names
    }
    choice = Choice(
        weights,
        short_names(options.among)[weights],
        tuple(index.info["preparation"]["image_size"]),
        encoder.layer,
        encoder.pooling,
        scores,
        _images_per_second(encoder, index),
        cost.parameters,
        cost.training_bytes,
        license_of(weights),
    )
    return choice, failed


def _rows_of(index: FeatureIndex, files: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of files in an index, in its order, and the places of these files."""
    photos = os.path.abspath(index.photos)
    row_of = {os.path.join(photos, *name.split("/")): row for row, name in enumerate(index.files)}
    pairs = sorted((row_of[file], i) for i, file in enumerate(files) if file in row_of)
    if not pairs:
        raise ValueError(
            f"None of the {len(files):,} labeled images is among the {len(index):,} of {photos} "
            "that can be decoded."
        )
    rows, known = np.array(pairs).T
    return rows, known


def _images_per_second(encoder: Encoder, index: FeatureIndex) -> float:
    """Return how many decoded images the model takes, by the fastest of some batches.

    The others are slower because of what else the machine does.
    """
    image = encoder.prepare(read_contents(index.path(0)))
    batch = np.repeat(image[None], encoder.batch_size, axis=0)
    encoder(batch)  # compiles
    seconds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        encoder(batch)
        seconds.append(time.perf_counter() - began)
    return encoder.batch_size / min(seconds)
