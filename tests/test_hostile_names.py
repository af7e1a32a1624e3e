"""Names of classes and files are text wherever they are printed, written or plotted."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit import data, tasks
from keras_vit._base.errors import printable
from keras_vit.evaluation import classification_report
from keras_vit_cli.report.report_page import report_page
from keras_vit_cli.report.run_files import write_report
from tests.cli.helpers import HOSTILE as NAMES
from tests.cli.helpers import save_tiny
from tests.conftest import Command
from tests.data.image_fixtures import plain, write
from tests.evaluation.outcomes import results_of_classes
from tests.inspection.pages import Elements

PLAIN = tuple(f"class {i}" for i in range(len(NAMES)))
LABELS = np.arange(2 * len(NAMES)) % len(NAMES)
LOGITS = 9.0 * np.eye(len(NAMES))[np.roll(LABELS, 1)]  # all wrong


def test_what_is_printable() -> None:
    for name, printed in (
        ("photo[final].jpg", "photo[final].jpg"),
        ("Blüte 花.jpg", "Blüte 花.jpg"),
        ("نمی‌خواهم", "نمی‌خواهم"),  # its joiner belongs to the word
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("one\ntwo\r\t", "one\\ntwo\\r\\t"),
        ("a\x00\x07\x7f", "a\\x00\\x07\\x7f"),
        ("gpj.\u202egnp", "gpj.\\u202egnp"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        (os.fsdecode(b"caf\xe9.jpg"), "caf\\xe9.jpg"),
        ("lone \ud800", "lone \\ud800"),
        (Path("a\nb"), "a\\nb"),
    ):
        assert printable(name) == printed
        printable(name).encode()  # no surrogate is left


def test_predict(monkeypatch: Any, tmp_path: Path, command: Command) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    # JSON, and so .keras, holds no bytes that are not UTF-8.
    options = {"task": tasks.Classification(NAMES[:-1]), "input_shape": (8, 8, 3)}
    model = save_tiny(tmp_path / "m.keras", **options)
    contents = {f"{name.replace('/', '')}.png": plain(9 * i) for i, name in enumerate(NAMES)}
    photos = write(tmp_path / "photos", {**contents, "[bold]\x1b[2J.png": b"not an image"})
    files = list(map(str, photos.iterdir()))
    printed = command("predict", model, *files, "--top", 99, status=1)
    assert printed.replace("\n", "").isprintable()
    for name in (*NAMES[:-1], *files):
        assert f" {printable(name)} " in printed
    assert printed.count("%") == len(NAMES) * (len(NAMES) - 1)
    assert "cannot be read" in printed


def test_errors_and_reports_that_echo_a_name(command: Command) -> None:
    for name in NAMES:
        for words in (["predict", f"no/{name}", "x.png"], ["plan", name], ["list", f"x{name}"]):
            error = command(*words, status=2)
            assert error.count("\n") == 1
            assert error.rstrip("\n").isprintable()
    lines = str(classification_report(LABELS, LOGITS, NAMES)).splitlines()
    assert lines[-1].startswith("note: ")  # it names a class
    assert all(line.isprintable() for line in lines)
    rows = lines[lines.index("") + 2 :]
    for name, line in zip(NAMES, rows, strict=False):
        assert line.startswith(printable(name))


def page(name: str, names: tuple[str, ...]) -> str:
    """A page with the name wherever it has one of a user's."""
    facts = {"bad_files": [[name, name]], "data": {name: 3}, "recipe": name, "doubts": [name]}
    job = dict.fromkeys(("data", "labels", "weights", "teacher"), name)
    command = shlex.join(["keras-vit", "train", "--data", name])
    config = {"command": command, "job": job, "recipe": {"source": name}}
    run = Path("runs") / name.replace("/", "")
    return report_page(name, results_of_classes(names, LABELS, LOGITS), facts, config, run=run)


def test_the_page() -> None:
    markdown_it = pytest.importorskip("markdown_it")
    reader = markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    texts = ("\n".join(page(name, names) for name in names) for names in (NAMES, PLAIN))
    shown, plain = map(Elements, map(reader.render, texts))
    assert [tag for tag, _ in shown.elements] == [tag for tag, _ in plain.elements]
    for name in NAMES:
        # Title, data, labels, part, weights, teacher, file and reason, recipe and its source, and
        # in every page the task's names and the table's row.
        assert shown.text.count(printable(name)) >= 11 + 2 * len(NAMES)
        assert f"Of the images: {printable(name)}" in shown.text


def test_commands_of_the_page_can_be_pasted() -> None:
    for name in NAMES:
        lines = page(name, PLAIN).splitlines()
        train, predict = (line for line in lines if line.startswith("keras-vit "))
        assert shlex.split(train) == ["keras-vit", "train", "--data", printable(name)]
        folder = f"runs/{printable(name.replace('/', ''))}"
        assert shlex.split(predict) == ["keras-vit", "predict", folder, "photo.jpg"]
        (line,) = (line for line in lines if line.startswith("rows = "))
        compile(line, "page", "exec")


def test_the_folder_of_a_run_and_a_plot_of_augmented_images(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorflow")
    split = data.ArraySplit("val", NAMES, np.zeros((len(LABELS), 8, 8, 3), np.uint8), LABELS)
    facts = {"bad_files": [[name, "empty"] for name in NAMES]}
    write_report(tmp_path, results_of_classes(NAMES, LABELS, LOGITS, split), facts)
    written = "report.json report.md report.html confusion.png calibration.png mistakes.png"
    assert {path.name for path in tmp_path.iterdir()} == set(written.split())
    record = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [name for name, _ in record["bad_files"]] == list(NAMES)
    assert record["report"]["task"]["names"] == list(NAMES)
    path = tmp_path / "plot.png"
    data.plot_augmentations(split, path, 8, augment="none", images=len(LABELS), versions=1)
    assert path.stat().st_size > 1000
