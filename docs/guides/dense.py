# %% [markdown]
# # Features for segmentation and detection
#
# The patches of a Vision Transformer as a feature map under two small decoders of Keras layers: one
# says of every pixel which digit it belongs to, the other draws a box around each digit.
# `make guides GUIDES=dense` runs it in about five minutes on two CPU cores; nothing is downloaded.
# A test holds the masks to a mean IoU of at least 0.75 and the boxes to an F1 of at least 0.85, on
# scenes of digits that the model has not seen.

# %% tags=["hide-input"]
import os

os.environ["KERAS_BACKEND"] = "tensorflow"  # or "torch"; on CPUs, JAX is slow at convolutions
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import layers, ops

import keras_vit

# %% [markdown]
# ## Scenes with masks and boxes
#
# Three of scikit-learn's handwritten digits, 14 to 20 pixels high, on a noisy ground of 48 by 48
# pixels. The scenes to evaluate on are made of other digits.

# %% tags=["hide-input"]
SIZE, PER_SCENE, SIDES = 48, 3, range(14, 21)


def make_scenes(split, count, seed):
    """Images, masks (0, or digit + 1), and of each digit its box (top, left, side) and class."""
    random = np.random.default_rng(seed)
    digits, labels = split.as_arrays()
    digits = digits.astype("float32")
    sizes = {s: ops.convert_to_numpy(ops.image.resize(digits, (s, s)))[..., 0] for s in SIDES}
    images = random.integers(0, 60, (count, SIZE, SIZE)).astype("uint8")
    masks = np.zeros((count, SIZE, SIZE), "int32")
    boxes = np.zeros((count, PER_SCENE, 3), "int32")
    classes = random.integers(len(digits), size=(count, PER_SCENE))  # which image, for now
    for image, mask, placed, chosen in zip(images, masks, boxes, classes, strict=True):
        taken = np.zeros((SIZE, SIZE), bool)
        for number, digit in enumerate(chosen):
            while True:  # until it overlaps with none
                side = random.choice(SIDES)
                top, left = random.integers(0, SIZE - side + 1, 2)
                place = slice(top, top + side), slice(left, left + side)
                if not taken[place].any():
                    break
            taken[place] = True
            ink = sizes[side][digit]
            image[place] = np.maximum(image[place], ink)
            mask[place] = np.where(ink > 90, labels[digit] + 1, 0)
            placed[number] = top, left, side
    return images[..., None], masks, boxes, labels[classes]


splits = keras_vit.data.load("digits", seed=0)
images, masks, boxes, classes = make_scenes(splits.train, 4000, seed=0)
val_images, val_masks, val_boxes, val_classes = make_scenes(splits.val, 500, seed=1)
images.shape, masks.shape, boxes.shape

# %% [markdown]
# ## A feature map from a Vision Transformer
#
# `feature_model` returns any layer's output by its name. With `format="grid"` the patches stand in
# rows and columns again, without class token and registers, as decoders need them. Position
# embeddings by sines and cosines do not have weights to learn from few images; a convolutional stem
# sees strokes that are thinner than a patch, and gives the decoder a finer map.

# %%
keras.utils.set_random_seed(0)
vit = keras_vit.VisionTransformer(
    conv_stem=((32, 2), (64, 1)),
    patch_size=2,
    hidden_dim=96,
    depth=3,
    num_heads=4,
    mlp_dim=192,
    position_embedding="sincos2d",
    num_classes=0,
    input_shape=(SIZE, SIZE, 1),
)
print(*vit.feature_names)
backbone = vit.feature_model(["conv_stem", "encoder_norm"], format="grid")
backbone.output_shape

# %% [markdown]
# ## Segmentation
#
# The decoder enlarges the map of the last layer to that of the stem, sets both side by side, and
# enlarges them to pixels: eleven logits for each, of ten digits and the ground.

# %%
maps = backbone.output
x = layers.UpSampling2D(2, interpolation="bilinear")(maps["encoder_norm"])
x = layers.Concatenate()([x, maps["conv_stem"]])
x = layers.Conv2D(64, 3, padding="same", activation="gelu")(x)
x = layers.Conv2DTranspose(11, 4, strides=2, padding="same", dtype="float32")(x)
segmenter = keras.Model(backbone.input, x, name="segmenter")

EPOCHS, BATCH = 5, 32


def fit(model, targets, val_targets, **compile_arguments):
    """Trains with a learning rate that rises for 100 steps and falls to 0 by a cosine."""
    steps = EPOCHS * -(-len(images) // BATCH)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - 100, warmup_target=2e-3, warmup_steps=100
    )
    model.compile(keras.optimizers.AdamW(rate), **compile_arguments)
    model.fit(
        *(images, targets, BATCH, EPOCHS),
        validation_data=(val_images, val_targets),
        verbose=2,
    )


fit(
    segmenter,
    masks,
    val_masks,
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.MeanIoU(11, sparse_y_pred=False, name="mean_iou")],
)

# %%
masks_seen = segmenter.predict(val_images, verbose=0).argmax(-1)
mean_iou = keras.metrics.MeanIoU(11)
mean_iou.update_state(val_masks, masks_seen)
mean_iou = float(mean_iou.result())
print(f"mean IoU over ten digits and the ground: {mean_iou:.2f}")

figure, rows = plt.subplots(3, 5, figsize=(8, 5.2), layout="constrained")
for axes, titles, pictures in zip(
    rows, ("scene", "mask", "predicted"), (val_images[..., 0], val_masks, masks_seen), strict=True
):
    for axis, picture in zip(axes, pictures, strict=False):
        colors = "gray" if titles == "scene" else "tab20"
        shown = picture if titles == "scene" else np.ma.masked_equal(picture, 0)
        axis.imshow(shown, cmap=colors, vmin=0, vmax=255 if titles == "scene" else 19)
        axis.set(xticks=[], yticks=[], facecolor="0.93")
    axes[0].set_ylabel(titles, fontsize=12)
plt.show()

# %% [markdown]
# ## Detection
#
# Each patch says which digit has its center there, if any, and, if so, where the box begins and how
# large it is: CenterNet's targets ([Zhou et al. 2019](https://arxiv.org/abs/1904.07850)) on the
# grid of the last layer. The backbone is the one that was trained on masks; it is trained further.

# %%
STRIDE = SIZE // maps["encoder_norm"].shape[1]


def targets_of(boxes, classes):
    """A grid of (class + 1 or 0, top, left, side), the last three in patches, from the patch on."""
    grid = np.zeros((len(boxes), SIZE // STRIDE, SIZE // STRIDE, 4), "float32")
    for cells, placed, digits in zip(grid, boxes, classes, strict=True):
        for (top, left, side), digit in zip(placed, digits, strict=True):
            row, column = (2 * top + side) // 2 // STRIDE, (2 * left + side) // 2 // STRIDE
            box = top / STRIDE - row, left / STRIDE - column, side / STRIDE
            cells[row, column] = digit + 1, *box
    return grid


def detection_loss(targets, outputs):
    """The class of every patch, and the boxes of those that hold a center."""
    class_loss = keras.losses.sparse_categorical_crossentropy(
        targets[..., 0], outputs[..., :11], from_logits=True
    )
    has_center = ops.cast(targets[..., 0] > 0, outputs.dtype)
    distance = ops.sum(ops.abs(targets[..., 1:] - outputs[..., 11:]), -1)
    weighted = class_loss * (1 + 9 * has_center) + has_center * distance
    return ops.sum(weighted, (1, 2)) / PER_SCENE


grid = layers.Conv2D(96, 3, padding="same", activation="gelu")(maps["encoder_norm"])
detector = keras.Model(backbone.input, layers.Dense(11 + 3, dtype="float32")(grid), name="detector")
fit(detector, targets_of(boxes, classes), targets_of(val_boxes, val_classes), loss=detection_loss)


# %% [markdown]
# A box counts as found where its digit is right and it covers the true box with an IoU of at least
# a half. Where several adjacent patches claim a digit, the most probable one counts.


# %%
def detect(images, least=0.5):
    """For each image a list of (probability, digit, top, left, side)."""
    outputs = detector.predict(images, verbose=0)
    digits = ops.convert_to_numpy(ops.softmax(outputs[..., :11]))[..., 1:]
    sure = digits.max(-1)
    around = ops.convert_to_numpy(ops.max_pool(sure[..., None], 3, 1, padding="same"))[..., 0]
    results = [[] for _ in images]
    for n, row, column in zip(*np.nonzero((sure == around) & (sure > least)), strict=True):
        top, left, side = outputs[n, row, column, 11:] + (row, column, 0)
        box = [float(STRIDE * value) for value in (top, left, side)]
        results[n].append((sure[n, row, column], digits[n, row, column].argmax(), *box))
    return results


def iou(a, b):
    """Intersection over union of two squares (top, left, side)."""
    sides = [max(min(a[i] + a[2], b[i] + b[2]) - max(a[i], b[i]), 0) for i in (0, 1)]
    common = sides[0] * sides[1]
    return common / (a[2] ** 2 + b[2] ** 2 - common)


detections = detect(val_images)
right = 0
for squares, placed, digits in zip(detections, val_boxes, val_classes, strict=True):
    for box, digit in zip(placed, digits, strict=True):
        right += any(d == digit and iou(square, box) >= 0.5 for _, d, *square in squares)
precision, recall = right / sum(map(len, detections)), right / val_classes.size
f1 = 2 * precision * recall / (precision + recall)
print(f"precision {precision:.1%}, recall {recall:.1%}, F1 {f1:.2f}")

figure, axes = plt.subplots(2, 3, figsize=(7, 4.9), layout="constrained")
for axis, image, squares in zip(axes.flat, val_images, detections, strict=False):
    axis.imshow(image[..., 0], cmap="gray", vmin=0, vmax=255)
    for _, digit, top, left, side in squares:
        axis.add_patch(plt.Rectangle((left, top), side, side, fill=False, ec=f"C{digit}", lw=1.5))
        label = {"facecolor": f"C{digit}", "edgecolor": f"C{digit}", "pad": 1.5, "lw": 1.5}
        axis.text(left, top - 0.5, f"{digit}", va="bottom", weight="bold", bbox=label)
    axis.set(xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## With released weights
#
# Nothing above depends on the small model. For photographs, take weights that were trained for
# dense features, at a size that your objects need; freeze them where images are few:
#
# <!-- not run: downloads the weights -->
#
# ```python
# vit = keras_vit.load("ViT-S/14:dinov2_reg4", input_shape=(518, 518, 3))
# backbone = vit.feature_model(["block_5", "encoder_norm"], format="grid")  # 37 by 37 patches
# backbone.trainable = False
# ```
#
# Keras's own preprocessing layers, such as `RandomFlip`, take boxes and masks along with their
# images. [Other sizes](resolutions.ipynb) says what a size costs, and `segmenter.export(FOLDER)`
# writes the whole as a SavedModel.

# %%
result = {"mean_iou": mean_iou, "f1": f1}
result
