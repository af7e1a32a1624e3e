"""Temperature scaling against scikit-learn's log-loss and Guo et al.'s definition."""

from functools import partial

import numpy as np
import pytest
import scipy
from sklearn.metrics import log_loss

import keras_vit
from keras_vit.evaluation import calibration, divide_logits, fit_temperature
from keras_vit.models.answers import answers_of
from tests.backend import rows
from tests.bank import TINY, fill, fresh, outputs, pixels

RNG = np.random.default_rng(0)
softmax = partial(scipy.special.softmax, axis=1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_that_labels_were_drawn_with_comes_back(temperature: float) -> None:
    logits = RNG.normal(0, 3, (4000, 5))
    labels = np.array([RNG.choice(5, p=row) for row in softmax(logits / temperature)])
    fitted = fit_temperature(labels, logits)
    assert fitted == pytest.approx(temperature, rel=0.1)
    losses = [log_loss(labels, softmax(logits / t)) for t in np.linspace(0.3, 4, 200)]
    assert log_loss(labels, softmax(logits / fitted)) <= min(losses) + 1e-6
    after = calibration(labels, softmax(logits / fitted)).error
    assert after < 0.03
    assert after <= calibration(labels, softmax(logits)).error + 0.002


@pytest.mark.parametrize(("labels", "bound"), [([0, 1], 0.05), ([1, 0], 20.0)])
def test_all_right_and_all_wrong_end_at_a_bound(labels: list[int], bound: float) -> None:
    assert fit_temperature(labels, [[3.0, 0.0], [0.0, 3.0]]) == bound


OPTIONS = [{}, {"distilled": True}, {"classifier_activation": "softmax"}]


@pytest.mark.parametrize("options", rows(OPTIONS, OPTIONS[1:2]))
def test_dividing_the_head_divides_the_logits_and_is_saved(options: dict, tmp_path) -> None:
    model, images = fresh(**TINY, **options), pixels(4, 16, 16, 3).astype("float32")
    fill(model, scale=0.3)
    before = outputs(model, images)
    divide_logits(model, 2.5)
    after = outputs(model, images)
    expected = softmax(np.log(before) / 2.5) if "classifier_activation" in options else before / 2.5
    np.testing.assert_allclose(after, expected, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.from_checkpoint(tmp_path / "model.keras")
    again = answers_of(loaded, outputs(loaded, images))
    np.testing.assert_allclose(again, answers_of(model, after), atol=1e-6)
