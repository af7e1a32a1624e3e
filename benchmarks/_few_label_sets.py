"""Images unlike photographs, of classes, from packages that ship them: for `few_labels`."""

import argparse
from pathlib import Path

import numpy as np

from benchmarks import dense, pretraining
from keras_vit import data
from keras_vit.data.sources.array_splits import ArraySplit

SIDE, TRAINED_ON, TESTED_ON = 16, 100, 150  # pixels of a crop; crops per class


def textures(options: argparse.Namespace) -> data.Splits:
    """Handwritten digits on faint pieces of photographs, 400 of them to test on."""
    digits = pretraining.digits(0.3)
    order = np.random.default_rng(0).permutation(len(digits))
    splits = {"train": digits.take(order[400:]), "val": digits.take(order[:400])}
    return data.Splits("textures", digits.class_names, splits)


def tissue(options: argparse.Namespace) -> data.Splits:
    """The tissue in the middle of a piece of a brain's slice; tested on slices further up."""
    return crops("tissue", dense.brain(0, folder_of(options)))


def nuclei(options: argparse.Namespace) -> data.Splits:
    """Whether the middle of a piece is in a cell's nucleus; tested on another quarter."""
    return crops("nuclei", dense.nuclei(0, folder_of(options)))


SETS = {"textures": textures, "tissue": tissue, "nuclei": nuclei}


def folder_of(options: argparse.Namespace) -> Path:
    if options.images is None:
        raise SystemExit(f"--data {options.data} needs --images: see python -m benchmarks dense -h")
    return Path(options.images)


def crops(name: str, splits: tuple[ArraySplit, ArraySplit]) -> data.Splits:
    """Return pieces whose class is that of the pixel in the middle, as many of each class."""
    names = splits[0].class_names
    random, found = np.random.default_rng(0), {}
    for split, kind, number in zip(splits, ("train", "val"), (TRAINED_ON, TESTED_ON), strict=True):
        images, masks = split.as_arrays()
        half = SIDE // 2
        inner = masks[:, half:-half, half:-half]
        seen = images.mean(axis=-1)[:, half:-half, half:-half] > 0  # not outside of the head
        pieces, labels = [], []
        for label in range(len(names)):
            places = np.argwhere((inner == label) & seen)
            for n, y, x in places[random.choice(len(places), number, replace=False)]:
                pieces.append(images[n, y : y + SIDE, x : x + SIDE])
                labels.append(label)
        found[kind] = ArraySplit(kind, names, np.stack(pieces), np.array(labels))
    return data.Splits(name, names, found)
