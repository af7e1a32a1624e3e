"""A ViT and a ResNet fine-tuned on the same photographs, by the same recipe, for as many steps.

    python examples/flowers_vit_vs_resnet.py --data FOLDER
    python examples/flowers_vit_vs_resnet.py --data FOLDER --weights FILE --resnet-weights none
    python examples/flowers_vit_vs_resnet.py --resnet ResNet50 --resnet-weights imagenet

The report that this example follows fine-tuned ViT-Base/16 on five classes of flowers (95.6 %) and
a ResNet (68.9 %). Prints a table of all classes for both (its table 4) and one of both models (its
table 5), and writes them to --out. About ten minutes on two CPU cores for ViT-Ti/16 on 1,800
photographs, and three times that for a ResNet-50. Needs keras3-vit[train].
"""

import argparse
import time
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
    "--weights", default="ViT-Ti/16:augreg_in21k_ft_in1k", help="weights of the ViT: file or tag"
)
parser.add_argument("--resnet", default="BiT-R50x1", help="a BiT, or ResNet50 of Keras")
parser.add_argument("--resnet-weights", default="bit_m_in21k", help="tag, file, imagenet or none")
parser.add_argument("--recipe", default="finetune_small", help="how both are trained")
parser.add_argument("--epochs", type=int, help="passes over the photographs, for both")
parser.add_argument("--image-size", type=int, default=224, help="pixels")
parser.add_argument("--precision", help="dtype policy, such as mixed_bfloat16")
parser.add_argument("--seeds", type=int, default=1, help="how many times each model is trained")
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
    resnet_weights = None if options.resnet_weights == "none" else options.resnet_weights
    builders = {
        "ViT": lambda: keras_vit.from_checkpoint(
            options.weights, num_classes=classes, input_shape=(size, size, 3)
        ),
        "ResNet": lambda: resnet(options.resnet, resnet_weights, classes, size),
    }
    text = (
        f"# A ViT and a ResNet on {len(splits.train):,} photographs\n\n"
        f"`{command_line()}`, {classes} classes at {size} pixels, evaluated on "
        f"{len(splits.val):,} other photographs; seeds: {options.seeds}. Both are trained by the "
        f"recipe `{options.recipe}`, {recipe.epochs} epochs; the ViT from released weights, the "
        f"ResNet {'from scratch' if resnet_weights is None else 'from ' + options.resnet_weights}. "
        "By class: seed 0.\n\n"
    )
    text += "| model | parameters | accuracy | macro F1 | time, ViT = 1 |\n"
    text += "|---|---:|---:|---:|---:|\n"
    tables, vit_seconds = "", 0.0
    for name, build in builders.items():
        reports, started, first_name = [], time.time(), ""
        for seed in range(options.seeds):
            keras.utils.set_random_seed(seed)
            model = build()
            first_name = first_name or model.name  # Keras numbers those of later seeds
            fit(model, recipe, splits, options.out / f"{name}-{seed}", seed=seed)
            labels, scores = evaluation.predict_split(model, splits.val)
            reports.append(evaluation.classification_report(labels, scores, splits.class_names))
            print(f"\n{name}, seed {seed}\n{reports[-1]}\n")
        seconds = time.time() - started
        vit_seconds = vit_seconds or seconds
        accuracies = [report.accuracy for report in reports]
        macro_f1 = fmean(report.macro.f1 for report in reports)
        tables += f"\n## {name}\n\n{reports[0].to_markdown()}\n"
        text += (
            f"| {first_name} | {model.count_params():,} | {mean_and_spread(accuracies)} "
            f"| {macro_f1:.3f} | {seconds / vit_seconds:.1f} |\n"
        )
    print(text)
    for page in pages(options):
        write_text(page, text + tables)


if __name__ == "__main__":
    main()
