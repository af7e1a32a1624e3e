"""VTAB's table, label maps, splits and runner: on mocked data sets, and on prepared ones."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from examples.vtab import __main__ as command
from examples.vtab import runner as vtab
from examples.vtab import tasks as vtab_tasks
from examples.vtab.runner import Setting, finetuning, run_vtab
from examples.vtab.tasks import VTAB_TASKS, TaskSplit, VtabTask, task, task_splits
from keras_vit import data
from tests.backend import refused
from tests.bank import TINY, fresh, pixels, tiny
from tests.data import test_records

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")

OURS = VtabTask("ours", "natural", "kv_vtab", 2, val=("train", 70), test=("train", 90))
SWEEP = tuple(Setting(learning_rate=rate) for rate in (0.003, 0.01, 0.03))
SILENT: dict[str, Any] = {"log": lambda _: None}
ONE, TWO = SILENT | {"tasks": VTAB_TASKS[:1]}, SILENT | {"tasks": VTAB_TASKS[:2]}
# Sizes of the data sets, as TensorFlow Datasets publishes them, and what the second part of
# task_adaptation's `train800val200`, and its `test`, come to with these.
CLEVR = {"train": 70000, "validation": 15000, "test": 15000}
PUBLISHED = {
    "cifar100": ({"train": 50000, "test": 10000}, "train[45000:45200]", "test"),
    "svhn": ({"train": 73257, "test": 26032, "extra": 531131}, "train[65931:66131]", "test"),
    "caltech101": ({"train": 3059, "test": 6084}, "train[2753:2953]", "test"),
    "pets": ({"train": 3680, "test": 3669}, "train[2944:3144]", "test"),
    "eurosat": ({"train": 27000}, "train[16200:16400]", "train[21600:]"),
    "dsprites_location": ({"train": 737280}, "train[589824:590024]", "train[663552:]"),
    "norb_azimuth": ({"train": 24300, "test": 24300}, "test[0:200]", "test[12150:]"),
    "clevr_count": (CLEVR, "train[63000:63200]", "validation"),
    "dtd": (dict.fromkeys(CLEVR, 1880), "validation[0:200]", "test"),
}


def test_nineteen_tasks_have_the_published_splits_and_label_maps() -> None:
    groups = [row.group for row in VTAB_TASKS]
    assert [groups.count(group) for group in vtab.VTAB_GROUPS] == [7, 4, 8]
    assert len({row.name for row in VTAB_TASKS}) == 19
    for name, (sizes, val, test) in PUBLISHED.items():
        both = f"train[:800]+{val}"
        expected = {"train800": "train[:800]", "val200": val, "train800val200": both, "test": test}
        assert task(name).splits(sizes) == expected, name
    labels = vtab_tasks.TURN, vtab_tasks.SPRITES_X, vtab_tasks.AZIMUTH
    for label, count, step in zip(labels, (40, 32, 18), (2.5, 2, 1), strict=True):
        values = [int(label.read(value)) for value in range(count)]
        assert values == [int(np.floor(v / step)) for v in range(count)]
    random = np.random.default_rng(0)
    for count in range(3, 11):
        places = random.uniform(7, 12, (count, 3)).astype(np.float32)
        objects = {"size": np.zeros(count, np.int64), "pixel_coords": places}
        edges = np.array([0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0])  # task_adaptation's thresholds
        near = np.flatnonzero(edges < places[:, 2].min()).max()
        assert int(vtab_tasks.CLEVR_COUNT.read(objects)) == count - 3
        assert int(vtab_tasks.CLEVR_DISTANCE.read(objects)) == near
        kinds = random.integers(0, 8, count)
        location = random.uniform(-5, 60, (count, 3)).astype(np.float32)
        vehicle = min([*location[kinds < 3, 2], 1000.0])
        near = np.flatnonzero(np.array([-100.0, 8.0, 20.0, 999.0]) < vehicle).max()
        street = {"type": tf.constant(kinds), "location": tf.constant(location)}
        assert int(vtab_tasks.KITTI_DISTANCE.read(street)) == near
    # A street without vehicles is a separate class.
    people = {"type": tf.constant([3, 4]), "location": tf.constant([[0.0, 0.0, 5.0]] * 2)}
    assert int(vtab_tasks.KITTI_DISTANCE.read(people)) == 3


# All kinds of labels but those of objects, and gray, two-valued and RGB pixels.
@pytest.mark.parametrize(
    "name", ["cifar100", "retinopathy", "dsprites_orientation", "norb_elevation"]
)
def test_mocked_records(name: str) -> None:
    row = task(name)
    with tfds.testing.mock_data(num_examples=4):
        split = TaskSplit("test", row, tfds.builder(row.dataset), "test", 4)
        labels = split.labels()
        images, batch_labels = next(iter(data.pipeline(split, 16, 4, eval_transform="stretch")))
        raw = [pixels for pixels, *_ in split.images(split.dataset()).as_numpy_iterator()]
    assert len(split.class_names) == row.classes
    assert (images.shape, raw[0].shape[-1]) == ((4, 16, 16, 3), 3)
    for values in (labels, batch_labels.numpy()):  # the mock samples new ones each time
        assert (values.shape, values.dtype) == ((4,), np.int32)
        assert 0 <= values.min() <= values.max() < row.classes
    if "dsprites" in name:
        stored = np.arange(16, dtype=np.uint8).reshape(4, 4, 1) % 2
        shown = split.decode(tf.io.encode_png(stored))
        np.testing.assert_array_equal(shown, np.repeat(stored * 255, 3, axis=-1))


class KvVtab(test_records.Tiny):
    """1,300 images whose pixels and label encode their number."""

    def _generate_examples(self) -> Any:
        for i in range(1300):
            yield i, {"image": np.full((2, 2, 3), (i // 256, i % 256, 0), np.uint8), "label": i % 2}


def test_prepared_splits_and_the_command(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    KvVtab(data_dir=tmp_path).download_and_prepare()
    seen, sizes = {}, {"train800": 800, "val200": 200, "train800val200": 1000, "test": 130}
    for name, split in task_splits(OURS, tmp_path).items():
        pixels = [p[0, 0] for p, *_ in split.images(split.dataset()).as_numpy_iterator()]
        numbers = [256 * int(p[0]) + int(p[1]) for p in pixels]
        np.testing.assert_array_equal(split.labels(), np.array(numbers) % 2)
        seen[name] = set(numbers)
        assert len(split) == len(numbers) == len(seen[name]) == sizes[name]
    assert seen["train800val200"] == seen["train800"] | seen["val200"]
    assert not seen["train800val200"] & seen["test"]
    tiny(input_shape=(8, 8, 3)).save(tmp_path / "m.keras")
    words = [tmp_path / "m.keras", "--data-dir", tmp_path, "--out", tmp_path / "out", "--steps=2"]
    words = [*map(str, words), "--image-size=8", "--batch-size=64"]
    refused("None of the 1 data sets", command.main, [*words, "--tasks", "svhn"], error=SystemExit)
    assert "tfds build svhn_cropped" in capsys.readouterr().out
    monkeypatch.setattr(command, "VTAB_TASKS", (OURS, task("svhn")))
    assert command.main(words) == 1
    assert re.search(r"natural \(2\).*missing", capsys.readouterr().out, re.S)
    assert json.loads((tmp_path / "out" / "ours.json").read_text())["setting"]["steps"] == 2


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list:
    def splits(row: VtabTask, data_dir: Any) -> dict[str, str]:
        if data_dir == row.name:
            raise data.DatasetUnavailableError(f"{row.name}: not prepared")
        return {name: name for name in ("train800", "val200", "train800val200", "test")}

    monkeypatch.setattr(vtab, "task_splits", splits)
    return []


def trainer(calls: list, fail_at: int | None = None) -> vtab.Train:
    def train(row: VtabTask, train: Any, test: Any, setting: Setting) -> float:
        if len(calls) == fail_at:
            raise KeyboardInterrupt
        calls.append((row.name, train, test, setting.learning_rate))
        # The middle learning rate is best on validation; every task has another accuracy.
        return 1 - abs(setting.learning_rate - 0.01) - 0.01 * VTAB_TASKS.index(row)

    return train


def test_sweep_selects_on_validation_and_tests_once(calls: list, tmp_path: Path) -> None:
    report = run_vtab(trainer(calls), tmp_path, sweep=SWEEP, **SILENT)
    assert len(calls) == 19 * 4
    assert calls[:4] == [
        *(("caltech101", "train800", "val200", rate) for rate in (0.003, 0.01, 0.03)),
        ("caltech101", "train800val200", "test", 0.01),
    ]
    accuracies = 1 - 0.01 * np.arange(19)
    parts = np.split(accuracies, [7, 11])
    for group, part in zip((*vtab.VTAB_GROUPS, None), (*parts, accuracies), strict=True):
        assert report.mean(group) == pytest.approx(part.mean())
    assert str(report).splitlines()[-1].split() == ["mean", "of", "19", "tasks", "91.00%"]
    assert "| specialized (4) | 91.50% |" in (tmp_path / "vtab.md").read_text()
    calls.clear()
    run_vtab(trainer(calls), tmp_path / "single", **TWO)
    assert [call[1] for call in calls] == ["train800val200"] * 2


@pytest.mark.parametrize("fail_at", [0, 2, 3, 7])
def test_a_killed_run_continues_where_it_stopped(calls: list, tmp_path: Path, fail_at: int) -> None:
    killed = trainer(calls, fail_at)
    refused("", run_vtab, killed, tmp_path, sweep=SWEEP, error=KeyboardInterrupt, **TWO)
    report = run_vtab(trainer(calls), tmp_path, sweep=SWEEP, **TWO)
    assert len(calls) == len(set(calls)) == 8  # nothing twice
    assert report.accuracies == {"caltech101": 1.0, "cifar100": pytest.approx(0.99)}
    assert not [*tmp_path.glob(".*")]


def test_missing_data_and_what_does_not_fit(calls: list, tmp_path: Path) -> None:
    words = rf"is not prepared in {tmp_path}[\s\S]*`tfds build [\s\S]*Kaggle"
    refused(words, task_splits, task("retinopathy"), tmp_path, error=data.DatasetUnavailableError)
    report = run_vtab(trainer(calls), tmp_path, data_dir="svhn", **SILENT)
    assert report.missing == {"svhn": "svhn: not prepared"}
    assert report.mean("natural") is report.mean() is None
    assert report.mean("structured") is not None
    assert "| natural (7) | missing |" in report.to_markdown()
    tmp_path = tmp_path / "another"
    run_vtab(trainer(calls), tmp_path, identity="a", **ONE)
    file = tmp_path / "caltech101.json"
    written, another = file.read_text(), "holds results of another model or sweep"
    for record, changes, words in (
        (written, {"identity": "b"}, another),
        (written, {"sweep": SWEEP}, another),
        ('{"accuracy": ', {}, "is damaged"),
        (written, {"sweep": ()}, "sweep is empty"),
        (written, {"tasks": ()}, "tasks is empty"),
    ):
        file.write_text(record)
        refused(words, run_vtab, trainer(calls), tmp_path, **ONE | {"identity": "a"} | changes)
    refused(r"a task 'cifar10'\. Did you mean 'cifar100'", task, "cifar10")
    for name, value in (("learning_rate", np.nan), ("steps", 0), ("warmup", -1), ("accumulate", 3)):
        refused(f"{name}=", replace, Setting(), **{name: value})
    refused("returned nan for caltech101", run_vtab, lambda *_: np.nan, tmp_path / "new", **ONE)
    (tmp_path / "new/vtab.md").write_text("mine")
    with pytest.raises(FileExistsError, match=r"vtab\.md exists without results"):
        run_vtab(trainer(calls), tmp_path / "new", **SILENT)
    assert (tmp_path / "new/vtab.md").read_text() == "mine"


def test_finetuning_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh(**TINY | {"patch_size": 4, "input_shape": (16, 8, 3)}, filled=False)
    before, labels = [np.array(w) for w in model.get_weights()], np.arange(64) % 2
    levels = 150 * labels[:, None, None, None].astype("uint8")
    split = data.ArraySplit("train", ("dark", "light"), pixels(64, 12, 20, 3) // 5 + levels, labels)
    setting = Setting(0.1, steps=40, batch_size=32, image_size=8, warmup=5)
    evaluate, trained = keras.Model.evaluate, []

    def noted(copy: Any, *arguments: Any, **options: Any) -> Any:
        trained.append(copy.get_weights())
        return evaluate(copy, *arguments, **options)

    monkeypatch.setattr(keras.Model, "evaluate", noted)
    for parts in (1, 4):
        part = replace(setting, accumulate=parts)
        accuracy = finetuning(model, verbose=0)(task("camelyon"), split, split, part)
        assert accuracy >= 0.95  # chance: 0.5
    np.testing.assert_equal(model.get_weights(), before)  # a copy was trained
    for whole, parted in zip(*trained, strict=True):  # to the last update, at the same rates
        np.testing.assert_allclose(parted, whole, atol=2e-3)
