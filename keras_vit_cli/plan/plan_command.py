"""`keras-vit plan`: the size of a model, and what a training step costs each chip."""

from typing import Any

from keras_vit._base.errors import counted
from keras_vit.models import model_cost, named_model
from keras_vit.models.geometry import DEFAULT_SIZE
from keras_vit_cli.options.plan import PlanOptions
from keras_vit_cli.plan.step_cost import (
    DoesNotFitError,
    StepCost,
    cost_table,
    expected_cost,
    run_cost,
    step_cost,
)
from keras_vit_cli.printing import print_text


def plan(options: PlanOptions) -> None:
    """Prints parameters, operations and memory, and with `compile` a step and a training.

    Raises:
        ValueError: The model is unknown, or `training_images` come without chips.
    """
    model, batch = options.model, options.batch_size
    if options.training_images is not None and options.compile is None:
        raise ValueError("--training-images needs chips: name them, as --compile v5e:4x4.")
    size = options.image_size or named_model(model).image_size or DEFAULT_SIZE
    more = {} if options.num_classes is None else {"num_classes": options.num_classes}
    arguments: dict[str, Any] = {
        "precision": options.precision,
        "batch_size": batch,
        "remat": options.remat,
        **more,
    }
    estimate = model_cost(model, image_size=size, **arguments)
    print_text(f"{model} at {size} px, {options.precision}, batch {batch}")
    print(f"  parameters        {estimate.parameters:>16,}")
    print(f"  GMACs per image   {estimate.macs / 1e9:>16,.2f}")
    print(f"  memory, inference {estimate.inference_bytes / 2**30:>12,.2f} GiB (estimate)")
    print(f"  memory, training  {estimate.training_bytes / 2**30:>12,.2f} GiB (estimate, Adam)")
    if options.compile is not None:
        costs = _plan_step(model, options.compile, options.distribution, size, arguments)
        if options.training_images is not None:
            print(run_cost(costs, options.training_images, options.epochs, batch))


def _plan_step(
    model: str, tpu: str, distribution: str, size: int, arguments: dict[str, Any]
) -> dict[str, StepCost]:
    """Plan a training step on a TPU: by arithmetic, and by its compiler if it is installed."""
    expected = expected_cost(model, distribution, tpu, image_size=size, **arguments)
    costs, notes = {"by arithmetic": expected}, []
    if distribution == "fsdp" and (expected.held or 0) > 2 / expected.devices:
        notes.append(
            f"Each chip holds {expected.held:.1%} of the weights, as {expected.devices} divides no "
            "axis of the others: a number of chips that divides the model's width cuts all of them."
        )
    try:
        compiled = step_cost(model, distribution, tpu, input_shape=(size, size, 3), **arguments)
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
