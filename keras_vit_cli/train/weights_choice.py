"""`keras-vit train --weights auto`: the weights whose frozen features know most of the labels.

training images ──► for each of the local weights: index ──► k-NN and ridge, as keras-vit choose
                                                             └──► the smallest of the best
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import data, list_weights
from keras_vit._base.errors import counted, printable
from keras_vit._base.files import cache_folder, write_text
from keras_vit.evaluation.unseen_images import seen_images_of, without_used
from keras_vit.ops import process_count
from keras_vit.weights.containers.checkpoint_file import OPENERS, file_in_folder, holds_weights
from keras_vit.weights.loading import stored_side
from keras_vit_cli.choose.choice_files import Choice, table_of
from keras_vit_cli.choose.choose_command import Labeled, encoders_of, judge, labeled_files
from keras_vit_cli.options.photo_options import ChooseOptions
from keras_vit_cli.printing import print_table
from keras_vit_cli.train.job import CHOSEN, Job

AUTO = "auto"
MOST_IMAGES = 2000  # that weights are compared on
MOST_SECONDS = 1200.0  # after which no further weights are begun
_SUFFIXES = (".keras", *OPENERS)
_DEPTH = 2  # of folders in folders that are looked into
_INTERVAL = 2 * 1.96  # standard errors in a 95 % interval


def is_auto(weights: str | None) -> bool:
    """Return whether weights are to be chosen."""
    return weights == AUTO or (weights or "").startswith(f"{AUTO}:")


def choose_weights(
    job: Job, splits: data.Splits, image_size: int, folder: Path, print_fn: Callable[[str], None]
) -> tuple[str, dict[str, Any]]:
    """Return the chosen weights, and the table for the report; a run that is resumed has both.

    Raises:
        FileNotFoundError: There are no weights on this machine.
        ValueError: The images or labels cannot be compared so, or none of the weights can be read.
    """
    if (file := folder / CHOSEN).is_file():
        facts: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return facts["chosen"], facts
    _check(job, splits)
    assert job.weights is not None
    place = job.weights.partition(":")[2]
    among = tuple(local_weights(Path(place) if place else None))
    options = ChooseOptions(
        photos=Path(job.data),
        among=among,
        images=MOST_IMAGES,
        max_pixels=job.max_pixels,
        out=job.out,
    )
    names = counted(len(among), "file or folder of weights", "files and folders of weights")
    print_fn(f"weights auto: {names} on this machine, the smallest first")
    # Whether the folder has other images than these, nobody knows here.
    labeled = labeled_files(splits.train, True, options)
    choices, left_out, began = [], {}, time.monotonic()
    for number, weights in enumerate(among, 1):
        try:
            if time.monotonic() - began > MOST_SECONDS:
                raise ValueError(f"not compared, as {MOST_SECONDS:.0f} seconds were over")
            side = job.image_size or stored_side(weights) or image_size
            choices.append(
                _compare(weights, labeled, splits.train, replace(options, sizes=(side,)))
            )
            line = str(choices[-1])
        except (OSError, ValueError) as error:  # of something else, or of images it has seen
            left_out[weights] = " ".join(str(error).split())
            line = f"{weights} left out: {left_out[weights]}"
        print_fn(f"{number} of {len(among)}, {time.monotonic() - began:.0f} s: {line}")
    if not choices:
        raise ValueError(
            f"--weights {printable(job.weights)}: none of {names} can be used. The first: "
            f"{printable(next(iter(left_out.values())))} Give --weights MODEL:TAG, or a file."
        )
    choices.sort(key=lambda choice: -choice.probe.value)
    print_table(table_of(choices))
    chosen = best_within_error(choices)
    reason = "the best linear probe"
    if chosen.probe.value < choices[0].probe.value:
        reason = f"the smallest within one standard error of the best probe, {choices[0].name}'s"
    print_fn(f"weights {chosen.weights}: {reason}")
    facts = {
        **{"chosen": chosen.weights, "reason": reason, "left_out": left_out},
        **{"measure": chosen.scores.measure, "images": chosen.scores.examples},
        "compared": [
            {
                **{"weights": each.weights, "parameters": each.parameters},
                **{"knn": each.knn.value, "images_per_second": round(each.images_per_second, 1)},
                **dict(zip(("probe", "low", "high"), each.probe.to_list(), strict=True)),
            }
            for each in choices
        ],
    }
    write_text(file, json.dumps(facts))
    return chosen.weights, facts


def best_within_error(choices: Sequence[Choice]) -> Choice:
    """Return the smallest model whose probe is within one standard error of the best one's."""
    best = max(choices, key=lambda choice: choice.probe.value).probe
    error = (best.high - best.low) / _INTERVAL
    least = best.value - (error if np.isfinite(error) else 0)  # unknown where nothing is a mistake
    near = [choice for choice in choices if choice.probe.value >= least]
    return min(near, key=lambda choice: (choice.parameters, -choice.probe.value))


def _check(job: Job, splits: data.Splits) -> None:
    train = splits.train
    reasons = {
        "give the weights, or leave --model out": job.model is not None,
        "it compares images in files, and these are records or arrays": train.files is None,
        "it compares photographs, and these are read by --bands": train.bands is not None,
        "it compares one answer per image, and these labels are masks": splits.task.per_pixel,
        "it compares in one process, and there are several": process_count() > 1,
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise ValueError(
                f"--weights {job.weights}: {reason}. Give --weights FILE or MODEL:TAG."
            )


def _compare(weights: str, labeled: Labeled, train: data.Split, options: ChooseOptions) -> Choice:
    (encoder,) = encoders_of(weights, options)
    seen = seen_images_of(encoder.model, weights)
    if seen is not None:
        unseen, line = without_used(train, seen, weights, options.photos)
        if len(unseen) < len(train) or not seen.is_listed:
            raise ValueError(f"it was made with images like these ({line}), so that it knows them")
    return judge(weights, encoder, labeled, options)[0]


def local_weights(folder: Path | None = None) -> dict[str, int]:
    """Return what `keras_vit.load` takes, with the bytes of its file, the smallest first.

    Whether it can be read, nobody knows before it is loaded. Nothing is downloaded.

    With a folder these are the files and folders of models in it alone; else what this package has
    downloaded, and the repositories in the hub's cache (`HF_HUB_CACHE`, `HF_HOME`).

    Raises:
        FileNotFoundError: There are none; the message names the folders.
    """
    if folder is not None:
        paths = list(_in_folder(folder.expanduser())) if folder.expanduser().is_dir() else []
        sizes = {str(path): _bytes(path) for path in paths}
        places = [folder]
    else:
        home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
        hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
        places = [cache_folder(), hub]
        rows = {cache_folder() / row.file_name: row.name for row in list_weights()}
        sizes = {name: path.stat().st_size for path, name in rows.items() if path.is_file()}
        repositories = [path for path in sorted(hub.glob("models--*")) if holds_weights(path)]
        sizes |= {str(path): _bytes(path) for path in repositories}
    if not sizes:
        where = " and ".join(printable(place) for place in places)
        raise FileNotFoundError(
            f"--weights auto chooses among weights on this machine, and there are none in {where}: "
            "give --weights MODEL:TAG, which is downloaded, or --weights auto:FOLDER, a folder "
            "with files or folders of models."
        )
    return dict(sorted(sizes.items(), key=lambda item: item[1]))


def _in_folder(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    if holds_weights(folder):
        yield folder
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and depth:
            yield from _in_folder(path, depth - 1)
        elif path.is_file() and path.suffix in _SUFFIXES:
            yield path


def _bytes(path: Path) -> int:
    try:
        return (file_in_folder(path) if path.is_dir() else path).stat().st_size
    except OSError:  # a link to nowhere: loading it gives the reason
        return 0
