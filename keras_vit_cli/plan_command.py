"""`keras-vit plan`: the size of a model and the memory that it needs."""

from keras_vit.models import model_cost, named_model
from keras_vit.models.geometry import DEFAULT_SIZE
from keras_vit_cli.options.model_options import PlanOptions
from keras_vit_cli.printing import print_text


def plan(options: PlanOptions) -> None:
    """Prints parameters, operations and memory.

    Raises:
        ValueError: The model is unknown.
    """
    model, batch = options.model, options.batch_size
    size = options.image_size or named_model(model).image_size or DEFAULT_SIZE
    more = {} if options.num_classes is None else {"num_classes": options.num_classes}
    estimate = model_cost(
        model,
        image_size=size,
        precision=options.precision,
        batch_size=batch,
        remat=options.remat,
        **more,
    )
    print_text(f"{model} at {size} px, {options.precision}, batch {batch}")
    print(f"  parameters        {estimate.parameters:>16,}")
    print(f"  GMACs per image   {estimate.macs / 1e9:>16,.2f}")
    print(f"  memory, inference {estimate.inference_bytes / 2**30:>12,.2f} GiB (estimate)")
    print(f"  memory, training  {estimate.training_bytes / 2**30:>12,.2f} GiB (estimate, Adam)")
