"""Train a Vision Transformer from scratch on scikit-learn's handwritten digits.

    python examples/train_digits.py

About a minute on two CPU cores; 98.9 % of the 360 held-out digits. Needs keras3-vit[train].
"""

import keras

import keras_vit
from keras_vit import data
from keras_vit.training import recipes

EPOCHS = 60
recipe = recipes.get("digits")
keras.utils.set_random_seed(0)

digits = data.load("digits")
batches = data.pipeline(
    digits.train,
    image_size=8,
    batch_size=64,
    training=True,
    channels=1,
    num_classes=10,
    augment=recipe.augment,
)
held_out = data.pipeline(digits.val, image_size=8, batch_size=64, channels=1, num_classes=10)

model = keras_vit.VisionTransformer(**recipe.model, num_classes=10, input_shape=(8, 8, 1))
steps = EPOCHS * len(batches)
schedule = keras.optimizers.schedules.CosineDecay(
    0.0, steps, warmup_target=recipe.learning_rate, warmup_steps=steps // 12
)
model.compile(
    keras.optimizers.AdamW(schedule, weight_decay=0.05, global_clipnorm=1.0),
    keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    metrics=["accuracy"],
)
model.fit(batches, validation_data=held_out, epochs=EPOCHS, shuffle=False, verbose=2)
print(f"accuracy {model.evaluate(held_out, verbose=0)[1]:.2%}")
