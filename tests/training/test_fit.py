"""`model.fit` takes what Keras users have, with what they use around it."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from tests.models.test_common import SIZES, pixels

IMAGES = pixels(16, 32, 32, 3)
LABELS = np.arange(16) % 4


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return IMAGES[4 * index : 4 * index + 4], LABELS[4 * index : 4 * index + 4]


def tensorflow_dataset() -> Any:
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(4)


def torch_loader() -> Any:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(IMAGES), torch.tensor(LABELS))
    return torch.utils.data.DataLoader(data, batch_size=4)


def generator() -> Iterator[Any]:
    yield from (Batches()[i] for i in range(4))


SOURCES = {
    "tf.data": tensorflow_dataset,
    "torch": torch_loader,
    "PyDataset": Batches,
    "generator": generator,
}


def compiled(optimizer: Any = "sgd", **changes: Any) -> keras_vit.VisionTransformer:
    model = keras_vit.VisionTransformer(**{**SIZES, "num_classes": 4, "depth": 1, **changes})
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        # Op by op is slow on JAX, and graphs are slow to compile elsewhere.
        jit_compile=keras.backend.backend() == "jax",
    )
    return model


@pytest.fixture(scope="module")
def loss_of_arrays() -> list[float]:
    keras.utils.set_random_seed(0)
    return compiled().fit(IMAGES, LABELS, batch_size=4, shuffle=False, verbose=0).history["loss"]


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_of_batches_trains_alike(source: str, loss_of_arrays: list[float]) -> None:
    """All feed the same batches in the same order, so all end with the same loss."""
    keras.utils.set_random_seed(0)
    loss = compiled().fit(SOURCES[source](), shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(loss, loss_of_arrays, rtol=1e-5)


def test_it_learns_by_heart() -> None:
    schedule = keras.optimizers.schedules.CosineDecay(0.0, 60, warmup_target=3e-3, warmup_steps=10)
    model = compiled(keras.optimizers.AdamW(schedule, global_clipnorm=1.0))
    history = model.fit(IMAGES, LABELS, batch_size=8, epochs=35, verbose=0).history
    assert history["accuracy"][-1] == 1
    assert model.evaluate(IMAGES, LABELS, verbose=0)[1] == 1


def test_gradient_accumulation_equals_the_big_batch() -> None:
    finals = []
    for size, accumulate in ((16, None), (4, 4)):
        keras.utils.set_random_seed(0)
        sgd = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulate)
        model = compiled(sgd, dtype="float32")
        model.fit(IMAGES, LABELS, batch_size=size, epochs=2, shuffle=False, verbose=0)
        finals.append(model.get_weights())
    for big, small in zip(*finals, strict=True):
        np.testing.assert_allclose(small, big, atol=2e-6)


@pytest.mark.parametrize(
    "options", [{"use_ema": True, "ema_momentum": 0.9}, {"clipnorm": 0.5}, {"weight_decay": 0.1}]
)
def test_keras_optimizer_options(options: dict[str, Any]) -> None:
    model = compiled(keras.optimizers.Adam(1e-3, **options))
    losses = model.fit(IMAGES, LABELS, batch_size=8, epochs=3, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
