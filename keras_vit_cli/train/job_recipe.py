"""The recipe of a training job: named or chosen, with the options that take its numbers' place."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from keras_vit import data
from keras_vit._base.errors import counted, did_you_mean, listed
from keras_vit.data.augment.augment_layers import resolve_augment
from keras_vit.data.sources.digits import is_digits
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.models import named_model
from keras_vit.models.geometry import DEFAULT_SIZE
from keras_vit.models.map_heads import head_of_other_outputs, kind_of
from keras_vit.ops import process_count
from keras_vit.tasks import Task
from keras_vit.training import recipes
from keras_vit.training.auto_recipe import (
    AUTO,
    MEASURED,
    MEASURED_BELOW,
    MEASURED_BELOW_OF_MANY,
    WITH_WEIGHTS,
    choose_recipe,
)
from keras_vit.training.compilation import check_query_loss
from keras_vit.training.measured_tuning import FEW
from keras_vit.training.recipes import SAM_RHO, Recipe
from keras_vit.weights.loading import stored_model, stored_side
from keras_vit_cli.train.job import Job

DEFAULT_RHO = 0.05  # from the SAM paper (Foret et al. 2021), for models that are not in SAM_RHO

TUNING = "finetune_measured"
# Images that pass through one fine-tuning of it, where there are many, and its fewest epochs.
SEEN, LEAST_EPOCHS = 6000, 6

# Images per class before they are counted: only the options are checked then.
MANY = 1e9

# Of a task of pixels, with pretrained weights: by the head.
PIXELS = {
    None: ("linear_pixels", "the head is trained on the features of every patch"),
    "linear": ("linear_pixels", "a linear head is trained on the features of every patch"),
    "dpt": ("dpt_pixels", "a DPT head is trained on the features of every patch"),
    "eomt": ("eomt_pixels", "an EoMT head is trained with the encoder, whose blocks it passes"),
}

# The options that take the place of a recipe's.
RECIPE_OPTIONS = (
    *("epochs", "batch_size", "learning_rate", "image_size", "held_out", "views", "loss"),
    "balance",
)


# Options of a training in epochs, which a head that is fitted to frozen features does not have.
OF_EPOCHS = ("epochs", "steps", "learning_rate", "sam", "patience", "tensorboard")


def recipe_of(
    job: Job, images_per_class: float = MANY, side: int = DEFAULT_SIZE, name: str | None = None
) -> Recipe:
    """Return the recipe with the options of the job, of which a rule may choose by the images."""
    _check_combinations(job)
    try:
        named = None if job.model is None else named_model(job.model)
    except ValueError as error:
        more = " Files and folders are given as weights=, which bring their model."
        raise ValueError(f"{error}{more if os.path.exists(str(job.model)) else ''}") from error
    name = name or recipe_name(job, images_per_class, side)[0]
    recipe = recipes.get(name)
    if not recipe.model and job.model is None and job.weights is None:
        example = "BiT-R50x1" if name.startswith("bit") else "Mixer-B/16"
        raise ValueError(
            f"recipe={name!r} is not for a Vision Transformer, and does not bring a model: give "
            f"model=, such as model='{example}', or weights=."
        )
    changes = {
        name: getattr(job, name) for name in RECIPE_OPTIONS if getattr(job, name) is not None
    }
    changes["accumulation"] = min(recipe.accumulation, job.batch_size or recipe.batch_size)
    if named is not None and named.image_size is not None:
        changes.setdefault("image_size", named.image_size)
    elif job.weights not in (None, AUTO) and (stored := stored_side(str(job.weights))):
        changes.setdefault("image_size", stored)
    elif (job.model or job.weights) and recipe.model and recipe.image_size < DEFAULT_SIZE:
        # The size that named models are made for; the recipe's is that of its own small model.
        changes.setdefault("image_size", DEFAULT_SIZE)
    if changes.get("image_size", recipe.image_size) != recipe.image_size:
        changes["eval_size"] = 0  # larger than another size, and not larger than this one
    if "epochs" in changes:
        changes["steps"] = 0
    recipe = replace(recipe, **changes)
    if job.sam and not recipe.rho:
        recipe = replace(recipe, rho=SAM_RHO.get(named.variant if named else "", DEFAULT_RHO))
    if job.augment is not None:
        settings, _ = resolve_augment(job.augment, recipe.augment)
        recipe = recipe.with_augmentation(settings)
        if not settings.flip and job.views is None:
            recipe = replace(recipe, views="one")  # whose mirror images mean something else
    return recipe if job.steps is None else recipe.scaled(steps=job.steps)


def _check_combinations(job: Job) -> None:
    """Raises a ValueError for options that exclude or need each other."""
    if (job.freeze_backbone or job.lora is not None) and job.weights is None:
        raise ValueError(
            "freeze_backbone and lora= need pretrained weights: give weights=, or leave them out."
        )
    if job.freeze_backbone and job.augment not in (None, "none", ("none",), ["none"]):
        raise ValueError(
            "freeze_backbone computes features once, of images as they are: leave augment= out, or "
            "give augment='none', or leave freeze_backbone out."
        )
    if job.recipe == MEASURED and job.weights is None:
        raise ValueError("recipe='measured' compares what is trained from weights: give weights=.")
    if job.freeze_backbone and job.teacher is not None:
        raise ValueError(
            "freeze_backbone fits the head to the labels, without a teacher: leave freeze_backbone "
            "or teacher= out."
        )


def recipe_name(
    job: Job, images_per_class: float, side: int = DEFAULT_SIZE
) -> tuple[str, str | None]:
    """Return the name of the recipe, and why it was chosen where the job leaves that open."""
    if job.recipe not in (None, AUTO, MEASURED):
        if job.recipe not in recipes.RECIPES:
            known = did_you_mean(job.recipe, [AUTO, MEASURED, *recipes.RECIPES])
            raise ValueError(f"No recipe {job.recipe!r}. {known}")
        return str(job.recipe), None
    if is_digits(job.data, job.labels):
        return "digits", "it is made for these images"
    chosen = choose_recipe(images_per_class, job.weights is not None, job.image_size or side)
    return chosen.recipe, chosen.reason


def is_for_weights(recipe: str) -> bool:
    """Return whether a recipe, by its name, is too short for random weights."""
    return recipe.startswith("finetune") or recipe.endswith("_pixels")


def suited_recipe(
    job: Job, recipe: Recipe, splits: data.Splits, print_fn: Callable[[str], None]
) -> tuple[str, Recipe]:
    """Return the recipe for these images and its name; print why if it was chosen for them."""
    images_per_class = len(splits.train) / splits.num_classes
    name, reason = recipe_name(job, images_per_class)
    head = job.map_head
    if head is None and job.weights is not None and splits.task.per_pixel:
        stored = stored_model(job.weights)[1].get("map_head")
        head = head_of_other_outputs(stored, splits.task)
        head = kind_of(head) if isinstance(head, Mapping) else head
    pixels, what = PIXELS[head]
    _check_parts(job, splits.task, head)
    is_open = job.weights and reason and job.recipe != MEASURED
    if splits.task.per_pixel and (job.freeze_backbone or is_open) and job.lora is None:
        print_fn(f"recipe {pixels}: {what}")
        return pixels, recipe_of(job, name=pixels)
    if reason is None:
        if job.weights is None and is_for_weights(name):
            print_fn(f"note: recipe {name} is for pretrained weights: give them as --weights")
        return name, recipe
    if job.weights is not None and name != "digits":
        if not (obstacle := obstacle_to_measuring(job, splits)):
            return _measured_recipe(job, splits, images_per_class, print_fn)
        if job.recipe == MEASURED:
            raise ValueError(f"recipe='measured' compares ways of training: {obstacle}.")
        print_fn(f"recipe auto does not compare fine-tuning with frozen features: {obstacle}")
    side = splits.train.typical_side()
    name, reason = recipe_name(job, images_per_class, side)
    images = counted(len(splits.train), "training image")
    about = f"{images} of {counted(splits.task.size, *splits.task.nouns)}"
    if job.freeze_backbone:
        reason = "the head alone is trained: of the recipe, how images are prepared"
    elif job.model and not job.weights and name != "digits":
        reason = f"{job.model} is trained without pretrained weights"
    elif name == WITH_WEIGHTS[0].recipe and not splits.task.sums_to_one:  # without a probe
        reason = "so few images change the weights for the worse unless the learning rate is low"
    print_fn(f"recipe {name}: {about}, and {reason}")
    recipe = recipe_of(job, images_per_class, side)
    check_processes(job, recipe)
    return name, recipe


def _check_parts(job: Job, task: Task, head: str | None) -> None:
    """Refuse options that have no effect together, or none for this task.

    Raises:
        ValueError: There are such options.
    """
    pixels = PIXELS[head][0]
    if head == "eomt" and job.loss is not None:
        check_query_loss(job.loss)
    elif job.loss is not None and job.loss not in task.losses:
        # Of a recipe, a loss of classes stands for the task's own; one that was asked for does not.
        raise ValueError(
            f"loss={job.loss!r} is not a loss of {task.kind}: give "
            f"{' or '.join(task.losses)}, or leave it out."
        )
    is_fitted = job.freeze_backbone and not task.per_pixel  # at once, without an epoch
    unused = [name for name in OF_EPOCHS if is_fitted and getattr(job, name)]
    unused += ["loss"] if is_fitted and job.loss and task.sums_to_one else []
    if unused:
        raise ValueError(
            f"{listed([f'{name}=' for name in unused])} would have no effect: freeze_backbone fits "
            "the head to features that are computed once. Leave one or the other out."
        )
    if job.first_look and task.per_pixel:
        raise ValueError(
            f"first_look is a linear probe of one answer per image, and {task.kind} has one "
            "per pixel: leave it out."
        )
    if head == "eomt" and job.freeze_backbone:
        raise ValueError(
            "freeze_backbone trains a head on features of a frozen encoder, and the queries of the "
            "EoMT head pass the encoder's own blocks: leave freeze_backbone out, or give "
            "map_head='dpt' or 'linear'."
        )
    if task.per_pixel and job.freeze_backbone and job.recipe not in (None, AUTO, pixels):
        raise ValueError(
            f"freeze_backbone trains a head of pixels by the recipe {pixels}, and recipe="
            f"{job.recipe!r} is another one: leave out one of the two."
        )


def obstacle_to_measuring(job: Job, splits: data.Splits) -> str:
    """Return why `auto` takes a recipe by the number of images alone; "" where it measures."""
    is_asked = job.recipe in (None, AUTO, MEASURED)
    if not is_asked or job.weights is None or is_digits(job.data, job.labels):
        return "it is for --recipe auto or measured with --weights"
    for name in ("freeze_backbone", "lora", "teacher", "patience", "tensorboard"):
        if getattr(job, name):
            return f"--{name.replace('_', '-')} is one way of training"
    if job.held_out == 0:
        return "--held-out 0 compares nothing"
    if not splits.task.sums_to_one:
        return f"that is for one class per image, and these labels are {splits.task.kind}"
    if not isinstance(splits.train, IndexedSplit):
        return "records do not have fixed places"
    if process_count() > 1:
        return f"that takes one process, and there are {process_count()}"
    images = len(splits.train)
    below = MEASURED_BELOW if images < FEW else MEASURED_BELOW_OF_MANY
    if job.recipe != MEASURED and images >= below * splits.num_classes:
        return f"with {below} images per class or more, --recipe measured does"
    return ""


def check_budget(job: Job, splits: data.Splits) -> None:
    """Raises a ValueError for a budget where nothing is compared that it could leave out."""
    if job.budget is not None and (obstacle := obstacle_to_measuring(job, splits)):
        raise ValueError(
            "budget= limits the comparison of fine-tuning with frozen features, and here there is "
            f"none: {obstacle}. Leave it out."
        )


def _measured_recipe(
    job: Job, splits: data.Splits, images_per_class: float, print_fn: Callable[[str], None]
) -> tuple[str, Recipe]:
    """Return the recipe of a fine-tuning that is compared with frozen features, and its name."""
    images = len(splits.train)
    name = TUNING
    if images >= FEW and images_per_class >= WITH_WEIGHTS[0].below:
        name = WITH_WEIGHTS[-1].recipe
    print_fn(
        f"recipe {job.recipe or AUTO}: heads on frozen features and {name} are compared on "
        f"{counted(images, 'training image')} of {counted(splits.task.size, *splits.task.nouns)}"
    )
    recipe = recipe_of(job, name=name)
    if name == TUNING and job.epochs is None and job.steps is None:
        recipe = replace(recipe, epochs=min(recipe.epochs, max(SEEN // images, LEAST_EPOCHS)))
    return name, recipe


def check_processes(job: Job, recipe: Recipe) -> None:
    """Raises a ValueError for what needs the features in one process, where there are several."""
    if process_count() > 1 and (job.first_look or job.freeze_backbone or recipe.probe_first):
        raise ValueError(
            f"first_look, freeze_backbone and recipes that begin with a linear probe work in one "
            f"process, and there are {process_count()}: leave them out (--recipe finetune_small), "
            "or start one process."
        )


def note_of_size(job: Job, recipe: Recipe, name: str) -> str:
    """Return a line where the size of images is neither asked for nor the recipe's; or ""."""
    size, of_recipe = recipe.image_size, recipes.get(name).image_size
    is_chosen = job.image_size is not None or size == of_recipe or job.weights in (None, AUTO)
    if is_chosen or size != stored_side(str(job.weights)):
        return ""
    return (
        f"image size {size}: that of the weights, where recipe {name} has {of_recipe}; "
        "--image-size takes another"
    )


def note_of_mirroring(job: Job, recipe: Recipe) -> str:
    """Return a line where mirrored images may have another label, and what to give then; or ""."""
    trains_on_mirrored = recipe.augmentation.flip and not job.freeze_backbone
    if not trains_on_mirrored and recipe.views == "one":
        return ""
    fix = "--augment none or digits" if trains_on_mirrored else "--views one"
    where = "training or prediction" if trains_on_mirrored else "prediction"
    return (
        f"note: images are mirrored in {where}; where a mirror image has another answer, as an "
        f"angle has, give {fix}"
    )
