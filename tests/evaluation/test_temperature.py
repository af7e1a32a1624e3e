"""Temperature scaling against scikit-learn's log-loss and Guo et al.'s definition."""

import numpy as np
import pytest
from sklearn.metrics import log_loss

import keras_vit
from keras_vit.evaluation import calibration, divide_logits, fit_temperature
from keras_vit.models.answers import answers_of

RNG = np.random.default_rng(0)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def sample(true_temperature: float, count: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels drawn from their softmax at a temperature."""
    logits = RNG.normal(0, 3, (count, 5))
    rows = softmax(logits / true_temperature)
    return np.array([RNG.choice(5, p=row) for row in rows]), logits


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_that_labels_were_drawn_with_comes_back(temperature: float) -> None:
    labels, logits = sample(temperature)
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


@pytest.mark.parametrize(
    ("labels", "logits", "words"),
    [
        ([], np.zeros((0, 3)), ["labels (0,)", "at least one row"]),
        ([0, 1], np.zeros((3, 3)), ["labels (2,)", "logits (3, 3)"]),
        ([0, 3], np.zeros((2, 3)), ["from 0 to 3", "0 to 2"]),
        ([0, 1], [[0.0, np.nan], [0.0, 1.0]], ["not finite"]),
    ],
)
def test_errors(labels, logits, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        fit_temperature(labels, logits)
    for word in words:
        assert word in str(error.value)


@pytest.mark.every_backend
@pytest.mark.parametrize("options", [{}, {"distilled": True}, {"classifier_activation": "softmax"}])
def test_dividing_the_head_divides_the_logits_and_is_saved(options: dict, tmp_path) -> None:
    model = keras_vit.VisionTransformer(
        patch_size=8,
        hidden_dim=16,
        depth=1,
        num_heads=2,
        num_classes=3,
        input_shape=(16, 16, 3),
        **options,
    )
    for variable in model.weights:
        variable.assign(RNG.normal(0, 0.3, variable.shape))
    images = RNG.uniform(0, 255, (4, 16, 16, 3)).astype("float32")
    before = model.predict(images, verbose=0)
    divide_logits(model, 2.5)
    after = model.predict(images, verbose=0)
    if options.get("classifier_activation"):
        expected = softmax(np.log(before) / 2.5)
    else:
        expected = before / 2.5
    np.testing.assert_allclose(after, expected, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.from_checkpoint(tmp_path / "model.keras")
    np.testing.assert_allclose(
        answers_of(loaded, loaded.predict(images, verbose=0)),
        answers_of(model, after),
        atol=1e-6,
    )


def test_what_cannot_be_divided_is_refused() -> None:
    model = keras_vit.VisionTransformer(
        patch_size=8, hidden_dim=16, depth=1, num_heads=2, num_classes=3, input_shape=(16, 16, 3)
    )
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="temperature="):
            divide_logits(model, temperature)
    model.quantize("int8")
    with pytest.raises(ValueError, match="quantized"):
        divide_logits(model, 2.0)
    with pytest.raises(ValueError, match="head"):
        divide_logits(model.with_classifier(0), 2.0)
