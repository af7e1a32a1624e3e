"""`keras-vit predict`: every task and format, broken files, odd names, kills and many files."""

import csv
import io
import itertools
import json
import os
import re
import select
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit import tasks
from keras_vit._base.spreadsheet import from_text_cell
from keras_vit.data.decode.image_files import prepare_file
from keras_vit.evaluation.prediction import predict_files
from keras_vit_cli.predict import answer_files, image_paths, predict_command
from keras_vit_cli.predict.answer_files import Csv, JsonLines
from keras_vit_cli.predict.schema import Schema
from tests import bank, processes
from tests.cli.helpers import HOSTILE, rows_of, save_tiny
from tests.conftest import Command
from tests.data.image_fixtures import IMAGE, encode, plain, write

pytestmark = pytest.mark.usefixtures("here")
NUMBERS: dict[str, Any] = {"units": ("kg", ""), "offset": (20.0, 1.0), "scale": (10.0, 2.0)}
TASKS: dict[str, tasks.Task] = {
    "classification": tasks.Classification(("cat", "dog, or wolf", 'a "cow"')),
    "multilabel": tasks.Multilabel(("beach", "night", "people"), thresholds=(0.3, 0.6, 0.5)),
    "regression": tasks.Regression(("weight", "size"), **NUMBERS),
    "ordinal": tasks.Ordinal(("none", "mild", "severe")),
}
Models = dict[str, Path]
Predict = Callable[..., str]
COLUMNS = {
    "classification": "class_1 probability_1 class_2 probability_2",
    "multilabel": "labels label_1 probability_1 threshold_1 label_2 probability_2 threshold_2",
    "regression": "value_weight unit_weight value_size",
    "ordinal": "grade grade_1 probability_1 grade_2 probability_2",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    tiny = partial(save_tiny, seed=0, input_shape=(8, 8, 3))
    return {kind: tiny(folder / f"{kind}.keras", task=task) for kind, task in TASKS.items()}


@pytest.fixture
def predict(models: Models, command: Command) -> Predict:
    def call(model: str | Path, words: str, *more: object, status: int = 0) -> str:
        model = models.get(str(model), model)
        return command("predict", model, *words.split(), *more, status=status)

    return call


@pytest.fixture
def photographs(here: Path) -> Path:
    files = {"a.png": plain(0), "b.png": plain(255), "broken.jpg": b"\xff\xd8\xff"}
    files |= {"deep/er/c.png": plain(90), ".hidden.png": plain(1), "notes.txt": b"no image"}
    return write(Path("photos"), files)


def read_jsonl(file: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text("ascii").splitlines()]


def read_parquet(file: str | Path) -> list[dict[str, Any]]:
    return pytest.importorskip("pyarrow.parquet").read_table(file).to_pylist()


READ = {"csv": rows_of, "jsonl": read_jsonl, "parquet": read_parquet}


@pytest.mark.parametrize("kind", TASKS)
def test_formats_of_answers(kind: str, models: Models, photographs: Path, predict: Predict) -> None:
    pytest.importorskip("pyarrow.parquet")
    for format in READ:  # one image is broken
        predict(kind, f"{photographs} --top 2 --out a.{format}", status=1)
    model, rows = keras_vit.load(models[kind]), read_jsonl("a.jsonl")
    names = ["a.png", "b.png", "broken.jpg", "deep/er/c.png"]
    assert [row["file"] for row in rows] == [f"photos/{name}" for name in names]
    damage = "the JPEG file is damaged or incomplete"
    assert rows[2] == {"file": "photos/broken.jpg", "error": damage}
    for row in rows[:2] + rows[3:]:
        outputs = bank.outputs(model, prepare_file(row["file"], 8)[None])
        description = model.task.describe(model.task.answers(outputs)[0], top=2)
        assert row.keys() - {"file", "error"} == description.keys()
        for ours, theirs in zip(row["predictions"], description["predictions"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)
    cells = rows_of("a.csv")
    assert list(cells[0]) == ["file", "error", *COLUMNS[kind].split()]
    nested = Schema(model.task, 2).nested
    assert [nested([str(cell) for cell in row.values()]) for row in cells] == rows
    for ours, theirs in zip(read_parquet("a.parquet"), rows, strict=True):
        assert _without_nulls(ours) == _without_nulls(theirs)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def test_printed_answers_are_whole(photographs: Path, monkeypatch: Any, predict: Predict) -> None:
    files = [f"{Path.cwd()}/{'very_' * 40}{i}.png" for i in range(2)]
    write(Path(), {file: plain(i) for i, file in enumerate(files)})
    printed = predict("classification", "", *files)
    assert all(f"{file} " in printed for file in files)
    for format in ("csv", "jsonl"):
        printed = predict("classification", "", *files, "--format", format)
        predict("classification", "", *files, "--out", f"a.{format}")
        assert printed == Path(f"a.{format}").read_text("utf-8")
    monkeypatch.setattr(predict_command, "TABLE_IMAGES", 2)
    write(Path("many"), {f"{i}.png": plain(i) for i in range(5)})
    printed = predict("ordinal", "many")
    assert printed.count("image") == 3
    assert [printed.count(f"{i}.png") for i in range(5)] == [1] * 5
    for kind, cells in (
        ("multilabel", ["labels", "label", "probability", "threshold", "30.00%"]),
        ("regression", ["name", "value", "unit", "weight", "kg", "size"]),
        ("ordinal", ["grade", "probability", "mild"]),
    ):
        printed = predict(kind, f"{photographs}/a.png")
        assert [cell for cell in cells if f" {cell} " not in printed] == []
        assert ("%" in printed) == (kind != "regression")
    rows = np.arange(40.0).reshape(20, 2)
    task = TASKS["regression"].calibrated(rows, rows + 1)
    printed = predict(save_tiny(Path("sure.keras"), task=task), f"{photographs}/a.png")
    assert " low " in printed
    assert set(re.findall(r"\S+%", printed)) == {"90.00%"}  # of the interval's coverage


@pytest.mark.parametrize("format", READ)
def test_names_that_formats_would_obey(format: str, predict: Predict, command: Command) -> None:
    formulas = ("=1+1", "+1", "-a", "@b", "'=c", "'d")
    names = [f"{name.replace('/', '')}.png" for name in (*HOSTILE, "a\rb", *formulas, " ", 'q""q')]
    os.chdir(write(Path("photos"), {name: plain(i) for i, name in enumerate(names)}))
    expected = {os.fsencode(name).decode("utf-8", "backslashreplace") for name in names}
    out = Path(f"../a.{format}")
    if format == "parquet":
        pytest.importorskip("pyarrow")
    predict("multilabel", f". --out {out}")
    files = {str(row["file"]) for row in READ[format](out)}
    assert any(file[0] in "=+-@" for file in files) == (format != "csv") == (not command.error)
    assert {from_text_cell(file) if format == "csv" else file for file in files} == expected
    # Labels stand in one cell, between semicolons.
    for name, message in (("a;b", "'a;b' cannot stand"), ("", "'' cannot")):
        Csv(Schema(tasks.Classification(("x", name)), 2))
        with pytest.raises(ValueError, match=message):
            Csv(Schema(tasks.Multilabel(("x", name)), 2))


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_resume_after_a_cut(format: str, tmp_path: Path, predict: Predict) -> None:
    names = ["a", 'b",\n"', "c\r\nd", "e"]
    photos = write(tmp_path / "photos", {f"{n}.png": plain(60 * i) for i, n in enumerate(names)})
    write(photos, {"z.png": b"broken"})
    out = Path(f"answers.{format}")
    words = f"{photos} --out {out} --top 1 --batch-size 2"
    predict("multilabel", words, status=1)
    whole = out.read_bytes()
    lines = {"csv": Csv, "jsonl": JsonLines}[format](Schema(TASKS["multilabel"], 1))
    records = list(lines.records(io.BytesIO(whole)))
    assert b"".join(records) == whole
    for cut in [0, 3, len(records[0]), *range(len(records[0]) + 1, len(whole), 307), len(whole)]:
        out.write_bytes(whole[:cut])
        predict("multilabel", f"{words} --resume", status=1 if cut < len(whole) else 0)
        again = list(lines.records(io.BytesIO(out.read_bytes())))
        assert again[:-5] == records[:-5]
        rows, expected = ([lines.row(r) for r in part[-5:]] for part in (again, records))
        assert [row["file"] for row in rows] == [row["file"] for row in expected]
        assert [row["error"] for row in rows] == [row["error"] for row in expected]


@pytest.mark.parametrize("format", ["csv", "jsonl"])
@pytest.mark.usefixtures("photographs")
def test_resume_refuses_files_of_others_and_another_model(format: str, predict: Predict) -> None:
    words, out = f"photos/a.png --out mine.{format}", Path(f"mine.{format}")
    for content in ("hello", "file,class\na.png,cat\n", '{"file": "a"}\n', "1\n[2]\n"):
        out.write_text(content)
        assert "exists. Give --resume" in predict("classification", words, status=2)
        assert "Give another --out" in predict("classification", f"{words} --resume", status=2)
        assert out.read_text() == content
    out.unlink()
    predict("regression", words)
    other = save_tiny("other.keras", 1, task=TASKS["regression"], input_shape=(8, 8, 3))
    words, before = f"photos/a.png photos/b.png --out {out} --resume", out.read_bytes()
    for model, message in ((other, "has another answer for"), ("ordinal", "Give another")):
        assert message in predict(model, words, status=2)
        assert out.read_bytes() == before
    assert "1 image, besides 1 that were there" in predict("regression", words)


def test_parquet_appears_whole(photographs: Path, monkeypatch: Any, predict: Predict) -> None:
    words = f"{photographs} --batch-size 1 --out a.parquet"
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(answer_files, "GROUP", 2)
    lines: list[int] = []

    def stopped(*arguments: Any) -> Any:
        yield from list(predict_files(*arguments))[:3]
        lines.extend(path.read_text("utf-8").count("\n") for path in Path().glob("*.csv"))
        raise KeyboardInterrupt

    def overtaken(*arguments: Any) -> Any:
        yield from predict_files(*arguments)
        Path("a.parquet").touch()  # by another program

    monkeypatch.setattr(predict_command, "predict_files", stopped)
    predict("ordinal", words, status=130)
    assert not [*Path().glob("*.parquet"), *Path().glob(".*")]
    predict("ordinal", words.replace("parquet", "csv"), status=130)
    assert lines == [4]  # each batch at once: a kill at any moment loses one
    monkeypatch.setattr(predict_command, "predict_files", overtaken)
    assert "a.parquet appeared meanwhile" in predict("ordinal", words, status=2)
    os.remove("a.parquet")
    monkeypatch.setattr(predict_command, "predict_files", predict_files)
    predict("ordinal", words, status=1)
    assert parquet.ParquetFile("a.parquet").num_row_groups == 2


def test_answers_that_are_not_finite(photographs: Path, predict: Predict, command: Command) -> None:
    pytest.importorskip("pyarrow")
    model = bank.tiny(task=TASKS["regression"], num_classes=2)
    model.get_layer("head").bias.assign([3e38, 0])  # in units of the scale it is infinite
    model.save("far.keras")
    reason = "the model predicts inf, which is not an answer"
    words = f"{photographs}/a.png {photographs}/broken.jpg"
    printed = predict("far.keras", words, status=1)
    assert f" {reason} " in printed
    assert " cannot be read: " in printed
    for format, read in READ.items():
        printed = predict("far.keras", f"{words} --out a.{format}", status=1)
        assert "far.keras predicts NaN or infinity for 1 of 2 images: its weights" in command.error
        assert "2 images, 1 cannot be read, 1 with an answer that is not finite" in printed
        row = read(f"a.{format}")[0]
        assert row["error"] == reason
        assert {str(v) for k, v in row.items() if k not in ("file", "error")} <= {"", "None"}
    whole = Path("a.csv").read_bytes()
    predict("far.keras", f"{words} --out a.csv --resume")  # a row with a reason is a row
    assert Path("a.csv").read_bytes() == whole
    model.get_layer("head").bias.assign([float("nan"), 0])
    model.save("nan.keras")
    assert "nan.keras" in predict("nan.keras", words, status=2)


def test_words_that_name_files(photographs: Path, monkeypatch: Any, predict: Predict) -> None:
    Path("odd[1].png").write_bytes(plain(3))
    Path("list.txt").write_bytes("a.png\r\n\nno such.png\r\nblüte.png".encode())
    monkeypatch.chdir(photographs)
    Path("'q'").touch()  # its quotes are its own

    def paths(*words: str) -> list[str]:
        return [str(path) for path in image_paths.image_paths(map(Path, words))]

    assert paths("b.png", "missing.png") == ["b.png", "missing.png"]
    assert paths(".") == ["a.png", "b.png", "broken.jpg", "deep/er/c.png"]
    assert sorted(paths("**/*.png")) == ["a.png", "b.png", "deep/er/c.png"]
    assert paths("deep/**") == ["deep/er/c.png"]
    assert paths("../odd[1].png") == ["../odd[1].png"]
    assert paths("@../list.txt", "b.png") == ["a.png", "no such.png", "blüte.png", "b.png"]
    for content, expected in (
        (b"a.png\nb.png\n", ["a.png", "b.png"]),
        (b"with\nbreak.png\0b.png\0", ["with\nbreak.png", "b.png"]),
        (b"x" * 70_000 + b"\nb.png", ["x" * 70_000, "b.png"]),
        (b"", []),
        ("a.png\r\nblüte.png\r\n".encode("utf-8-sig"), ["a.png", "blüte.png"]),
        ("a.png\r\nblüte.png\r\n".encode("utf-16"), ["a.png", "blüte.png"]),
        (b"\"a b.png\"\r\n'b.png' \n'q'\n\"odd\n \n", ["a b.png", "b.png", "'q'", '"odd']),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert paths("-") == expected
    Path("table.csv").write_text("file,label,split\na.png,x,holdout\nno.png,y,val\na.png,z,val\n")
    assert paths("table.csv", "b.png") == ["a.png", "no.png", "a.png", "b.png"]
    # Those that stand for nothing are errors before the first answer.
    Path("unmarked.txt").write_bytes("a.png\n".encode("utf-16-le"))
    Path("other.csv").write_text("name\nx\ny\n")
    refused = {"other.csv": "No column has files in .", "@no.txt": "such file"}
    refused |= {"@unmarked.txt": "UTF-16 text without a byte order mark. Save it as UTF-8"}
    for word, message in refused.items():
        assert message in predict("ordinal", f"a.png {word}", status=2)


def test_images_of_a_folder_by_suffix_or_first_bytes(predict: Predict, command: Command) -> None:
    jpeg = encode(IMAGE, "JPEG")
    images = {"1.2.840": jpeg, "IMG_1": plain(1), "a.jfif": jpeg, "b.JPE": jpeg, "c.dib": plain(1)}
    others = {"IMG_2": b"x", "a.txt": b"x", "b.txt": b"x", "c.jpg~": jpeg, "@eaDir/a.jpg": jpeg}
    write(Path("photos"), images | others | {"live.MOV": b"x"})
    predict("ordinal", "photos --out a.csv")
    assert [row["file"] for row in rows_of("a.csv")] == [f"photos/{name}" for name in images]
    shown = "left out 5 files that are not images (.txt 2, without a suffix 1, .jpg~ 1, .mov 1)"
    assert shown in command.error
    write(Path("texts"), {"a.txt": b"x"})
    assert "It has 1 file that is not an image (.txt 1)" in predict("ordinal", "texts", status=2)


def test_large_and_linked_folders(photographs: Path, monkeypatch: Any, models: Models) -> None:
    (photographs / "deep/circle").symlink_to(photographs.absolute())
    assert len(list(image_paths.image_paths([photographs]))) == 4
    monkeypatch.setattr(image_paths, "MOST_SORTED", 3)
    files = {f"{i}.png": b"" for i in range(9)} | {"more/x.png": b"", "y.HEIC": b""}
    many = write(Path("many"), files)
    assert sorted(image_paths.image_paths([many])) == sorted(many / name for name in files)
    # A list of a million files is read a block at a time, and answered before its end.
    taken = itertools.count()
    endless = (photographs / "a.png" for _ in taken)
    answers = predict_files(keras_vit.load(models["ordinal"]), endless, batch_size=4)
    assert len(list(itertools.islice(answers, 10))) == 10
    assert next(taken) == 12


# Its streams are a file and a pipe, or a terminal.
STREAMS = """
import os, sys
import keras_vit_cli.start

read, write, *words = sys.argv[1:]
os.dup2(os.open(read, os.O_RDONLY), 0)
sys.stdin = open(0)
if write:
    for stream in (1, 2):
        os.dup2(os.open(write, os.O_RDWR), stream)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w")
sys.argv = ["keras-vit", *words]
sys.exit(keras_vit_cli.start.main())
"""


def test_standard_input_and_a_terminal(models: Models, photographs: Path, tmp_path: Path) -> None:
    names = [os.fsencode(path) for path in sorted(photographs.rglob("*.png"))]
    Path("names").write_bytes(b"".join(name + b"\0" for name in names))
    words = ["names", "", "predict", str(models["ordinal"]), "-", "--format", "csv"]
    # All that is printed, to both streams, is a table: progress is for a terminal.
    printed = processes.run(STREAMS, *words, printed=tmp_path / "printed")
    rows = list(csv.DictReader(io.StringIO(printed, newline=""), strict=True))
    assert [row["file"] for row in rows] == [os.fsdecode(name) for name in names]
    assert {row["grade"] for row in rows} <= set(TASKS["ordinal"].names)
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    words = ["predict", str(models["ordinal"]), str(photographs), "--out", "a.csv"]
    streams = ["/dev/null", os.ttyname(follower)]
    process = processes.start(STREAMS, *streams, *words, printed=tmp_path / "printed")
    shown = b""
    while select.select([leader], [], [], 0.1)[0] or process.poll() is None:
        if select.select([leader], [], [], 0)[0]:
            shown += os.read(leader, 4096)
    assert process.poll() == 1, shown
    os.close(follower)
    os.close(leader)
    text = re.sub(rb"\x1b\[[?\d;]*[A-Za-z]", b"", shown).decode()
    assert re.search(r" 4/\? +images, .*/s, 1 cannot be read", text)
    assert re.search(r"written to .*4 images, 1 cannot be read", text)
