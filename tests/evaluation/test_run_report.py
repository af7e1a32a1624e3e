"""A report's numbers are scikit-learn's; calibration, mistakes, the page, the folder of a run."""

import itertools
import json
import re
import shlex
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import stats
from sklearn import metrics
from sklearn.calibration import calibration_curve
from sklearn.dummy import DummyClassifier, DummyRegressor

import keras_vit
from keras_vit import data, tasks
from keras_vit._base import fonts
from keras_vit.evaluation import Report, calibration, classification_report, predict_split, report
from keras_vit.evaluation.report_text import name_rows
from keras_vit.evaluation.set_report import set_report
from keras_vit.evaluation.shown_images import images_at
from keras_vit.tasks.scores import wilson_interval
from keras_vit.training import recipes
from keras_vit_cli.report import description, run_plots
from keras_vit_cli.report.contact_sheet import draw_contact_sheet, file_text
from keras_vit_cli.report.report_page import recipe_rows, report_page
from keras_vit_cli.report.results import Results
from keras_vit_cli.report.run_files import write_report
from tests.bank import small, tiny
from tests.browser import opened
from tests.data.image_fixtures import flat_folder
from tests.evaluation.outcomes import outcomes_of, results_of_classes, results_of_task

pytest.importorskip("matplotlib")
pytest.importorskip("tensorflow")

NAMES = ("daisy", "rose", "tulip")
PLOTS = ("confusion.png", "calibration.png", "curves.png", "mistakes.png")
FILES = ("report.json", "report.md", "report.html", *PLOTS)
FACTS = {
    "seconds": 61.2, "model": "ViT-Ti/16", "parameters": 5526346, "pixels": [224, 224, 3],
    "recipe": "finetune_small", "bad_files": [["rose/x|y.jpg", "the file is empty"]],
    "data": {"train": 1800, "val": 400},
    "targets": {"train": "1,800 images: 3 classes, 600 images each"},
}  # fmt: skip
CONFIG = {
    "command": "keras-vit train --data photos", "versions": {"keras": "3.15"},
    "job": {"data": "photos", "weights": "ViT-Ti/16:augreg_in21k", "lora": 4, "seed": 0},
    "recipe": {"learning_rate": 0.03, "ema": 0.0, "source": "table 4 | here"},
}  # fmt: skip
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, 3, 400)
LOGITS = 2 * RANDOM.normal(size=(400, 3)) + 2 * np.eye(3)[LABELS]
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


def test_calibration_is_its_definition_and_scikit_learns() -> None:
    correct, confidence = PROBABILITIES.argmax(1) == LABELS, PROBABILITIES.max(1)
    for bins in (1, 10, 15):
        of_bins = np.ceil(confidence * bins)
        gaps = [(correct - confidence)[of_bins == m].sum() for m in range(1, bins + 1)]
        error = np.abs(gaps).sum() / 400
        assert calibration(LABELS, PROBABILITIES, bins).error == pytest.approx(error, abs=1e-12)
    result = calibration(LABELS, PROBABILITIES, 10)
    filled = result.counts > 0
    accuracy, confidence = calibration_curve(correct, confidence, n_bins=10)
    np.testing.assert_allclose(result.accuracy[filled], accuracy)
    np.testing.assert_allclose(result.confidence[filled], confidence)
    assert json.loads(json.dumps(result.to_dict()))["confidence"][0] is None
    # A confidence at an edge is in the bin below it, as in the paper.
    assert calibration([0], [[0.75, 0.25]], 4).counts.tolist() == [0, 0, 1, 0]
    certain = np.eye(2)[[0, 1, 1]]
    right, wrong = calibration([0, 1, 1], certain), calibration([1, 0, 0], certain)
    assert (right.error, wrong.error, right.counts[-1]) == (0, 1, 3)


def test_mistakes_are_the_most_confident_errors_and_have_their_images(tmp_path: Path) -> None:
    outcomes = outcomes_of(NAMES, LABELS, LOGITS)
    wrong = np.flatnonzero(PROBABILITIES.argmax(1) != LABELS)
    order = wrong[np.argsort(-PROBABILITIES.max(1)[wrong])]
    assert outcomes.worst(10) == order[:10].tolist()
    answer, truth = outcomes.task.texts(outcomes.tally, order[0])
    probability = PROBABILITIES[order[0]].max()
    assert answer == f"{NAMES[PROBABILITIES[order[0]].argmax()]} ({probability:.0%})"
    assert truth == NAMES[LABELS[order[0]]]
    # Images come in the order of their indices; skipped files do not shift them, nor the labels.
    complete = data.load(flat_folder(tmp_path), val_fraction=0.5).val
    complete.files[2].write_bytes(b"not an image")
    split = data.load(tmp_path, val_fraction=0.5, verify=False).val
    assert split.files == complete.files
    readable = [*split.files[:2], *split.files[3:]]
    images = images_at(split, [5, 0, 3])
    assert [image.shape for image in images] == [(16, 20, 3)] * 3
    # The gray level of each image is the number in its name.
    assert [image[0, 0, 0] for image in images] == [int(readable[i].stem) for i in (5, 0, 3)]
    labels, _ = predict_split(tiny(input_shape=(8, 8, 3)), split)
    np.testing.assert_array_equal(labels, np.delete(complete.labels(), 2))


def results(split: data.Split | None = None) -> Results:
    return results_of_classes(NAMES, LABELS, LOGITS, split)


def test_page_has_every_section_and_every_fact() -> None:
    shown = results()
    page = report_page("flowers", shown, FACTS, CONFIG, ("confusion.png", "mistakes.png"))
    assert page.startswith("# flowers\n\nClassification into 3 classes: daisy, rose, tulip.\n\n**")
    titles = "What was trained, Results, Plots, Worst mistakes, Per class, Recipe, Use and repeat"
    assert re.findall("^## (.*)$", page, re.M) == titles.split(", ")
    score = shown.report.scores["accuracy"]
    facts = (
        f"| accuracy | {score.value:.4g} | {score.low:.4g} to {score.high:.4g} |", "| macro_f1 |",
        "| model | ViT-Ti/16 |", "| parameters | 5,526,346 |", "| validation | 400 images |",
        "| image size | 224 x 224 pixels, color |", "| data | photos |", "| lora | 4 |",
        "| initial weights | ViT-Ti/16:augreg_in21k, Apache-2.0, https://storage.googleapis.com/",
        "| training | 1,800 images: 3 classes, 600 images each |", "| learning_rate | 0.03 |",
        "`rose/x|y.jpg`: the file is empty", "Recipe `finetune_small`: table 4 \\| here",
        "keras-vit train --data photos\nkeras-vit predict flowers photo.jpg\n", "61 seconds",
        "keras 3.15.", "![confusion](confusion.png)", "![mistakes](mistakes.png)",
    )  # fmt: skip
    assert [fact for fact in facts if fact not in page] == []
    assert "ema" not in page  # which is off
    # Of the head alone, which does not follow the recipe.
    config = {**CONFIG, "job": {**CONFIG["job"], "freeze_backbone": True}}
    page = report_page("flowers", shown, {**FACTS, "epochs": 6, "resumed": True}, config)
    assert "| duration | 6 epochs; since it was resumed, 61 seconds |" in page
    assert "The head alone was fitted" in page
    assert "learning_rate" not in page
    page = report_page("pets", results_of_classes(["cat", "dog"], [0, 0], [[9, 0], [9, 0]]), {})
    assert "| accuracy | 1 | 0.3424 to 1 | 1 |" in page  # Wilson, 2 of 2


@pytest.mark.parametrize("cwd", ["/", "/home/ada"])
def test_no_folder_of_the_disk_is_shown(cwd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", lambda *_: Path(cwd))
    home = "/home/ada/my work"
    paths = {"data": "photos", "labels": "photos/labels.csv", "out": "run", "weights": "vit.npz"}
    job = {name: f"{home}/{path}" for name, path in {**paths, "teacher": "runs/teacher"}.items()}
    words = [f"--{name}={value}" for name, value in job.items()]
    config = {"command": shlex.join(["keras-vit", "train", *words]), "job": job}
    facts = {"bad_files": [[f"{home}/photos/red/x.jpg", "empty"]], "data": {"train": 9}}
    page = report_page("run", results(), facts, config, run=Path(home) / "run")
    assert "/home/ada" not in page
    inside = "my work/" if cwd == "/home/ada" else ""
    assert f"| data | {inside}photos, labels in {inside}photos/labels.csv |" in page
    assert f"`{inside}photos/red/x.jpg`: empty" in page
    assert "Paths are shortened here" in page
    shown = shlex.split(description.short_command(config["command"], job["data"]))[2:4]
    assert shown == [f"--data={inside}photos", f"--labels={inside}photos/labels.csv"]


def test_models_weights_recipes_and_data_are_described() -> None:
    sizes = {"input_shape": (32, 32, 3), "num_classes": 2}
    ti = sizes | {"hidden_dim": 192, "num_heads": 3}
    other = "VisionTransformer (patch_size 8; hidden_dim 192; depth 1; num_heads 3; mlp_dim 768)"
    for name, model in {
        "ViT-Ti/16": keras_vit.VisionTransformer(**ti),
        "ViT-Ti/16 (token_merging 2)": keras_vit.VisionTransformer(**ti, token_merging=2),
        other: small(**ti, depth=1, patch_size=8, mlp_dim=768),
        "Mixer-S/16": keras_vit.create("Mixer-S/16", **sizes),
    }.items():
        assert description.describe_model(model) == name
    of_dinov3 = next(row for row in keras_vit.list_weights() if row.license != "Apache-2.0")
    about = description.describe_weights(None, of_dinov3.name)
    assert f"{of_dinov3.name}, {of_dinov3.license}, " in about
    unknown = description.describe_weights("ViT-Ti/16", "/home/ada/vit.npz")
    assert unknown == "vit.npz (its license is not known here)"
    recipe = json.loads(json.dumps(asdict(recipes.get("digits").scaled(steps=150))))  # as resumed
    rows = recipe_rows(tasks.Classification(NAMES), recipe, {"precision": "float32", "patience": 3})
    assert rows.items() >= {
        "loss": "softmax", "steps": "150", "learning_rate": "0.002", "label_smoothing": "0.02",
        "patience": "3", "augmentation: flip": "no", "augmentation: crop": "resize",
    }.items()  # fmt: skip
    rows = recipe_rows(tasks.Regression(size=1), recipe, {})
    assert rows["loss"] == "squared_error"
    assert "label_smoothing" not in rows  # that loss does not have it
    mixed = {"loss": "softmax", "mixup": 0.2}
    for kind, is_mixed in ((tasks.Classification, True), (tasks.Segmentation, False)):
        assert ("mixup" in recipe_rows(kind(NAMES), mixed, {})) == is_mixed
    for task, targets, about, of_split in (
        (tasks.Classification(NAMES), [0, 0, 2], "classification into 3 classes: daisy, rose",
         "2 of 3 classes, 1 to 2 images each"),
        (tasks.Regression(("angle",), units=("degrees",)), [-1.5, 3, 2],
         "regression of 1 number: angle", "angle from -1.5 to 3 degrees"),
    ):  # fmt: skip
        checked = task.check_targets(targets)
        split = data.ArraySplit("train", task, np.zeros((3, 8, 8, 1), np.uint8), checked)
        assert description.describe_task(task).startswith(about)
        assert description.describe_targets(split) == f"3 images: {of_split}"


def test_folder(tmp_path: Path) -> None:
    pixels = RANDOM.integers(0, 256, (400, 8, 8, 1), np.uint8)
    shown = results(data.ArraySplit("val", NAMES, pixels, LABELS))
    folder = tmp_path / "ビオラ"
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match=rf"loss is {value} in epoch 2: the training diverged"):
            write_report(folder, shown, {}, history={"loss": [1.0, value]})
    assert not list(tmp_path.iterdir())
    history = {"loss": [2.0, 1.0], "val_loss": [2.0, 1.5]}
    write_report(folder, shown, FACTS, history=history, config=CONFIG)
    assert {path.name for path in folder.iterdir()} == set(FILES)
    for name in PLOTS:
        colors = np.asarray(Image.open(folder / name).convert("RGB"))
        assert len(np.unique(colors.reshape(-1, 3), axis=0)) > 20
    record = json.loads((folder / "report.json").read_text("utf-8"))
    assert record["report"]["scores"]["accuracy"][0] == shown.report.scores["accuracy"].value
    shown_error = record["report"]["calibration"]["expected_calibration_error"]
    assert shown_error == pytest.approx(calibration(LABELS, PROBABILITIES).error, abs=1e-6)
    assert len(record["mistakes"]) == 24
    page = (folder / "report.md").read_text("utf-8")
    assert page.startswith("# ビオラ\n")
    assert all(f"]({name})" in page for name in PLOTS)
    # A model without mistakes has a plot of them as well.
    two = data.ArraySplit("val", ("a", "b"), pixels[:2], np.array([0, 1]))
    write_report(folder, results_of_classes(("a", "b"), [0, 1], 9 * np.eye(2), two), {})
    assert (folder / "mistakes.png").stat().st_size > 1000


def test_the_page_for_a_browser_has_all_and_requests_nothing(browser: Any, tmp_path: Path) -> None:
    names = ("daisy", "<img src=x>", "![t](/etc/hostname)")
    split = data.ArraySplit("val", names, RANDOM.integers(0, 256, (400, 8, 8, 1), np.uint8), LABELS)
    write_report(tmp_path, results_of_classes(names, LABELS, LOGITS, split), FACTS)
    address = (tmp_path / "report.html").as_uri()
    with opened(browser, address, 390, (address, "data:")) as page:
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = page.evaluate("[...document.images].map(image => image.naturalWidth)")
        assert [size > 300 for size in sizes] == [True] * 3
        text = page.inner_text("main")
        assert all(name in text for name in (*names, "rose/x|y.jpg"))
        table = page.locator("table", has=page.get_by_text("recall", exact=True))
        cells = table.locator("tbody tr td:nth-child(3)")
        cells.first.evaluate("cell => { cell.textContent = '-' }")  # as of a score without one
        table.get_by_role("button", name="recall").click()
        *numbers, none = cells.all_inner_texts()
        assert (numbers, none) == (sorted(numbers, key=float), "-")
        table.get_by_role("button", name="recall").press("Enter")
        assert cells.all_inner_texts() == [*numbers[::-1], "-"]


def test_paths_are_of_the_run_and_the_working_folder(here: Path, monkeypatch: Any) -> None:
    write_report("partial", results(), {}, run="runs/my photos")
    page = Path("partial/report.md").read_text("utf-8")
    assert page.startswith("# my photos\n")
    assert "\nkeras-vit predict 'runs/my photos' photo.jpg\n" in page
    write_report(here / "run", results(), {})
    # `best.keras` is from before the calibration.
    (here / "run/best.keras").touch()
    for facts, is_noted in (({}, False), ({"held_out": 20}, True)):
        write_report(here / "run", results(), facts)
        page = (here / "run/report.md").read_text("utf-8")
        assert ("the novelty are in model.keras alone" in page) == is_noted
    assert "\nkeras-vit predict run photo.jpg\n" in page
    # The folder above the working one is nobody's business, unless the data are in it.
    (here / "work").mkdir()
    monkeypatch.chdir(here / "work")
    teacher = str(here / "ada" / "teacher")
    assert description.short_path(teacher) == "teacher"
    assert description.short_path(teacher, beside=str(here / "photos")) == "ada/teacher"


def test_numbers_and_scores_are_scikit_learns() -> None:
    of_rows, both = classification_report(LABELS, LOGITS, NAMES), (LABELS, LOGITS.argmax(1))
    expected = metrics.classification_report(*both, target_names=NAMES, output_dict=True)
    keys = {"precision": "precision", "recall": "recall", "F1": "f1-score", "images": "support"}
    for title, key in keys.items():
        theirs = [expected[name][key] for name in NAMES]
        assert of_rows.names[title].tolist() == pytest.approx(theirs)
    np.testing.assert_array_equal(of_rows.confusion, metrics.confusion_matrix(*both))
    one = classification_report([0, 1, 2], [0, 0, 0], NAMES)
    assert one.names["precision"].tolist() == [pytest.approx(1 / 3), 0, 0]
    (line,) = (x for x in str(of_rows).splitlines() if x.startswith("rose"))
    assert f"{of_rows.names['recall'][1]:.3f}" in line
    most = np.full_like(LABELS, np.bincount(LABELS).argmax())
    for scores, answers in ((of_rows.scores, both[1]), (of_rows.constant, most)):
        expected = {
            "accuracy": metrics.accuracy_score(LABELS, answers),
            "balanced_accuracy": metrics.balanced_accuracy_score(LABELS, answers),
            "macro_f1": metrics.f1_score(LABELS, answers, average="macro"),
        }
        assert {name: score.value for name, score in scores.items()} == pytest.approx(expected)
    assert {f"{wilson_interval(0, n)[0]:.1%}" for n in range(1, 99)} == {"0.0%"}  # and not -0.0%
    # Where classes have one image each, intervals hold their value: of 100 classes, a resample
    # lacks 37, and their F1 of 0 would be the resample's, not ours.
    labels = np.arange(100)
    of_rows = classification_report(labels, np.where(labels < 90, labels, 0), labels.astype(str))
    for score in of_rows.scores.values():
        assert score.low < score.value < score.high
        assert score.high - score.low < 0.2
    # Macro scores come first where classes differ much.
    labels, cats = np.repeat([0, 1], [90, 9]), np.zeros(99, int)
    of_rows = classification_report(labels, cats, ["cat", "dog"])
    assert list(of_rows.scores) == ["balanced_accuracy", "macro_f1", "accuracy"]
    theirs = metrics.balanced_accuracy_score(labels, cats)
    assert of_rows.scores["balanced_accuracy"].value == theirs == 0.5
    assert "The largest class has 10 times as many images as the smallest" in str(of_rows)


LABELED = np.array([[1, 0, 1], [0, 0, 1], [1, 0, 0], [1, 0, 1], [0, 1, 1], [1, 0, 1]], float)
NUMBERS, GRADES = np.array([3.0, 1, 9, 2, 2, 8, 40]), np.array([0, 3, 3, 3, 1, 1, 0, 2, 0, 0])


@pytest.mark.parametrize(("task", "targets", "constants"), [
    (tasks.Classification(size=4), GRADES, np.eye(4)),
    (tasks.Ordinal(size=4), GRADES, np.eye(4)),
    *((tasks.Multilabel(size=3), labels, np.array([*itertools.product((0, 1), repeat=3)]))
      for labels in (LABELED, LABELED * [1, 0, 1])),
    (tasks.Regression(("x",)), NUMBERS, np.append(NUMBERS.mean(), np.arange(0, 41, 0.5))[:, None]),
])  # fmt: skip
def test_the_best_constant_is_that_of_brute_force(task: Any, targets: Any, constants: Any) -> None:
    of_rows = report(task, targets, np.tile(constants[0], (len(targets), 1)))
    tried = [task.scores(targets, np.tile(c, (len(targets), 1)), 0) for c in constants]
    for name, score in of_rows.constant.items():
        values = [scores[name].value for scores in tried]
        best = min(values) if name in ("mae", "rmse", "grade_mae") else max(values)
        assert score.value == pytest.approx(best, nan_ok=True), name
    # Those of scikit-learn, which are fitted to the training labels.
    if isinstance(task, tasks.Regression):
        x, train = np.zeros((7, 1)), np.array([1.0, 2, 3, 30, 5, 6, 7])
        of_rows = report(task, targets, targets[:, None], train)
        for name, way, error in (
            ("mae", "median", metrics.mean_absolute_error),
            ("rmse", "mean", metrics.root_mean_squared_error),
            ("r2", "mean", metrics.r2_score),
        ):
            dummy = DummyRegressor(strategy=way).fit(x, train).predict(x)
            assert of_rows.constant[name].value == pytest.approx(error(targets, dummy))
    again = Report.from_dict(json.loads(json.dumps(of_rows.to_dict(), allow_nan=False)))
    assert str(again) == str(of_rows)
    assert again.to_dict() == of_rows.to_dict()
    if isinstance(task, tasks.Multilabel):  # every label, whose F1 is not that of none
        dummy = DummyClassifier(strategy="constant", constant=[1, 1, 1]).fit(LABELED, LABELED)
        f1 = metrics.f1_score(targets, dummy.predict(targets), average=None, zero_division=np.nan)
        assert of_rows.constant["macro_f1"].value == pytest.approx(f1[targets.any(0)].mean())


def test_reports_show_what_thresholds_and_intervals_stand_on() -> None:
    present = LABELED.astype(bool)
    task = tasks.Multilabel(("a", "b", "c"), thresholds=(0.1, 0.5, 0.5), positives=(9, 2, 8))
    of_rows = report(task, present, 0.2 + 0.6 * present)
    text = "macro F1 0.933 and exactly the labels of 66.7% of images; at 0.5 for every l"
    assert text in str(of_rows)
    row = [name_rows(of_rows)[1][i] for i in range(7)]
    assert row == ["a", "1.000", "0.800", "0.100", "9", "1.000", "4"]
    # Numbers: 60 images set the margin, and the interval is SciPy's.
    rng = np.random.default_rng(0)
    numbers = rng.normal(50, 10, 140)
    answers = numbers[:, None] + rng.normal(0, 4, (140, 1))
    task = tasks.Regression(("weight",), units=("kg",))
    task = task.with_intervals(numbers[:60], answers[:60], 0.9)
    of_rows = report(task, numbers[60:], answers[60:])
    inside = int((np.abs(numbers - answers[:, 0])[60:] <= task.margins[0]).sum())
    low, high = stats.binomtest(inside, 80).proportion_ci(method="wilson")
    row = [float(column[0]) for column in of_rows.names.values()]
    assert row == pytest.approx([task.margins[0], inside / 80, low, high, 80], rel=1e-4)
    beta = stats.beta(55, 6).ppf([0.025, 0.975])
    promise = f"calibrations on 60 images realize a coverage from {beta[0]:.1%} to {beta[1]:.1%};"
    assert promise in str(of_rows)
    sets = tasks.PredictionSets("lac", 0.9, (0.4, 0.4, 0.3), 60, (0, 2))
    text = str(set_report(sets, [1, 2, 0, 1], [True, True, False, False]))
    assert promise in text
    assert "2 of 3 have a threshold of their own, which takes 9 images of the class or mo" in text


# What a person sees in the plots of a run: ticks, marks, names and legends, by their boxes.
DRAWS = np.random.default_rng(0)
SHOWN = ("daisy", "rose $a$", "W" * 60)
IN_THE_GARDEN = "rose/IMG_2019_05_03_in_the_garden_of_my_grandmother_0042.jpg"
PHOTOS = ("daisy/a.jpg", "rose/$x$ & y.jpg", f"rose/{'W' * 80}.jpg", IN_THE_GARDEN)
PHOTOS += ("daisy/g y q.jpg", "daisy/\x1b[31m.jpg", "daisy/b.png")
SHAPES = ((20, 90, 3), (90, 20, 3), (40, 40, 3), (8, 8, 1), (30, 60, 3), (60, 30, 3), (9, 9, 3))
IMAGES = [np.full(shape, 60, np.uint8) for shape in SHAPES]


def drawn(figure: Any) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def texts(items: Any) -> list[str]:
    return [text.get_text() for text in items]


def check_boxes(figure: Any, inside: list[Any], around: list[Any]) -> None:
    """Artists lie within the width of the figure, apart from each other and from the boxes."""
    boxes = [artist.get_window_extent(drawn(figure)) for artist in inside]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in [*boxes[:i], *around])
    assert all(figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1 for box in boxes)


@pytest.mark.parametrize("epochs", [1, 7, 1000])
def test_epochs_are_integers_and_the_best_one_is_marked(epochs: int) -> None:
    falling, worse = 2 / np.arange(1, epochs + 1), 1 + abs(np.arange(epochs) - epochs // 2)
    history = {"loss": falling, "val_loss": worse.astype(float), "accuracy": 1 - 0.4 * falling}
    history |= {"val_accuracy": 1 / worse, "learning_rate": 1e-4 * falling}
    figure = run_plots.draw_curves({name: values.tolist() for name, values in history.items()})
    drawn(figure)
    best = epochs // 2 + 1
    assert [axes.get_title("left") for axes in figure.axes] == ["loss", "accuracy", "learning rate"]
    for axes in figure.axes:
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert [] != ticks == [round(tick) for tick in ticks]
        vertical = [line for line in axes.lines if len(set(line.get_xdata())) == 1]
        assert {float(line.get_xdata()[0]) for line in vertical[-1:]} == {best}
    marked = f"best epoch: {best} (lowest validation loss)"
    assert texts(figure.legends[0].get_texts()) == ["training", "validation", marked]


def test_curves_of_what_there_is() -> None:
    figure = run_plots.draw_curves({"loss": [2.0, 1.0], "accuracy": [0.1, 0.2]})
    assert [len(axes.lines) for axes in figure.axes] == [1, 1]  # no best epoch without validation
    # A metric that a resumed run gained later belongs to its last epochs.
    resumed = run_plots.draw_curves({"loss": [3.0, 2.0, 1.0], "learning_rate": [0.1]}).axes[2]
    assert list(resumed.lines[0].get_xdata()) == [3]
    drawn(run_plots.draw_curves({}))
    equal = run_plots.draw_curves({"loss": [3.0, 2.0, 1.0], "val_loss": [2.0, 1.0, 1.0]})
    assert equal.axes[0].get_title("right") == "1 in epoch 2"
    figure = run_plots.draw_curves({"loss": [2.0, 1.0], "learning_rate": [1.75e-3, 2.5e-4]})
    drawn(figure)
    axis = figure.axes[2].yaxis
    labels = [float(label) for label in texts(axis.get_ticklabels())]
    assert labels == pytest.approx(list(axis.get_ticklocs()))


@pytest.mark.parametrize("images", [1, 400, 200_000])
def test_calibration_shows_how_few_images_there_are(images: int) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, images)
    logits = 3 * random.normal(size=(images, 3)) + 2 * np.eye(3)[labels]
    report = results_of_classes(SHOWN, labels, logits).report
    figure, result = run_plots.draw_calibration(report), report.calibration
    assert result is not None
    renderer = drawn(figure)
    _, histogram = figure.axes
    counts = result.counts[result.counts > 0]
    numbers = [text for text in histogram.texts if text.get_text()]
    assert len(numbers) == len(counts)
    if images < 10_000:
        assert sorted(int(text.get_text()) for text in numbers) == sorted(counts)
    check_boxes(figure, numbers, [])
    # Bars of few images are pale, and the legend explains them.
    pale = [bar for bars in histogram.containers for bar in bars if bar.get_alpha() < 1]
    assert len(pale) == (counts < 30).sum()
    (legend,) = figure.legends
    assert any("fewer than 30" in line for line in texts(legend.get_texts())) == bool(pale)
    check_boxes(figure, [legend], [axes.get_tightbbox(renderer) for axes in figure.axes])


def lines_of(files: tuple[str | None, ...] = PHOTOS) -> list[tuple[str, str, str]]:
    return [
        (f"{SHOWN[(i + 1) % 3]} ({90 - i}%)", SHOWN[i % 3], file_text(i, file))
        for i, file in enumerate(files)
    ]


def test_mistakes_name_their_files_and_keep_their_shape_in_a_square() -> None:
    figure = draw_contact_sheet("Worst", IMAGES, lines_of())
    renderer, shown = drawn(figure), figure.axes[: len(IMAGES)]
    for axes, image in zip(shown, IMAGES, strict=True):
        box, tile = axes.images[0].get_window_extent(renderer), axes.get_window_extent(renderer)
        assert tile.width == pytest.approx(tile.height, rel=0.01)
        assert box.width / box.height == pytest.approx(image.shape[1] / image.shape[0], rel=0.03)
        assert max(box.width, box.height) == pytest.approx(tile.width, rel=0.03)
    images = [axes.get_window_extent(renderer) for axes in shown]
    check_boxes(figure, [text for axes in shown for text in axes.texts], images)
    lines = [texts(axes.texts) for axes in figure.axes if axes.texts]
    assert lines[0] == ["rose $a$ (90%)", "true: daisy", "daisy/a.jpg"]
    assert (lines[1][2], lines[5][2]) == ("rose/$x$ & y.jpg", r"daisy/\x1b[31m.jpg")
    assert re.fullmatch(r"rose/IMG_.*….*_0042\.jpg", lines[3][2])
    assert all(not text.get_parse_math() for axes in figure.axes for text in axes.texts)
    without = draw_contact_sheet("Worst", IMAGES[:2], lines_of((None, None)))
    assert [axes.texts[2].get_text() for axes in without.axes[:2]] == ["image 0", "image 1"]
    # Legible on a phone: at least 7 pixels high where the figure is 358 wide.
    figure = draw_contact_sheet("Worst", 4 * IMAGES, 4 * lines_of())
    sizes = {text.get_fontsize() for axes in figure.axes for text in axes.texts}
    assert min(sizes) / 72 / figure.get_figwidth() * 358 >= 7


def test_names_in_any_script_give_one_warning(tmp_path: Path, caplog: Any) -> None:
    fonts._warn.cache_clear()
    names = ("菊", "ばら", "\U000f0000")  # a private character, which no font has
    lines = [("ばら (90%)", "\U000f0000", "菊/ばら.jpg"), ("ばら (90%)", "\U000f0000", "x/菊.jpg")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            figure = draw_contact_sheet("Worst", IMAGES[:2], lines)
            run_plots.save_figure(figure, tmp_path / "mistakes.png")
        with fonts.without_glyph_warnings():
            drawn(run_plots.draw_confusion(classification_report([0, 1, 2], [0, 0, 2], names)))
            warnings.warn("of something else", stacklevel=1)
    assert not caplog.records
    assert "Set font.family in a file matplotlibrc" in str(caught[0].message)
    assert [str(warning.message) for warning in caught[1:]] == ["of something else"]


@pytest.mark.parametrize(("task", "targets"), [
    (tasks.Multilabel([f"_${i}_$" for i in range(400)]), DRAWS.random((30, 400)) < 0.1),
    (tasks.Regression([f"_${i}_$" for i in range(8)]), DRAWS.normal(size=(30, 8))),
    (tasks.Ordinal(size=400), DRAWS.integers(0, 400, 30)),
])  # fmt: skip
def test_plots_of_very_many_names_are_bounded(task: tasks.Task, targets: np.ndarray) -> None:
    answers = task.answers(np.random.default_rng(1).normal(size=(30, task.outputs)))
    checked = task.check_targets(targets)
    split = data.ArraySplit("val", task, np.zeros((30, 8, 8, 1), np.uint8), checked)
    shown = results_of_task(task, targets, answers, split)
    figure = next(iter(shown.plots.values()))()
    renderer = drawn(figure)
    assert max(renderer.width, renderer.height) <= 3000
    assert task.kind != "multilabel" or len(figure.axes[0].get_legend().get_texts()) == 12
    if isinstance(task, tasks.Ordinal):
        assert 40 < len(figure.axes[0].get_yticklabels()) <= 50  # pairs may share a grade
        assert " of 400 grades: those of" in figure.axes[0].get_title()
    else:
        assert f"of {task.size} " in figure.axes[0].get_title("left") + figure.get_suptitle()
