"""`keras-vit average`, `combine` and `plan`: one model made of several, and the size of one."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit import load, save_weights
from keras_vit._base.errors import listed
from keras_vit.models import model_cost, named_model
from keras_vit.models.answers import task_of
from keras_vit.models.geometry import DEFAULT_SIZE
from keras_vit.training.averaging import average_weights, model_stock
from keras_vit.weights.folders.combined_folder import save_combined
from keras_vit_cli.model_files import name_of_model
from keras_vit_cli.options.model_options import AverageOptions, CombineOptions, PlanOptions
from keras_vit_cli.printing import print_next, print_text


def average(options: AverageOptions) -> None:
    """Writes the average of the models, perhaps drawn toward their start.

    Raises:
        ValueError: There is one model alone, they have other classes, or `out` is not a .keras
            file.
    """
    models, out = options.models, options.out
    if len(models) < 2:
        raise ValueError(f"An average needs two or more models, and only {models[0]} was given.")
    if out.suffix != ".keras":
        raise ValueError(f"--out {out} must end in .keras, such as {out.with_suffix('.keras')}.")
    tuned = [load(path) for path in models]
    for path, model in zip(models, tuned, strict=True):
        if model.class_names != tuned[0].class_names:
            here, first = (listed(m.class_names or ["unnamed"]) for m in (model, tuned[0]))
            raise ValueError(
                f"{path} has the classes {here}, and {models[0]} {first}: average fine-tunings on "
                "the same classes."
            )
    if options.start is None:
        averaged = average_weights(tuned)
    else:
        origin = load(options.start).with_classifier(tuned[0].num_classes)
        if origin.input_shape != tuned[0].input_shape:
            origin = origin.with_input_shape(tuned[0].input_shape[1:])
        averaged = model_stock(origin, tuned)
    save_weights(averaged, out, overwrite=options.overwrite)
    print_text(f"written to {out}")
    print_next("evaluate", out, "--data", "DATA")


def combine(options: CombineOptions) -> None:
    """Writes the folder of the combined model, and prints its heads.

    Raises:
        ValueError: The runs cannot be combined, or two heads have one name.
        FileExistsError: Something else is at `out`.
    """
    models: list[Any] = [load(path) for path in options.models]
    names = options.names or _names_of_heads(options.models, models)
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
    print_text("\n".join(f"{name}: {model.task.kind_and_size}" for name, model in heads.items()))
    apart = sum(model.count_params() for model in models)
    count = combined.count_params()
    print_text(f"{count:,} parameters, where the models have {apart:,} together")
    print_text(f"written to {options.out}")
    maps = ["--maps", "maps/"] if any(head.task.per_pixel for head in combined.heads) else []
    print_next("predict", options.out, "photos/", "--out", "rows.csv", *maps)


def _names_of_heads(paths: Sequence[Path], models: Sequence[Any]) -> tuple[str, ...]:
    """Return the kinds of the tasks; where two are alike, the names of the runs or files."""
    kinds = [task_of(model).kind for model in models]
    if len({*kinds}) == len(kinds):
        return tuple(kinds)
    words = (re.sub(r"[^A-Za-z0-9_]+", "_", name_of_model(path))[:64] for path in paths)
    return tuple(word if word[:1].isalpha() else f"run_{word}"[:64] for word in words)


def plan(options: PlanOptions) -> None:
    """Prints parameters, operations and memory.

    Raises:
        ValueError: The model is unknown.
    """
    model, batch = options.model, options.batch_size
    size = options.image_size or named_model(model).image_size or DEFAULT_SIZE
    more = {} if options.num_classes is None else {"num_classes": options.num_classes}
    estimate = model_cost(
        model,
        image_size=size,
        precision=options.precision,
        batch_size=batch,
        remat=options.remat,
        **more,
    )
    print_text(f"{model} at {size} px, {options.precision}, batch {batch}")
    print(f"  parameters        {estimate.parameters:>16,}")
    print(f"  GMACs per image   {estimate.macs / 1e9:>16,.2f}")
    print(f"  memory, inference {estimate.inference_bytes / 2**30:>12,.2f} GiB (estimate)")
    print(f"  memory, training  {estimate.training_bytes / 2**30:>12,.2f} GiB (estimate, Adam)")
