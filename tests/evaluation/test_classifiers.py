"""Probes, few- and zero-shot classifiers, heads, temperatures and novelty, beside other results."""

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import scipy
from sklearn import linear_model, neighbors
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import keras_vit
from keras_vit.evaluation import fewshot_table, knn_accuracy, linear_heads, linear_probe, zero_shot
from keras_vit.evaluation.calibration import calibration
from keras_vit.evaluation.fewshot import fewshot_accuracy, least_squares_scores, sample_shots
from keras_vit.evaluation.linear_heads import LOGISTIC, MEANS, NEIGHBORS, RIDGE, fit_head, left_out
from keras_vit.evaluation.novelty import classifier_head, energy_scores, fit_novelty
from keras_vit.evaluation.probes import ABSENT, STRENGTHS
from keras_vit.evaluation.task_probe import task_probe
from keras_vit.evaluation.temperature import divide_logits, fit_temperature
from keras_vit.layers.novelty_score import NoveltyScore, unit_rows
from keras_vit.models.answers import answers_of
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression
from keras_vit.weights import load
from keras_vit_cli.model_files import open_classifier
from tests.backend import rows, warned
from tests.bank import TINY, fill, fresh, outputs, pixels


def clusters(examples: int, classes: int = 4, noise: float = 1.0, seed: int = 0) -> tuple:
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, examples)
    centers = np.random.default_rng(99).normal(size=(classes, 12))
    return centers[labels] + noise * random.normal(size=(examples, 12)), labels


RANDOM = np.random.default_rng(0)
X = RANDOM.normal(1, 2, (200, 6))
SCORES = X @ RANDOM.normal(size=(6, 3)) + RANDOM.normal(size=(200, 3))
SCALED = StandardScaler().fit_transform(X)
RNG = np.random.default_rng(0)  # for Guo et al.'s temperatures
softmax = partial(scipy.special.softmax, axis=1)
OPTIONS = [{}, {"distilled": True}, {"classifier_activation": "softmax"}]
TRAIN, TEST = clusters(200), clusters(150, seed=1)


def test_neighbors_vote_as_in_dino() -> None:
    """The definition: cosine similarities, and votes of exp(s / T) (DINO's eval_knn.py)."""
    train, test = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (TRAIN[0], TEST[0]))
    for k, temperature in itertools.product((1, 5, 20, 200), (0.07, 1.0)):
        right = 0
        for row, label in zip(test @ train.T, TEST[1], strict=True):
            nearest = np.argsort(-row)[:k]
            votes = np.bincount(TRAIN[1][nearest], np.exp(row[nearest] / temperature))
            right += votes.argmax() == label
        found = knn_accuracy(*TRAIN, *TEST, k=k, temperature=temperature)
        assert found == right / len(TEST[1]), (k, temperature)
    # When all examples vote with equal weight the largest class always wins.
    flat = knn_accuracy(*TRAIN, *TEST, k=200, temperature=float("inf"))
    assert flat == (TEST[1] == np.bincount(TRAIN[1]).argmax()).mean()


def test_probe_equals_scikit_learn_and_folds_into_a_head() -> None:
    probe = linear_probe(*TRAIN, *TEST)
    regression = LogisticRegression(C=probe.strength, max_iter=2000)
    peer = make_pipeline(StandardScaler(), regression).fit(*TRAIN)
    assert probe.accuracy == peer.score(*TEST)
    ours = keras.ops.softmax(TEST[0] @ probe.kernel + probe.bias)
    np.testing.assert_allclose(ours, peer.predict_proba(TEST[0]), atol=1e-4)
    # It chooses the penalty by the training features.
    weak = linear_probe(*clusters(200, noise=0.3), *TEST).strength
    random = np.random.default_rng(0)
    nothing_to_learn = random.normal(size=(200, 12)), random.integers(0, 4, 200)
    assert linear_probe(*nothing_to_learn, *TEST).strength < weak
    one_each = np.unique(TRAIN[1], return_index=True)[1]  # none can be left out to choose by
    assert linear_probe(TRAIN[0][one_each], TRAIN[1][one_each], *TEST).accuracy > 0.6
    x, y = clusters(200, classes=2)
    test_x, test_y = clusters(100, classes=2, seed=1)
    unknown = linear_probe(x, y, test_x, np.where(np.arange(100) < 10, 2, test_y))
    predictions = (test_x @ unknown.kernel + unknown.bias).argmax(1)
    assert predictions.max() == 1
    assert unknown.accuracy == pytest.approx((predictions[10:] == test_y[10:]).mean() * 0.9)


@pytest.mark.parametrize("case", ["fewshot_wide", "fewshot_narrow"])
def test_every_recorded_accuracy_score_and_sample(case: str, shared: Path) -> None:
    folder = shared / "golden" / case
    with np.load(folder / "features.npz") as file:
        parts = [file[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    x, y, test_x, test_y = parts
    recorded = json.loads((folder / "accuracies_f64.json").read_text())
    assert len(recorded) == 4 * 6 * 3
    for setting, expected in recorded.items():
        shots, l2, seed = (part.split("=")[1] for part in setting.split(","))
        base, exponent = map(float, l2.split("^"))
        accuracy = fewshot_accuracy(*parts, shots=int(shots), l2=base**exponent, seed=int(seed))
        # Both are multiples of one test example; the record went through float32.
        right = round(expected * len(test_y))
        assert round(accuracy * len(test_y)) == right, setting
        assert expected == pytest.approx(right / len(test_y), rel=1e-6), setting
    meta = json.loads((folder / "meta.json").read_text())
    classes = int(max(y.max(), test_y.max())) + 1
    with np.load(folder / "ref.npz") as reference:
        for shots in meta["shots"]:
            chosen = sample_shots(y, shots, classes, seed=0)
            np.testing.assert_array_equal(chosen, reference[f"idx_seed0_shots{shots}"])
            for exponent in (0, 5, 10, 15):
                name = f"scores_shots{shots}_l2e{exponent}"
                examples = x[chosen].astype(np.float64), y[chosen], test_x
                scores = least_squares_scores(*examples, classes, 2.0**exponent)
                atol = max(1e-3, 8 * meta["f32_vs_f64"]["scores_maxabs"][name])
                np.testing.assert_allclose(scores, reference[name], atol=atol, rtol=0)


def test_scores_solve_the_normal_equations() -> None:
    random = np.random.default_rng(0)
    for examples, dimension in ((30, 7), (9, 20)):
        x, y = random.normal(size=(examples, dimension)) * 3 + 1, np.arange(examples) % 3
        columns = np.c_[(x - x.mean(0)) / (x.std(0) + 1e-5), np.full(examples, 100.0)]
        penalized = columns.T @ columns + 4.0 * np.eye(dimension + 1)
        weights = np.linalg.solve(penalized, columns.T @ (2 * np.eye(3)[y] - 1))
        scores = least_squares_scores(x, y, x, 3, 4.0)
        np.testing.assert_allclose(scores, columns @ weights, atol=1e-9)
    y = np.arange(120) % 4
    x = np.eye(4)[y] + np.random.default_rng(0).normal(size=(120, 4))
    four = x[:80], y[:80], x[80:], y[80:]
    rows = fewshot_table(*four, shots=(1, 5), seeds=(0, 1, 2, 3))
    assert [row.shots for row in rows] == [1, 5]
    for row in rows:
        each = [fewshot_accuracy(*four, row.shots, seed=seed) for seed in range(4)]
        assert row.accuracies == tuple(each)
        assert row.mean == pytest.approx(sum(each) / 4)
        assert row.spread == pytest.approx(np.std(each, ddof=1))


def test_heads_of_labels_and_grades_and_of_noise() -> None:
    labels, task = (SCORES > 0).astype(int), Multilabel(("a", "b", "c"))
    probe = task_probe(task, X, task.check_targets(labels))
    # The mean over the labels is a sum with a weaker penalty.
    sklearn = LogisticRegression(C=probe.strength / 3, max_iter=5000, tol=1e-8)
    for i in range(3):
        expected = sklearn.fit(SCALED, labels[:, i]).decision_function(SCALED)
        np.testing.assert_allclose(probe.outputs(X)[:, i], expected, atol=0.02)
    grades, task = np.digitize(SCORES[:, 0], [-2, 0, 2]), Ordinal(size=4)
    probe = task_probe(task, X[:150], task.check_targets(grades[:150]))
    found = task.grades(task.answers(probe.outputs(X[150:])))
    constant = np.full(50, np.median(grades[:150]))
    errors = [np.abs(each - grades[150:]).mean() for each in (found, constant)]
    assert errors[0] < 0.5 * errors[1]
    # Of noise in many dimensions, nothing is learned: the strongest penalty.
    noise, numbers = RANDOM.normal(size=(60, 50)), RANDOM.normal(size=60)
    task = Regression(("x",)).fitted(numbers)
    probe = task_probe(task, noise, task.check_targets(numbers))
    assert probe.strength <= 1e-3
    assert np.abs(probe.outputs(noise)).max() < 0.2


@pytest.mark.every_backend
def test_classes_and_numbers_are_scikit_learns() -> None:
    labels, task = SCORES.argmax(axis=1), Classification(("a", "b", "c"))
    probe = task_probe(task, X, task.check_targets(labels))
    sklearn = LogisticRegression(C=probe.strength, max_iter=5000, tol=1e-8).fit(SCALED, labels)
    expected = sklearn.predict_proba(SCALED)
    np.testing.assert_allclose(task.answers(probe.outputs(X)), expected, atol=2e-3)
    task = Regression(("x", "y")).fitted(SCORES[:, :2])
    targets = task.check_targets(SCORES[:, :2])
    probe = task_probe(task, X, targets)
    # Mean over two numbers, and squares without a half.
    expected = Ridge(alpha=1 / probe.strength).fit(SCALED, targets).predict(SCALED)
    np.testing.assert_allclose(probe.outputs(X), expected, atol=2e-3)


def both_towers(transformers: Any, kind: str) -> Any:
    tower = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    tower |= {"num_attention_heads": 3}
    texts = {**tower, "vocab_size": 50, "max_position_embeddings": 8, "eos_token_id": 2}
    images = {**tower, "image_size": 16, "patch_size": 4}
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=texts, vision_config=images, projection_dim=16)
        return transformers.CLIPModel(config).eval()
    texts["projection_size"] = 24
    config = transformers.SiglipConfig(text_config=texts, vision_config=images)
    return transformers.SiglipModel(config).eval()


@pytest.mark.parametrize("kind", rows(["clip", "siglip"], ["siglip"]))
def test_zero_shot_as_transformers(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = both_towers(transformers, kind)
    theirs.save_pretrained(tmp_path)
    images = np.random.default_rng(0).normal(size=(3, 16, 16, 3)).astype("float32")
    pixels = torch.as_tensor(images.transpose(0, 3, 1, 2).copy())
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([[5, 6, 7, 2], [9, 8, 3, 2]]), pixel_values=pixels)
    tower = load(tmp_path, include_preprocessing=False)
    options = {"logit_scale": float(np.exp(theirs.logit_scale.item())), "activation": None}
    options["logit_bias"] = theirs.logit_bias.item() if kind == "siglip" else 0.0
    model = zero_shot(tower, expected.text_embeds.numpy(), ["one", "two"], **options)
    found = model.predict(images, verbose=0)
    np.testing.assert_allclose(found, expected.logits_per_image.numpy(), rtol=1e-5, atol=1e-5)
    assert model.class_names == ("one", "two")
    assert any("text_model" in e.name for e in tower.load_report.entries if e.status == "ignored")


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_that_labels_were_drawn_with_comes_back(temperature: float) -> None:
    logits = RNG.normal(0, 3, (4000, 5))
    labels = np.array([RNG.choice(5, p=row) for row in softmax(logits / temperature)])
    fitted = fit_temperature(labels, logits)
    assert fitted == pytest.approx(temperature, rel=0.1)
    losses = [log_loss(labels, softmax(logits / t)) for t in np.linspace(0.3, 4, 50)]
    assert log_loss(labels, softmax(logits / fitted)) <= min(losses) + 1e-6
    after = calibration(labels, softmax(logits / fitted)).error
    assert after < 0.03
    assert after <= calibration(labels, softmax(logits)).error + 0.002
    assert fit_temperature([0, 1], [[3.0, 0.0], [0.0, 3.0]]) == 0.05  # all right: a bound
    assert fit_temperature([1, 0], [[3.0, 0.0], [0.0, 3.0]]) == 20.0  # all wrong


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
    loaded = load(tmp_path / "model.keras")
    again = answers_of(loaded, outputs(loaded, images))
    np.testing.assert_allclose(again, answers_of(model, after), atol=1e-6)


DRAWS = np.random.default_rng(0)
KINDS = np.arange(30) % 3
FEATURES = DRAWS.normal(size=(30, 8)) + 1.5 * np.eye(8)[KINDS] + 3
ONE_HOT = np.eye(3)[KINDS]


def standardized(x: np.ndarray, by: np.ndarray | None = None) -> np.ndarray:
    by = x if by is None else by
    return (x - by.mean(axis=0)) / np.sqrt((by.var(axis=0) + by.var(axis=0).mean()) / 2)


def alpha(x: np.ndarray, setting: float, weights: Any = None) -> float:
    """The penalty in scikit-learn's units."""
    weights = np.ones(len(x)) if weights is None else weights
    centered = np.sqrt(weights)[:, None] * (x - weights @ x / weights.sum())
    return setting * float(np.mean(np.linalg.svd(centered)[1] ** 2))


@pytest.mark.parametrize("folds", [np.arange(30), np.arange(30) % 5], ids=["one", "five"])
@pytest.mark.parametrize("wide", [False, True])
def test_left_out_by_the_hat_matrix_is_a_refit(folds: np.ndarray, wide: bool) -> None:
    x = np.concatenate([FEATURES, DRAWS.normal(size=(30, 60))], axis=1) if wide else FEATURES
    weights = DRAWS.uniform(0.5, 2, 30)
    answers, x = left_out(RIDGE, x, KINDS, 3, folds, weights), standardized(x)
    for setting, scores in answers:
        ridge = linear_model.Ridge(alpha(x, setting, weights))
        for fold in np.unique(folds):
            rest, rows = folds != fold, folds == fold
            ridge.fit(x[rest], ONE_HOT[rest], sample_weight=weights[rest])
            np.testing.assert_allclose(scores[rows], ridge.predict(x[rows]), atol=1e-5)
    assert setting == linear_heads.PENALTIES[-1]


def test_heads_are_scikit_learns() -> None:
    x = standardized(FEATURES)
    head = fit_head(RIDGE, FEATURES, KINDS, 3, setting=0.5)
    theirs = linear_model.Ridge(alpha(x, 0.5)).fit(x, ONE_HOT)
    np.testing.assert_allclose(head.scores(FEATURES), theirs.predict(x), atol=1e-8)
    theirs = linear_model.LogisticRegression(C=STRENGTHS[4], max_iter=2000).fit(x, KINDS)
    head = fit_head(LOGISTIC, FEATURES, KINDS, 3, setting=STRENGTHS[4])
    np.testing.assert_allclose(head.scores(FEATURES), theirs.decision_function(x), atol=1e-5)
    two = KINDS < 2
    head, x = fit_head(LOGISTIC, FEATURES[two], KINDS[two], 3), standardized(FEATURES[two])
    theirs = linear_model.LogisticRegression(C=1.0, max_iter=2000).fit(x, KINDS[two])
    scores = head.scores(FEATURES[two])
    np.testing.assert_allclose(scores[:, 1] - scores[:, 0], theirs.decision_function(x), atol=1e-5)
    assert head.scores(FEATURES)[:, 2].max() < ABSENT / 2  # never the most probable
    x, new = standardized(FEATURES), DRAWS.normal(size=(50, 8)) + 3
    unit, others = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for rows in (x, standardized(new, FEATURES))
    )
    theirs = neighbors.NearestCentroid().fit(unit, KINDS)
    theirs.centroids_ /= np.linalg.norm(theirs.centroids_, axis=1, keepdims=True)
    head = fit_head(MEANS, FEATURES, KINDS, 3)
    np.testing.assert_array_equal(head.scores(new).argmax(axis=1), theirs.predict(others))
    folds = np.arange(30) % 5
    ((_, scores),) = left_out(NEIGHBORS, FEATURES, KINDS, 3, folds)
    rest = folds != folds[7]
    votes = np.exp((unit[rest] @ unit[7] - 1) / linear_heads.TEMPERATURE) @ ONE_HOT[rest]
    np.testing.assert_allclose(np.exp(scores[7]), votes, rtol=1e-6)


def test_folds_hold_every_class_and_whole_groups() -> None:
    labels = np.repeat([0, 1, 2], [12, 8, 8])
    folds = linear_heads.stratified_folds(labels, seed=3)
    table = np.zeros((3, 8), int)
    np.add.at(table, (labels, folds), 1)
    assert table[1:].tolist() == [[1] * 8] * 2
    assert set(table[0]) == {1, 2}
    assert (linear_heads.stratified_folds(labels, seed=4) != folds).any()
    assert linear_heads.stratified_folds(labels, most=3).max() == 2
    groups = np.arange(28) // 2
    folds = linear_heads.stratified_folds(labels, groups)
    assert all(len(set(folds[groups == group])) == 1 for group in groups)


# Novelty against pytorch-ood's scores and scikit-learn's Ledoit-Wolf.
# `golden/novelty.npz` is of pytorch-ood 0.4.0 on 200 and 40 rows of features (its package without
# torchvision), with one class for all:
#     unit = lambda z: z / z.norm(dim=1, keepdim=True)
#     Mahalanobis(f).fit_features(unit(train), zeros).predict_features(unit(new))
#     KNN(f, k=10).fit_features(train, zeros).predict_features(new)
#     EnergyBased.score(new)
GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "novelty.npz"))
KNOWN, NEW = GOLDEN["train"], GOLDEN["new"]


def test_the_scores_of_pytorch_ood() -> None:
    rows = unit_rows(KNOWN)
    centered = rows - rows.mean(axis=0)
    precision = np.linalg.inv(centered.T @ centered + 1e-6 * np.eye(8))  # theirs, not over N
    layer = NoveltyScore()
    layer.build((None, 8))
    layer.set_weights([rows.mean(axis=0), np.linalg.cholesky(precision)])
    # Theirs is half of the squared distance.
    np.testing.assert_allclose(layer.scores(NEW) / 2, GOLDEN["mahalanobis"], rtol=1e-5)
    np.testing.assert_allclose(energy_scores(NEW), GOLDEN["energy"], rtol=1e-5)


def test_images_between_the_classes_are_found_by_their_energy() -> None:
    """At no more false alarms, and with those that are far from all training images."""
    centers, alarms, between = 4 * np.eye(3, 8), [], []
    head = centers.T, -np.square(centers).sum(1) / 2
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = centers[np.arange(600) % 3] + rng.normal(0, 1, (600, 8))
        like = centers.mean(axis=0) + rng.normal(0, 0.7, (200, 8))
        for each in (None, head):
            layer = fit_novelty(rows[:200], rows[200:300], 0.1, each)
            alarms.append((layer.scores(rows[300:]) > 1).mean())
            between.append((layer.scores(like) > 1).mean())
            assert (layer.scores(-5 * np.ones((9, 8))) > 1).all()
            found = keras.ops.convert_to_numpy(layer(like.astype("float32")))
            np.testing.assert_allclose(found, layer.scores(like), rtol=1e-3)
    assert max(np.mean(alarms[::2]), np.mean(alarms[1::2])) < 0.11
    assert np.mean(between[::2]) < 0.2 < 0.6 < np.mean(between[1::2])
    assert not fit_novelty(rows[:200], rows[200:218], 0.1, head).classes  # half of it takes 19


def calibrated() -> Any:
    model = fresh(**TINY | {"hidden_dim": 8, "input_shape": (8, 8, 3)})
    answers = [[0.9, 0.1], [0.3, 0.7]] * 10
    model.task = Classification(("cat", "dog")).with_coverage(["cat", "dog"] * 10, answers, 0.9)
    model.set_novelty(fit_novelty(KNOWN[:150], KNOWN[150:], head=classifier_head(model)))
    assert model.novelty.classes == 2
    return model


@pytest.mark.every_backend
def test_novelty_is_saved_and_of_these_weights(tmp_path: Path, recwarn: Any) -> None:
    layer, inputs = fit_novelty(KNOWN[:150], KNOWN[150:]), keras.Input((8,))
    model = keras.Model(inputs, layer(inputs))
    np.testing.assert_allclose(outputs(model, NEW), layer.scores(NEW), rtol=1e-4)
    assert not model.trainable_variables
    model.save(tmp_path / "novelty.keras")
    loaded = keras.saving.load_model(tmp_path / "novelty.keras")
    np.testing.assert_array_equal(outputs(loaded, NEW), outputs(model, NEW))
    # An average has other weights, and so has a model after `fit`.
    model, plain = calibrated(), calibrated().uncalibrated()
    assert model.is_calibrated
    average = keras_vit.training.average_weights([model, plain])
    for other in (plain, average, keras_vit.training.model_stock(plain, [model, calibrated()])):
        assert not other.is_calibrated
        assert other.task.names == ("cat", "dog")
    model.save(tmp_path / "model.keras")
    open_classifier(tmp_path / "model.keras", views="one")
    assert not [w for w in recwarn if "calibrated" in str(w.message)]
    warned("without --views flip", open_classifier, tmp_path / "model.keras", views="flip")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images = np.full((2, 8, 8, 3), 99.0, "float32")
    warned(r"Train model\.uncalibrated\(\)", model.fit, images, np.array([0, 1]), verbose=0)
