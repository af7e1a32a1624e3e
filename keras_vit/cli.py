"""`keras-vit`: train, predict, inspect, export, plan and list from the command line."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MODEL_HELP = ".keras or released file, or a folder that train wrote"
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. Errors a user can mend are one line, status 2."""
    options = vars(_parser().parse_args(arguments))
    command = options.pop("run")
    try:
        return command(**options) or 0
    except (ValueError, OSError, ImportError, RuntimeError, FloatingPointError) as error:
        if os.environ.get("KERAS_VIT_TRACEBACK"):
            raise
        print(f"keras-vit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("keras-vit: stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keras-vit",
        description="The Vision Transformer for Keras 3: train it, use it, ship it.",
        epilog="KERAS_BACKEND=tensorflow|jax|torch chooses the backend; "
        "KERAS_VIT_TRACEBACK=1 shows where an error came from.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, help: str, example: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=f"example: {example}",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        added.set_defaults(run=run)
        return added

    train = command(
        "train",
        _train,
        "train on a data set or a folder of photographs, and write model, report and SavedModel",
        "keras-vit train --data photos/ --out runs/photos",
    )
    train.add_argument(
        "--data",
        required=True,
        help="digits; or FOLDER with <class>/*.jpg, train/<class>/*.jpg and val/<class>/*.jpg, "
        "or train.txt and val.txt; or the name of a TensorFlow data set",
    )
    train.add_argument("--out", type=Path, help="folder to write (default: runs/DATA)")
    train.add_argument("--model", help="such as ViT-Ti/16 (default: the recipe's small one)")
    train.add_argument("--weights", help="file or MODEL:TAG to start from; tells the model, too")
    train.add_argument("--recipe", help="how to train (default: what suits the data)")
    train.add_argument("--image-size", type=int, help="pixels (default: the recipe's, or 224)")
    length = train.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, help="passes over the data (default: the recipe's)")
    length.add_argument("--steps", type=int, help="batches in all, instead of --epochs")
    train.add_argument("--batch-size", type=int, help="images in a batch (default: the recipe's)")
    train.add_argument("--learning-rate", type=float, help="its peak (default: the recipe's)")
    train.add_argument("--precision", choices=PRECISIONS, default="float32", help="dtype policy")
    cheap = train.add_mutually_exclusive_group()
    cheap.add_argument(
        "--freeze-backbone", action="store_true", help="train the head alone, on kept features"
    )
    cheap.add_argument("--lora", type=int, metavar="RANK", help="train low-rank updates alone")
    train.add_argument("--sam", action="store_true", help="take sharpness-aware steps")
    train.add_argument(
        "--first-look", action="store_true", help="before training: neighbours and linear probe"
    )
    train.add_argument(
        "--patience", type=int, help="stop after so many epochs without progress (never)"
    )
    train.add_argument("--tensorboard", action="store_true", help="write logs for TensorBoard")
    train.add_argument("--seed", type=int, default=0, help="of split, weights and augmentation")
    train.add_argument("--data-dir", help="where TensorFlow data sets lie prepared")
    train.add_argument(
        "--val-fraction", type=float, default=0.2, help="share held out where the data has no split"
    )
    train.add_argument(
        "--on-bad-file", choices=("skip", "raise"), default="skip", help="files that do not decode"
    )
    again = train.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    again.add_argument("--overwrite", action="store_true", help="replace what is in --out")

    predict = command(
        "predict",
        _predict,
        "name what is in photographs",
        "keras-vit predict runs/photos photo.jpg",
    )
    predict.add_argument("model", type=Path, help=MODEL_HELP)
    predict.add_argument("files", nargs="+", type=Path, metavar="PHOTO", help="image files")
    predict.add_argument("--top", type=int, default=5, help="classes to print for each photograph")

    evaluate = command(
        "evaluate",
        _evaluate,
        "say how good a model is: on its own classes, or what its features know of other ones",
        "keras-vit evaluate runs/photos --data photos/ --probe --knn 20 --fewshot 1 5 10 25",
    )
    evaluate.add_argument("model", help=MODEL_HELP + ", or MODEL:TAG of released weights")
    evaluate.add_argument("--data", help="as for train; without the next three: its own classes")
    evaluate.add_argument("--probe", action="store_true", help="linear probe on frozen features")
    evaluate.add_argument(
        "--knn", type=int, nargs="?", const=20, help="accuracy of so many nearest neighbours (20)"
    )
    evaluate.add_argument(
        "--fewshot", type=int, nargs="*", help="examples a class, least squares (1 5 10 25)"
    )
    evaluate.add_argument("--seeds", type=int, default=3, help="draws of the few examples")
    evaluate.add_argument("--split", default="val", help="what to judge on: val or test")
    evaluate.add_argument("--data-dir", help="where TensorFlow data sets lie prepared")
    evaluate.add_argument("--batch-size", type=int, help="images at once (32; for --vtab 512)")
    evaluate.add_argument("--cache-dir", type=Path, help="where features are kept (Keras's cache)")
    evaluate.add_argument(
        "--vtab", action="store_true", help="fine-tune on VTAB's nineteen tasks, from --data-dir"
    )
    evaluate.add_argument("--out", type=Path, help="folder of VTAB's results; resumes what it has")
    evaluate.add_argument("--tasks", nargs="+", help="VTAB tasks, such as svhn dtd (all)")
    evaluate.add_argument("--steps", type=int, default=2500, help="updates of a VTAB task")
    evaluate.add_argument("--image-size", type=int, default=384, help="pixels of a VTAB task")
    evaluate.add_argument(
        "--learning-rates", type=float, nargs="+", default=[0.01], help="VTAB's sweep"
    )
    evaluate.add_argument("--accumulate", type=int, default=1, help="parts of a VTAB batch")

    inspect = command(
        "inspect",
        _inspect,
        "show what a model looks at in photographs: plots, and one page of them all",
        "keras-vit inspect runs/photos photo.jpg --out runs/photos/inspection",
    )
    inspect.add_argument("model", type=Path, help=MODEL_HELP)
    inspect.add_argument("files", nargs="+", type=Path, metavar="PHOTO", help="image files")
    inspect.add_argument("--out", type=Path, required=True, help="folder to write")
    inspect.add_argument("--top", type=int, default=5, help="classes to name for each photograph")
    inspect.add_argument("--overwrite", action="store_true", help="replace the page in --out")

    export = command(
        "export",
        _export,
        "write a SavedModel that takes the bytes of photographs",
        "keras-vit export runs/photos --out saved_models/photos/1",
    )
    export.add_argument("model", type=Path, help=MODEL_HELP)
    export.add_argument("--out", type=Path, required=True, help="folder: saved_models/NAME/VERSION")
    export.add_argument("--image-size", type=int, help="pixels (default: the model's)")
    export.add_argument("--overwrite", action="store_true", help="replace what is in --out")

    convert = command(
        "convert",
        _convert,
        "write weights in another layout, and say what became of every tensor",
        "keras-vit convert ViT-B_16.npz vit.safetensors --layout timm",
    )
    convert.add_argument("source", metavar="IN", help="file, or MODEL:TAG of released weights")
    convert.add_argument("target", metavar="OUT", type=Path, help="file to write")
    convert.add_argument("--layout", help="google, big_vision, timm or huggingface")

    plan = command(
        "plan",
        _plan,
        "say what a model costs before anyone pays",
        "keras-vit plan ViT-L/16 --image-size 384 --batch-size 32",
    )
    plan.add_argument("model", help="such as ViT-B/16")
    plan.add_argument("--image-size", type=int, default=224, help="pixels")
    plan.add_argument("--batch-size", type=int, default=32, help="images in a batch")
    plan.add_argument("--num-classes", type=int, default=1000, help="classes")
    plan.add_argument("--precision", choices=PRECISIONS, default="float32", help="dtype policy")
    plan.add_argument("--remat", action="store_true", help="recompute activations")

    augment = command(
        "augment",
        _augment,
        "draw a sheet of augmented pictures, as the network sees them in training",
        "keras-vit augment --data photos/ --recipe augreg/medium1 --out sheet.png",
    )
    augment.add_argument("--data", required=True, help="as of train")
    augment.add_argument("--recipe", default="small_data", help="whose augmentation and mixing")
    augment.add_argument("--out", type=Path, required=True, help="picture to write, such as .png")
    augment.add_argument("--image-size", type=int, help="pixels (default: the recipe's)")
    augment.add_argument("--pictures", type=int, default=6, help="rows")
    augment.add_argument("--versions", type=int, default=7, help="augmented pictures in a row")
    augment.add_argument("--seed", type=int, default=0, help="of the augmentation")
    augment.add_argument("--data-dir", help="where TensorFlow data sets lie prepared")
    augment.add_argument("--overwrite", action="store_true", help="replace the file --out")

    listing = command(
        "list", _list, "list the models, or released weights", "keras-vit list 'ViT-B*' --weights"
    )
    listing.add_argument("pattern", nargs="?", default="*", help="shell pattern, such as 'ViT-B*'")
    listing.add_argument("--weights", action="store_true", help="list released weights instead")
    return parser


def _train(out: Path | None, data: str, **options: Any) -> None:
    from keras_vit.training.job import Job, train

    train(Job(data=data, out=out or Path("runs") / Path(data).name, **options))


def _load_model(path: Path) -> Any:
    import keras

    from keras_vit.models import ImageModel

    file = path / "model.keras" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no model at {file}. Give a file, or a folder that train wrote."
        )
    if file.suffix != ".keras":
        from keras_vit import from_checkpoint

        return from_checkpoint(file)
    model = keras.saving.load_model(file, compile=False)
    if not isinstance(model, ImageModel):
        raise ValueError(f"{file} holds a {type(model).__name__}, not a model of keras_vit.")
    return model


def _load_named(name: str) -> Any:
    """A model from a file, or MODEL:TAG of the catalogue."""
    if ":" in name and not Path(name).exists():
        from keras_vit import from_checkpoint

        return from_checkpoint(name)
    return _load_model(Path(name))


def _predict(model: Path, files: list[Path], top: int) -> int:
    from rich.console import Console
    from rich.table import Table

    from keras_vit.evaluation.prediction import predict_files

    table = Table("photograph", "class", "probability")
    failed = 0
    for file, guesses in predict_files(_load_model(model), files, top):
        if isinstance(guesses, str):
            failed += 1
            table.add_row(str(file), f"cannot be read: {guesses}", "", style="red")
        else:
            for i, (name, probability) in enumerate(guesses):
                table.add_row(str(file) if i == 0 else "", name, f"{probability:.2%}")
        table.add_section()
    Console().print(table)
    return 1 if failed else 0


def _evaluate(
    model: str,
    data: str | None,
    probe: bool,
    knn: int | None,
    fewshot: list[int] | None,
    seeds: int,
    split: str,
    data_dir: str | None,
    batch_size: int | None,
    cache_dir: Path | None,
    vtab: bool,
    out: Path | None,
    **sweep: Any,
) -> int:
    from keras_vit.checkpoints.cache import cache_folder
    from keras_vit.data import load
    from keras_vit.errors import one_of
    from keras_vit.evaluation.command import own_classes, transfer_rows, vtab_report

    if vtab:
        if out is None:
            raise ValueError("--vtab needs --out, the folder of its results.")
        report = vtab_report(_load_named(model), out, data_dir, batch_size or 512, **sweep)
        print(report)
        return 1 if report.missing else 0
    if data is None:
        raise ValueError("evaluate needs --data: a folder of photographs, or a data set's name.")
    loaded = _load_named(model)
    batch_size = batch_size or 32
    splits = load(data, data_dir=data_dir)
    one_of(split, "split", splits)
    print(f"{loaded.name} on {splits!r}")
    if not probe and knn is None and fewshot is None:
        print(own_classes(loaded, splits[split], batch_size))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("on frozen features", "accuracy", "")
    for row in transfer_rows(
        loaded,
        splits,
        test=split,
        shots=fewshot,
        neighbours=knn,
        probe=probe,
        seeds=range(seeds),
        cache_dir=cache_dir or cache_folder() / "features",
        batch_size=batch_size,
    ):
        table.add_row(*row)
    Console().print(table)
    return 0


def _inspect(model: Path, files: list[Path], out: Path, **options: Any) -> int:
    from keras_vit.inspection import inspect_files

    # "model" is what every other file is called; its folder has a name.
    title = model.resolve().parent.name if model.stem == "model" else model.stem
    failed = inspect_files(_load_model(model), files, out, title=title, **options)
    for file, reason in failed.items():
        print(f"keras-vit: {file} cannot be read: {reason}", file=sys.stderr)
    print(f"written to {out / 'index.html'}")
    return 1 if failed else 0


def _export(model: Path, out: Path, image_size: int | None, overwrite: bool) -> None:
    from keras_vit import export_model

    export_model(_load_model(model), out, image_size=image_size, overwrite=overwrite)
    print(f"written to {out}")


def _convert(source: str, target: Path, layout: str | None) -> None:
    from keras_vit import from_checkpoint, save_weights

    model = from_checkpoint(source)
    print(model.load_report)
    save_weights(model, target, layout)
    print(f"written to {target}")


def _plan(model: str, **options: Any) -> None:
    from keras_vit.models.cost import cost

    found = cost(model, **options)
    batch = options["batch_size"]
    print(f"{model} at {options['image_size']} px, {options['precision']}, batch {batch}")
    print(f"  parameters        {found.parameters:>16,}")
    print(f"  GMACs an image    {found.macs / 1e9:>16,.2f}")
    print(f"  memory, inference {found.inference_bytes / 2**30:>12,.2f} GiB (estimate)")
    print(f"  memory, training  {found.training_bytes / 2**30:>12,.2f} GiB (estimate, Adam)")


def _augment(
    data: str, recipe: str, out: Path, image_size: int | None, data_dir: str | None, **options: Any
) -> None:
    from keras_vit.data import augmentation_sheet, load
    from keras_vit.training import recipes

    chosen = recipes.get(recipe)
    train = load(data, data_dir=data_dir, verify=False).train
    out.parent.mkdir(parents=True, exist_ok=True)
    augmentation_sheet(
        train,
        out,
        image_size or chosen.image_size,
        augment=chosen.augmentation,
        mixup=chosen.mixup,
        cutmix=chosen.cutmix,
        channels=1 if data.startswith("digits") else 3,
        **options,
    )
    print(f"written to {out}")


def _list(pattern: str, weights: bool) -> None:
    if weights:
        from keras_vit import list_weights

        print(list_weights(pattern))
        return
    from rich.console import Console
    from rich.table import Table

    from keras_vit.models import list_models
    from keras_vit.models.cost import cost

    names = list_models(pattern)
    if not names:
        raise ValueError(f"No model matches {pattern!r}. Known: {', '.join(list_models())}.")
    table = Table("model", "parameters", "GMACs", caption="at 224 px, 1000 classes")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in names:
        found = cost(name)
        table.add_row(name, f"{found.parameters:,}", f"{found.macs / 1e9:.2f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
