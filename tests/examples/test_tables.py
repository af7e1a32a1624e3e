"""The examples that print a table, of seeds whose training is replaced or features; and depth."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import data
from keras_vit.curation import measure_photos
from keras_vit.layers.novelty_score import unit_rows
from keras_vit.tasks.scores import Score
from keras_vit_cli import commands
from tests import bank
from tests.conftest import REPOSITORY
from tests.curation.photos import grainy, index_of, picture
from tests.data.image_fixtures import plain, write
from tests.examples import Run, load_example

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")
GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "novelty.npz"))

# Accuracy and calibration error of the ViT by seed, as trained for the README.
STRATIFIED = [(0.99722, 0.02119), (0.98889, 0.02275), (0.99722, 0.02193), (0.98889, 0.0174)]
STRATIFIED += [(0.99444, 0.02011)]
HALVES = [(0.97442, 0.02245), (0.9822, 0.01502), (0.98443, 0.02483), (0.96997, 0.01779)]
HALVES += [(0.96774, 0.02232)]
RESULTS = {"digits": STRATIFIED, "digits/half": HALVES}


def recorded_train(jobs: list[Any], result: Callable[[Any], tuple[float, float]]) -> Any:
    """A `train` that keeps its job, and returns a report of the job's accuracy and error."""

    def train(job: Any) -> Any:
        jobs.append(job)
        accuracy, error = result(job)
        job.out.mkdir(parents=True, exist_ok=True)
        scores = {"accuracy": Score(accuracy, 0, 1)}
        return SimpleNamespace(scores=scores, calibration=SimpleNamespace(error=error))

    return train


def test_digits(tmp_path: Path, run_example: Run) -> None:
    """It prints the lines of the README: scikit-learn is computed, and the ViT was trained."""
    script, jobs = load_example("digits"), []
    train = recorded_train(jobs, lambda job: RESULTS[job.data][job.seed])
    words = ["--out", tmp_path / "runs", "--overwrite", "--seeds", 5]
    *printed, last = run_example(script, *words, train=train).strip().splitlines()
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    assert [line.split(": ")[0] for line in printed] == ["stratified 80/20", "first/second half"]
    for line in printed:
        assert f"    {line}\n" in readme
    assert last == "means and standard deviations of seeds 0 to 4"
    assert [(job.data, job.seed, job.overwrite) for job in jobs] == [
        (name, seed, True) for name in RESULTS for seed in range(5)
    ]
    assert script.mean_and_spread([0.9906]) == "99.06%"  # one seed has no spread


def test_finetune_flowers_has_a_run_per_seed(tmp_path: Path, run_example: Run) -> None:
    script, jobs = load_example("finetune_flowers"), []
    train = recorded_train(jobs, lambda job: (0.95 + 0.02 * job.seed, 0.02 + 0.01 * job.seed))
    words = ["--data", "photos", "--image-size", 64, "--out", tmp_path / "runs"]
    out = run_example(script, *words, "--seeds", 2, train=train)
    assert "accuracy 96.00% ± 1.41, calibration error 2.50% ± 0.71; seeds 0 to 1\n" in out
    assert "seed 1: 97.00%\n" in out
    runs = [(job.out.name, job.seed, job.image_size) for job in jobs]
    assert runs == [("runs_0", 0, 64), ("runs_1", 1, 64)]
    # A third seed: the first two are there, and the last is new.
    run_example(script, *words, "--seeds", 3, "--resume")
    assert [job.resume for job in jobs[2:]] == [True, True, False]
    assert "accuracy 95.00%, calibration error 2.00%\n" in run_example(script, *words)
    assert jobs[-1].out == tmp_path / "runs"


def test_few_photographs(digits: data.Splits, tmp_path: Path, run_example: Run) -> None:
    """A choice never sees the validation split; the table has means and what auto chooses."""
    script, calls = load_example("few_photographs"), []
    part = script.subset(digits, 8, seed=0, final=False)
    assert np.bincount(part.train.labels()).tolist() == [8] * 10
    assert np.bincount(part.val.labels()).tolist() == [60] * 10
    train, val, held = (
        {image.tobytes() for image in split.as_arrays()[0]}
        for split in (part.train, part.val, digits.val)
    )
    assert not train & val
    assert not (train | val) & held
    final = script.subset(digits, 8, seed=0, final=True)
    np.testing.assert_array_equal(final.train.as_arrays()[0], part.train.as_arrays()[0])
    assert final.val is digits.val
    with pytest.raises(ValueError, match="--shots 500 leaves no"):
        script.subset(digits, 500, seed=0, final=False)

    def run(options: Any, splits: Any, name: str, seed: int, folder: Path) -> dict[str, float]:
        calls.append((name, seed))
        return {"accuracy": 0.9 + 0.02 * seed, "error": 0.01, "minutes": 2.0}

    words = ["--data", "digits", "--shots", 8, "--seeds", 2, "--out", tmp_path]
    words += ["--recipes", "probe", "finetune_few"]
    out = run_example(script, *words, run=run)
    text = (tmp_path / "table.md").read_text()
    assert "| 8 | finetune_few | 91.00% ± 1.41 | 1.00% ± 0.00 | 2.0 | chosen |" in text
    assert text in out
    assert len(calls) == 4
    run_example(script, *words)  # all rows are there
    assert len(calls) == 4


def test_imbalance(digits: data.Splits, tmp_path: Path, run_example: Run) -> None:
    """A long tail falls by the ratio, the interval is SciPy's, and both trainings run."""
    script, stats = load_example("imbalance"), pytest.importorskip("scipy.stats")
    labels = np.random.default_rng(0).permutation(np.repeat(range(10), 400))
    tail = script.long_tail(labels, 100, seed=0)
    counts = np.bincount(labels[tail])
    # The long-tailed CIFAR-10 of Cui et al., of 400 in place of 5,000 images per class.
    assert sorted(counts, reverse=True) == [400, 240, 144, 86, 52, 31, 19, 11, 7, 4]
    assert len(set(tail)) == len(tail)
    differences = [0.01, 0.03, 0.02, 0.05, 0.02]
    mean, low, high = script.interval(differences)
    theirs = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    np.testing.assert_allclose([mean, low, high], [0.026, theirs.low, theirs.high])
    bank.tiny(depth=2, input_shape=(16, 16, 1)).save(tmp_path / "start.keras")
    words = ["--weights", str(tmp_path / "start.keras"), "--image-size", "16", "--blocks", "1"]
    options = script.parser.parse_args([*words, "--epochs", "1", "--out", str(tmp_path)])
    tail = script.long_tail(digits.train.labels(), 10, seed=0)
    with patch.multiple(script, PROBE_SIZE=16, cache_folder=lambda: tmp_path):
        for train, way in ((script.frozen, "none"), (script.fine_tuned, "sampling")):
            recall = train(options, digits, tail, way, 0)
            assert len(recall) == 10
            assert 0 < np.mean(recall) < 1
    # The page begins with what does not help.
    calls, gains = [], {"none": 0.0, "weights": 0.2, "logits": 0.1, "sampling": 0.0}

    def train(options: Any, splits: Any, tail: Any, way: str, seed: int) -> list[float]:
        calls.append((way, seed))
        noise = 0.01 * seed * (way == "sampling")
        return [0.5 + gains[way] + 0.05 * seed - noise] * 10

    page = tmp_path / "page"
    words = ["--data", "digits", "--seeds", 3, "--out", page, "--modes", "frozen"]
    out = run_example(script, *words, frozen=train, fine_tuned=train)
    text = (page / "table.md").read_text()
    assert text in out
    first = text.split("\n\n")[1]
    assert first.startswith("On frozen features, `--balance` does not help as `sampling`.")
    assert "raises balanced accuracy: `weights` +20.0% (+20.0% to +20.0%), `logits` +10" in first
    assert "| frozen | none | 55.00% ± 5.00 |  |" in text
    assert len(calls) == 12
    run_example(script, *words)  # all rows are there
    assert len(calls) == 12


def test_vit_beside_resnet(tmp_path: Path, run_example: Run) -> None:
    """They have the mean and spread of the seeds."""
    script = load_example("flowers_vit_vs_resnet")
    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
    resnet = keras.Sequential([keras.Input((32, 32, 3)), *layers], name="resnet")
    calls: list[tuple[str, int, Any]] = []
    # Each of the two seeds gets another number of the two validation images right.
    levels = iter([[1, 1], [0, 0], [0, 1], [0, 1]])

    def fit(model: Any, recipe: Any, splits: Any, folder: Path, seed: int) -> None:
        folder.mkdir(parents=True)
        calls.append((folder.name, seed, recipe.epochs))

    def predict(model: Any, split: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.array([0, 1]), np.eye(2)[next(levels)]

    # A tiny ViT to start from, and two classes, dark and bright, of four images each.
    bank.tiny(patch_size=16, num_classes=0, input_shape=(224, 224, 3)).save(tmp_path / "a.keras")
    names = [f"{name}/{i}.png" for name in ("dark", "bright") for i in range(4)]
    photos = write(tmp_path / "p", {name: plain(25 * i, (32, 32)) for i, name in enumerate(names)})
    words = ["--epochs", 2, "--resnet-weights", "some", "--seeds", 2, "--image-size", 32]
    words += ["--data", photos, "--weights", tmp_path / "a.keras", "--out", tmp_path / "out"]
    words += ["--markdown", tmp_path / "page.md"]
    report = script.evaluation.classification_report
    evaluation = SimpleNamespace(predict_split=predict, classification_report=report)
    out = run_example(script, *words, fit=fit, resnet=lambda *_: resnet, evaluation=evaluation)
    assert calls == [("ViT-0", 0, 2), ("ViT-1", 1, 2), ("ResNet-0", 0, 2), ("ResNet-1", 1, 2)]
    text = (tmp_path / "page.md").read_text("utf-8")
    # The ViT has one of two right, twice.
    tuned = keras_vit.load(tmp_path / "a.keras", num_classes=2, input_shape=(32, 32, 3))
    assert f"| ViT | {tuned.count_params():,} | 50.00% ± 0.00 | 0.333 | 1.0 |" in text
    assert "| ResNet | 8 | 100.00% ± 0.00 | 1.000 |" in text
    assert "2 epochs" in out


def test_each_augmentation_makes_batches(run_example: Run) -> None:
    """Layers in place of the recipe's augmentation."""

    def accuracy(splits: data.Splits, augment: Any, epochs: int) -> float:
        options = {"training": True, "channels": 1, "num_classes": 10, "augment": augment}
        images, labels = next(iter(data.pipeline(splits.train, 8, 4, **options)))
        assert (images.shape, labels.shape) == ((4, 8, 8, 1), (4, 10))
        return epochs / 100

    printed = run_example(load_example("augment_layers"), "--epochs", 2, accuracy=accuracy)
    assert printed.split()[:4] == ["recipe", "2.00%", "keras", "2.00%"]


def test_the_five_panels_of_what_it_sees(tmp_path: Path, run_example: Run) -> None:
    """The first image of the README, of a small model."""
    script = load_example("what_it_sees")
    sizes = {"patch_size": 16, "depth": 2, "num_classes": 6, "input_shape": (48, 32, 3)}
    model = bank.fresh(**{**bank.TINY, **sizes})
    model.class_names = ("a", "b", "c", "d", "e", "f")
    model.save(tmp_path / "model.keras")
    Image.fromarray(bank.pixels(60, 60, 3)).save(tmp_path / "photo.png")
    words = ["--weights", tmp_path / "model.keras", "--out", tmp_path / "out.png", "--photo"]
    assert "written to" in run_example(script, *words, tmp_path / "photo.png")
    assert Image.open(tmp_path / "out.png").size == (1200, 264)
    figure = script.draw(model, np.zeros((48, 32, 3), "float32"))
    titles = [panel.get_title() for panel in figure.axes]
    assert titles[:3] == ["a photograph", "3 x 2 patches", "where the class token looks"]


def labeled(count: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Features of three classes, the first two of which are alike."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, count)
    centers = np.array([[1, 0.8, 0, 0], [1, -0.2, 0, 0], [0, 0, 1, 0]])
    return (centers[labels] + random.normal(0, 0.2, (count, 4))).astype("float32"), labels


def flowers() -> tuple[np.ndarray, np.ndarray]:
    """Features of three classes that overlap a little."""
    random, labels = np.random.default_rng(0), np.arange(450) % 3
    return (2 * np.eye(3, 6)[labels] + random.normal(0, 0.7, (450, 6))).astype("float32"), labels


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_wrong_labels_are_of_any_class_or_the_similar_one() -> None:
    """And the table has a row per score."""
    script, (features, labels) = load_example("wrong_labels"), labeled()
    for kind in script.KINDS:
        new = script.changed(features, labels, kind, 0.2, seed=1)
        assert (new != labels).sum() == 24
    rows = new != labels
    pairs = {*zip(labels[rows].tolist(), new[rows].tolist(), strict=True)}
    assert pairs == {(0, 1), (1, 0), (2, 0)}
    with patch.multiple(script, KINDS=("symmetric",), RATES=(0.2,)):
        lines = script.study(features, labels, seeds=2).splitlines()
    assert lines[0] == "| score | symmetric 20% AP | symmetric 20% AUROC |"
    assert len(lines) == 2 + 8
    assert lines[2].startswith(f"| {script.OURS} | ")


def test_planted_photographs_are_what_their_kind_says(tmp_path: Path) -> None:
    script, sizes = load_example("planted_duplicates"), []
    grainy(picture(0, side=60)).save(tmp_path / "a.png")
    for kind in script.KINDS:
        contents = script.planted(tmp_path / "a.png", kind, np.random.default_rng(0))
        (tmp_path / "copy.jpg").write_bytes(contents)
        with Image.open(tmp_path / "copy.jpg") as copy:
            sizes.append(copy.size)
        if kind == "mirrored":
            measures = measure_photos(index_of(tmp_path))
            assert int(measures.hash[0] ^ measures.mirrored[1]).bit_count() <= 4
    assert sizes == [(40, 30), (80, 60), (80, 60), (72, 54), (60, 45)]


def test_coverage_and_novelty() -> None:
    """The tables of sets and of novelty; the distance to a class is PyTorch-OOD's."""
    script = load_example("coverage_and_novelty")
    with patch.multiple(script, PROBED=150, HALVES=5):
        lines = script.table_of_sets(*flowers()).splitlines()
    assert len(lines) == 2 + 2 * len(script.METHODS)
    for line in lines[2:]:
        promised, covered = (float(cells(line)[i].rstrip("%")) for i in (0, 2))
        assert covered > promised - 5
    with patch.multiple(script, DRAWS=2):
        lines = script.table_of_novelty(*flowers(), {"far": -4 * np.ones((50, 6))}).splitlines()
    assert cells(lines[0]) == ["score", "false alarms", script.UNKNOWN, "far"]
    assert len(lines) == 2 + 6
    for line in (*lines[2:4], *lines[5:7]):  # two are of a probe, which may be sure of anything
        assert cells(line)[3] == "1.000, 100%"
    train, new = unit_rows(GOLDEN["train"]), unit_rows(GOLDEN["new"])
    score = script.mahalanobis_per_class(train, np.zeros(len(train), int))
    np.testing.assert_allclose(score(new) / 2, GOLDEN["mahalanobis"], rtol=1e-5)


@pytest.mark.parametrize("size", [(480, 640), (100, 37), (518, 518)])
def test_the_size_for_depth_is_that_of_transformers(size: tuple[int, int]) -> None:
    theirs = pytest.importorskip(
        "transformers.models.dpt.image_processing_dpt", exc_type=ImportError
    )
    image = np.empty((3, *size), np.uint8)
    expected = theirs.get_resize_output_image_size(image, (518, 518), True, 14)
    assert load_example("depth").size_for(*size) == (expected.height, expected.width)


def test_depth_of_a_photograph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By random weights in the folder of Depth Anything."""
    head = {"width": 8, "depth_width": 4, "activation": "relu"}
    model = keras_vit.VisionTransformer(
        patch_size=14, hidden_dim=16, depth=4, num_heads=2, layer_scale=1.0, num_classes=1,
        map_head=head, input_shape=(28, 28, 3), activation="gelu", normalization="imagenet",
    )  # fmt: skip
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    pixels = bank.pixels(30, 47, 3)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    out = tmp_path / "depth.png"
    photo = [str(tmp_path / "folder"), str(tmp_path / "photo.png"), "--side", "28"]
    load_example("depth").main([*photo, "--out", str(out)])
    assert "depth from" in capsys.readouterr().out
    with Image.open(out) as picture:
        found = np.asarray(picture)
    assert found.shape == (30, 94, 3)
    np.testing.assert_array_equal(found[:, :47], pixels)
    assert len(np.unique(found[:, 47:].reshape(-1, 3), axis=0)) > 20
    # The command, too, stretched to the size of the model.
    monkeypatch.chdir(tmp_path)
    assert (
        commands.main(["predict", "folder", "photo.png", "--out", "rows.jsonl", "--maps", "maps"])
        == 0
    )
    (row,) = map(json.loads, Path("rows.jsonl").read_text().splitlines())
    with Image.open("maps/photo.tiff") as file:
        depths = np.asarray(file)
    assert depths.shape == (30, 47)
    assert row["predictions"][2]["value"] == pytest.approx(depths.max(), rel=0.05)
    assert Path("maps/photo.color.png").exists()
