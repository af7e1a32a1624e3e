"""What `keras-vit train` does: from images to a trained model, its report and its SavedModel."""

import hashlib
import json
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit import data, evaluation
from keras_vit._base.errors import DataRangeWarning
from keras_vit._base.files import atomic_write, write_text
from keras_vit._base.manifest import read_manifest
from keras_vit.evaluation.outcomes import Outcomes
from keras_vit.evaluation.prediction import predict_outcomes
from keras_vit.models import MLPMixer, VisionTransformer
from keras_vit.models.families import family_of
from keras_vit.models.geometry import DEFAULT_SIZE
from keras_vit.ops import (
    current_processes,
    from_all_processes,
    single_process,
    wait_for_processes,
)
from keras_vit.training.callbacks import check_tensorboard
from keras_vit.training.distillation import Distillation, check_classifier
from keras_vit.training.fit import History, fit
from keras_vit.training.lora import enable_lora, merged
from keras_vit.training.probe_choice import PROBE, choose, hold_out_to_choose
from keras_vit.training.recipes import Recipe
from keras_vit.training.refinement import hold_out, refine, set_head
from keras_vit.training.run_identity import RunMismatchError, differences
from keras_vit.weights import load_model
from keras_vit.weights.cache import cache_folder
from keras_vit.weights.loading import model_class
from keras_vit_cli.report.run_files import write_report
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.job_recipe import (
    check_processes,
    recipe_of,
    suited_recipe,
)

K_NEIGHBOURS = 20


def train(
    job: Job, print_fn: Callable[[str], None] = print
) -> evaluation.ClassificationReport | None:
    """Trains, writes everything under `job.out`, and returns the report on the validation split.

    In several processes, which `keras_vit.distribution.initialize` finds, all train, and the first
    one writes and prints; the others return None where nothing was left to train.

    The folder appears when it is complete: `model.keras`, `saved_models/NAME/1/`, `report.json`,
    `report.md` with its images, `history.csv`, `config.json`, and `SHA256SUMS` of them all. Until
    then the run is in `OUT.partial`, from which `job.resume` continues it as if it had not
    stopped. Only files that a run has written are ever deleted (`keras_vit._base.output_folder`).

    Raises:
        FileExistsError: `job.out` is not empty, or there is an interrupted run of it, and neither
            `resume` nor `overwrite` is set; or it holds files that were not written by a run.
        FileNotFoundError: There is no run to resume.
        BlockingIOError: Another process trains into this folder.
        FloatingPointError: The loss is not finite; the message names the step.
        ImportError: `job.tensorboard`, and it is not installed.
        OSError: A file cannot be written, or the finished run cannot be moved to `job.out`.
        ValueError: An option is unknown or out of range, or `job.out` must not be replaced.
    """
    if job.tensorboard:
        check_tensorboard()
    recipe = recipe_of(job)  # reports misspelt options before the data are loaded
    with _on_devices(job, recipe):
        is_first = keras_vit.distribution.is_first_process()
        report = _train_and_publish(job, recipe, print_fn) if is_first else _follow(job, recipe)
        wait_for_processes()  # none of them ends while the first one writes
    return report


def _train_and_publish(
    job: Job, recipe: Recipe, print_fn: Callable[[str], None]
) -> evaluation.ClassificationReport:
    """What `train` does in a single process, or in the first of several."""
    output = job.output
    manifest = read_manifest(output.place)
    finished = manifest is not None and manifest.kind == output.kind
    if job.resume and finished and not output.workspace.exists():
        print_fn(f"{job.out} is finished: there is nothing to resume.")
        from_all_processes(False)
        return _stored_report(output.place)[0]
    with output.opened(overwrite=job.overwrite, resume=job.resume) as folder:
        _begin(job, folder, print_fn)
        to_train = not output.is_finished()
        from_all_processes(to_train)  # the others follow
        if to_train:
            _write_run(job, recipe, folder, print_fn)
            output.finish()
        output.publish(print_fn)
    report, facts = _stored_report(output.place)
    print_fn(f"\n{report}\n")
    if note := _note_of_probe(report, facts):
        print_fn(note)
    print_fn(
        f"{facts['seconds']:.0f} s; written to {job.out}: "
        + ", ".join(sorted(path.name for path in job.out.iterdir()))
    )
    print_fn(f"next: keras-vit predict {shlex.quote(str(job.out))} photo.jpg")
    return report


def _follow(job: Job, recipe: Recipe) -> evaluation.ClassificationReport | None:
    """What `train` does in the other processes: the same steps, and no file."""
    if not from_all_processes(False)[0]:
        return None
    teacher = _load_teacher(job)
    splits = _load(job)
    _, recipe = suited_recipe(job, recipe, splits, lambda line: None)
    model, *_ = trained_model(job, recipe, splits, job.output.workspace, lambda line: None, teacher)
    outcomes = predict_outcomes(model, splits.val, recipe.batch_size)
    _whole(model)
    return _report_of(outcomes, splits)


def _on_devices(job: Job, recipe: Recipe) -> AbstractContextManager[Any]:
    """The scope of the job's distribution."""
    if job.distribution is not None:
        keras_vit.distribution.initialize()
        check_processes(job, recipe)
        return keras_vit.distribution.create(job.distribution, job.devices).scope()
    if job.devices is not None:
        raise ValueError(
            f"devices={job.devices} needs a distribution: give --distribution data_parallel, too."
        )
    return nullcontext()


def _note_of_probe(report: evaluation.ClassificationReport, facts: dict[str, Any]) -> str:
    """A line where the trained model is worse than a linear probe on what it started from."""
    probe, choice = facts.get("probe_accuracy"), facts.get("choice", {})
    if probe is None or report.accuracy >= probe or choice.get("selected") == PROBE:
        return ""
    return (
        f"note: a linear probe on the frozen features reaches {probe:.2%} of the validation "
        f"images, and the trained model {report.accuracy:.2%}: try --freeze-backbone, or a lower "
        "--learning-rate"
    )


def _stored_report(folder: Path) -> tuple[evaluation.ClassificationReport, dict[str, Any]]:
    """The report of a finished run, and all facts of its `report.json`."""
    facts = json.loads((folder / "report.json").read_text("utf-8"))
    return evaluation.ClassificationReport.from_dict(facts["report"]), facts


def _begin(job: Job, folder: Path, print_fn: Callable[[str], None]) -> None:
    """Records the options of a new run, or compares them with those of the run to resume.

    Checkpoints have them, too, but the first one comes after a while.
    """
    path = folder / "config.json"
    if not path.is_file():
        command = shlex.join(["keras-vit", *sys.argv[1:]])
        write_text(path, json.dumps({"command": command, "identity": job.identity}, indent=2))
        return
    stored = json.loads(path.read_text("utf-8"))["identity"]
    mismatches = list(differences(stored, job.identity))
    if mismatches:
        raise RunMismatchError(
            f"The run of {job.out} was started with other options: {'; '.join(mismatches[:3])}. "
            "Give the same options with --resume, or --overwrite."
        )
    if not any([*folder.glob("checkpoints/step-*"), *folder.glob("report.json")]):
        print_fn("there is no checkpoint yet: the run starts from its first step")


def _write_run(job: Job, recipe: Recipe, folder: Path, print_fn: Callable[[str], None]) -> None:
    """Trains, and writes all files of the run into its folder."""
    started = time.time()
    teacher = _load_teacher(job)  # an unsuitable one is reported before the data are loaded
    splits = _load(job)
    print_fn(f"{splits!r}")
    if splits.report.unreadable or splits.report.ignored:
        print_fn(f"left out: {splits.report}")
    name, recipe = suited_recipe(job, recipe, splits, print_fn)
    model, history, more = trained_model(job, recipe, splits, folder, print_fn, teacher)
    outcomes = predict_outcomes(model, splits.val, recipe.batch_size)
    several = current_processes() is not None
    model = _whole(model)
    facts = {
        "seconds": round(time.time() - started, 1),
        "parameters": model.count_params(),
        "recipe": name,
        **more,
        "data": {name: len(split) for name, split in splits.items()},
        "bad_files": [[str(path), reason] for path, reason in splits.report],
        "ignored": [[str(path), reason] for path, reason in splits.report.ignored],
    }
    with single_process() if several else nullcontext():
        _write_files(job, recipe, folder, model, splits, facts, outcomes, history)


def _report_of(outcomes: Outcomes, splits: data.Splits) -> evaluation.ClassificationReport:
    return evaluation.classification_report(
        outcomes.labels, outcomes.predictions, splits.class_names
    )


def _write_files(
    job: Job,
    recipe: Recipe,
    folder: Path,
    model: Any,
    splits: data.Splits,
    facts: dict[str, Any],
    outcomes: Outcomes,
    history: History,
) -> None:
    """The trained model, its report and its SavedModel."""
    report = _report_of(outcomes, splits)
    config = _config(job, recipe, model, folder)
    with atomic_write(folder / "model.keras") as temporary:
        model.save(temporary)
    write_text(folder / "config.json", json.dumps(config, indent=2, default=str))
    write_report(
        folder,
        report,
        facts,
        outcomes=outcomes,
        split=splits.val,
        history=history,
        config=config,
        name=job.output.place.name,
        run=job.out,
    )
    saved_model = folder / "saved_models" / job.output.place.name / "1"
    keras_vit.export_model(model, saved_model, overwrite=True)


def _load(job: Job) -> data.Splits:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the report lists the same files
        warnings.simplefilter("default", DataRangeWarning)  # and not these
        return data.load(
            job.data,
            data_dir=job.data_dir,
            val_fraction=job.val_fraction,
            seed=job.seed,
            max_pixels=job.max_pixels,
            on_bad_file=job.on_bad_file,
        )


def _load_teacher(job: Job) -> Any:
    """The teacher of `job.teacher`, if there is one, which returns a logit per class."""
    if job.teacher is None:
        return None
    if ":" not in job.teacher and not Path(job.teacher).expanduser().exists():
        raise FileNotFoundError(
            f"There is no teacher at {job.teacher}. Give a .keras or weights file, the folder of a "
            "training run, or MODEL:TAG of released weights."
        )
    teacher = load_model(job.teacher)
    check_classifier(teacher, "teacher")
    return teacher


def _sha256(model: Any) -> str:
    digest = hashlib.sha256()
    for values in model.get_weights():
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _whole(model: Any) -> Any:
    """In several processes, a copy with all weights, which each can save and export alone."""
    if current_processes() is None:
        return model
    with single_process():
        return model.copy()


def build(job: Job, recipe: Recipe, num_classes: int, channels: int) -> Any:
    """The model of the job's name or weights, or that of the recipe."""
    size = recipe.image_size
    if size != DEFAULT_SIZE and job.weights and job.image_size is None and _is_mixer(job):
        size = DEFAULT_SIZE  # its weights mix the patches of one size
    arguments: dict[str, Any] = {
        "num_classes": num_classes,
        "input_shape": (size, size, channels),
        "dtype": job.precision,
    }
    if job.model is not None:
        model = keras_vit.create(job.model, weights=job.weights, **arguments)
    elif job.weights is not None:
        model = keras_vit.from_checkpoint(job.weights, **arguments)
    else:
        model = keras_vit.VisionTransformer(**{**recipe.model, **arguments})
    is_named = job.model is not None or job.weights is not None
    if is_named and (rates := recipe.rates(model.get_config())):
        model = model.copy(**rates)
    if job.token_merging is not None:
        if not isinstance(model, VisionTransformer):
            raise ValueError(
                f"token_merging={job.token_merging} is for the blocks of a Vision Transformer, not "
                f"for {model.name}. Leave it out, or give another model."
            )
        model = model.with_token_merging(job.token_merging)
    if recipe.augmentation.crop == "resize":
        # Tiny images do not have a border to crop in evaluation.
        model.eval_transform = {"mode": "stretch"}
    return model


def _is_mixer(job: Job) -> bool:
    """Whether the job's model, or else its weights, are an MLP-Mixer's."""
    if job.model is not None:
        return family_of(job.model).model is MLPMixer
    assert job.weights is not None
    return model_class(job.weights) is MLPMixer


def trained_model(
    job: Job,
    recipe: Recipe,
    splits: data.Splits,
    folder: Path,
    print_fn: Callable[[str], None],
    teacher: Any = None,
) -> tuple[Any, History, dict[str, Any]]:
    """The model, trained on `splits.train`, perhaps by a teacher, its history and facts."""
    keras.utils.set_random_seed(job.seed)
    everything = splits
    splits, held_out = hold_out(splits, recipe.held_out, job.seed)
    chooses, choosing = recipe.probe_first and not job.freeze_backbone, held_out
    if chooses and job.held_out is None and held_out is None:
        splits, choosing = hold_out_to_choose(splits, job.seed)
    model = build(job, recipe, len(splits.class_names), splits.train.channels)
    model.class_names = splits.class_names
    facts: dict[str, Any] = {}
    if job.first_look or job.freeze_backbone or recipe.probe_first:
        probe = _probe_features(model, splits, job.seed, print_fn)
        facts["probe_accuracy"] = probe.accuracy
        if job.freeze_backbone or recipe.probe_first:
            set_head(model, probe)
    start = model.get_weights() if recipe.tuned_share < 1 or chooses else None
    history: History = {}
    if not job.freeze_backbone:
        model, history = _fitted(job, recipe, model, splits, folder, print_fn, teacher)
    if chooses:
        assert start is not None
        # Images that set the temperature must not be trained on.
        all_images = everything.train if held_out is None else None
        model, choice = choose(model, recipe, start, choosing, all_images)
        print_fn(str(choice))
        facts["choice"] = choice.to_dict()
        recipe = replace(recipe, tuned_share=1.0, eval_size=0)  # `choose` has done both
    model, scaling = refine(model, recipe, start, held_out, recipe.batch_size)
    facts |= scaling
    if scaling:
        print_fn(
            f"temperature {facts['temperature']:.3f}, from {facts['held_out']} training images "
            "that were not trained on"
        )
    return model, history, facts


def _fitted(
    job: Job,
    recipe: Recipe,
    model: Any,
    splits: data.Splits,
    folder: Path,
    print_fn: Callable[[str], None],
    teacher: Any = None,
) -> tuple[Any, History]:
    """The model after `fit`, and its history."""
    if job.lora is not None:
        print_fn(f"LoRA trains {enable_lora(model, job.lora):,} parameters")
    task, identity = model, dict(job.identity)
    if teacher is not None:
        task = Distillation(model, teacher, job.distillation or "soft")
        # A run does not continue with another teacher that came in this one's place.
        identity["teacher_sha256"] = _sha256(teacher)
        print_fn(f"learns from {teacher.name}: {teacher.count_params():,} parameters")
    history = fit(
        task,
        recipe,
        splits,
        folder,
        seed=job.seed,
        print_fn=print_fn,
        identity=identity,
        augment=job.augment,
        checkpoint_seconds=job.checkpoint_seconds,
        patience=job.patience,
        tensorboard=job.tensorboard,
    )
    if job.patience is not None and (folder / "best.keras").is_file():
        return load_model(folder / "best.keras"), history
    return (model.copy() if job.lora is None else merged(model)), history


def _probe_features(
    model: Any, splits: data.Splits, seed: int, print_fn: Callable[[str], None]
) -> evaluation.LinearProbe:
    """Evaluates the untrained backbone by k-NN and a linear probe on features, cached on disk."""
    cache = cache_folder() / "features"
    train = evaluation.features(model, splits.train, cache)
    val = evaluation.features(model, splits.val, cache)
    k = min(K_NEIGHBOURS, len(train[0]))
    accuracy = evaluation.knn_accuracy(*train, *val, k=k)
    probe = evaluation.linear_probe(*train, *val, seed=seed)
    print_fn(
        f"on frozen features: {k} nearest neighbours {accuracy:.2%}, "
        f"linear probe {probe.accuracy:.2%}"
    )
    return probe


def _config(job: Job, recipe: Recipe, model: Any, folder: Path) -> dict[str, Any]:
    """How the model was made, for `config.json` and the model card."""
    started = json.loads((folder / "config.json").read_text("utf-8"))
    return {
        "command": started["command"],  # of the first process, if it was resumed
        "job": asdict(replace(job, resume=False)),
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
