"""`keras-vit predict`: every task and format, broken files, odd names, kills and many files."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import tasks
from keras_vit.data.decode.image_files import prepare_file
from keras_vit.evaluation.prediction import predict_files
from keras_vit_cli import commands as cli
from keras_vit_cli.predict import image_paths
from keras_vit_cli.predict.answer_files import Csv, JsonLines
from keras_vit_cli.predict.schema import Schema
from tests.conftest import REPOSITORY
from tests.data.image_fixtures import plain, write
from tests.hostile import NAMES

TASKS: dict[str, tasks.Task] = {
    "classification": tasks.Classification(("cat", "dog, or wolf", 'a "cow"')),
    "multilabel": tasks.Multilabel(("beach", "night", "people"), thresholds=(0.3, 0.6, 0.5)),
    "regression": tasks.Regression(
        ("weight", "size"), units=("kg", ""), offset=(20.0, 1.0), scale=(10.0, 2.0)
    ),
    "ordinal": tasks.Ordinal(("none", "mild", "severe")),
}
COLUMNS = {
    "classification": "class_1 probability_1 class_2 probability_2",
    "multilabel": "labels label_1 probability_1 threshold_1 label_2 probability_2 threshold_2",
    "regression": "value_weight unit_weight value_size",
    "ordinal": "grade grade_1 probability_1 grade_2 probability_2",
}


def saved(task: tasks.Task, folder: Path, seed: int = 0) -> Path:
    model = keras_vit.VisionTransformer(
        patch_size=8, hidden_dim=8, depth=1, num_heads=1, input_shape=(8, 8, 3), task=task
    )
    for i, variable in enumerate(model.trainable_variables):
        variable.assign(np.random.default_rng([seed, i]).normal(0, 1, variable.shape))
    model.save(path := folder / f"{task.kind}{seed}.keras")
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: saved(task, folder) for kind, task in TASKS.items()}


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Three images, one of them below the others, a broken one, a hidden one and a text."""
    return write(
        tmp_path / "photos",
        {
            "a.png": plain(0),
            "b.png": plain(255),
            "broken.jpg": b"\xff\xd8\xff",
            "deep/er/c.png": plain(90),
            ".hidden.png": plain(1),
            "notes.txt": b"no image",
        },
    )


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


@pytest.mark.parametrize("kind", TASKS)
def test_a_file_of_each_format_has_the_answers_of_the_task(
    kind: str, models: dict[str, Path], photographs: Path, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    words = ["predict", str(models[kind]), str(photographs), "--top", "2", "--out"]
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        assert cli.main([*words, str(tmp_path / name)]) == 1  # one is broken
    model, rows = keras_vit.load_model(models[kind]), read_jsonl(tmp_path / "a.jsonl")
    names = ["a.png", "b.png", "broken.jpg", "deep/er/c.png"]
    assert [row["file"] for row in rows] == [str(photographs / name) for name in names]
    assert rows[2] == {
        "file": str(photographs / "broken.jpg"),
        "error": "the JPEG file is damaged or incomplete",
    }
    for row in rows[:2] + rows[3:]:
        pixels = prepare_file(row["file"], 8)
        outputs = keras.ops.convert_to_numpy(model(pixels[None]))
        description = model.task.describe(model.task.answers(outputs)[0], top=2)
        assert row.pop("error") is None
        assert row.keys() - {"file"} == description.keys()
        for ours, theirs in zip(row["predictions"], description["predictions"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)
        row["error"] = None

    cells = read_csv(tmp_path / "a.csv")
    assert list(cells[0]) == ["file", "error", *COLUMNS[kind].split()]
    schema = Schema(model.task, 2)
    assert [schema.nested([str(cell) for cell in row.values()]) for row in cells] == rows
    assert set(list(cells[2].values())[2:]) == {""}

    table = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    for ours, theirs in zip(table, rows, strict=True):
        assert _without_nulls(ours) == _without_nulls(theirs)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("multilabel", ["labels", "label", "probability", "threshold", "30.00%"]),
        ("regression", ["name", "value", "unit", "weight", "kg", "size"]),
        ("ordinal", ["grade", "probability", "mild"]),
    ],
)
def test_a_table_has_the_words_of_the_task(
    kind: str,
    cells: list[str],
    models: dict[str, Path],
    photographs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["predict", str(models[kind]), str(photographs / "a.png")]) == 0
    printed = capsys.readouterr().out
    for cell in cells:
        assert f" {cell} " in printed
    assert ("%" in printed) == (kind != "regression")


def test_printed_answers_are_whole_in_a_pipe(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "very_" * 40
    files = write(tmp_path, {f"{long}{i}.png": plain(i) for i in range(2)})
    words = ["predict", str(models["classification"]), *map(str, sorted(files.glob("*.png")))]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert f"{files / long}0.png " in printed
    assert f"{files / long}1.png " in printed
    for format in ("csv", "jsonl"):
        assert cli.main([*words, "--format", format]) == 0
        assert cli.main([*words, "--out", str(tmp_path / f"a.{format}")]) == 0
        printed, _, _ = capsys.readouterr().out.rpartition("written to")
        assert printed == (tmp_path / f"a.{format}").read_text("utf-8")


def test_long_tables_are_printed_in_parts(
    models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from keras_vit_cli.predict import predict_command

    monkeypatch.setattr(predict_command, "TABLE_IMAGES", 2)
    write(tmp_path, {f"{i}.png": plain(i) for i in range(5)})
    assert cli.main(["predict", str(models["ordinal"]), str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("image") == 3
    assert [printed.count(f"{i}.png") for i in range(5)] == [1] * 5


def test_names_that_formats_would_obey(models: dict[str, Path], tmp_path: Path) -> None:
    names = [f"{name.replace('/', '')}.png" for name in (*NAMES, "a\rb", "=1+1", " ", 'q""q')]
    photos = write(tmp_path / "photos", {})
    photos.mkdir(exist_ok=True)
    for i, name in enumerate(names):
        (photos / name).write_bytes(plain(i))
    expected = {os.fsencode(photos / name).decode("utf-8", "backslashreplace") for name in names}
    for format, read in (("csv", read_csv), ("jsonl", read_jsonl)):
        words = ["predict", str(models["multilabel"]), str(photos)]
        words += ["--out", str(tmp_path / f"a.{format}")]
        assert cli.main(words) == 0
        assert {row["file"] for row in read(tmp_path / f"a.{format}")} == expected
        whole = (tmp_path / f"a.{format}").read_bytes()
        assert cli.main([*words, "--resume"]) == 0
        assert (tmp_path / f"a.{format}").read_bytes() == whole
    if parquet := _pyarrow_parquet():
        words = [*words[:3], "--out", str(tmp_path / "a.parquet")]
        assert cli.main(words) == 0
        rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
        assert {row["file"] for row in rows} == expected


def _pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        return None
    return parquet


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_resume_completes_what_was_cut_anywhere(
    format: str, models: dict[str, Path], tmp_path: Path
) -> None:
    """Cut after any number of bytes, within names with line breaks, too."""
    names = ["a", 'b",\n"', "c\r\nd", "e"]
    photos = write(tmp_path / "photos", {f"{n}.png": plain(60 * i) for i, n in enumerate(names)})
    write(photos, {"z.png": b"broken"})
    out = tmp_path / f"answers.{format}"
    words = ["predict", str(models["multilabel"]), str(photos), "--out", str(out), "--top", "1"]
    words += ["--batch-size", "2"]
    assert cli.main(words) == 1
    whole = out.read_bytes()
    lines = {"csv": Csv, "jsonl": JsonLines}[format](Schema(TASKS["multilabel"], 1))
    records = list(lines.records(io.BytesIO(whole)))
    assert b"".join(records) == whole
    assert len(records) == 5 + (format == "csv")
    for cut in [0, 3, len(records[0]), *range(len(records[0]) + 1, len(whole), 101), len(whole)]:
        out.write_bytes(whole[:cut])
        assert cli.main([*words, "--resume"]) == (1 if cut < len(whole) else 0)
        again = list(lines.records(io.BytesIO(out.read_bytes())))
        assert again[:-5] == records[:-5]
        rows, expected = ([lines.row(r) for r in part[-5:]] for part in (again, records))
        assert [row["file"] for row in rows] == [row["file"] for row in expected]
        assert [row["error"] for row in rows] == [row["error"] for row in expected]


def test_resume_refuses_files_of_others(
    models: dict[str, Path], photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = str(models["classification"]), str(photographs / "a.png")
    for name in ("mine.csv", "mine.jsonl"):
        for content in ("hello", "file,class\na.png,cat\n", '{"file": "a"}\n', "1\n[2]\n"):
            (tmp_path / name).write_text(content)
            words = ["predict", model, file, "--out", str(tmp_path / name)]
            assert cli.main(words) == 2
            assert "exists. Give --resume" in capsys.readouterr().err
            assert cli.main([*words, "--resume"]) == 2
            assert "Give another --out" in capsys.readouterr().err
            assert (tmp_path / name).read_text() == content


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_resume_refuses_another_model_or_another_task(
    format: str,
    models: dict[str, Path],
    photographs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / f"answers.{format}"
    files = [str(photographs / name) for name in ("a.png", "b.png")]
    assert cli.main(["predict", str(models["regression"]), files[0], "--out", str(out)]) == 0
    other = saved(TASKS["regression"], tmp_path, seed=1)
    before = out.read_bytes()
    for model, message in ((other, "has another answer for"), (models["ordinal"], "Give another")):
        words = ["predict", str(model), *files, "--out", str(out), "--resume"]
        assert cli.main(words) == 2
        assert message in capsys.readouterr().err
        assert out.read_bytes() == before
    words = ["predict", str(models["regression"]), *files, "--out", str(out), "--resume"]
    assert cli.main(words) == 0
    assert "1 image, besides 1 that were there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "a.txt"], "does not end in .csv"),
        (["--format", "table", "--out", "a.csv"], "--format table is printed"),
        (["--format", "parquet"], "give --out FILE"),
        (["--resume"], "--resume goes on with a file"),
        (["--resume", "--out", "a.parquet"], "--resume goes on with a file"),
        (["--format", "xml"], "invalid choice"),
    ],
)
def test_options_that_do_not_go_together(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["predict", "no/model", "a.png", *words]) == 2
    assert message in capsys.readouterr().err


def test_parquet_without_pyarrow_says_what_to_install(
    models: dict[str, Path],
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "a.parquet"
    assert cli.main(["predict", str(models["ordinal"]), str(photographs), "--out", str(out)]) == 2
    assert "pip install pyarrow" in capsys.readouterr().err
    assert not out.exists()


def test_parquet_appears_whole_or_not_at_all(
    models: dict[str, Path],
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from keras_vit_cli.predict import answer_files, predict_command

    monkeypatch.setattr(answer_files, "GROUP", 2)
    out = tmp_path / "a.parquet"
    words = ["predict", str(models["ordinal"]), str(photographs), "--batch-size", "1"]
    words += ["--out", str(out)]
    with monkeypatch.context() as patch:

        def stopped(*arguments: Any) -> Any:
            yield from list(predict_files(*arguments))[:3]
            raise KeyboardInterrupt

        patch.setattr(predict_command, "predict_files", stopped)
        assert cli.main(words) == 130
    assert not list(tmp_path.glob("*.parquet")) + list(tmp_path.glob(".*"))
    assert cli.main(words) == 1
    assert parquet.ParquetFile(out).num_row_groups == 2


@pytest.mark.parametrize(("name", "message"), [("a;b", "'a;b' cannot stand"), ("", "'' cannot")])
def test_csv_refuses_labels_that_it_cannot_hold(name: str, message: str) -> None:
    Csv(Schema(tasks.Classification(("x", name)), 2))
    with pytest.raises(ValueError, match=message):
        Csv(Schema(tasks.Multilabel(("x", name)), 2))


@pytest.mark.parametrize("format", ["table", "csv", "jsonl", "parquet"])
def test_an_answer_that_is_not_a_number_is_a_row_with_a_reason(
    format: str,
    photographs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = keras_vit.load_model(saved(TASKS["regression"], tmp_path))
    model.get_layer("head").bias.assign([3e38, 0])  # in units of the scale it is infinite
    model.save(tmp_path / "far.keras")
    reason, out = "the model predicts inf, which is not an answer", tmp_path / f"a.{format}"
    words = ["predict", str(tmp_path / "far.keras"), str(photographs / "a.png")]
    words += [str(photographs / "broken.jpg"), *([] if format == "table" else ["--out", str(out)])]
    assert cli.main(words) == 1
    captured = capsys.readouterr()
    assert "far.keras predicts NaN or infinity for 1 of 2 images: its weights" in captured.err
    if format == "table":
        assert f" {reason} " in captured.out
        assert " cannot be read: " in captured.out
        return
    last = "2 images, 1 cannot be read, 1 with an answer that is not finite"
    assert captured.out.strip().endswith(last)
    if format == "parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    else:
        rows = read_csv(out) if format == "csv" else read_jsonl(out)
        whole = out.read_bytes()
        assert cli.main([*words, "--resume"]) == 0  # a row with a reason is a row
        assert out.read_bytes() == whole
    assert rows[0]["error"] == reason
    assert {str(v) for k, v in rows[0].items() if k not in ("file", "error")} <= {"", "None"}


def test_a_model_whose_outputs_nobody_explained_is_refused(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keras_vit.VisionTransformer(
        patch_size=8, hidden_dim=8, depth=1, num_heads=1, input_shape=(8, 8, 3), num_classes=1
    ).save(tmp_path / "m.keras")
    assert cli.main(["predict", str(tmp_path / "m.keras"), str(photographs / "a.png")]) == 2
    assert "model.task = " in capsys.readouterr().err


# Which files


def test_words_that_stand_for_files(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(photographs)
    (tmp_path / "odd[1].png").write_bytes(plain(3))
    listing = tmp_path / "list.txt"
    listing.write_bytes("a.png\r\n\nno such.png\r\nblüte.png".encode())

    def paths(*words: str) -> list[str]:
        return [str(path) for path in image_paths.image_paths(map(Path, words))]

    assert paths("b.png", "missing.png") == ["b.png", "missing.png"]
    assert paths(".") == ["a.png", "b.png", "broken.jpg", "deep/er/c.png"]
    assert sorted(paths("**/*.png")) == ["a.png", "b.png", "deep/er/c.png"]
    assert paths("deep/**") == ["deep/er/c.png"]
    assert paths(str(tmp_path / "odd[1].png")) == [str(tmp_path / "odd[1].png")]
    assert paths(f"@{listing}", "b.png") == ["a.png", "no such.png", "blüte.png", "b.png"]
    for content, expected in (
        (b"a.png\nb.png\n", ["a.png", "b.png"]),
        (b"with\nbreak.png\0b.png\0", ["with\nbreak.png", "b.png"]),
        (b"x" * 70_000 + b"\nb.png", ["x" * 70_000, "b.png"]),
        (b"", []),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert paths("-") == expected


def test_large_folders_are_not_sorted_and_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_paths, "MOST_SORTED", 3)
    write(tmp_path, {f"{i}.png": b"" for i in range(9)} | {"more/x.png": b"", "y.HEIC": b""})
    images = list(image_paths.image_paths([tmp_path]))
    assert sorted(images) == sorted(p for p in tmp_path.rglob("*") if p.is_file())


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_links_to_folders_are_not_followed(photographs: Path) -> None:
    (photographs / "deep/circle").symlink_to(photographs)
    assert len(list(image_paths.image_paths([photographs]))) == 4


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("empty", "No image is in the folder"),
        ("*.tiff", "does not match any"),
        ("@no.txt", "such file"),
    ],
)
def test_words_that_stand_for_nothing_are_errors_before_the_first_answer(
    word: str,
    message: str,
    models: dict[str, Path],
    photographs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(photographs)
    Path("empty").mkdir()
    assert cli.main(["predict", str(models["ordinal"]), "a.png", word]) == 2
    printed, error = capsys.readouterr()
    assert not printed
    assert message in error


# As a process


def start(model: Path, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "KERAS_BACKEND": keras.backend.backend(),
    }
    command = [sys.executable, "-m", "keras_vit_cli", "predict", str(model), *words]
    return subprocess.Popen(command, env=environment, **options)


@pytest.mark.parametrize("format", ["csv", pytest.param("jsonl", marks=pytest.mark.slow)])
def test_a_killed_run_leaves_whole_rows_and_is_resumed(
    format: str, models: dict[str, Path], tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    write(photos, {f"{i % 7}/{i:04}.png": plain(i % 250) for i in range(3000)})
    out = tmp_path / f"answers.{format}"
    words = [str(photos), "--out", str(out), "--batch-size", "8"]
    read = {"csv": read_csv, "jsonl": read_jsonl}[format]
    process = start(models["classification"], *words)
    until = time.monotonic() + 120
    while not (out.exists() and out.stat().st_size > 20_000):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = read(out)
    assert 0 < len(killed) < 3000
    assert start(models["classification"], *words, "--resume").wait(300) == 0
    rows = read(out)
    assert rows[: len(killed)] == killed
    files = [row["file"] for row in rows]
    assert len(files) == 3000
    assert sorted(files) == sorted(map(str, photos.rglob("*.png")))


def test_standard_input_and_a_pipe(
    models: dict[str, Path], photographs: Path, tmp_path: Path
) -> None:
    names = b"\0".join(os.fsencode(path) for path in sorted(photographs.rglob("*.png")))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start(models["ordinal"], "-", "--format", "csv", **pipes)
    printed, error = process.communicate(names + b"\0", 120)
    assert process.returncode == 0, error
    assert not error  # progress is for a terminal
    rows = list(csv.DictReader(io.StringIO(printed.decode(), newline=""), strict=True))
    assert [row["file"] for row in rows] == names_of(names)
    assert {row["grade"] for row in rows} <= set(TASKS["ordinal"].names)


def names_of(names: bytes) -> list[str]:
    return os.fsdecode(names).split("\0")


MEMORY = """
import os, sys
from pathlib import Path
from keras_vit_cli.options.predict import PredictOptions
from keras_vit_cli.predict.predict_command import predict

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

model, photos, out = map(Path, sys.argv[1:])
def run(files, to):
    predict(PredictOptions(model, files, format="csv", out=to, batch_size=32))

run((photos / "some",), out / "some.csv")  # compiles
before = resident()
run((photos,), out / "all.csv")
print((resident() - before) // 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_memory_does_not_grow_with_the_number_of_files(
    models: dict[str, Path], tmp_path: Path, run_python: Any
) -> None:
    name = "n" * 150
    photos = write(tmp_path / "photos", {f"{name}{i}.png": plain(i % 250) for i in range(3000)})
    write(photos, {f"some/{i}.png": plain(i) for i in range(100)})
    words = [str(models["classification"]), str(photos), str(tmp_path)]
    grown = run_python(MEMORY, keras.backend.backend(), *words).split()[-1]
    assert int(grown) < 40  # MiB; their pixels alone are 2.3, and their tables would be more
    assert len(read_csv(tmp_path / "all.csv")) == 3100


def test_paths_are_taken_as_they_are_needed(models: dict[str, Path], tmp_path: Path) -> None:
    """A list of a million files is read a block at a time, and answered before its end."""
    write(tmp_path, {"a.png": plain(1)})
    taken = 0

    def endless() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield tmp_path / "a.png"

    answers = predict_files(keras_vit.load_model(models["ordinal"]), endless(), batch_size=4)
    for _ in range(10):
        next(answers)
    assert taken == 12


def test_a_terminal_shows_progress(
    models: dict[str, Path], photographs: Path, tmp_path: Path
) -> None:
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    environment = {"stdout": follower, "stderr": follower}
    words = [str(photographs), "--out", str(tmp_path / "a.csv")]
    process = start(models["ordinal"], *words, **environment)
    os.close(follower)
    shown = b""
    while True:
        try:
            block = os.read(leader, 4096)
        except OSError:  # Linux's end of a terminal
            break
        if not block:
            break
        shown += block
    assert process.wait(60) == 1, shown
    text = re.sub(rb"\x1b\[[?\d;]*[A-Za-z]", b"", shown).decode()
    assert re.search(r" 4/\? +images, .*/s, 1 cannot be read", text)
    assert re.search(r"written to .*4 images, 1 cannot be read", text)
