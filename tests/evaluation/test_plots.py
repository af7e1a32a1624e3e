"""What a person sees in the plots of a run: ticks, marks, names and legends, by their boxes."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit._base import fonts
from keras_vit._base.fonts import without_glyph_warnings
from keras_vit.data import ArraySplit
from keras_vit.evaluation import classification_report
from keras_vit.tasks import Multilabel, Ordinal, Regression, Task
from keras_vit_cli.report import run_plots
from keras_vit_cli.report.contact_sheet import draw_contact_sheet, file_text
from keras_vit_cli.report.run_plots import draw_curves
from tests.evaluation.outcomes import report_of_classes, results_of_task

pytest.importorskip("matplotlib")
pytest.importorskip("tensorflow")

RANDOM = np.random.default_rng(0)
NAMES = ("daisy", "rose $a$", "W" * 60)
IN_THE_GARDEN = "rose/IMG_2019_05_03_in_the_garden_of_my_grandmother_0042.jpg"
FILES = ("daisy/a.jpg", "rose/$x$ & y.jpg", f"rose/{'W' * 80}.jpg", IN_THE_GARDEN)
FILES += ("daisy/g y q.jpg", "daisy/\x1b[31m.jpg", "daisy/b.png")
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
    figure = draw_curves({name: values.tolist() for name, values in history.items()})
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
    figure = draw_curves({"loss": [2.0, 1.0], "accuracy": [0.1, 0.2]})
    assert [len(axes.lines) for axes in figure.axes] == [1, 1]  # no best epoch without validation
    # A metric that a resumed run gained later belongs to its last epochs.
    resumed = draw_curves({"loss": [3.0, 2.0, 1.0], "learning_rate": [0.1]}).axes[2]
    assert list(resumed.lines[0].get_xdata()) == [3]
    drawn(draw_curves({}))
    # The first of equal epochs is the best.
    equal = draw_curves({"loss": [3.0, 2.0, 1.0], "val_loss": [2.0, 1.0, 1.0]})
    assert equal.axes[0].get_title("right") == "1 in epoch 2"
    # The labels of learning rates are their ticks.
    figure = draw_curves({"loss": [2.0, 1.0], "learning_rate": [1.75e-3, 2.5e-4]})
    drawn(figure)
    axis = figure.axes[2].yaxis
    labels = [float(label) for label in texts(axis.get_ticklabels())]
    assert labels == pytest.approx(list(axis.get_ticklocs()))


@pytest.mark.parametrize("images", [1, 400, 200_000])
def test_calibration_shows_how_few_images_there_are(images: int) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, images)
    logits = 3 * random.normal(size=(images, 3)) + 2 * np.eye(3)[labels]
    report = report_of_classes(NAMES, labels, logits)
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
    lines = texts(legend.get_texts())
    assert any("fewer than 30" in line for line in lines) == bool(pale)
    check_boxes(figure, [legend], [axes.get_tightbbox(renderer) for axes in figure.axes])


def lines_of(files: tuple[str | None, ...] = FILES) -> list[tuple[str, str, str]]:
    return [
        (f"{NAMES[(i + 1) % 3]} ({90 - i}%)", NAMES[i % 3], file_text(i, file))
        for i, file in enumerate(files)
    ]


def test_mistakes_name_their_files_and_keep_their_shape_in_a_square() -> None:
    figure = draw_contact_sheet("Worst", IMAGES, lines_of())
    renderer = drawn(figure)
    shown = figure.axes[: len(IMAGES)]
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
    """Each box would be a warning of its own: here one says what to set."""
    fonts._warn.cache_clear()
    names = ("菊", "ばら", "\U000f0000")  # a private character, which no font has
    lines = [("ばら (90%)", "\U000f0000", "菊/ばら.jpg"), ("ばら (90%)", "\U000f0000", "x/菊.jpg")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            figure = draw_contact_sheet("Worst", IMAGES[:2], lines)
            run_plots.save_figure(figure, tmp_path / "mistakes.png")
        with without_glyph_warnings():
            drawn(run_plots.draw_confusion(classification_report([0, 1, 2], [0, 0, 2], names)))
            warnings.warn("of something else", stacklevel=1)
    assert not caplog.records
    assert "Set font.family in a file matplotlibrc" in str(caught[0].message)
    assert [str(warning.message) for warning in caught[1:]] == ["of something else"]


@pytest.mark.parametrize(("task", "targets"), [
    (Multilabel(size=400), RANDOM.random((30, 400)) < 0.1),
    (Regression(size=8), RANDOM.normal(size=(30, 8))),
    (Ordinal(size=400), RANDOM.integers(0, 400, 30)),
])  # fmt: skip
def test_plots_of_very_many_names_are_bounded(task: Task, targets: np.ndarray) -> None:
    outputs = np.random.default_rng(1).normal(size=(30, task.outputs))
    answers = task.answers(outputs)
    checked = task.check_targets(targets)
    split = ArraySplit("val", task, np.zeros((30, 8, 8, 1), np.uint8), checked)
    shown = results_of_task(task, targets, answers, split)
    figure = next(iter(shown.plots.values()))()
    renderer = drawn(figure)
    assert max(renderer.width, renderer.height) <= 3000
    if isinstance(task, Ordinal):
        assert 40 < len(figure.axes[0].get_yticklabels()) <= 50  # pairs may share a grade
        assert " of 400 grades: those of" in figure.axes[0].get_title()
    else:
        assert f"of {task.size} " in figure.axes[0].get_title("left") + figure.get_suptitle()
