"""Answers to every pixel as files, of each image at its size."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.files import atomic_write
from keras_vit.data.decode.image_files import read_contents
from keras_vit.data.decode.pillow import displayed_size
from keras_vit.evaluation.answer_row import as_parts, is_finite
from keras_vit.tasks import Task


def check_maps(folder: Path, tasks: Mapping[str, Task], resume: bool = False) -> None:
    """Raise an error, before any work, where these files cannot be written to a folder.

    With `resume`, those of an earlier run may be there.

    Raises:
        FileExistsError: Something is there.
        ValueError: The task does not answer pixels.
    """
    if not any(task.per_pixel for task in tasks.values()):
        kinds = " and ".join(task.kind for task in tasks.values())
        raise ValueError(
            f"--maps writes the answers to every pixel, and the model's task is {kinds}: leave "
            "--maps out."
        )
    if folder.exists() and not (folder.is_dir() and (resume or not any(folder.iterdir()))):
        raise FileExistsError(f"{printable(folder)} is not an empty folder. Give another --maps.")


def write_maps(
    folder: Path,
    tasks: Mapping[str, Task],
    answers: Sequence[tuple[Path, Any]],
    resume: bool = False,
) -> None:
    """Write the answers of a batch, each under the path of its image as it was given.

    Where several heads answer every pixel, each has a folder of its name. With `resume`, a map that
    is there already, with the same bytes, is one that a killed run had written before its row.

    Raises:
        FileExistsError: Two images have one name, but for the suffix.
    """
    maps = [(i, name) for i, (name, task) in enumerate(tasks.items()) if task.per_pixel]
    for i, name in maps:
        place = folder / name if len(maps) > 1 else folder
        of_head = [(file, a if isinstance(a, str) else as_parts(a)[i]) for file, a in answers]
        _write_maps(place, tasks[name], of_head, resume)


def _write_maps(
    folder: Path, task: Task, answers: Sequence[tuple[Path, np.ndarray | str]], resume: bool
) -> None:
    for path, answer in answers:
        if isinstance(answer, str) or not is_finite(answer):
            continue
        inside = [part for part in path.parts if part not in (path.anchor, "..", ".")]
        file = folder.joinpath(*inside)
        file.parent.mkdir(parents=True, exist_ok=True)
        size = displayed_size(read_contents(path), None)
        for suffix, contents in task.answer_files(answer, size).items():
            place = file.with_suffix(suffix)
            if os.path.lexists(place):
                if resume and place.is_file() and place.read_bytes() == contents:
                    continue
                earlier = "; or, where a stopped run had written it, delete it" if resume else ""
                raise FileExistsError(
                    f"The map of {printable(path)} would be that of another image, "
                    f"{printable(place)}, which is called so, too, but for its suffix: give the "
                    f"two in two calls, with another --maps{earlier}."
                )
            with atomic_write(place, new=True) as temporary:
                temporary.write_bytes(contents)
