"""What others would do with a few images and the same weights, for as long: for `few_labels`."""

import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from PIL import Image

import keras_vit
from keras_vit import data

BATCH = 32
Outcome = tuple[float, int]


def timm_recipe(weights: str, size: int, splits: data.Splits, seconds: float, seed: int) -> Outcome:
    """Fine-tune timm's own model by timm's parts, as its users do; return accuracy and steps.

    AdamW with layer decay 0.75 and weight decay 0.05, drop path 0.1, RandAugment, random erasing,
    Mixup and CutMix, one cycle of a cosine after a warm-up.
    """
    import timm
    import torch
    from timm.data import Mixup, create_transform, resolve_model_data_config
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2

    torch.manual_seed(seed)
    model = timm.create_model(
        "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
        pretrained=True,
        pretrained_cfg_overlay={"file": weights},
        img_size=size,
        num_classes=splits.num_classes,
        drop_path_rate=0.1,
    )
    prepared = {name: resolve_model_data_config(model)[name] for name in ("mean", "std")}
    prepared |= {"input_size": size, "interpolation": "bicubic"}
    # Without its noise on the magnitude, which posterizes to 0 bits at times: Pillow refuses it.
    augment = create_transform(
        **prepared, is_training=True, auto_augment="rand-m9-inc1", re_prob=0.25
    )
    mix = Mixup(0.8, 1.0, label_smoothing=0.1, num_classes=splits.num_classes)
    loss_of = SoftTargetCrossEntropy()
    optimizer = create_optimizer_v2(model, "adamw", 5e-4, 0.05, layer_decay=0.75)
    peaks = [group["lr_scale"] * 5e-4 for group in optimizer.param_groups]
    labels = splits.train.labels()
    random, started, steps = np.random.default_rng(seed), time.process_time(), 0
    model.train()
    while (part := (time.process_time() - started) / seconds) < 1:
        places = random.permutation(len(labels))[:BATCH]
        places = places[: len(places) // 2 * 2]  # Mixup takes pairs
        images = torch.stack([augment(picture(splits.train, place)) for place in places])
        images, targets = mix(images, torch.tensor(labels[places]).long())
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * rate(part)
        optimizer.zero_grad()
        loss_of(model(images), targets).backward()
        optimizer.step()
        steps += 1
    plain, right = create_transform(**prepared, crop_pct=0.9), []
    model.eval()
    with torch.inference_mode():
        for places in batches(len(splits.val)):
            images = torch.stack([plain(picture(splits.val, place)) for place in places])
            right += (model(images).argmax(-1).numpy() == splits.val.labels()[places]).tolist()
    return float(np.mean(right)), steps


def keras_guide(weights: str, size: int, splits: data.Splits, seconds: float, seed: int) -> Outcome:
    """Fine-tune as Keras's guide "Transfer learning & fine-tuning"; return accuracy and steps.

    Half the time a new head behind the frozen network, with Adam's defaults, then all weights at
    1e-5; images are mirrored and turned by up to a tenth of a turn. The head learns from features
    of the images and their mirror images, computed once: the guide trains it until it learns no
    more, for which a step through the network takes too long here.
    """
    keras.utils.set_random_seed(seed)
    base = keras_vit.load(weights, num_classes=0, input_shape=(size, size, 3))
    head = keras.layers.Dense(splits.num_classes)
    inputs = keras.Input((size, size, 3))
    x = keras.layers.RandomFlip("horizontal")(inputs)
    x = keras.layers.RandomRotation(0.1)(x)
    x = keras.layers.Dropout(0.2)(base(x, training=False))  # which takes pixels from 0 to 255
    model = keras.Model(inputs, head(x))
    alone = keras.Sequential([keras.Input(base.output_shape[1:]), keras.layers.Dropout(0.2), head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images, labels = pixels(splits.train, size), splits.train.labels()
    random, steps = np.random.default_rng(seed), 0
    for network, learning_rate in ((alone, 1e-3), (model, 1e-5)):
        network.compile(keras.optimizers.Adam(learning_rate), loss)
        started, x, y = time.process_time(), images, labels
        if network is alone:
            x = np.concatenate([images, images[:, :, ::-1]])
            x, y = base.predict(x, batch_size=BATCH, verbose=0), np.concatenate([labels, labels])
        while time.process_time() - started < seconds / 2:
            places = random.permutation(len(y))[:BATCH]
            network.train_on_batch(x[places], y[places])
            steps += 1
    answers = model.predict(pixels(splits.val, size), batch_size=BATCH, verbose=0)
    return float((answers.argmax(-1) == splits.val.labels()).mean()), steps


PEERS = {"timm": timm_recipe, "Keras guide": keras_guide}


def rate(part: float) -> float:
    """Return the share of the learning rate after a part of the time."""
    return min(part / 0.05, 1) * (1 + np.cos(np.pi * part)) / 2


def batches(number: int) -> Iterator[range]:
    return (range(i, min(i + BATCH, number)) for i in range(0, number, BATCH))


def picture(split: Any, place: int) -> Image.Image:
    return Image.fromarray(split.pixels(place))


def pixels(split: Any, size: int) -> np.ndarray:
    """Return all images resized, as `keras.utils.image_dataset_from_directory` does."""
    resized = [
        keras.ops.convert_to_numpy(keras.ops.image.resize(split.pixels(i), (size, size)))
        for i in range(len(split))
    ]
    return np.stack(resized).astype("float32")
