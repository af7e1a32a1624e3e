"""What `keras-vit train` does: from images to a trained model, its report and its SavedModel."""

import json
import shlex
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit import data, evaluation
from keras_vit._base.errors import ReportedWarning
from keras_vit._base.files import atomic_write, cache_folder, write_text
from keras_vit._base.version import install_command
from keras_vit.data.seen_images import SeenImages
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.distribution.kinds import distribution_of
from keras_vit.evaluation.novelty import classifier_head
from keras_vit.evaluation.outcomes import Outcomes
from keras_vit.evaluation.prediction import predict_outcomes, predict_split
from keras_vit.evaluation.report import Report, report_of
from keras_vit.evaluation.unseen_images import IMAGES, seen_images_of, table_arguments
from keras_vit.models.answers import answers_of
from keras_vit.ops import (
    current_processes,
    from_all_processes,
    single_process,
    wait_for_processes,
)
from keras_vit.tasks.balance import describe_counts, differs_much
from keras_vit.training.callbacks import check_tensorboard
from keras_vit.training.compilation import loss_name
from keras_vit.training.distillation import Distillation, check_classifier
from keras_vit.training.first_look import first_look
from keras_vit.training.fitting import AROUND_FIT, History, fit
from keras_vit.training.lora import enable_lora, merged
from keras_vit.training.measured_fit import measured_fit, prepare
from keras_vit.training.probe_choice import choose_probe
from keras_vit.training.refinement import refine, set_head, some_images
from keras_vit.training.training_set import TrainingSet, some_of
from keras_vit.weights import load
from keras_vit_cli.library_words import in_options
from keras_vit_cli.model_files import keep_decoder
from keras_vit_cli.printing import noted
from keras_vit_cli.report.description import describe_model, describe_targets
from keras_vit_cli.report.results import results_of
from keras_vit_cli.report.run_files import note_of_best, write_report
from keras_vit_cli.train.build import build
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.job_recipe import (
    check_budget,
    check_processes,
    note_of_mirroring,
    note_of_size,
    obstacle_to_measuring,
    recipe_of,
    suited_recipe,
)
from keras_vit_cli.train.record import (
    begin,
    config_of,
    is_finished,
    note_of_probe,
    stored_report,
    write_images,
)
from keras_vit_cli.train.weights_choice import choose_weights, is_auto

NO_SAVED_MODEL = (
    "note: there will be no SavedModel, which TensorFlow writes, and it is not installed: {}, or "
    "export the finished model in another format by keras-vit export"
)
MOST_FITTED = 4096  # training images whose features the novelty is fitted on


def train(job: Job, print_fn: Callable[[str], None] = print) -> Report | None:
    """Trains, writes everything under `job.out`, and returns the report on the validation split.

    In several processes, which `keras_vit.distribution.initialize` finds, all train, and the first
    one writes and prints; the others return None where nothing was left to train.

    The folder appears when it is complete: `model.keras`, `saved_models/NAME/1/`, `report.json`,
    `report.md` with its images, `history.csv`, `images.csv`, `config.json`, and `SHA256SUMS` of
    them all; without TensorFlow there is no SavedModel. Until then the run is in `OUT.partial`,
    from which `job.resume` continues it as if it had not stopped. Only files that a run has written
    are ever deleted (`keras_vit._base.output_folder`).

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
    run = Run(job, print_fn)
    with run.devices():
        report = run.publish() if keras_vit.distribution.is_first_process() else run.follow()
        wait_for_processes()  # none of them ends while the first one writes
    return report


class Run:
    """One training run: its steps as methods, in the order in which they are taken.

    `publish` takes them all; `train_on` those between the data and the trained model. Each step
    leaves what the next ones need.

    Attributes:
        recipe: The job's recipe; from `load` on the one that suits the images.
        folder: Where checkpoints and results are written until the run is complete.
        facts: What `report.json` records besides the scores.
        history: From the name of a metric to its values by epoch.
        loaded: The images and labels, after `load`.
        images: Which of them are used for what, after `hold_out` and `keep_apart`.
        model: The classifier; each step of `train_on` may put another in its place.
        outcomes: What is kept of the answers to the validation split, after `predict`, and the
            `targets`.

    Raises:
        ValueError: An option is misspelled, or does not go with another; nothing is loaded yet.
    """

    loaded: data.Splits
    model: Any
    images: TrainingSet
    outcomes: Outcomes
    targets: np.ndarray

    def __init__(self, job: Job, print_fn: Callable[[str], None] = print) -> None:
        self.job = job
        self.print = print_fn
        self.recipe = recipe_of(job)
        self.folder = job.output.workspace
        self.teacher: Any = None
        self.facts: dict[str, Any] = {}
        self.history: History = {}

    def devices(self) -> AbstractContextManager[Any]:
        """Return the scope of the job's distribution."""
        job = self.job
        if job.distribution is not None:
            keras_vit.distribution.initialize()
            check_processes(job, self.recipe)
            return distribution_of(job.distribution, job.devices).scope()
        if job.devices is not None:
            raise ValueError(
                f"devices={job.devices} needs a distribution: give --distribution data_parallel, "
                "too."
            )
        return nullcontext()

    def publish(self) -> Report:
        """Run all steps in a single process or the first of several, and write their files."""
        job, output, started = self.job, self.job.output, time.time()
        if is_finished(job, output, self.print):
            from_all_processes(False)
            return stored_report(output.place)[0]
        with output.opened(overwrite=job.overwrite, resume=job.resume) as self.folder:
            begin(job, self.folder, self.print)
            to_train = not output.is_finished()
            from_all_processes(to_train)  # the others follow
            if to_train:
                if find_spec("tensorflow") is None:
                    self.print(NO_SAVED_MODEL.format(install_command("tensorflow")))
                self.load()
                self.train_on(self.loaded)
                self.predict()
                self.write(started)
                output.finish()
            output.publish(self.print)
        report, facts = stored_report(output.place)
        self.print(f"\n{report}\n")
        if note := note_of_probe(report, facts, job):
            self.print(note)
        if note := note_of_best(job.out, facts):
            self.print(f"note: {note}")
        for promise in report.promises:
            self.print(str(promise))
        seconds = time.time() - started if to_train else facts["seconds"]
        self.print(
            f"{seconds:.0f} s; written to {job.out}: "
            + ", ".join(sorted(path.name for path in job.out.iterdir()))
        )
        image = "tile.tif" if job.bands else "photo.jpg"
        self.print(f"next: keras-vit predict {shlex.quote(str(job.out))} {image}")
        return report

    def follow(self) -> Report | None:
        """Run the same steps in the other processes, without printing or writing files."""
        if not from_all_processes(False)[0]:
            return None
        self.print = lambda line: None
        self.load()
        self.train_on(self.loaded)
        self.predict()
        return self.report

    def load(self) -> None:
        """Load the teacher, the data and the recipe; print if class sizes differ much."""
        if self.job.teacher is not None:
            self.teacher = load(self.job.teacher)
            check_classifier(self.teacher, "teacher")  # an unsuitable one costs no loading
        with noted("train") as doubts:
            self.loaded = load_splits(self.job)
        if doubts:
            self.facts["doubts"] = doubts
        self.print(f"{self.loaded!r}")
        if reason := self.loaded.task_reason:
            self.print(f"task {self.loaded.task.kind}: {reason}")
        if self.loaded.report.unreadable or self.loaded.report.ignored:
            self.print(in_options(f"left out: {self.loaded.report}", "train"))
        check_budget(self.job, self.loaded)
        if is_auto(self.job.weights):
            weights, self.facts["weights"] = choose_weights(
                self.job, self.loaded, self.recipe.image_size, self.folder, self.print
            )
            self.job = replace(self.job, weights=weights)
            self.recipe = recipe_of(self.job)
        name, self.recipe = suited_recipe(self.job, self.recipe, self.loaded, self.print)
        if note := note_of_size(self.job, self.recipe, name):
            self.print(note)
        changes = bool(self.loaded.task.changes_in_mirror)
        if changes and self.job.views is None:
            self.recipe = replace(self.recipe, views="one")
        mirrors = not self.loaded.task.keeps_in_mirror
        if mirrors and not changes and (note := note_of_mirroring(self.job, self.recipe)):
            self.print(note)
        self.facts["recipe"] = name
        task, recipe = self.loaded.task, self.recipe
        if self.job.coverage is not None and task.kind not in ("classification", "regression"):
            task.with_coverage((), (), self.job.coverage)  # says why not
        if self.job.held_out and not task.learns_from_held_out:
            raise ValueError(
                f"held_out={self.job.held_out} keeps training images for a temperature, thresholds "
                f"or intervals, and {task.kind} learns none: leave it out."
            )
        task.check_balance(recipe.balance, loss_name(task, recipe.loss))
        counts = task.counts(task.to_targets(self.loaded.train.labels()))
        if counts is not None and differs_much(counts):
            self.print(f"training images: {describe_counts(task.shown_names, counts)}")
            if recipe.balance == "none" and task.balances:
                ways = ", ".join(task.balances)
                self.print(f"note: rare ones are predicted seldom; --balance ({ways}) may help")

    def train_on(self, splits: data.Splits) -> None:
        """Train on the splits; set the trained `model`, its `history` and `facts`."""
        keras.utils.set_random_seed(self.job.seed)
        self.loaded = splits
        self.hold_out()
        rasters = None if splits.train.bands is None else splits.train
        self.model = build(self.job, self.recipe, splits.task, splits.train.channels, rasters)
        keep_decoder(self.model, splits.train)
        self.prepare()
        self.keep_apart()
        self.look_first()
        if self.measures:
            self.measure()
        else:
            self.fit()
            self.choose()
        self.refine()
        self.calibrate()

    def hold_out(self) -> None:
        """Decide what is trained on, and what is kept to decide, tune and calibrate."""
        job, recipe = self.job, self.recipe
        self.chooses = (
            recipe.probe_first and self.loaded.task.sums_to_one and not job.freeze_backbone
        )
        self.images = TrainingSet.of(
            self.loaded,
            recipe,
            coverage=job.coverage,
            held_out=job.held_out,
            chooses=self.chooses,
            seed=job.seed,
        )

    def prepare(self) -> None:
        """Plans the comparison of fine-tuning with frozen features, where there is one."""
        job = self.job
        self.measures = not obstacle_to_measuring(job, self.loaded)
        if self.measures:
            self.prepared = prepare(
                self.model,
                self.recipe,
                self.images.splits,
                self.folder / "checkpoints",
                budget=job.budget,
                held_out=self.images.tuning,
                seed=job.seed,
            )
            self.images = replace(
                self.images, splits=self.prepared.splits, deciding=self.prepared.held_out
            )

    def keep_apart(self) -> None:
        """Leave what is trained on out of every score, and note in the model who saw which image.

        So are validation images that the first weights, or the teacher, were made with.
        """
        first = seen_images_of(self.model, self.job.weights)
        before = SeenImages() | first | getattr(self.teacher, "seen_images", None)
        self.images, line = self.images.apart(before)
        self.model.seen_images = self.images.seen
        if line:
            self.print(in_options(line, "train"))
        if note := self.images.note_on(before, self.measures):
            self.print(note)
            self.facts.setdefault("doubts", []).append(note.removeprefix("note: "))

    def look_first(self) -> None:
        """Fit a linear probe to the frozen features, where something needs it."""
        job, recipe = self.job, self.recipe
        task = self.model.task
        if task.per_pixel:  # a probe is of one answer per image
            self.start = self.model.get_weights() if recipe.tuned_share < 1 else None
            return
        starts = recipe.probe_first and task.sums_to_one
        if job.first_look or job.freeze_backbone or starts:
            cache = cache_folder() / "features"
            train = evaluation.features(self.model, self.images.splits.train, cache)
            val = evaluation.features(self.model, self.images.splits.val, cache)
            probe, self.facts["probe_scores"] = first_look(task, train, val, recipe, job.seed)
            shown = (f"{name} {score:.4g}" for name, score in self.facts["probe_scores"].items())
            self.print(f"on frozen features, a linear probe: {', '.join(shown)}")
            if job.freeze_backbone or starts:
                set_head(self.model, probe)
        averages = recipe.tuned_share < 1 or self.chooses
        self.start = self.model.get_weights() if averages else None

    def measure(self) -> None:
        """Fit a head to frozen features, or all weights from it on, whichever measurably wins."""
        job = self.job
        self.model, choice, self.history = measured_fit(
            self.model,
            self.recipe,
            self.images.splits,
            self.folder / "checkpoints",
            prepared=self.prepared._replace(
                splits=self.images.splits, held_out=self.images.deciding
            ),
            seed=job.seed,
            cache_dir=cache_folder() / "features",
            print_fn=lambda line: self.print(in_options(line, "train")),
            identity=job.identity,
            augment=job.augment,
            cache=job.cache,
            checkpoint_seconds=job.checkpoint_seconds,
        )
        self.print(str(choice))
        self.facts["choice"] = asdict(choice)

    def fit(self) -> None:
        """Trains the model, perhaps by a teacher, unless its head alone is fitted."""
        job, recipe = self.job, self.recipe
        if job.freeze_backbone and not self.model.task.per_pixel:
            return
        if job.lora is not None:
            self.print(f"LoRA trains {enable_lora(self.model, job.lora):,} parameters")
        trained = self.model
        if (teacher := self.teacher) is not None:
            trained = Distillation(trained, teacher, job.distillation or "soft")
            self.print(f"learns from {teacher.name}: {teacher.count_params():,} parameters")
        self.history = fit(
            trained,
            replace(recipe, **AROUND_FIT),
            self.images.splits,
            self.folder,
            seed=job.seed,
            print_fn=lambda line: self.print(in_options(line, "train")),
            identity=job.identity,
            augment=job.augment,
            cache=job.cache,
            checkpoint_seconds=job.checkpoint_seconds,
            patience=job.patience,
            tensorboard=job.tensorboard,
        )
        if job.patience is not None and (self.folder / "best.keras").is_file():
            self.model = load(self.folder / "best.keras")
        else:
            self.model = self.model.copy() if job.lora is None else merged(self.model)
        if job.lora is not None:
            self.model.trainable = True

    def choose(self) -> None:
        """Keep the fine-tuned weights or the probe that they started from, whichever is better."""
        if not self.chooses:
            return
        assert self.start is not None
        # Images that set the temperature must not be trained on.
        all_images = self.images.known.train if self.images.tuning is None else None
        self.model, choice = choose_probe(
            self.model, self.recipe, self.start, self.images.deciding, all_images
        )
        self.print(str(choice))
        self.facts["choice"] = asdict(choice)

    def refine(self) -> None:
        """Apply the average with the start, the final size, views and temperature."""
        recipe = self.recipe
        if self.chooses:
            recipe = replace(recipe, tuned_share=1.0, eval_size=0)  # `choose` has done both
        self.model, scaling = refine(
            self.model, recipe, self.start, self.images.tuning, recipe.batch_size
        )
        self.facts |= scaling
        if "temperature" in scaling:
            self.print(
                f"temperature {scaling['temperature']:.3f}, from {scaling['held_out']} training "
                "images that were not trained on"
            )

    def calibrate(self) -> None:
        """Prediction sets or intervals, from training images that were used for nothing else."""
        calibrating = self.images.calibrating
        if calibrating is None:
            return
        assert self.job.coverage is not None
        images = some_images(calibrating)
        labels, outputs = predict_split(self.model, images, self.recipe.batch_size)
        task, answers = self.model.task, answers_of(self.model, outputs)
        self.model.task = task.with_coverage(task.to_targets(labels), answers, self.job.coverage)
        self.facts["calibrated_on"] = len(images)
        self.fit_novelty(images, 1 - self.job.coverage)

    def fit_novelty(self, images: data.Split, false_alarms: float) -> None:
        """Fit the novelty score, with its threshold from `images`, which calibrate the model.

        False alarms are as rare as sets without the true class.
        """
        train, is_shared = some_of(self.images.splits.train, MOST_FITTED), bool(current_processes())
        with single_process() if is_shared else nullcontext():  # each computes all features
            model = self.model.copy() if is_shared else self.model
            seen, held_out = (evaluation.features(model, part)[0] for part in (train, images))
            layer = evaluation.fit_novelty(seen, held_out, false_alarms, classifier_head(model))
        self.model.set_novelty(layer)

    def predict(self) -> None:
        """Predicts the validation split, and makes the model one that each process can save."""
        self.outcomes, self.targets = predict_outcomes(
            self.model, self.images.known.val, self.recipe.batch_size
        )
        if current_processes() is not None:
            with single_process():
                self.model = self.model.copy()  # with all weights

    @property
    def report(self) -> Report:
        """The scores on the validation split."""
        of_training = self.images.known.task.to_targets(self.images.known.train.labels())
        return report_of(self.outcomes, self.targets, of_training)

    def write(self, started: float) -> None:
        """Writes the trained model, its report and its SavedModel."""
        report, name = self.images.known.report, self.job.output.place.name
        facts = {
            "seconds": round(time.time() - started, 1),
            "resumed": self.job.resume,  # and the seconds are those since then
            "model": describe_model(self.model),
            "parameters": self.model.count_params(),
            "pixels": [*self.model.image_size, self.model.channels],
            "bands": self.model.eval_transform.bands,
            **self.facts,
            "data": {part: len(split) for part, split in self.images.known.items()},
            "targets": {part: describe_targets(split) for part, split in self.images.known.items()},
            "bad_files": [[str(path), reason] for path, reason in report],
            "ignored": [[str(path), reason] for path, reason in report.ignored],
        }
        self.model.seen_images = self.images.seen
        with single_process() if current_processes() is not None else nullcontext():
            if isinstance(self.loaded.train, IndexedSplit):
                write_images(self.folder / IMAGES, self.loaded, self.images.seen)
            config = config_of(self.job, self.recipe, self.model, self.folder)
            with atomic_write(self.folder / "model.keras") as temporary:
                self.model.save(temporary)
            write_text(self.folder / "config.json", json.dumps(config, indent=2, default=str))
            self.print("writing the report")
            write_report(
                self.folder,
                results_of(self.report, self.outcomes, self.images.known.val, self.model),
                facts,
                history=self.history,
                config=config,
                name=name,
                run=self.job.out,
            )
            if find_spec("tensorflow") is None:
                return  # and was said before all work
            self.print("exporting the SavedModel")
            saved_model = self.folder / "saved_models" / name / "1"
            keras_vit.export(self.model, saved_model, overwrite=True)


def load_splits(job: Job) -> data.Splits:
    """Return the labeled images of a job; bad files are left to the report of the run."""
    bands: Any = job.bands
    if bands not in (None, "all"):
        bands = tuple(map(int, bands.split(",")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReportedWarning)  # the report lists the same files
        return data.load(
            job.data,
            **table_arguments(vars(job)),
            data_dir=job.data_dir,
            val_fraction=job.val_fraction,
            seed=job.seed,
            max_pixels=job.max_pixels,
            reader=job.reader,
            bands=bands,
            nodata=job.nodata,
            on_bad_file=job.on_bad_file,
        )
