"""The first job: photographs in, a trained model, its report and its SavedModel out."""

import json
import os
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit import data, evaluation
from keras_vit.checkpoints import load_model
from keras_vit.checkpoints.cache import cache_folder
from keras_vit.evaluation.prediction import predict_split
from keras_vit.files import atomic_write, write_text
from keras_vit.manifest import read_manifest
from keras_vit.models import model_arguments
from keras_vit.output_folder import OutputFolder
from keras_vit.training import recipes
from keras_vit.training.fitting import History, fit
from keras_vit.training.lora import enable_lora, merged
from keras_vit.training.recipes import SAM_RHO, Recipe
from keras_vit.training.run_identity import OtherRunError

USUAL_RHO = 0.05  # of SAM's own paper (Foret et al. 2021), for models that the table leaves out
NEIGHBOURS = 20

# What a run leaves in its folder, and what it needs only until it is complete.
RUN_FILES = (
    "model.keras",
    "best.keras",
    "config.json",
    "history.csv",
    "report.json",
    "report.md",
    "calibration.png",
    "confusion.png",
    "curves.png",
    "mistakes.png",
    "saved_models/*",
    "tensorboard/*",
)
SCRATCH_FILES = ("checkpoints/*", "halves/*")


@dataclass(frozen=True)
class Job:
    """What `keras-vit train` is asked for; None leaves the choice to the recipe.

    Attributes:
        data: `"digits"`, a folder of photographs, or the name of a TFDS data set.
        out: The folder to write; its name is also the name of the SavedModel.
        model: A name that `keras_vit.create` knows.
        weights: A file or the name of released weights to start from. Without `model`, the file
            tells the architecture.
        recipe: A name in `keras_vit.recipes`; None for the one that suits data and weights.
        precision: A Keras dtype policy, such as `"mixed_bfloat16"`.
        freeze_backbone: Train the head alone, on features that are computed once and kept.
        lora: Rank of low-rank updates to train in place of the backbone's weights.
        sam: Take sharpness-aware steps, with the recipe's rho, or the paper's for the model.
        first_look: Print the accuracy of nearest neighbours before training.
        patience: Stop after so many epochs without a better validation loss, and keep the best
            model in place of the last.
        tensorboard: Write logs for TensorBoard.
        on_bad_file: `"skip"` files that cannot be decoded, or `"raise"`.
        resume: Go on with a run that was interrupted.
        overwrite: Replace a former run in `out`, and forget an interrupted one. Files that no run
            has written stay.
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
    freeze_backbone: bool = False
    lora: int | None = None
    sam: bool = False
    first_look: bool = False
    patience: int | None = None
    tensorboard: bool = False
    seed: int = 0
    data_dir: str | None = None
    val_fraction: float = 0.2
    on_bad_file: str = "skip"
    resume: bool = False
    overwrite: bool = False

    @property
    def output(self) -> OutputFolder:
        """The folder of the run, and the one where it lies until it is complete."""
        read = [self.data, self.data_dir, self.weights]
        return OutputFolder(
            self.out,
            "run",
            f"{Path(os.path.abspath(self.out)).name}.partial",
            results=RUN_FILES,
            scratch=SCRATCH_FILES,
            protected=[Path(path) for path in read if path is not None],
            resumable=True,
        )

    @property
    def identity(self) -> dict[str, str]:
        """What must agree for two calls to be one run."""
        stated = asdict(replace(self, resume=False, overwrite=False, out=Path()))
        return {name: str(value) for name, value in stated.items()}


def train(job: Job, say: Callable[[str], None] = print) -> evaluation.ClassificationReport:
    """Trains, evaluates, and writes everything under `job.out`.

    The folder appears when it is complete: `model.keras`, `saved_models/NAME/1/`, `report.json`,
    `report.md` with its images, `history.csv`, `config.json`, and `SHA256SUMS` of them all. Until
    then the run lies in `OUT.partial`, from where `job.resume` continues it as if it had never
    stopped. Nothing is deleted that no run has written (`keras_vit.output_folder`).

    Args:
        job: What to train on what.
        say: Where lines for a reader go.

    Returns:
        The report on the validation split.

    Raises:
        FileExistsError: `job.out` is not empty, or an interrupted run lies beside it, and neither
            `resume` nor `overwrite` says what to do; or it holds files that no run has written.
        FileNotFoundError: There is no run to resume.
        BlockingIOError: Another process trains into this folder.
        FloatingPointError: The loss stopped being finite; the message says at which step.
        OSError: A file cannot be written, or the finished run not moved to its place.
        ValueError: An option is unknown or out of range, or `job.out` is a place that must not be
            replaced.
    """
    recipe = _recipe(job)  # what is misspelt should not wait for the data
    output = job.output
    found = read_manifest(output.place)
    finished = found is not None and found.kind == output.kind
    if job.resume and finished and not output.workspace.exists():
        say(f"{job.out} is finished: there is nothing to resume.")
        return _stored_report(output.place)
    with output.opened(overwrite=job.overwrite, resume=job.resume) as folder:
        if output.is_finished():
            _check_identity(job, folder)
        else:
            _write_run(job, recipe, folder, say)
            output.finish()
        output.publish(say)
    report, facts = _stored_report(output.place), _stored_facts(output.place)
    say(f"\n{report}\n")
    for line in facts["beside"]:
        say(line)
    say(
        f"{facts['seconds']:.0f} s; written to {job.out}: "
        + ", ".join(sorted(path.name for path in job.out.iterdir()))
    )
    say(f"next: keras-vit predict {shlex.quote(str(job.out))} photo.jpg")
    return report


def _stored_facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text("utf-8"))


def _stored_report(folder: Path) -> evaluation.ClassificationReport:
    return evaluation.ClassificationReport.from_dict(_stored_facts(folder)["report"])


def _check_identity(job: Job, folder: Path) -> None:
    """Refuses to call a finished run the result of other options."""
    stored = json.loads((folder / "config.json").read_text("utf-8"))["identity"]
    for name, value in job.identity.items():
        if stored.get(name) != value:
            raise OtherRunError(
                f"The run at {folder} was made with {name}={stored.get(name)}, not {value}. Give "
                "the same options with --resume, or --overwrite."
            )


def _write_run(job: Job, recipe: Recipe, folder: Path, say: Callable[[str], None]) -> None:
    """Everything of the run, in the folder where it lies until it is complete."""
    started = time.time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what they say, the report says below
        splits = data.load(
            job.data,
            data_dir=job.data_dir,
            val_fraction=job.val_fraction,
            seed=job.seed,
            on_bad_file=job.on_bad_file,
        )
    say(f"{splits!r}")
    if splits.report.unreadable or splits.report.ignored:
        say(f"left out: {splits.report}")
    model, history = _trained(job, recipe, splits, folder, say)
    labels, scores = predict_split(model, splits.val, recipe.batch_size)
    report = evaluation.classification_report(labels, scores, splits.class_names)
    facts = {
        "seconds": round(time.time() - started, 1),
        "parameters": model.count_params(),
        "data": {name: len(split) for name, split in splits.items()},
        "bad_files": [[str(path), reason] for path, reason in splits.report],
        "ignored": [[str(path), reason] for path, reason in splits.report.ignored],
        "beside": _beside(job, recipe, splits, report.accuracy, folder, say),
    }
    config = _config(job, recipe, model)
    with atomic_write(folder / "model.keras") as temporary:
        model.save(temporary)
    write_text(folder / "config.json", json.dumps(config, indent=2, default=str))
    evaluation.write_report(
        folder,
        report,
        facts,
        labels=labels,
        logits=scores,
        split=splits.val,
        history=history,
        config=config,
        name=job.output.place.name,
        run=job.out,
    )
    saved_model = folder / "saved_models" / job.output.place.name / "1"
    keras_vit.export_model(model, saved_model, overwrite=True)


def _recipe(job: Job) -> Recipe:
    """The recipe with the options that the job states itself."""
    if job.freeze_backbone and job.lora is not None:
        raise ValueError("freeze_backbone trains the head alone; leave it or lora out.")
    if (job.freeze_backbone or job.lora is not None) and job.weights is None:
        raise ValueError(
            "A backbone without pretrained weights is not worth keeping: give weights, or leave "
            "freeze_backbone and lora out."
        )
    if job.model is not None:
        model_arguments(job.model)
    suitable = "finetune_small" if job.weights else "small_data"
    recipe = recipes.get(job.recipe or ("digits" if job.data.startswith("digits") else suitable))
    stated = {
        name: getattr(job, name)
        for name in ("epochs", "batch_size", "learning_rate", "image_size")
        if getattr(job, name) is not None
    }
    if (job.model or job.weights) and job.image_size is None and recipe.model:
        stated["image_size"] = 224  # what the named sizes are made for
    for name, value in stated.items():
        if value <= 0:
            raise ValueError(f"{name}={value!r} must be greater than 0.")
    if "epochs" in stated:
        stated["steps"] = None
    recipe = replace(recipe, **stated)
    if job.sam and not recipe.rho:
        recipe = replace(recipe, rho=SAM_RHO.get(job.model or "", USUAL_RHO))
    return recipe if job.steps is None else recipe.scaled(steps=job.steps)


def build(job: Job, recipe: Recipe, num_classes: int, channels: int) -> Any:
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
    named = job.model is not None or job.weights is not None
    if named and (rates := recipe.rates(model.get_config())):
        model = model.copy(**rates)
    if recipe.augmentation.crop == "resize":
        # Tiny pictures have no border to cut away: they are taken as they are.
        model.eval_transform = {"mode": "stretch"}
    return model


def _trained(
    job: Job, recipe: Recipe, splits: data.Splits, folder: Path, say: Callable[[str], None]
) -> tuple[Any, History]:
    """A model that has learned from `splits.train` in the way that the job says."""
    keras.utils.set_random_seed(job.seed)
    model = build(job, recipe, len(splits.class_names), splits.train.channels)
    model.class_names = splits.class_names
    if job.first_look or job.freeze_backbone:
        probe = _first_look(model, splits, job.seed, say)
        if job.freeze_backbone:
            model.get_layer("head").set_weights([probe.kernel, probe.bias])
            return model, {}
    if job.lora is not None:
        say(f"LoRA trains {enable_lora(model, job.lora):,} parameters")
    history = fit(
        model,
        recipe,
        splits,
        folder,
        seed=job.seed,
        say=say,
        identity=job.identity,
        patience=job.patience,
        tensorboard=job.tensorboard,
    )
    if job.patience is not None and (folder / "best.keras").is_file():
        return load_model(folder / "best.keras"), history
    return (model.copy() if job.lora is None else merged(model)), history


def _first_look(
    model: Any, splits: data.Splits, seed: int, say: Callable[[str], None]
) -> evaluation.LinearProbe:
    """What the backbone knows already: neighbours and a linear probe on features, kept on disk."""
    cache = cache_folder() / "features"
    train = evaluation.features(model, splits.train, cache)
    val = evaluation.features(model, splits.val, cache)
    neighbours = min(NEIGHBOURS, len(train[0]))
    accuracy = evaluation.knn_accuracy(*train, *val, k=neighbours)
    probe = evaluation.linear_probe(*train, *val, seed=seed)
    say(
        f"on frozen features: {neighbours} nearest neighbours {accuracy:.2%}, "
        f"linear probe {probe.accuracy:.2%}"
    )
    return probe


def _beside(
    job: Job,
    recipe: Recipe,
    splits: data.Splits,
    accuracy: float,
    folder: Path,
    say: Callable[[str], None],
) -> list[str]:
    """What the digits allow: scikit-learn's classifiers on the same split, and on the halves."""
    if job.data != "digits":
        return []
    say("now scikit-learn's own split, the first half against the second, for comparison")
    halves = data.load("digits/half")
    model, _ = _trained(job, recipe, halves, folder / "halves", say)
    labels, scores = predict_split(model, halves.val)
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


def _config(job: Job, recipe: Recipe, model: Any) -> dict[str, Any]:
    """What made the model, for `config.json` and the card."""
    return {
        "command": shlex.join(["keras-vit", *sys.argv[1:]]),
        "job": asdict(job),
        "identity": job.identity,
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
