"""`Spec`: what a model takes and answers, as far as data, losses and metrics are checked.

Unnecessary from Keras: none yet. A `keras.Model` knows shapes, and not what its numbers mean.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

from keras_vit.tasks import TASKS, Task


@dataclass(frozen=True)
class Spec:
    """What a model takes and answers, as plain values: worker processes get a copy.

    `fit`, `evaluate` and `predict` of a `CompiledModel` compare data with its `spec`, `compile` the
    loss and the metrics. A model without one (None) is not checked.

    Attributes:
        name: Of the model, in messages.
        input_shape: `(None, height, width, channels)`, or channels first.
        output_shape: `(None, outputs)`, or a map `(None, height, width, outputs)`.
        outputs: How many numbers the head returns for each answer; 0 for features.
        channels_axis: 3, or 1 for channels first.
        takes_pixels: Whether it takes pixels from 0 to 255, or bands in the range of their files;
            otherwise normalized images.
        statistics: The means and standard deviations of bands in a range of their own, or None.
        task: What the outputs mean; None where that is not known.
        class_names: The names of its classes, or None.
        activation: Of the head, as `keras.activations.get` takes it.
    """

    name: str
    input_shape: tuple[int | None, ...]
    output_shape: tuple[int | None, ...]
    outputs: int
    channels_axis: int = 3
    takes_pixels: bool = True
    statistics: Any = None
    task: Task | None = None
    class_names: tuple[str, ...] | None = None
    activation: Any = None

    def trained_task(self, kind: str | None) -> type[Task] | None:
        """Return the class of the task that a loss of this kind trains; the spec's for None."""
        if kind is not None:
            return TASKS[kind]
        return None if self.task is None else type(self.task)

    def of_images(self, name: str) -> Self:
        """Return what is known of the images alone, for a model of that name with other outputs."""
        nothing: dict[str, Any] = {"task": None, "class_names": None, "activation": None}
        return replace(self, name=name, outputs=0, **nothing)
