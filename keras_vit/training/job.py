"""The first job: photographs in, a trained model, its report and its SavedModel out."""

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit import data, evaluation
from keras_vit.evaluation.plots import plot_confusion, plot_curves
from keras_vit.models import model_arguments
from keras_vit.training import recipes
from keras_vit.training.recipes import Recipe


@dataclass(frozen=True)
class Job:
    """What `keras-vit train` is asked for; None leaves the choice to the recipe.

    Attributes:
        data: `"digits"`, a folder of photographs, or the name of a TFDS data set.
        out: The folder to write; its name is also the name of the SavedModel.
        model: A name that `keras_vit.create` knows.
        weights: A file or the name of released weights to start from. Without `model`, the file
            tells the architecture.
        recipe: A name in `keras_vit.training.recipes`; None for the one that suits the data.
        precision: A Keras dtype policy, such as `"mixed_bfloat16"`.
        on_bad_file: `"skip"` files that cannot be decoded, or `"raise"`.
    """

    data: str
    out: Path
    model: str | None = None
    weights: str | None = None
    recipe: str | None = None
    image_size: int | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    precision: str = "float32"
    seed: int = 0
    data_dir: str | None = None
    val_fraction: float = 0.2
    on_bad_file: str = "skip"
    overwrite: bool = False


def train(job: Job, say: Callable[[str], None] = print) -> evaluation.ClassificationReport:
    """Trains, evaluates, and writes everything under `job.out`.

    The folder appears when it is complete: `model.keras`, `saved_models/NAME/1/`, `report.json`,
    `report.md`, `curves.png`, `confusion.png`, `history.csv` and `config.json`.

    Args:
        job: What to train on what.
        say: Where lines for a reader go.

    Returns:
        The report on the validation split.

    Raises:
        FileExistsError: `job.out` is not empty and `overwrite` is False.
        FloatingPointError: The loss stopped being finite; the message says in which epoch.
        ValueError: An option is unknown or out of range.
    """
    if job.out.exists() and any(job.out.iterdir()) and not job.overwrite:
        raise FileExistsError(f"{job.out} is not empty. Give another --out, or --overwrite.")
    recipe = _recipe(job)
    if job.model is not None:
        model_arguments(job.model)  # a misspelt name should not wait for the data
    started = time.time()
    splits = data.load(
        job.data,
        data_dir=job.data_dir,
        val_fraction=job.val_fraction,
        seed=job.seed,
        on_bad_file=job.on_bad_file,
    )
    say(f"{splits!r}")
    # Beside its place, and moved there when complete: nobody mistakes half a run for a whole one.
    job.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=job.out.parent, prefix=f".{job.out.name}-") as workshop:
        folder = Path(workshop) / job.out.name
        folder.mkdir()
        model, history = fit(job, recipe, splits, folder / "history.csv", say)
        model.class_names = splits.class_names
        labels, scores = predict_split(model, recipe, splits.val)
        report = evaluation.classification_report(labels, scores, splits.class_names)
        facts = {
            "accuracy": report.accuracy,
            "seconds": round(time.time() - started, 1),
            "parameters": model.count_params(),
            "data": {name: len(split) for name, split in splits.items()},
            "bad_files": [[str(path), reason] for path, reason in splits.report],
            "beside": _beside(job, recipe, splits, report.accuracy, say),
            "report": report.to_dict(),
            "history": history,
        }
        _write(folder, job, recipe, model, report, facts)
        keras_vit.export_model(model, folder / "saved_models" / job.out.name / "1")
        shutil.rmtree(job.out, ignore_errors=True)
        os.replace(folder, job.out)
    say(f"\n{report}\n")
    for line in facts["beside"]:
        say(line)
    say(f"\nwritten to {job.out}: " + ", ".join(sorted(path.name for path in job.out.iterdir())))
    return report


def _recipe(job: Job) -> Recipe:
    """The recipe with the options that the job states itself."""
    digits = job.data.startswith("digits")
    recipe = recipes.get(job.recipe or ("digits" if digits else "small_data"))
    stated = {
        name: getattr(job, name)
        for name in ("epochs", "batch_size", "learning_rate", "image_size")
        if getattr(job, name) is not None
    }
    if (job.model or job.weights) and job.image_size is None:
        stated["image_size"] = 224  # what the named sizes are made for
    for name, value in stated.items():
        if value <= 0:
            raise ValueError(f"{name}={value!r} must be greater than 0.")
    return replace(recipe, **stated)


def build(job: Job, recipe: Recipe, num_classes: int, channels: int) -> keras_vit.VisionTransformer:
    """The model that the job names, or the recipe's own."""
    arguments: dict[str, Any] = {
        "num_classes": num_classes,
        "input_shape": (recipe.image_size, recipe.image_size, channels),
        "dtype": job.precision,
    }
    if job.model is not None:
        model = keras_vit.create(job.model, weights=job.weights, **arguments)
    elif job.weights is not None:
        model = keras_vit.from_checkpoint(job.weights, **arguments)
    else:
        model = keras_vit.VisionTransformer(**{**recipe.model, **arguments})
    # Tiny pictures have no border to cut away: they are taken as they are.
    model.evaluation = {"mode": "stretch"} if recipe.augmentation.crop == "resize" else {}
    return model


def fit(
    job: Job,
    recipe: Recipe,
    splits: data.Splits,
    log: Path | None = None,
    say: Callable[[str], None] = print,
) -> tuple[keras_vit.VisionTransformer, dict[str, list[float]]]:
    """Trains on `splits.train`, watching `splits.val`; returns the model and its history."""
    keras.utils.set_random_seed(job.seed)
    channels = 1 if job.data.startswith("digits") else 3
    num_classes = len(splits.class_names)
    batch_size = min(recipe.batch_size, len(splits.train))
    per_epoch = -(-len(splits.train) // batch_size)
    epochs = recipe.epochs if job.steps is None else -(-job.steps // per_epoch)
    if job.steps is not None:
        per_epoch = -(-job.steps // epochs)
    model = build(job, recipe, num_classes, channels)
    say(f"{model.name}: {model.count_params():,} parameters, {epochs} epochs of {per_epoch} steps")
    train_batches = data.pipeline(
        splits.train,
        recipe.image_size,
        batch_size,
        training=True,
        seed=job.seed,
        augment=recipe.augmentation,
        channels=channels,
        mixup=recipe.mixup,
        num_classes=num_classes,
        cache=None,
        repeat=True,
    )
    val_batches = data.pipeline(
        splits.val,
        recipe.image_size,
        batch_size,
        channels=channels,
        num_classes=num_classes,
        evaluation=model.evaluation.get("mode", "crop"),
        cache=None,
    )
    steps = epochs * per_epoch
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=max(round(steps * (1 - recipe.warmup)), 1),
        warmup_target=recipe.learning_rate,
        warmup_steps=max(round(steps * recipe.warmup), 1),
    )
    optimizer = keras.optimizers.AdamW(
        schedule, weight_decay=recipe.weight_decay, global_clipnorm=recipe.clip_norm
    )
    # Kernels decay; biases, norms, tokens and positions do not (big_vision's rule).
    others = [v for v in model.trainable_variables if not v.path.endswith("kernel")]
    optimizer.exclude_from_weight_decay(var_list=others)
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=recipe.label_smoothing
    )
    model.compile(optimizer, loss, metrics=["accuracy"])
    callbacks: list[keras.callbacks.Callback] = [keras.callbacks.TerminateOnNaN()]
    if log is not None:
        callbacks.append(keras.callbacks.CSVLogger(str(log)))
    history = model.fit(
        train_batches,
        validation_data=val_batches,
        epochs=epochs,
        steps_per_epoch=per_epoch,
        callbacks=callbacks,
        shuffle=False,  # the pipeline has shuffled
        verbose="auto" if sys.stdout.isatty() else 2,
    ).history
    if not np.isfinite(history["loss"]).all():
        raise FloatingPointError(
            f"The loss was {history['loss'][-1]} in epoch {len(history['loss'])}. "
            f"Try a learning rate below {recipe.learning_rate}, or --precision float32."
        )
    return model.copy(), {name: [float(v) for v in values] for name, values in history.items()}


def predict_split(
    model: keras_vit.VisionTransformer, recipe: Recipe, split: data.Split
) -> tuple[np.ndarray, np.ndarray]:
    """Labels `(examples,)` and logits `(examples, classes)` of a split, in its order."""
    batches = data.pipeline(
        split,
        recipe.image_size,
        recipe.batch_size,
        channels=model.input_shape[-1],
        evaluation=model.evaluation.get("mode", "crop"),
    )
    return split.labels(), model.predict(batches, verbose=0)


def _beside(
    job: Job, recipe: Recipe, splits: data.Splits, accuracy: float, say: Callable[[str], None]
) -> list[str]:
    """What the digits allow: scikit-learn's classifiers on the same split, and on the halves."""
    if job.data != "digits":
        return []
    say("now scikit-learn's own split, the first half against the second, for comparison")
    halves = data.load("digits/half")
    model, _ = fit(job, recipe, halves, say=say)
    labels, scores = predict_split(model, recipe, halves.val)
    half = evaluation.classification_report(labels, scores, halves.class_names).accuracy
    lines = []
    for title, parts, own in (
        ("stratified 80/20", splits, accuracy),
        ("first/second half", halves, half),
    ):
        assert isinstance(parts.train, data.ArraySplit)
        assert isinstance(parts.val, data.ArraySplit)
        others = evaluation.scikit_learn_baselines(parts.train.as_arrays(), parts.val.as_arrays())
        scores_of = [f"{b.name} {b.accuracy:.2%}" for b in others]
        lines.append(f"{title}: " + ", ".join([f"ViT {own:.2%}", *scores_of]))
    return lines


def _write(
    folder: Path,
    job: Job,
    recipe: Recipe,
    model: keras_vit.VisionTransformer,
    report: evaluation.ClassificationReport,
    facts: dict[str, Any],
) -> None:
    config = {
        "command": " ".join(["keras-vit", *sys.argv[1:]]),
        "job": asdict(job),
        "recipe": asdict(recipe),
        "model": keras.saving.serialize_keras_object(model)["config"],
        "versions": {
            "keras_vit": keras_vit.__version__,
            "keras": keras.__version__,
            "backend": keras.backend.backend(),
            "python": platform.python_version(),
        },
    }
    model.save(folder / "model.keras")
    (folder / "config.json").write_text(json.dumps(config, indent=2, default=str))
    (folder / "report.json").write_text(json.dumps(facts, indent=2))
    (folder / "report.md").write_text(
        f"# {job.out.name}\n\n`{config['command']}`\n\n"
        f"{model.count_params():,} parameters, {facts['seconds']:.0f} s, "
        f"accuracy {report.accuracy:.2%} on {report.macro.support} images.\n\n"
        + "".join(f"- {line}\n" for line in facts["beside"])
        + f"\n{report.to_markdown()}\n\n![curves](curves.png)\n\n![confusion](confusion.png)\n"
    )
    plot_curves(facts["history"], folder / "curves.png")
    plot_confusion(report, folder / "confusion.png")
