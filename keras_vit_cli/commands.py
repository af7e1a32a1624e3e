"""The commands of `keras-vit`; their options are in `arguments.py`."""

import math
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from keras_vit import from_checkpoint, list_weights, save_weights
from keras_vit._base.errors import DataRangeWarning, check_choice, counted, listed, printable
from keras_vit.data import load, plot_augmentations
from keras_vit.evaluation.prediction import predict_files
from keras_vit.export import ExportedModel, export_model, load_exported
from keras_vit.export.comparison import calibration_images, compare
from keras_vit.export.exported import format_of
from keras_vit.models import list_models, model_cost, named_model
from keras_vit.models.geometry import DEFAULT_SIZE
from keras_vit.training import recipes
from keras_vit.training.averaging import average_weights, model_stock
from keras_vit.weights import load_model
from keras_vit.weights.cache import cache_folder
from keras_vit_cli.arguments import parse
from keras_vit_cli.errors import exit_status
from keras_vit_cli.evaluate.tables import own_classes, transfer_rows, vtab_report
from keras_vit_cli.inspect.files import inspect_files
from keras_vit_cli.plan.step_cost import (
    DoesNotFitError,
    StepCost,
    cost_table,
    expected_cost,
    run_cost,
    step_cost,
)
from keras_vit_cli.serve import serve
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.run import train


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status.

    Args:
        arguments: The words after `keras-vit`; None for those of this process.

    Returns:
        0, or 1 when some of the images cannot be read, 2 for an error, which is one line on
        standard error, 130 after Ctrl-C.
    """
    return exit_status(lambda: run(parse(arguments)))


def run(options: dict[str, Any]) -> int:
    """Runs one command, from the options that `parse` returns."""
    commands: dict[str, Callable[..., int | None]] = {
        "train": _train,
        "predict": _predict,
        "evaluate": _evaluate,
        "inspect": _inspect,
        "export": _export,
        "serve": _serve,
        "convert": _convert,
        "average": _average,
        "plan": _plan,
        "augment": _augment,
        "list": _list,
    }
    before, warnings.formatwarning = warnings.formatwarning, _format_warning
    try:
        return commands[options.pop("command")](**options) or 0
    finally:
        warnings.formatwarning = before


_format_any = warnings.formatwarning


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning of the user's data without the place in the code, which says nothing about it."""
    if issubclass(category, DataRangeWarning) or filename == __file__:
        return f"keras-vit: warning: {printable_lines(message)}\n"
    return _format_any(message, category, filename, lineno, line)


def print_text(text: object) -> None:
    """Prints a text of one or more lines, with `printable` names of files and classes."""
    print(printable_lines(text))


def printable_lines(text: object) -> str:
    """A text whose lines are `printable`."""
    return "\n".join(map(printable, str(text).split("\n")))


def _print_next(*words: object) -> None:
    """Prints a command that uses what was written; words in capitals are to be filled in."""
    print_text(f"next: {shlex.join(['keras-vit', *map(str, words)])}")


def _print_next_of_model(model: Any, path: Path) -> None:
    if model.num_classes:
        _print_next("predict", path, "photo.jpg")
    else:  # features alone
        _print_next("evaluate", path, "--data", "DATA", "--probe")


def _train(out: Path | None, data: str, augment: str | None, **options: Any) -> None:
    out = out or Path("runs") / Path(data).resolve().name
    options["augment"] = None if augment is None else (augment,)
    train(Job(data=data, out=out, **options), print_text)


def _load_model(name: str | Path) -> Any:
    if ":" not in str(name) and not Path(name).expanduser().exists():
        raise FileNotFoundError(
            f"There is no model at {name}. Give a .keras or weights file, the folder of a training "
            "run, or MODEL:TAG of released weights, which keras-vit list --weights prints."
        )
    return load_model(name)


def _with_decoder(model: Any, decoder: str | None) -> Any:
    if decoder is not None:
        model.eval_transform = {**model.eval_transform, "decoder": decoder}
    return model


def _with_views(model: Any, views: str | None) -> Any:
    if views is None or (isinstance(model, ExportedModel) and views == "one"):
        return model
    if isinstance(model, ExportedModel):
        raise ValueError(
            f"{model.name} is an exported file, which sees what its model saw: export the model "
            f'with model.eval_transform["views"] = "{views}", or leave --views out.'
        )
    model.eval_transform = {**model.eval_transform, "views": views}
    return model


def _predict(
    model: Path,
    files: list[Path],
    top: int,
    max_pixels: int,
    decoder: str | None,
    views: str | None,
) -> int:
    table = Table("image", "class", "probability")
    failed = 0
    classifier = _with_views(_with_decoder(_load_classifier(model), decoder), views)
    for file, classes in predict_files(classifier, files, top, max_pixels=max_pixels):
        name = Text(printable(file))  # plain strings would be markup
        if isinstance(classes, str):
            failed += 1
            table.add_row(name, Text(printable(f"cannot be read: {classes}")), "", style="red")
            table.add_section()
            continue
        for i, (class_name, probability) in enumerate(classes):
            if not math.isfinite(probability):
                raise ValueError(
                    f"The model in {model} predicts {probability} for {file}: its weights are "
                    "damaged, or its training diverged. Train it again, or take another file."
                )
            shown_name = name if i == 0 else ""
            table.add_row(shown_name, Text(printable(class_name)), f"{probability:.2%}")
        table.add_section()
    Console().print(table)
    return 1 if failed else 0


def _evaluate(
    model: str,
    data: str | None,
    data_dir: str | None,
    max_pixels: int,
    decoder: str | None,
    views: str | None,
    split: str,
    batch_size: int,
    probe: bool,
    knn: int | None,
    fewshot: list[int] | None,
    seeds: int,
    cache_dir: Path | None,
    vtab: bool,
    out: Path | None,
    **sweep: Any,
) -> int:
    if vtab:
        assert out is not None  # `parse` has seen to it
        report = vtab_report(_load_model(model), out, data_dir, batch_size, **sweep)
        print_text(report)
        return 1 if report.missing else 0
    assert data is not None  # `parse` has seen to it
    classifier = _with_views(_with_decoder(_load_classifier(Path(model)), decoder), views)
    on_features = probe or knn is not None or fewshot is not None
    if on_features and isinstance(classifier, ExportedModel):
        raise ValueError(
            f"{classifier.name} is an exported file, which returns classes alone: give the model "
            "it was made from for --probe, --knn and --fewshot."
        )
    splits = load(data, data_dir=data_dir, max_pixels=max_pixels)
    check_choice(split, "split", splits)
    print_text(f"{classifier.name} on {splits!r}")
    if not on_features:
        print_text(own_classes(classifier, splits[split], batch_size))
        return 0
    table = Table("on frozen features", "accuracy", "")
    for row in transfer_rows(
        classifier,
        splits,
        test=split,
        shots=fewshot,
        num_neighbours=knn,
        probe=probe,
        seeds=range(seeds),
        cache_dir=cache_dir or cache_folder() / "features",
        batch_size=batch_size,
    ):
        table.add_row(*row)
    Console().print(table)
    return 0


def _inspect(model: Path, files: list[Path], out: Path, **options: Any) -> int:
    # Every run calls its file "model"; its folder has a name of its own.
    # The links of the hub's cache are not followed: they lead to files called by their sums.
    stem = model.name.partition(".")[0]
    title = Path(os.path.abspath(model)).parent.name if stem == "model" else model.stem
    failed = inspect_files(_load_model(model), files, out, title=title, **options)
    for file, reason in failed.items():
        print(f"keras-vit: {printable(f'{file} cannot be read: {reason}')}", file=sys.stderr)
    page = out / "index.html"
    print_text(f"written to {page}\nnext: open {shlex.quote(str(page))} in a browser")
    return 1 if failed else 0


def _export(model: Path, out: Path, data: str | None, data_dir: str | None, **options: Any) -> None:
    classifier = _load_model(model)
    splits = None if data is None else load(data, data_dir=data_dir)
    if splits and options["quantize"]:
        options["calibration"] = calibration_images(classifier, splits.train)
    export_model(classifier, out, **options)
    print_text(f"written to {out}")
    if splits:
        print_text(compare(classifier, load_exported(out), splits.val))
    # Exported features, and models of other channels, are for the program that reads them.
    if classifier.num_classes and classifier.channels in (1, 3):
        _print_next("predict", out, "photo.jpg")


def _load_classifier(path: Path) -> Any:
    """A model, or a file that `keras-vit export` wrote."""
    return load_exported(path) if format_of(path) else _load_model(path)


def _serve(model: Path, **options: Any) -> None:
    serve(model, report=_print_now, **options)


def _print_now(text: str) -> None:
    """Prints a line at once: a server's output is often a file or a pipe."""
    print_text(text)
    sys.stdout.flush()


def _convert(source: str, target: Path, layout: str | None, overwrite: bool) -> None:
    model = from_checkpoint(source)
    print_text(model.load_report)
    save_weights(model, target, layout, overwrite=overwrite)
    print_text(f"written to {target}")
    _print_next_of_model(model, target)


def _average(models: list[Path], start: str | None, out: Path, overwrite: bool) -> None:
    if len(models) < 2:
        raise ValueError(f"An average needs two or more models, and only {models[0]} was given.")
    if out.suffix != ".keras":
        raise ValueError(f"--out {out} must end in .keras, such as {out.with_suffix('.keras')}.")
    tuned = [_load_model(path) for path in models]
    for path, model in zip(models, tuned, strict=True):
        if model.class_names != tuned[0].class_names:
            here, first = (listed(m.class_names or ["unnamed"]) for m in (model, tuned[0]))
            raise ValueError(
                f"{path} has the classes {here}, and {models[0]} {first}: average fine-tunings on "
                "the same classes."
            )
    if start is None:
        average = average_weights(tuned)
    else:
        origin = _load_model(start).with_classifier(tuned[0].num_classes)
        if origin.input_shape != tuned[0].input_shape:
            origin = origin.with_input_shape(tuned[0].input_shape[1:])
        average = model_stock(origin, tuned)
    save_weights(average, out, overwrite=overwrite)
    print_text(f"written to {out}")
    _print_next("evaluate", out, "--data", "DATA")


def _plan(
    model: str,
    compile: str | None,
    distribution: str,
    training_images: int | None,
    epochs: int,
    **options: Any,
) -> None:
    if training_images is not None and compile is None:
        raise ValueError("--training-images needs chips: name them, as --compile v5e:4x4.")
    options = {name: value for name, value in options.items() if value is not None}
    options.setdefault("image_size", named_model(model).image_size or DEFAULT_SIZE)
    estimate = model_cost(model, **options)
    batch = options["batch_size"]
    print_text(f"{model} at {options['image_size']} px, {options['precision']}, batch {batch}")
    print(f"  parameters        {estimate.parameters:>16,}")
    print(f"  GMACs per image   {estimate.macs / 1e9:>16,.2f}")
    print(f"  memory, inference {estimate.inference_bytes / 2**30:>12,.2f} GiB (estimate)")
    print(f"  memory, training  {estimate.training_bytes / 2**30:>12,.2f} GiB (estimate, Adam)")
    if compile is not None:
        costs = _plan_step(model, compile, distribution, **options)
        if training_images is not None:
            print(run_cost(costs, training_images, epochs, batch))


def _plan_step(
    model: str, tpu: str, distribution: str, image_size: int, **options: Any
) -> dict[str, StepCost]:
    """A training step on a TPU by its compiler, where it is installed, beside the arithmetic."""
    expected = expected_cost(model, distribution, tpu, image_size=image_size, **options)
    costs, notes = {"by arithmetic": expected}, []
    if distribution == "fsdp" and (expected.held or 0) > 2 / expected.devices:
        notes.append(
            f"Each chip holds {expected.held:.1%} of the weights, as {expected.devices} divides no "
            "axis of the others: a number of chips that divides the model's width cuts all of them."
        )
    shape = (image_size, image_size, 3)
    try:
        compiled = step_cost(model, distribution, tpu, input_shape=shape, **options)
        costs = {"compiled": compiled, **costs}
        if compiled.loops:
            notes.append(
                f"The program has {counted(compiled.loops, 'loop')}, and XLA counts one turn of "
                "each: operations, memory traffic and collectives are at least these."
            )
    except (ImportError, DoesNotFitError) as error:
        notes.append(f"Not compiled: {error}")
    chips = counted(expected.devices, "chip")
    print(f"\na training step on {tpu}, {distribution}: each of {chips}")
    print_text(cost_table(costs))
    for note in notes:
        print_text(note)
    return costs


def _augment(
    data: str,
    data_dir: str | None,
    max_pixels: int,
    images: int,
    recipe: str,
    image_size: int | None,
    augment: str | None,
    out: Path,
    **options: Any,
) -> None:
    chosen = recipes.get(recipe)
    splits = load(data, data_dir=data_dir, verify=False, max_pixels=max_pixels)
    out.parent.mkdir(parents=True, exist_ok=True)
    plot_augmentations(
        splits.train,
        out,
        image_size or chosen.image_size,
        augment=augment or chosen.augment,
        channels=1 if data.startswith("digits") else 3,
        images=images,
        **options,
    )
    print_text(f"written to {out}")
    same = [] if data_dir is None else ["--data-dir", data_dir]
    same += [] if augment is None else ["--augment", augment]
    _print_next("train", "--data", data, "--recipe", recipe, *same)


def _list(pattern: str, weights: bool) -> None:
    if weights:
        rows = list_weights(pattern)
        if not rows:
            models = dict.fromkeys(row.model for row in list_weights())
            raise ValueError(
                f"No released weights match {pattern!r}. Give a model, a tag, a part of one, or a "
                f"shell pattern such as 'ViT-B*'. Models: {', '.join(models)}."
            )
        print_text(rows)
        return
    names = list_models(pattern)
    if not names:
        raise ValueError(f"No model matches {pattern!r}. Known: {', '.join(list_models())}.")
    table = Table("model", "parameters", "GMACs", caption="at 224 px, 1000 classes")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in names:
        estimate = model_cost(name)
        table.add_row(name, f"{estimate.parameters:,}", f"{estimate.macs / 1e9:.2f}")
    Console().print(table)
