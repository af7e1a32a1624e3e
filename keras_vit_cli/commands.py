"""The commands of `keras-vit`: from the options of each to the call that it is."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from keras_vit import data, list_weights, load, save_weights
from keras_vit.evaluation.unseen_images import table_arguments
from keras_vit.exporting import check, export, export_smallest, load_exported, prove_folder
from keras_vit.exporting.comparison import calibration_images, compare
from keras_vit.exporting.format_table import FOLDERS, check_format
from keras_vit.exporting.formats import check_target, format_of_path
from keras_vit.exporting.peer_folder import PROVEN
from keras_vit.exporting.triton_config import check_place, write_config
from keras_vit.models import list_models, model_cost
from keras_vit.models.answers import task_of
from keras_vit.training import recipes
from keras_vit.training.fitting import augmentation_of
from keras_vit.weights.folders.combined_folder import is_combined, load_combined
from keras_vit_cli.audit.audit_command import audit
from keras_vit_cli.calibrate_command import calibrate
from keras_vit_cli.choose.choose_command import choose
from keras_vit_cli.compare.compare_command import compare as compare_models
from keras_vit_cli.embed_command import embed
from keras_vit_cli.evaluate_command import evaluate
from keras_vit_cli.exit_status import ended_by_sigterm, exit_status
from keras_vit_cli.inspect.inspect_files import inspect_files
from keras_vit_cli.label.label_command import label
from keras_vit_cli.library_words import in_options
from keras_vit_cli.model_commands import average, combine, plan
from keras_vit_cli.model_files import (
    name_of_model,
    scored_images,
    warn_of_other_images,
    with_decoder,
)
from keras_vit_cli.options import COMMANDS
from keras_vit_cli.options.augment import AugmentOptions
from keras_vit_cli.options.inspect import InspectOptions
from keras_vit_cli.options.model_options import (
    CheckOptions,
    ConvertOptions,
    ExportOptions,
    ListOptions,
)
from keras_vit_cli.options.shared import OF_TABLE
from keras_vit_cli.options.train import TrainOptions
from keras_vit_cli.predict.predict_command import predict
from keras_vit_cli.pretrain.pretrain_command import pretrain
from keras_vit_cli.printing import (
    print_next,
    print_table,
    print_text,
    print_unreadable,
    short_warnings,
    words_of,
)
from keras_vit_cli.report.page_card import card_of_run
from keras_vit_cli.search.search_command import cluster, search
from keras_vit_cli.serve.server import serve
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.job_recipe import is_for_weights
from keras_vit_cli.train.run import train


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status.

    Returns:
        0, or 1 when some of the images do not get an answer, or a file that is checked differs from
        its model, 2 for an error, which is a message on standard error, 130 after Ctrl-C, 141 where
        nobody reads the output any more. SIGTERM ends the process with 143.
    """
    return exit_status(run, arguments)


def run(options: dict[str, Any]) -> int:
    """Runs one command, from the options that `parse` returns."""
    commands: dict[str, Callable[[Any], int | None]] = {
        "train": _train,
        "pretrain": pretrain,
        "calibrate": calibrate,
        "predict": predict,
        "evaluate": evaluate,
        "compare": compare_models,
        "inspect": _inspect,
        "embed": embed,
        "search": search,
        "cluster": cluster,
        "choose": choose,
        "audit": audit,
        "label": label,
        "export": _export,
        "check": _check,
        "serve": lambda options: serve(options, print_text),
        "convert": _convert,
        "average": average,
        "combine": combine,
        "plan": plan,
        "augment": _augment,
        "list": _list,
    }
    name = options.pop("command")
    # The server ends by itself, and what a run leaves is removed when it is resumed.
    ends_at_once = name in ("serve", "train", "pretrain")
    with short_warnings(name), nullcontext() if ends_at_once else ended_by_sigterm():
        return commands[name](COMMANDS[name].options(**options)) or 0


def _train(options: TrainOptions) -> None:
    out = options.out or Path("runs") / Path(options.data).resolve().name
    train(Job(**{**vars(options), "out": out}), print_text)


def _inspect(options: InspectOptions) -> int:
    failed = inspect_files(load(options.model), options, name_of_model(options.model))
    print_unreadable(failed)
    page = options.out / "index.html"
    print_text(f"written to {page}\nnext: open {shlex.quote(str(page))} in a browser")
    return 1 if failed else 0


def _export(options: ExportOptions) -> None:
    format = format_of_path(options.out, options.format)
    is_auto = options.quantize == "auto"
    # Names missing packages before any work.
    row = check_format(format, "int8" if is_auto else options.quantize).at(options.out)
    if options.data is not None or is_auto:
        row.require_system(options.out)
    check_target(options.out, row, options.overwrite)
    if options.triton:
        check_place(options.out)
    is_several, out = is_combined(options.model), options.out
    model: Any = load_combined(options.model) if is_several else load(options.model)
    if model.is_calibrated:
        warn_of_other_images(model, options.decoder, "one" if options.debug else None)
    model = with_decoder(model, options.decoder)
    if options.debug and not is_several and model.eval_transform.views not in (None, "one"):
        model.eval_transform = replace(model.eval_transform, views="one")  # as most runs are not
        print_text("note: features are of one view of an image, and so are this file's answers")
    names = ["format", "runtime", "debug", "overwrite", *([] if is_auto else ["quantize"])]
    if options.image_size and not is_several and None in model.image_size:
        # What the file is compared with has its size.
        model = model.with_input_shape((options.image_size, options.image_size, model.channels))
    else:
        names.append("image_size")
    images = None
    if options.data is not None or is_auto:
        if is_several:
            task_of(model)  # raises: answers of one task are compared
        images = scored_images(model, options, fits=options.quantize is not None)
        print_text(f"{model.name} on {images.source}\n{images.line}")
    more = {name: getattr(options, name) for name in names}
    is_calibrated = format == "openvino" and options.quantize in ("int8", "auto")
    if is_calibrated and images and images.train is not None:
        more["calibration"] = calibration_images(model, images.train)
    if format == "html":
        more["card"] = card_of_run(options.model)
    if images and is_auto:
        more |= {"max_flips": options.max_flips, "print_fn": print_text}
        smallest = export_smallest(model, out, split=images.split, **more)
        print_text(f"{smallest}\nwritten to {out}, {smallest.chosen.name}")
        compared = smallest.chosen.comparison
    else:
        print_text("writing and comparing the file: a large model takes minutes")
        export(model, out, **more)
        print_text(f"written to {out}")
        compared = compare(model, load_exported(out), images.split) if images else None
    if options.triton:
        print_text(f"written to {write_config(out)}")
    if format == "html" and out.is_dir():
        print_text(f"to see it: {shlex.join(['python', '-m', 'http.server', '-d', str(out)])}")
    if compared:
        print_text(in_options(str(compared), "export"))
    # Exported features, and models of other channels, are for the program that reads them.
    if options.debug or not row.runs_here:
        print_next("check", out)
    elif model.num_classes and (model.channels in (1, 3) or model.eval_transform.bands):
        print_next("predict", out, "tile.tif" if model.eval_transform.bands else "photo.jpg")


def _check(options: CheckOptions) -> int:
    result = check(options.file, options.engine)
    print_text(result)
    is_folder = result.contract.format in FOLDERS
    if result.is_whole and not (result.ok or result.features or is_folder):
        print_text("to see which block differs first: keras-vit export MODEL --debug, then check")
    return 0 if result.ok else 1


def _convert(options: ConvertOptions) -> None:
    model = load(options.source)
    if model.load_report:  # a whole model of Keras is read without one
        print_text(model.load_report)
    save_weights(model, options.target, options.layout, overwrite=options.overwrite)
    print_text(f"written to {options.target}")
    if options.layout in FOLDERS and options.target.is_dir() and isinstance(model.task, PROVEN):
        try:
            prove_folder(model, options.target)
            print_next("check", options.target)
        except (ImportError, RuntimeError, ValueError) as error:
            print_text(f"without images to check it by: {error}")
    if model.num_classes:
        print_next("predict", options.target, "photo.jpg")
    else:  # features alone
        print_next("evaluate", options.target, "--data", "DATA", "--probe")


def _augment(options: AugmentOptions) -> None:
    recipe, out = recipes.get(options.recipe or "small_data"), options.out
    splits = data.load(
        options.data,
        **table_arguments(vars(options)),
        data_dir=options.data_dir,
        verify=False,
        max_pixels=options.max_pixels,
        reader=options.reader,
    )
    train = splits.train
    settings, layers = augmentation_of(options.augment, recipe, train.task, print_text)
    out.parent.mkdir(parents=True, exist_ok=True)
    data.plot_augmentations(
        train,
        out,
        options.image_size or recipe.image_size,
        augment=[settings, *layers],
        channels=train.channels,
        images=options.images,
        versions=options.versions,
        seed=options.seed,
        overwrite=options.overwrite,
    )
    print_text(f"written to {out}")
    same = words_of(options, "labels", *OF_TABLE, "recipe", "data_dir", "augment")
    weights = ["--weights", "FILE"] if is_for_weights(options.recipe or "") else []
    print_next("train", "--data", options.data, *weights, *same)


def _list(options: ListOptions) -> None:
    pattern = options.pattern
    if options.weights:
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
    print_table(table)
