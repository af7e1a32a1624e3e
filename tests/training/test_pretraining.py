"""Every image is a class: what is trained, and by the loss of the papers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit import data
from keras_vit.training import compile_model, pretrain, pretraining, recipes
from tests.bank import fresh, pixels
from tests.training.common import array, refused

IMAGES = pixels(12, 16, 16, 3).astype("uint8")
RECIPE = replace(recipes.get("diet_cp"), image_size=16, epochs=6, batch_size=4, learning_rate=0.01)
QUIET: dict[str, Any] = {"progress": False, "print_fn": lambda line: None}


def small(**changes: Any) -> Any:
    return fresh(**{"depth": 3, "hidden_dim": 16, "input_shape": (16, 16, 3), **changes})


@pytest.mark.every_backend
def test_the_loss_is_that_of_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross-entropy with 0.3 of the label spread, of products with features of length 1."""
    torch = pytest.importorskip("torch")
    networks = []
    monkeypatch.setattr(
        pretraining, "fit", lambda network, *_, **__: networks.append(network) or {"loss": [0.0]}
    )
    model = small(num_classes=7)
    pretrain(model, IMAGES, "nowhere", recipe=RECIPE, blocks=None)
    network = networks[0]
    compile_model(network, RECIPE, 10)
    x, labels = IMAGES.astype("float32"), np.arange(12)
    ours = network.evaluate(x, labels, batch_size=12, verbose=0, return_dict=True)["loss"]
    features = torch.tensor(array(model.feature_model("pre_logits")(x)))
    kernel = torch.tensor(array(network.get_layer("head").kernel))
    assert kernel.shape == (model.hidden_dim, 12)
    bound = model.hidden_dim**-0.5  # of torch.nn.Linear
    assert 0.8 * bound < float(kernel.abs().max()) <= bound
    logits = torch.nn.functional.normalize(features, dim=1) @ kernel
    theirs = torch.nn.functional.cross_entropy(logits, torch.tensor(labels), label_smoothing=0.3)
    np.testing.assert_allclose(ours, float(theirs), rtol=1e-5)


def test_the_last_blocks_learn_to_recognize_images(tmp_path: Path) -> None:
    model = small(num_classes=7)
    model.get_layer("patch_embedding").trainable = False
    before = {v.path: array(v).copy() for v in model.weights}
    history = pretrain(model, IMAGES, tmp_path, recipe=RECIPE, blocks=1, **QUIET)
    changed = {v.path.split("/")[0] for v in model.weights if (array(v) != before[v.path]).any()}
    assert changed == {"block_2", "encoder_norm"}  # and its own head is as it was
    frozen = {layer.name for layer in model.layers if not layer.trainable}
    assert frozen == {"patch_embedding"}
    # The head alone warms up, in the first tenth; then the rate falls to 0.
    rates = history["learning_rate"]
    assert len(rates) == 7
    assert max(rates) == max(rates[:2]) <= 0.01
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert history["val_loss"][-1] < history["val_loss"][0]
    # From scratch the whole model is trained, in one part.
    once = replace(RECIPE, epochs=1)
    pretrain(model, IMAGES, tmp_path / "whole", recipe=once, blocks=None, **QUIET)
    changed = {v.path.split("/")[0] for v in model.weights if (array(v) != before[v.path]).any()}
    assert changed >= {"patch_embedding", "block_0", "block_1", "block_2"}
    assert [path.name for path in (tmp_path / "whole").iterdir()] == ["all"]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    model = small(num_classes=0)
    digits: Any = data.load("digits").train
    numbered = digits.as_instances().take([5, 3])
    assert (numbered.labels().tolist(), numbered.num_classes) == ([5, 3], len(digits))
    for options, words in (
        ({"blocks": 4}, ("has 3 blocks", "blocks=4", "at most as many")),
        ({"blocks": 0}, ("blocks=0",)),
        ({"images": IMAGES[:1]}, ("1 images to pre-train on",)),
        ({"images": "photos"}, ("images=str", "keras_vit.data.load")),
        ({"model": small(pooling=None, num_classes=0)}, ("not one vector",)),
    ):
        arguments = {"model": model, "images": IMAGES, "folder": tmp_path, **options}
        with refused(*words):
            pretrain(**arguments, recipe=RECIPE, **QUIET)
