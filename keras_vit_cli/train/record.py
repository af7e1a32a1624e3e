"""The records of a run: how it was started, of which images, how, and what it reached."""

import csv
import io
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit._base.files import write_bytes, write_text
from keras_vit._base.manifest import read_manifest
from keras_vit._base.output_folder import OutputFolder
from keras_vit._base.spreadsheet import as_text_cell
from keras_vit.data import Splits
from keras_vit.data.seen_images import SeenImages
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation import Report
from keras_vit.evaluation.unseen_images import COLUMNS
from keras_vit.training.probe_choice import PROBE
from keras_vit.training.recipes import Recipe
from keras_vit.training.run_identity import RunMismatchError, differences
from keras_vit_cli.model_files import sum_of_files
from keras_vit_cli.options.shared import PLACES
from keras_vit_cli.train.job import Job

# By which a probe and a trained model are compared: higher is better; the first that there is.
MAIN_SCORES = ("mean_average_precision", "quadratic_kappa", "r2", "accuracy")


def begin(job: Any, folder: Path, print_fn: Callable[[str], None]) -> None:
    """Records the options of a new run, or compares them with those of the run to resume.

    Checkpoints have them, too, but the first one comes after a while.
    """
    path = folder / "config.json"
    if not path.is_file():
        is_ours = sys.argv[1:2] in (["train"], ["pretrain"])  # not an example's
        command = shlex.join(["keras-vit", *sys.argv[1:]] if is_ours else ["python", *sys.argv])
        config = {"command": command, "job": asdict(job), "identity": _identity(job)}
        write_text(path, json.dumps(config, indent=2, default=str))
        return
    _check_options(job, folder)
    if not any([*folder.glob("checkpoints/*"), *folder.glob("report.json")]):
        print_fn("there is no checkpoint yet: the run starts from its first step")


def is_finished(job: Any, output: OutputFolder, print_fn: Callable[[str], None]) -> bool:
    """Return whether nothing is left to resume of a run, which is printed then."""
    manifest = read_manifest(output.place)
    is_ours = manifest is not None and manifest.kind == output.kind
    if not (job.resume and is_ours) or output.workspace.exists():
        return False
    _check_options(job, output.place)
    print_fn(f"{job.out} is finished: there is nothing to resume.")
    return True


def _check_options(job: Any, folder: Path) -> None:
    """Raise a RunMismatchError where the run in a folder was started with other options.

    A path may be written otherwise, or lead to where the files were moved: `fit` compares images.
    """
    stored = json.loads((folder / "config.json").read_text("utf-8"))["identity"]
    current = _identity(job)
    for name in PLACES:
        before, now = (each.get(name, "") for each in (stored, current))
        if os.path.isabs(before) and os.path.exists(now) and not _are_two(before, now):
            stored[name] = now
    mismatches = list(differences(stored, current))
    if mismatches:
        is_place = any(stored.get(name) != current.get(name) for name in PLACES)
        hint = " Moved files go on where none are left at the former path." if is_place else ""
        raise RunMismatchError(
            f"The run of {job.out} was started with other options: {'; '.join(mismatches[:3])}. "
            f"Give the same options with --resume, or --overwrite.{hint}"
        )


def _are_two(before: str, now: str) -> bool:
    """Return whether a former path is still there, and leads elsewhere."""
    return os.path.exists(before) and not os.path.samefile(before, now)


def _identity(job: Any) -> dict[str, str]:
    """Return the options that must agree, where files lie, and what that of `--weights` holds."""
    named = {name: str(getattr(job, name)) for name in PLACES if hasattr(job, name)}
    named |= {name: os.path.abspath(p) for name, p in named.items() if os.path.exists(p)}
    file = Path(str(job.weights))
    file = file / "model.keras" if (file / "model.keras").is_file() else file
    sums = {"what --weights holds": sum_of_files(file)[:12]} if file.exists() else {}
    return job.identity | named | sums


def config_of(job: Job, recipe: Recipe, model: Any, folder: Path) -> dict[str, Any]:
    """Return how the model was made, for `config.json` and the page of the report."""
    started = json.loads((folder / "config.json").read_text("utf-8"))
    return {
        "command": started["command"],  # of the first process, if it was resumed
        "job": asdict(replace(job, resume=False)),
        "identity": started["identity"],  # with `--weights auto` as it was given
        "recipe": asdict(recipe),
        "model": keras.saving.serialize_keras_object(model)["config"],
        "versions": {
            "keras_vit": keras_vit.__version__,
            "keras": keras.__version__,
            "backend": keras.backend.backend(),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def stored_report(folder: Path) -> tuple[Report, dict[str, Any]]:
    """Return the report of a finished run, and all facts of its `report.json`."""
    facts = json.loads((folder / "report.json").read_text("utf-8"))
    return Report.from_dict(facts["report"]), facts


def note_of_probe(report: Report, facts: dict[str, Any], job: Job) -> str:
    """Return a note if the model is worse than a linear probe on the weights it started from."""
    probe, choice = facts.get("probe_scores"), facts.get("choice", {})
    if probe is None or job.freeze_backbone or choice.get("selected") == PROBE:
        return ""
    name = next(name for name in MAIN_SCORES if name in report.scores)
    reached = report.scores[name].value
    if not reached < probe.get(name, -math.inf):
        return ""
    return (
        f"note: a linear probe on the frozen features has {name} {probe[name]:.4g} on the "
        f"validation images, and the trained model {reached:.4g}: try --freeze-backbone, or a "
        "lower --learning-rate"
    )


def write_images(file: Path, splits: Splits, seen: SeenImages) -> None:
    """Write a table of a run's images: the place of each in its data, its digest, its use."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name in ("train", "val"):  # others are not used
        split = splits[name]
        if not isinstance(split, IndexedSplit):
            continue
        images = [f"{name}/{place}" for place in range(len(split))]
        if split.files is not None:
            images = [os.path.relpath(path, splits.source) for path in split.files]
        digests, images = split.digests(), list(map(as_text_cell, images))
        writer.writerows(zip(images, np.char.decode(digests), seen.uses(digests), strict=True))
    # A file name may hold bytes that are not UTF-8.
    write_bytes(file, text.getvalue().encode("utf-8", "surrogateescape"))
