"""A ViT and a ResNet trained on the same photographs, by the same recipe, for as many steps.

    python examples/flowers_vit_vs_resnet.py --data FOLDER
    python examples/flowers_vit_vs_resnet.py --data FOLDER --weights FILE --resnet-weights none
    python examples/flowers_vit_vs_resnet.py --data FOLDER --weights none --resnet-weights none
    python examples/flowers_vit_vs_resnet.py --resnet ResNet50 --resnet-weights imagenet

Like stands beside like: where one of them alone starts from released weights, that one is trained
from scratch as well. The report that this example follows fine-tuned ViT-Base/16 on five classes of
flowers (95.6 %) and a ResNet (68.9 %). Prints a table of all classes for each (its table 4) and one
of all models (its table 5), and writes them to --out. About ten minutes on two CPU cores for
ViT-Ti/16 on 1,800 photographs, and three times that for a ResNet-50. Needs keras3-vit[train].
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import keras
from study import command_line, mean_and_spread, pages

import keras_vit
from keras_vit import data, evaluation, fit, recipes
from keras_vit._base.errors import check_positive
from keras_vit._base.files import write_text

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--data", default="tf_flowers", help="a folder, or a TFDS name")
parser.add_argument(
    "--weights", default="ViT-Ti/16:augreg_in21k_ft_in1k", help="of the ViT: tag, file or none"
)
parser.add_argument("--resnet", default="BiT-R50x1", help="a BiT, or ResNet50 of Keras")
parser.add_argument("--resnet-weights", default="bit_m_in21k", help="tag, file, imagenet or none")
parser.add_argument("--recipe", default="finetune_small", help="how both are trained")
parser.add_argument("--epochs", type=int, help="passes over the photographs, for both")
parser.add_argument("--image-size", type=int, default=224, help="pixels")
parser.add_argument("--precision", help="dtype policy, such as mixed_bfloat16")
parser.add_argument("--seeds", type=int, default=1, help="how many times each model is trained")
parser.add_argument("--models", nargs="+", help="only these, such as 'ViT from scratch'")
parser.add_argument("--out", type=Path, default=Path("runs/vit_vs_resnet"))
parser.add_argument("--markdown", type=Path, help="another file for the tables")


def resnet(name: str, weights: str | None, num_classes: int, size: int) -> Any:
    """A ResNet that takes pixels, under a new head."""
    if name != "ResNet50":
        shape = (size, size, 3)
        return keras_vit.create(name, num_classes=num_classes, input_shape=shape, weights=weights)
    images = keras.Input((size, size, 3))
    # Blue, green, red minus ImageNet's mean color, as these weights were trained.
    mean = keras.layers.Normalization(mean=[103.939, 116.779, 123.68], variance=[1.0, 1.0, 1.0])
    x = mean(images[..., ::-1])
    x = keras.applications.ResNet50(include_top=False, pooling="avg", weights=weights)(x)
    logits = keras.layers.Dense(num_classes, kernel_initializer="zeros", name="head")(x)
    return keras.Model(images, logits, name="resnet50")


def contestants(options: argparse.Namespace, classes: int) -> dict[str, Callable[[], Any]]:
    """What makes each model; those from scratch where no weights are named, or for one alone."""
    size, released = options.image_size, (options.weights, options.resnet_weights)
    shape = (size, size, 3)
    named = {
        "ViT": lambda: keras_vit.load(options.weights, num_classes=classes, input_shape=shape),
        "ResNet": lambda: resnet(options.resnet, options.resnet_weights, classes, size),
    }
    plain = {
        "ViT from scratch": lambda: keras_vit.create(
            "ViT-Ti/16", num_classes=classes, input_shape=shape
        ),
        "ResNet from scratch": lambda: resnet(options.resnet, None, classes, size),
    }
    made = {n: b for (n, b), w in zip(named.items(), released, strict=True) if w != "none"}
    return made | (plain if "none" in released else {})


def main() -> None:
    options = parser.parse_args()
    check_positive(seeds=options.seeds)
    recipe = replace(recipes.get(options.recipe), image_size=options.image_size)
    if options.epochs:
        recipe = replace(recipe, epochs=options.epochs)
    if options.precision:
        keras.config.set_dtype_policy(options.precision)
    splits = data.load(options.data)
    classes, size = splits.num_classes, options.image_size
    builders = contestants(options, classes)
    if unknown := set(options.models or ()) - set(builders):
        parser.error(f"--models {sorted(unknown)}: there are {', '.join(builders)}")
    text = (
        f"# A ViT and a ResNet on {len(splits.train):,} photographs\n\n"
        f"`{command_line()}`, {classes} classes at {size} pixels, evaluated on "
        f"{len(splits.val):,} other photographs; seeds: {options.seeds}. Both are trained by the "
        f"recipe `{options.recipe}`, {recipe.epochs} epochs, from released weights "
        "unless the name says otherwise. By class: seed 0.\n\n"
    )
    text += "| model | parameters | accuracy | macro F1 | time, the first = 1 |\n"
    text += "|---|---:|---:|---:|---:|\n"
    tables, first_seconds = "", 0.0
    for name in options.models or builders:
        reports, started = [], time.time()
        for seed in range(options.seeds):
            keras.utils.set_random_seed(seed)
            model = builders[name]()
            fit(model, recipe, splits, options.out / f"{name}-{seed}", seed=seed)
            labels, scores = evaluation.predict_split(model, splits.val)
            reports.append(evaluation.classification_report(labels, scores, splits.class_names))
            print(f"\n{name}, seed {seed}\n{reports[-1]}\n")
        seconds = time.time() - started
        first_seconds = first_seconds or seconds
        accuracies = [report.scores["accuracy"].value for report in reports]
        macro_f1 = fmean(report.scores["macro_f1"].value for report in reports)
        tables += f"\n## {name}\n\n{reports[0].to_markdown()}\n"
        text += (
            f"| {name} | {model.count_params():,} | {mean_and_spread(accuracies)} "
            f"| {macro_f1:.3f} | {seconds / first_seconds:.1f} |\n"
        )
    print(text)
    for page in pages(options):
        write_text(page, text + tables)


if __name__ == "__main__":
    main()
