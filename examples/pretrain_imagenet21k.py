"""Pre-train a Vision Transformer on ImageNet-21k from record files, and resume it at any moment.

    python examples/pretrain_imagenet21k.py --data records:/data/imagenet21k --out runs/b16
    python examples/pretrain_imagenet21k.py --stand-in --out runs/stand_in

The recipe is the paper's (table 3: 90 epochs of Adam, batch 4096, linear decay, one hidden layer
before the head). `--data` is what `keras_vit.data.load` takes: ArrayRecord files with labels.txt
(`examples/to_array_record.py` makes them of TFRecord files), or a TFDS data set (docs/data.md).
The same command continues an interrupted run, on other devices too: bit by bit on the same CPUs.

`--stand-in` writes scikit-learn's digits as such files and trains a tiny model on them, by the
recipe for digits: two minutes on two CPU cores, 98.3 % of the 360 held-out digits.
Needs keras3-vit[train].
"""

import argparse
import math
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import keras_vit
from keras_vit import data
from keras_vit._base.files import atomic_write
from keras_vit.evaluation.prediction import pipeline_arguments
from keras_vit.training import compile_model, recipes
from keras_vit.training.callbacks import default_callbacks
from keras_vit.training.recipes import Recipe
from keras_vit.training.resume import ResumableRun

SHARDS = 4


def write_digits(folder: Path) -> str:
    """Writes the digits as TFRecord files in ImageNet's format, once."""
    digits = data.load("digits")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "labels.txt").exists():
        for name, split in (("train", digits.train), ("validation", digits.val)):
            for number in range(SHARDS):
                write_shard(folder / f"{name}-{number:05}-of-{SHARDS:05}", split, number)
        (folder / "labels.txt").write_text("\n".join(digits.class_names))  # the last one
    return f"records:{folder}"


def write_shard(file: Path, split: Any, number: int) -> None:
    """Writes every fourth image, from this number on."""
    images, labels = split.as_arrays()
    with atomic_write(file) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        for image, label in zip(images[number::SHARDS], labels[number::SHARDS], strict=True):
            example = tf.train.Example()
            features = example.features.feature
            features["image/encoded"].bytes_list.value.append(tf.io.encode_png(image).numpy())
            features["image/class/label"].int64_list.value.append(int(label))
            writer.write(example.SerializeToString())


def build(options: argparse.Namespace, recipe: Recipe, num_classes: int) -> Any:
    """The named model with the head of the paper's pre-training, or the stand-in's tiny one."""
    arguments: dict[str, Any] = {
        "num_classes": num_classes,
        "input_shape": (recipe.image_size, recipe.image_size, 3),
        "dtype": options.precision,
    }
    if options.stand_in:
        model = keras_vit.VisionTransformer(**recipe.model, **arguments)
        model.eval_transform = {"mode": "stretch"}  # 8 pixels do not have a border to crop
        return model
    width = keras_vit.models.model_arguments(options.model)["hidden_dim"]
    return keras_vit.create(
        options.model, representation_size=width, dropout=recipe.dropout, **arguments
    )


def train(options: argparse.Namespace) -> None:
    recipe = recipes.get("digits" if options.stand_in else "pretrain/imagenet21k")
    recipe = recipe.scaled(steps=options.steps, batch_size=options.batch_size)
    source = write_digits(options.out / "records") if options.stand_in else options.data
    splits = data.load(source, data_dir=options.data_dir, val_fraction=options.val_fraction)
    print(splits)
    keras.utils.set_random_seed(options.seed)
    model = build(options, recipe, splits.num_classes)
    model.class_names = splits.class_names

    steps = recipe.total_steps(len(splits.train))
    epochs = math.ceil(steps / math.ceil(len(splits.train) / recipe.batch_size))
    compile_model(model, recipe, steps)

    def batches(split: data.Split, **more: Any) -> Any:
        # Mixup needs rows of soft labels; without it, 21,843 columns of zeros are not made.
        more |= {"num_classes": splits.num_classes if recipe.mixup else None}
        more |= pipeline_arguments(model)
        return data.pipeline(split, batch_size=recipe.batch_size, **more)

    def training_batches(start_step: int) -> Any:
        return batches(
            splits.train,
            training=True,
            seed=options.seed,
            augment=recipe.augment,
            repeat=True,
            start_step=start_step,
        )

    run = ResumableRun(
        options.out / "checkpoints",
        every_seconds=None if options.every_steps else 600.0,
        every_steps=options.every_steps,
        recipe={"recipe": asdict(recipe), "seed": options.seed},
    )
    history = run.fit(
        model,
        training_batches,
        epochs,
        math.ceil(steps / epochs),
        callbacks=default_callbacks(options.out, recipe.batch_size, monitor=None),
        validation_data=batches(splits.val),
        verbose=0,  # the callbacks print the progress
    )
    if keras_vit.distribution.is_first_process():
        with atomic_write(options.out / "model.keras") as temporary:
            model.save(temporary)
        accuracy = history.history["val_accuracy"][-1]
        print(f"accuracy {accuracy:.2%}; written to {options.out / 'model.keras'}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", help="record files or a TFDS data set, as for data.load")
    source.add_argument("--stand-in", action="store_true", help="train on digits, in record files")
    parser.add_argument("--data-dir", help="folder of prepared TFDS data sets")
    parser.add_argument("--val-fraction", type=float, default=0.004, help="where there is no split")
    parser.add_argument("--model", default="ViT-B/16", help="a ViT that keras_vit.create knows")
    parser.add_argument("--steps", type=int, help="updates of the whole training")
    parser.add_argument("--batch-size", type=int, help="images per update, on all devices together")
    parser.add_argument("--precision", default="float32", help="such as mixed_bfloat16")
    parser.add_argument("--every-steps", type=int, help="checkpoints by steps, not by ten minutes")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation")
    parser.add_argument("--distribution", choices=keras_vit.distribution.KINDS)
    parser.add_argument("--devices", type=int, help="how many; all by default")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, or to continue")
    options = parser.parse_args(arguments)
    if options.devices and not options.distribution:
        parser.error("--devices needs --distribution, such as data_parallel")

    keras_vit.distribution.initialize()  # finds the other processes, where there are any
    devices: Any = nullcontext()
    if options.distribution:
        devices = getattr(keras_vit.distribution, options.distribution)(options.devices).scope()
    with devices:
        train(options)


if __name__ == "__main__":
    main()
