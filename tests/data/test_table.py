"""Labels in a table: formats, tasks, splits, groups, rows that cannot be used, hostile files."""

import csv
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.data import Splits, load, pipeline
from keras_vit.data.image_readers import READERS
from keras_vit.data.sources.label_table import read_file_table
from keras_vit.data.sources.parquet_footer import row_groups
from keras_vit.data.sources.split_names import SHOWN_NAMES
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression
from tests.backend import refused, warned
from tests.data.image_fixtures import one_quick, plain, write

pytest.importorskip("tensorflow")
COUNT = 30
FILES = [f"{i:02d}.png" for i in range(COUNT)]
SPLITS = ["val" if i % 3 == 2 else "train" for i in range(COUNT)]
ANIMALS = [("cat", "dog", "owl")[i // 2 % 3] for i in range(COUNT)]
FLAGS = {name: [(i >> k) % 2 for i in range(COUNT)] for k, name in enumerate(("x", "y"))}
TAGS = ["|".join(n for n, c in FLAGS.items() if c[i]) or "|" for i in range(COUNT)]
NUMBERS = [i * 1.5 - 3 for i in range(COUNT)]
ANIMAL = Classification(("cat", "dog", "owl"))
GROUPS = [f"p{i // 3}" for i in range(COUNT)]
GAP, TEST = ["a", "b", "c", "", *GROUPS[4:]], ["test"] * COUNT
MASKS = {"mask": FILES, "label": ANIMALS}
NO_LABEL, NO_ROW = "not a label of the task", "does not have a row to train on"
OTHER_SIDE = "is in val here, and in train in line 2"
Columns = dict[str, list[Any]]
Table = Callable[..., Splits]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("photos"), {f: plain(i) for i, f in enumerate(FILES)})


@pytest.fixture
def table(photos: Path, tmp_path: Path) -> Table:
    """Loads the images with a table of these columns, in a file of this name."""

    def load_table(columns: Columns, name: str = "t.csv", **options: Any) -> Splits:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        FORMATS.get(name, FORMATS["t.csv"])(tmp_path / name, rows)
        return load(photos, labels=tmp_path / name, verify=False, **options)

    return load_table


def cycled(*values: Any) -> list[Any]:
    """A column in which each value occurs in both splits."""
    return [values[i // 2 % len(values)] for i in range(COUNT)]


def base(**columns: list[Any]) -> Columns:
    return {"file": FILES, "split": SPLITS, **columns}


def of(splits: Splits) -> dict[str, Any]:
    """The label of each file."""
    pairs = (zip(split.files, split.labels(), strict=True) for split in splits.values())
    return {file.name: label.tolist() for pair in pairs for file, label in pair}


def errors(said: str) -> dict[int, str]:
    """The lines of an error, and their reasons."""
    rows = (row.strip() for row in said.splitlines()[1:-1])
    return {int(row.split()[1].rstrip(":")): row.partition(": ")[2] for row in rows}


def write_csv(path: Path, rows: list[dict[str, Any]], delimiter=",", encoding="utf-8") -> None:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


FORMATS: dict[str, Callable[..., Any]] = {
    "t.csv": write_csv,
    "semicolons.csv": partial(write_csv, delimiter=";"),
    "of a spreadsheet.csv": partial(write_csv, delimiter="\t", encoding="utf-16"),
    "with a mark.csv": partial(write_csv, encoding="utf-8-sig"),
    "t.tsv": partial(write_csv, delimiter="\t"),
    "t.jsonl": lambda path, rows: path.write_text("\n".join(map(json.dumps, rows)) + "\n"),
    "t.parquet": lambda path, rows: pytest.importorskip("pyarrow.parquet").write_table(
        pytest.importorskip("pyarrow").Table.from_pylist(rows), path
    ),
}
ELEVEN = "holds 11 distinct integers; the task ordinal is for grades, and regression"
DOGS = [("retriever, golden", "terrier, small")[i // 2 % 2] for i in range(COUNT)]
COMMAS = [("a, b", "b, c", "a", "c, a")[i % 4] for i in range(COUNT)]
BOOLEANS = {name: [str(bool(c)) for c in cells] for name, cells in FLAGS.items()}
SETS = [["sea", "sun"][: (i // 2 % 3)] for i in range(COUNT)]
WRITTEN: dict[str, Callable[[list[str]], str]] = {
    "separated": "|".join,
    "Python": str,
    "or an empty cell": lambda labels: str(labels or ""),
    "JSON": json.dumps,
    "Label Studio": lambda labels: json.dumps({"choices": labels}),
    "a tuple": lambda labels: str(tuple(labels)),
    "a set": lambda labels: str(set(labels)),
    "NumPy": lambda labels: str(np.array(labels)),
}
ORDERS = (
    (("medium", "High", "low"), ("low", "medium", "High")),
    (("M", "XL", "S", "XS"), ("XS", "S", "M", "XL")),
    (("moderate", "very_high", "low"), ("low", "moderate", "very_high")),
    (("stage 10", "stage 9"), ("stage 9", "stage 10")),
)
CSV, JSON = b"file,label\n00.png,cat\n", b'{"file": "00.png", "label": "cat"}\n'
LONG = b"x" * 10**7
NOT_AN_OBJECT = "line 2 has what is not an object"
COLUMNS, NAMES = (b",".join(form % i for i in range(10**6)) for form in (b"c%d", b'"%d": 1'))
WIDE, SPARSE = COLUMNS[:191_889], b"\n".join(b'{"c%d": 1}' % i for i in range(6000))
HOSTILE: dict[str, dict[str, tuple[bytes, str]]] = {
    "t.csv": {
        "invalid UTF-8": (CSV + b"01.png,c\xfft\n", "line 3 is not UTF-8 text"),
        "very many columns": (COLUMNS, "line 1 has 1,000,000 col"),
        "many cells": (CSV + b",x" * 10**6, "line 3: the row has 1000001 cells, and the header"),
        "NUL": (CSV + b"01.png,c\0t\n", "line 3 is not UTF-8 text"),
        "an open quote": (CSV + b'01.png,"cat\n02.png,dog\n', "line 3 has .*unexpected end of"),
        "a long cell": (CSV + b"01.png," + LONG, "line 3 has .*larger than field limit"),
        "one name twice": (b"file,label,label\n", "line 1 has the column 'label' twice"),
        "wide and long": (WIDE + b"\nc0" * 2000, "has 30,0.* cells or more, and at most"),
    },
    "t.jsonl": {
        "half an object": (JSON + b'{"file": "01.png"', NOT_AN_OBJECT),
        "very deep": (JSON + b"[" * 10**6, NOT_AN_OBJECT),
        "many digits": (JSON + b'{"label": ' + b"9" * 10**5 + b"}", NOT_AN_OBJECT),
        "a long cell": (JSON + b'{"label": "%b"}' % LONG, "line 2 has a cell of more than"),
        "half a character": (JSON + rb'{"label": "\ud800"}', "line 2 has .*surrogates"),
        "very many names": (b"{%b}" % NAMES, "line 1 has 1,000,000 columns"),
        "wide and long": (SPARSE, "has 30,0.* cells or more, and at most"),
    },
}
ROWS = [row for name, cases in HOSTILE.items() for row in one_quick(cases, name)]


@pytest.mark.parametrize("name", FORMATS)
def test_formats(table: Table, name: str) -> None:
    names = ["Katze, groß", "собака", 'the "owl"']
    labels = [names[i // 2 % 3] for i in range(COUNT)]
    splits = table({"file": FILES, "label": labels, "split": SPLITS}, name)
    assert splits.task == Classification(tuple(sorted(names))) == splits.train.task
    names_of_files = {file: splits.class_names[label] for file, label in of(splits).items()}
    assert names_of_files == dict(zip(FILES, labels, strict=True))
    parts = {f.name: name for name, split in splits.items() for f in split.files or ()}
    assert parts == dict(zip(FILES, SPLITS, strict=True))


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_values_of_json_and_parquet(table: Table, name: str) -> None:
    tags = base(tags=[["a", "b"][: (i // 2 % 3)] for i in range(COUNT)])
    tags["more"] = [{"x": i} for i in range(COUNT)]
    thirds, halves = ([i % number == 0 for i in range(COUNT)] for number in (3, 2))
    flags = {"file": FILES, "a": thirds, "b": halves}
    for columns, both, neither in ((tags, "04.png", "00.png"), (flags, "00.png", "01.png")):
        splits = table(columns, name, label_columns="tags" if columns is tags else None)
        assert splits.task == Multilabel(("a", "b"))
        assert (of(splits)[both], of(splits)[neither]) == ([1, 1], [0, 0])
    numbers: Columns = {"file": FILES, "a": [i / 7 for i in range(COUNT)], "b": NUMBERS}
    numbers["a"][4] = None
    splits = warned("1 row of .* left out", table, numbers, name, on_bad_row="skip")
    assert (splits.task.names, splits.task.kind) == (("a", "b"), "regression")
    row = "line" if name == "t.jsonl" else "row"
    assert splits.report.ignored[0][1].startswith(f"{row} 5: the cell of 'a' is empty")

    named = Multilabel(("a", "b", "c"))
    for one, two in (([1, 0, 1], [0, 1, 0]), ([1.0, 0.0, 1.0], [0.0, 1.0, 0.0])):
        refused(rf"{row} 1: .* of 3 labels", table, base(labels=cycled(one, two)), name)
        splits = table(base(labels=cycled(one, two)), name, task=named)
        assert (splits.task, of(splits)["00.png"]) == (named, [1, 0, 1])
    dates: list[Any] = [date(2021, 3, 1), datetime(2021, 3, 1), [date(2021, 3, 1)]]
    for value in ([0.5, 0.25], [["cat"]], [{"x": 1}], *(dates if name == "t.parquet" else [])):
        refused(rf"{row} 1: .* is not a label", table, base(labels=[value] * COUNT), name)


@pytest.mark.parametrize("name", WRITTEN)
def test_lists_as_tables_hold_them(table: Table, name: str) -> None:
    splits = table(base(tags=list(map(WRITTEN[name], SETS))))
    assert splits.task == Multilabel(("sea", "sun"))
    assert [of(splits)[FILES[i]] for i in (0, 2, 4)] == [[0, 0], [1, 0], [1, 1]]
    assert "10 images without any of the labels" in splits.task_reason
    one = table(base(label=[WRITTEN[name]([a]) for a in ANIMALS]), task="classification")
    assert one.task == ANIMAL
    refused("a column per key", table, base(label=["{'dog': 1}"] * COUNT))


@pytest.mark.parametrize("reader", READERS)
def test_a_table_in_the_folder_of_subfolders(reader: str, tmp_path: Path) -> None:
    pairs = list(zip(SPLITS, FILES, strict=True))
    write(tmp_path, {f"{s}/{f}": plain(i) for i, (s, f) in enumerate(pairs)})
    rows = [f"{s}/{f},{a},{s}" for (s, f), a in zip(pairs, ANIMALS, strict=True)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label,split", *rows]))
    splits = load(tmp_path, labels="labels.csv", reader=reader)
    assert repr(splits) == f"Splits('{tmp_path}', 3 classes: train 20, val 10)"
    images, labels = map(np.asarray, next(iter(pipeline(splits.val, 8, 10))))
    assert images[:, 0, 0, 0].round().tolist() == [i for i in range(COUNT) if i % 3 == 2]
    assert labels.tolist() == splits.val.labels().tolist()
    rows = [row.rpartition(",")[0] for row in rows]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows, "00.png,cat"]))
    write(tmp_path, {"00.png": plain(40)})
    refused("00.png lies in none of the folders", load, tmp_path, labels="labels.csv")


@pytest.mark.parametrize(
    "name", ["patient_id", "PatientID", "subject", "id", "lesion_id", "site_no"]
)
def test_a_patient_on_both_sides_is_told(name: str, table: Table) -> None:
    files, numbers = {"file": FILES, "label": ANIMALS}, [i // 3 for i in range(COUNT)]
    told = f"in the column '{name}' that are validated on are trained"
    splits = warned(told, table, files | {name: numbers}, label_columns="label")
    assert f"left out, and not used: '{name}'" in splits.task_reason
    with warnings.catch_warnings(action="error"):
        table(files | {name: numbers, "group": numbers}, label_columns="label")
        table(files | {name: range(7, COUNT + 7)}, label_columns="label")


def test_a_split_is_known_by_its_cells_and_classes_by_their_one_1(table: Table) -> None:
    expected = table(base(label=ANIMALS), "val.csv")
    alone = table({"file": FILES, "label": ANIMALS}, "train.csv")
    assert "not read, beside it: val.csv; put all rows into one" in alone.task_reason
    splits = table({"file": FILES, "label": ANIMALS, "subset": SPLITS})
    assert "'subset' has the splits" in splits.task_reason
    assert splits.val.files == expected.val.files
    answers = {"file": FILES, "error": [""] * COUNT, "class_1": ANIMALS, "split": SPLITS}
    warned("'error' of a model's answers", table, answers, label_columns="class_1")
    commas = table(base(**{"label (by A, B, C)": ANIMALS}), "semicolons.csv")
    assert commas.val.labels().tolist() == expected.val.labels().tolist()
    columns = {name: [int(animal == name) for animal in ANIMALS] for name in sorted(set(ANIMALS))}
    for task in ("classification", ANIMAL):  # of a name, and as `evaluate` of such a model reads it
        splits = table(base(**columns), task=task)
        assert splits.task == expected.task
        assert splits.val.labels().tolist() == expected.val.labels().tolist()


def test_the_task_is_guessed_or_labels_do_not_fit(table: Table) -> None:
    for columns, kind, reason in (
        ({"label": ANIMALS}, Classification, "'label' holds 3 distinct texts"),
        ({"grade": [i % 11 for i in range(COUNT)]}, Classification, f"'grade' {ELEVEN}"),
        ({"tags": TAGS}, Multilabel, "7 of 30 cells of 'tags' hold several labels, separated"),
        ({"tags": COMMAS}, Multilabel, "by ','"),
        (FLAGS, Multilabel, "the columns 'x', 'y' hold 0 and 1"),
        (BOOLEANS, Multilabel, "hold 0 and 1"),
        ({"age": NUMBERS}, Regression, "'age' holds 30 distinct numbers"),
        ({"a": NUMBERS, "b": NUMBERS}, Regression, "columns 'a', 'b' hold num"),
        ({"a": cycled("yes", "no"), "b": FLAGS["x"]}, Multilabel, "hold 0 and 1; 7 images without"),
        ({"a": cycled("0,5", "1,25"), "b": NUMBERS}, Regression, "'b' hold numbers"),
        ({"Unnamed: 0": FLAGS["x"], "age": NUMBERS}, Regression, "numbers the rows: 'Unnamed: 0'"),
        ({"n": range(1, COUNT + 1), "age": NUMBERS}, Regression, "numbers the rows: 'n'"),
        ({"label": cycled("caf\u00e9", "cafe\u0301 ", "tea")}, Classification, "2 distinct texts"),
        ({"label": cycled("a", "nan", "#REF!")}, Classification, "'#REF!', 'nan' is a label here"),
        ({"a": cycled(1, 0, 0), "b": cycled(0, 1, 1)}, Multilabel, "give task='classification'"),
        ({"label": cycled("A", "a")}, Classification, "letter differ in case: 'A' and 'a'"),
    ):
        splits = table(base(**columns))
        assert type(splits.task) is kind
        assert reason in splits.task_reason
        assert splits.class_names == splits.task.names
    warned("'N/A' is a label here", table, base(label=cycled("a", "b", "N/A")))
    warned("'age' is -1 in 3 rows, and 0 or", table, base(age=[-1, -1, -1, *NUMBERS[3:]]))
    for columns, options, message in (
        ({"a": ANIMALS, "b": NUMBERS}, {}, "neither all numbers nor all of 0 and 1: give"),
        ({"age": NUMBERS, "person": cycled(1, 2, 3)}, {}, "'person' does not .*columns='age'"),
        ({"ill": FLAGS["x"], "is_valid": FLAGS["y"]}, {}, "'is_valid' does not have labels"),
        ({"label": ANIMALS}, {"label_columns": "lable"}, "Did you mean 'label'"),
        ({"name": [f"id-{i}x" for i in range(COUNT)]}, {}, "not classes"),
        ({"day": cycled("2020-01-31", "9:30", "3 kg", "$5")}, {}, "dates, times or numbers with"),
        ({"label": ANIMALS}, {"task": Multilabel(("sea", "sun"))}, "a table of another task"),
        ({"age": [f"{i},5" for i in range(COUNT)]}, {}, "write decimals with points"),
        ({"label": ["cat"] * COUNT}, {}, r"1 label to train on, 'cat': .* at least 2"),
        ({"a": ["1", "1.0", "2"] * 10}, {}, r"say the same: '1' \(10 rows\) and '1.0'"),
        ({"a": cycled("TRUE", "FALSE", "1", "0")}, {}, "say the same: '(TRUE|1)'"),
        ({"age": [4.5] * COUNT}, {}, "there is nothing to learn"),
        ({"label": ANIMALS}, {"task": "regression", "separator": "|"}, "leave one"),
        ({"a": ANIMALS, "b": ANIMALS}, {"task": "classification"}, "give one of them"),
        ({"a": NUMBERS}, {"task": Regression(("b",))}, "the label columns are 'a'"),
        ({"id": cycled(1, 2)}, {}, "label_columns= where what numbers the rows is meant"),
        ({"label": cycled("cat", "Cat", "dog")}, {}, r"'cat' \(10 rows\) and 'Cat' \(10 rows\)"),
        ({"a": cycled("cat", "cat\u200b")}, {}, "in what cannot be seen: .*u200b"),
        ({"label": cycled("cat", "Cat")}, {"task": ANIMAL}, "row to train on, as 'cat' is"),
        ({"label": cycled("1.0", "2")}, {"task": Classification(("1", "2"))}, "as '1' is"),
        ({"label": ANIMALS}, {"task": "ordinal"}, r"Ordinal\(\('cat', 'dog', 'owl'\)\)"),
        ({"label": [i % 21 for i in range(COUNT)]}, {}, "classification.* or task='regression'"),
        ({"a": cycled(-1, 1), "b": cycled(1, -1, 1)}, {}, "'multilabel'.* or task='regression'"),
        ({"tags": cycled("1 0 1", "0 1 0")}, {}, "line 2: '1 0 1' in 'tags' is 0 or 1 for each"),
        ({"tags": cycled("[1, 0]", "[0, 1]")}, {"task": "multilabel"}, "does not have the names"),
        ({"tags": cycled("sea", "sun", "sea sun")}, {}, "separator=' '.*task='classification'"),
        ({"tags": cycled("sea", "sun", "air", "sea / sun")}, {}, "separator='/'"),
        ({"label": cycled(0, 1, 2), "sure": NUMBERS}, {}, "label_columns='label'; or task="),
        ({"a": FLAGS["x"], "age": NUMBERS}, {}, "'a' may be classes: then give label_columns="),
        ({"a": [0, *cycled(1, 0)[1:]], "b": cycled(0, 1)}, {"task": "classification"}, "2: one"),
        ({"tags": cycled("[sea, sun]", "[sea]")}, {}, r"line 2: '\[sea, sun\]' .* in quotes"),
        ({"price": cycled("980", "1,010")}, {"task": "regression"}, "'1,010' in 'price' is 1010"),
        ({**FLAGS, "x": [*FLAGS["x"][:-1], "?"]}, {}, r"line 31: '\?' in 'x' is not 0 or 1"),
        ({"tags": TAGS}, {"task": Multilabel(("x",))}, f"'y' in 'tags' is {NO_LABEL}"),
        ({"label": [*ANIMALS[:2], "\x1b[31m", *ANIMALS[3:]]}, {}, NO_LABEL),
        ({"label": ANIMALS, "group": GROUPS}, {}, f"the group 'p0' {OTHER_SIDE}"),
        ({"label": ANIMALS, "group": GAP}, {}, "line 5: the cell of 'group' is empty"),
        ({"label": ANIMALS, "split": TEST}, {"task": ANIMAL}, NO_ROW),
        (MASKS, {}, "More than one column has files.*'file'.*'mask'"),
    ):
        assert "\x1b" not in refused(message, table, base(**columns), **options)


def test_targets_and_the_task_that_is_given(table: Table) -> None:
    labels = of(table(base(tags=TAGS)))
    assert [labels[FILES[i]] for i in (2, 3, 4)] == [[0, 1], [1, 1], [0, 0]]
    assert of(table(base(**FLAGS))) == labels
    splits = table(base(a=NUMBERS, b=[7 * n for n in NUMBERS]), label_columns=["b", "a"])
    assert splits.task.names == ("b", "a")
    trained = [n for n, s in zip(NUMBERS, SPLITS, strict=True) if s == "train"]
    assert splits.task.offset == pytest.approx((7 * np.mean(trained), np.mean(trained)))
    assert splits.task.scale == pytest.approx((7 * np.std(trained), np.std(trained)))
    units = splits.task.answers(splits.train.labels())[:, 1]
    np.testing.assert_allclose(units, trained, rtol=1e-4, atol=1e-4)
    grades = table(base(grade=[i // 2 % 12 + 1 for i in range(COUNT)]), task="ordinal").task
    assert grades == Ordinal(tuple(map(str, range(1, 13))))
    for texts, order in ORDERS:
        assert table(base(grade=cycled(*texts)), task="ordinal").class_names == order
    words, named = [("a b", "b", "a")[i % 3] for i in range(COUNT)], Ordinal(("owl", "dog", "cat"))
    weight = Regression(("age",), units=("years",))
    for columns, options, task in (
        ({"label": ANIMALS}, {"task": named}, named),
        ({"label": ANIMALS}, {"task": "multilabel"}, Multilabel(("cat", "dog", "owl"))),
        ({"tags": words}, {"separator": " "}, Multilabel(("a", "b"))),
    ):
        assert table(base(**columns), **options).task == task
    assert of(table(base(label=ANIMALS), task=named))["00.png"] == 2
    # Known labels show the separator, in a table too small to.
    for cells, names in (
        (("sea,sun", "sun", "air"), ("air", "sea", "sun")),
        (("a, x", "x"), ("a, x", "x")),
    ):
        known = Multilabel(names)
        assert table(base(tags=cycled(*cells)), task=known).task.names == names
    assert table(base(age=NUMBERS, other=ANIMALS), task=weight).task.units == ("years",)
    signs = table(base(a=cycled(-1, 1), b=cycled(1, -1, 1)), task="multilabel")
    assert [of(signs)[FILES[i]] for i in (0, 2, 4)] == [[0, 1], [1, 0], [0, 1]]
    for cells, values in (
        (("0,5", "1.234,5"), (0.5, 1234.5)),
        (("1,234.5", "1,010"), (1234.5, 1010)),
        (("1 234,5", "7"), (1234.5, 7)),
        (("0,125", "1,250"), (0.125, 1.25)),  # no thousands begin with 0
    ):
        splits = table(base(price=cycled(*cells)), task="regression")
        units = splits.task.answers(splits.train.labels())
        np.testing.assert_allclose(sorted(set(units[:, 0].tolist())), sorted(values), rtol=1e-5)


def test_arguments_of_a_table_need_one(photos: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    os.mkfifo(tmp_path / "t.csv")
    refused("are about a table: give it as labels", load, photos, file_column="file")
    refused("give that of the images", load, "digits", labels="l.csv", error=NotADirectoryError)
    refused(r"There is no table .*l\.csv", load, photos, labels="l.csv", error=FileNotFoundError)
    refused("on_bad_row='no'", load, photos, labels="l.csv", on_bad_row="no")
    refused(r"give one of \.csv, \.tsv", load, photos, labels=tmp_path / "t.xlsx")
    refused("pip install pyarrow", load, photos, labels=tmp_path / "t.parquet", error=ImportError)
    refused("is a named pipe", load, photos, labels=tmp_path / "t.csv")


def test_columns_of_files_splits_and_groups(table: Table, photos: Path) -> None:
    numbers: Columns = {"label": [i % 2 for i in range(COUNT)], "split": SPLITS}
    assert len(table({"id": [str(photos / f) for f in FILES], **numbers}).train) == 20
    message = r"No column has files in .* one of 'id' \(as 'nowhere.* there is 00.png\."
    refused(message, table, {"id": [f"nowhere/{f}" for f in FILES], **numbers})
    names = [name for name in ("Training", "dev", "testing") for _ in range(10)]
    splits = table(base(split=names, label=ANIMALS))
    assert {name: len(s) for name, s in splits.items()} == {"train": 10, "val": 10, "test": 10}
    # All rows, as of images that a model is only evaluated on: of one class, and of one number.
    for columns, task, name, label in (
        ({"label": ["dog"] * COUNT}, ANIMAL, "all", 1),
        ({"label": ["dog"] * COUNT, "split": TEST}, ANIMAL, "test", 1),
        ({"age": [7.5] * COUNT}, "regression", "all", [7.5]),
    ):
        whole = table({"file": FILES, **columns}, task=task, val_fraction=None)
        assert list(whole) == [name]
        assert whole[name].labels().tolist() == [label] * COUNT
    splits = table({"file": FILES, "label": ANIMALS}, val_fraction=0.3)
    assert np.bincount(splits.val.labels()).tolist() == [3, 3, 3]
    columns = {"file": FILES, "label": ANIMALS, "group": GROUPS}
    splits = table(columns)
    assert table(columns).val.files == splits.val.files
    sides = [{int(f.stem) // 3 for f in split.files or ()} for split in splits.values()]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 10
    for split in splits.values():  # a number per group, by which training images are held out
        names = [GROUPS[int(file.stem)] for file in split.files or ()]
        assert len(set(zip(names, split.groups, strict=True))) == len(set(names))
    columns["group"] = ANIMALS
    warned("No image to train on has (cat|dog|owl): the groups", table, columns, val_fraction=0.34)


# Of a class and a number.
WAYS = ("{1}", "{1}.jpg", "{0}/{1}.JPG", r"{0}\{1}.jpg", r"C:\data\photos\{0}\{1}.jpg")
WAYS += ("/home/other/photos/{0}/{1}", "photos/{0}/{1}.jpg")
REFUSED = {
    "/home/{0}/{0}/{1}.jpg": "where there is cat/0.jpg\n",  # two roots
    "val/{1}.jpg": "where there is cat/0.jpg\n",
    "0a1b2c3d-%3{1}.png": "where there is cat/0.jpg\n",  # of Label Studio, in an address
    "x": "where there is cat/x.jpg and dog/x.jpg\n",
}


def test_paths_that_are_written_otherwise(tmp_path: Path) -> None:
    photos, path = tmp_path / "photos", tmp_path / "t.csv"
    pairs = [(("cat", "dog")[i % 2], str(i)) for i in range(8)]
    names = [f"{kind}/{i}.jpg" for kind, i in pairs]
    write(photos, dict.fromkeys([*names, "cat/x.jpg", "dog/x.jpg"], plain(0)))

    def load_rows(way: str) -> Splits:
        rows = (f"{way.format(*pair)},{pair[0]}" for pair in pairs)
        path.write_text("\n".join(["file,label", *rows]))
        return load(photos, labels=path, verify=False, file_column="file")

    for way in WAYS:
        splits = warned("8 paths of 'file' taken for the only file that fits", load_rows, way)
        assert sorted(of(splits)) == sorted(f"{i}.jpg" for i in range(8))
    for way, message in REFUSED.items():
        assert message in refused("8 rows .* cannot be used", load_rows, way)
    table = photos / "t.csv"  # as audits read it
    table.write_text("Unnamed: 0,name,kind\n50,0,cat \n70,1.JPG,dog\n")
    with pytest.warns(UserWarning, match="2 paths of 'name' taken"):
        assert read_file_table(table) == [("cat/0.jpg", "cat", None), ("dog/1.jpg", "dog", None)]
    table.write_text("file,kind,split\ncat/0.jpg,cat,train\ngone.jpg,cat,val\n")
    assert read_file_table(table)[1] == ("gone.jpg", "cat", "val")
    for row in ("cat/0.jpg,dog,train", "cat/0.jpg,cat,test"):
        table.write_text(f"file,kind,split\ncat/0.jpg,cat,train\n{row}\n")
        refused("line 3: .* has another label or split .*\nCorrect.*them.$", read_file_table, table)


def test_csv_of_spreadsheets(photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for header, row in (
        ("sep=;\r\nfile;label\r\n", "{};{}\r\n"),
        ('"file", "label"\n', '"{}", "{}"\n'),
        ("# of a tool\r\n# of 2026\r\nfile;label\r\n", "{};{}\r\n"),
        ("file|label\n", "{}|{}\n"),
        ("file;label;note;;\n;;;;\n", "{};{};;;;;\n"),  # columns and rows that were emptied
    ):
        rows = "".join(row.format(*pair) for pair in zip(FILES, DOGS, strict=True))
        path.write_text(header + rows)
        splits = load(photos, labels=path, verify=False)
        assert splits.task == Classification(tuple(sorted(set(DOGS))))
        path.write_text(rows.replace(", golden", "").replace(", small", ""))
        refused("begins with the row of the image", load, photos, labels=path)
    path.write_text("file:label\n0.png:a\n")
    refused(r"has two: separate its cells by commas.* or \|", load, photos, labels=path)


def test_rows_that_cannot_be_used(table: Table, photos: Path) -> None:
    bad_rows = {name: list(cells) for name, cells in base(label=ANIMALS).items()}
    for name, wrong in (
        ("file", {1: "missing.png", 8: "", 9: "../secret.png", 12: "13.png"}),
        ("label", {3: "", 7: "lynx", 12: "dog"}),  # a lynx is in the validation split alone
        ("split", {5: "practice", 7: "val"}),
    ):
        for row, cell in wrong.items():
            bad_rows[name][row] = cell
    said = refused(r"8 rows of .*t\.csv cannot be used", table, bad_rows)
    reasons = {
        3: f"'missing.png' is not a file in {photos}",
        5: "the cell of 'label' is empty",
        7: f"the split 'practice' is not one of {SHOWN_NAMES}",
        9: "'lynx' in 'label' is not a label of the task or of a row to train on",
        10: "the cell of 'file' is empty",
        11: f"'../secret.png' is not in {photos}",
        14: f"'{photos}/13.png' is also in line 15, with other labels",
        15: f"'{photos}/13.png' is also in line 14, with other labels",
    }
    assert errors(said) == reasons
    splits = warned("8 rows of .* left out, see splits.report", table, bad_rows, on_bad_row="skip")
    assert set(of(splits)) == {FILES[row] for row in range(COUNT) if row + 2 not in reasons}
    assert len(splits.report.ignored) == 8
    columns = base(label=["" if i % 5 else a for i, a in enumerate(ANIMALS)])
    said = refused(r"(?s)24 rows of.*\n    and 4 more\nCorrect", table, columns)
    assert said.count("\n    line ") == 20
    wrong = {3: "many", 7: "nan", 11: "inf", 13: "1_0"}
    said = refused("cannot be used", table, base(age=[wrong.get(*n) for n in enumerate(NUMBERS)]))
    reasons = {row + 2: f"'{cell}' in 'age' is not a finite number" for row, cell in wrong.items()}
    assert errors(said) == reasons
    with pytest.raises(ValueError, match=r"'-999' in 'age' stands for a missing number"):
        table(base(age=["-999" if i == 3 else f"{i + 0.5}" for i in range(COUNT)]))


def test_images_in_two_rows_and_damaged_ones(table: Table, photos: Path, tmp_path: Path) -> None:
    columns = {name: [*cells, cells[4]] for name, cells in base(label=ANIMALS).items()}
    splits = table(columns)
    assert len(splits.train) + len(splits.val) == COUNT
    ((path, reason),) = splits.report.ignored
    assert path.name == "04.png"
    assert reason.startswith("line 32: ")
    assert "also in line 6" in reason
    columns["split"][-1] = "val"
    (photos / "link.png").symlink_to(photos / FILES[4])  # is the same image
    for name in ("04.png", "link.png"):
        columns["file"][-1] = name
        refused(f"line 32: .*{name}' is also in line 6, with another", table, columns)
    (photos / "link.png").unlink()
    table(base(age=NUMBERS))
    folder = write(shutil.copytree(photos, tmp_path / "photos"), {FILES[4]: b"no image"})
    splits = warned("1 of 30 files cannot be decoded", load, folder, labels=tmp_path / "t.csv")
    assert [file.name for file, _ in splits.report.unreadable] == [FILES[4]]
    trained = [NUMBERS[i] for i in range(COUNT) if SPLITS[i] == "train" and i != 4]
    assert splits.task.offset == pytest.approx((np.mean(trained),))


@pytest.mark.parametrize(("name", "case"), ROWS)
def test_hostile(photos: Path, tmp_path: Path, name: str, case: str) -> None:
    contents, message = HOSTILE[name][case]
    (tmp_path / name).write_bytes(contents)
    refused(f"(?s:{name}.*{message})", load, photos, labels=tmp_path / name, task=ANIMAL)


def test_hostile_parquet(photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    # Few bytes of Parquet are a text of many rows, or many rows.
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = pa.DictionaryArray.from_arrays(np.zeros(10_000, np.int32), ["x" * 100_000])
    lists = pa.ListArray.from_arrays(np.arange(10_001, dtype=np.int32), texts)
    few, flags = pa.array(["x"] * 9), pa.nulls(11 * 10**6, pa.bool_())
    for column, options, reason in (
        (texts, {}, "has 1,000,000,000 bytes of text, and at most 268,435,456"),
        (lists, {"store_schema": False}, "has 1,000,000,000 bytes of text"),
        (few, {"column_encoding": "DELTA_BYTE_ARRAY", "use_dictionary": False}, "it as PLAIN"),
        (flags, {}, "has 11,000,000 rows or more, and at most 10,000,000 rows and 30,000,000"),
        (pa.array([2**30], pa.date32()), {}, "cannot be read as Parquet: "),
    ):
        pq.write_table(pa.table({"file": column}), path, compression="zstd", **options)
        refused(reason, load, photos, labels=path)


def test_a_footer_says_what_pyarrow_reads(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table, path = arrow.table({"a": [*"abcd"] * 5, "l": [["x", "y"], []] * 10}), tmp_path / "t"
    parquet.write_table(table, path, row_group_size=8, data_page_version="2.0")
    theirs = [
        [(chunk.num_values, chunk.total_uncompressed_size) for chunk in map(group.column, range(2))]
        for group in map(parquet.ParquetFile(path).metadata.row_group, range(3))
    ]
    ours = [[(chunk.values, chunk.size) for chunk in chunks] for chunks in row_groups(path)]
    assert ours == theirs
    # Not of millions of values: field 15, a list of 2**23 structs without fields, is a byte each in
    # the file, and a Python object each once it is read.
    footer = b"\xf9\xfc\x80\x80\x80\x04" + b"\0" * (2**23 + 1)
    content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    (tmp_path / "t.parquet").write_bytes(content)
    refused("the footer has over 2,097,152 values", row_groups, tmp_path / "t.parquet")
