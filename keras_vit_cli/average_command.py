"""`keras-vit average`: one model from the weights of several."""

from keras_vit import load, save_weights
from keras_vit._base.errors import listed
from keras_vit.training.averaging import average_weights, model_stock
from keras_vit_cli.options.model_options import AverageOptions
from keras_vit_cli.printing import print_next, print_text


def average(options: AverageOptions) -> None:
    """Writes the average of the models, perhaps drawn toward their start.

    Raises:
        ValueError: There is one model alone, they have other classes, or `out` is not a .keras
            file.
    """
    models, out = options.models, options.out
    if len(models) < 2:
        raise ValueError(f"An average needs two or more models, and only {models[0]} was given.")
    if out.suffix != ".keras":
        raise ValueError(f"--out {out} must end in .keras, such as {out.with_suffix('.keras')}.")
    tuned = [load(path) for path in models]
    for path, model in zip(models, tuned, strict=True):
        if model.class_names != tuned[0].class_names:
            here, first = (listed(m.class_names or ["unnamed"]) for m in (model, tuned[0]))
            raise ValueError(
                f"{path} has the classes {here}, and {models[0]} {first}: average fine-tunings on "
                "the same classes."
            )
    if options.start is None:
        averaged = average_weights(tuned)
    else:
        origin = load(options.start).with_classifier(tuned[0].num_classes)
        if origin.input_shape != tuned[0].input_shape:
            origin = origin.with_input_shape(tuned[0].input_shape[1:])
        averaged = model_stock(origin, tuned)
    save_weights(averaged, out, overwrite=options.overwrite)
    print_text(f"written to {out}")
    print_next("evaluate", out, "--data", "DATA")
