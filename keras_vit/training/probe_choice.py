"""Fine-tuned weights, or the linear probe that they started from: whichever is better.

With few images per class, fine-tuning can end below the probe (LP-FT, Kumar et al. 2022, assumes
that it does not). Training images that neither of them has seen decide; the validation split, which
the report is of, takes no part.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keras_vit import evaluation
from keras_vit._base.errors import counted
from keras_vit._base.files import cache_folder
from keras_vit.data import Split
from keras_vit.evaluation.prediction import predict_split
from keras_vit.tasks.classification import most_probable
from keras_vit.training.recipes import Recipe
from keras_vit.training.refinement import refine, set_head, some_images

PROBE, FINE_TUNED = "linear probe", "fine-tuned weights"


@dataclass(frozen=True)
class ProbeChoice:
    """What was kept, and why.

    Attributes:
        selected: `"linear probe"` or `"fine-tuned weights"`.
        images: Number of held-out training images that decided; 0 where there are none.
        linear_probe: Accuracy of the probe on them, among their classes; None where there are none.
        fine_tuned: Accuracy of the fine-tuned weights on them, likewise.
    """

    selected: str
    reason: str
    images: int = 0
    linear_probe: float | None = None
    fine_tuned: float | None = None

    def __str__(self) -> str:
        verb = "is" if self.selected == PROBE else "are"
        clause = f"the {self.selected} {verb} kept: {self.reason}"
        if self.linear_probe is None or self.fine_tuned is None:
            return clause
        return (
            f"on {counted(self.images, 'training image')} held out: linear probe "
            f"{self.linear_probe:.2%}, after fine-tuning {self.fine_tuned:.2%}; {clause}"
        )


def choose_probe(
    model: Any,
    recipe: Recipe,
    start: list[np.ndarray],
    held_out: Split | None,
    train: Split | None = None,
) -> tuple[Any, ProbeChoice]:
    """Return the better of a model and the one with the weights that its training started from.

    Args:
        start: The weights with the probe as the head.
        held_out: Images that neither was trained on; None keeps the trained weights.
        train: All training images, on which a probe that is kept is fitted again; None keeps it as
            it is.

    Returns:
        The model, refined but for the temperature, and the choice.
    """
    if held_out is None or not len(held_out):  # all were copies of others
        model, _ = refine(model, recipe, start, None)
        reason = "there are no held-out training images to compare them with the linear probe"
        return model, ProbeChoice(FINE_TUNED, reason)
    held_out = some_images(held_out)
    before = model.copy()
    before.set_weights(start)
    probe, _ = refine(before, replace(recipe, tuned_share=1.0), None, None)
    tuned, _ = refine(model, recipe, start, None)
    accuracies = {
        "linear_probe": accuracy(probe, held_out, recipe),
        "fine_tuned": accuracy(tuned, held_out, recipe),
    }
    if accuracies["fine_tuned"] >= accuracies["linear_probe"]:
        reason = "they classify no fewer of these images correctly"
        return tuned, ProbeChoice(FINE_TUNED, reason, len(held_out), **accuracies)
    reason = "fine-tuning made it worse"
    if train is not None:
        x, y = evaluation.features(before, train, cache_folder() / "features")
        options: Any = {"balance": recipe.balance, "num_classes": held_out.num_classes}
        set_head(probe, evaluation.linear_probe(x, y, x, y, **options))
        reason += f"; its head is fitted again, on all {counted(len(y), 'training image')}"
    return probe, ProbeChoice(PROBE, reason, len(held_out), **accuracies)


def accuracy(model: Any, split: Split, recipe: Recipe) -> float:
    """Return the share of the images whose label is the most probable of the classes that occur.

    The mean of the classes' shares where the recipe balances them. Of classes of two images, those
    that gave one to decide have one left, and lose against the others whatever the model: on 80
    images of 200 such classes, probe and tuned weights had 0 %.
    """
    labels, scores = predict_split(model, split, recipe.batch_size)
    classes = np.unique(labels)
    right = classes[most_probable(scores[:, classes])] == labels
    if recipe.balance == "none":
        return float(right.mean())
    return float(np.mean([right[labels == label].mean() for label in classes]))
