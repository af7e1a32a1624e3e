"""`keras-vit combine`: one model with the heads of several runs on one encoder."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_vit import load
from keras_vit._base.errors import listed
from keras_vit.models.answers import task_of
from keras_vit.weights.folders.combined_folder import save_combined
from keras_vit_cli.options.model_options import CombineOptions
from keras_vit_cli.printing import print_next, print_text


def combine(options: CombineOptions) -> None:
    """Writes the folder of the combined model, and prints its heads.

    Raises:
        ValueError: The runs cannot be combined, or two heads have one name.
        FileExistsError: Something else is at `out`.
    """
    models = [load(path) for path in options.models]
    names = options.names or _names(options.models, models)
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"More than one head would be called {listed(repeated)}: give a name for each, such as "
            f"--names {' '.join(f'head{i}' for i in range(1, len(names) + 1))}."
        )
    heads = dict(zip(names, models, strict=True))
    combined = save_combined(
        heads,
        options.out,
        eval_transform=options.eval_transform,
        overwrite=options.overwrite,
    )
    print_text(f"{_parameters(combined.count_params(), heads)}\nwritten to {options.out}")
    maps = ["--maps", "maps/"] if any(head.task.per_pixel for head in combined.heads) else []
    print_next("predict", options.out, "photos/", "--out", "rows.csv", *maps)


def _names(paths: Sequence[Path], models: Sequence[Any]) -> tuple[str, ...]:
    """Return the kinds of the tasks; where two are alike, the names of the runs or files."""
    kinds = [task_of(model).kind for model in models]
    if len({*kinds}) == len(kinds):
        return tuple(kinds)
    places = [Path(os.path.abspath(path)) for path in paths]
    stems = [place.parent.name if place.stem == "model" else place.stem for place in places]
    words = (re.sub(r"[^A-Za-z0-9_]+", "_", stem)[:64] for stem in stems)
    return tuple(word if word[:1].isalpha() else f"run_{word}"[:64] for word in words)


def _parameters(count: int, heads: Mapping[str, Any]) -> str:
    apart = sum(model.count_params() for model in heads.values())
    lines = [f"{name}: {model.task.kind_and_size}" for name, model in heads.items()]
    return "\n".join([*lines, f"{count:,} parameters, where the models have {apart:,} together"])
