"""VTAB's table, label maps, splits and runner: on mocked data sets, and on prepared ones."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit import data
from keras_vit_cli import commands as cli
from keras_vit_cli.evaluate import vtab
from keras_vit_cli.evaluate.vtab import Setting, finetuning, run_vtab
from keras_vit_cli.evaluate.vtab_tasks import (
    AZIMUTH,
    CLEVR_COUNT,
    CLEVR_DISTANCE,
    KITTI_DISTANCE,
    SPRITES_X,
    TURN,
    VTAB_TASKS,
    TaskSplit,
    VtabTask,
    task,
    task_splits,
)
from tests.data.image_fixtures import plain

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")

# Sizes of the data sets, as TensorFlow Datasets publishes them.
SIZES = {
    "cifar100": {"train": 50000, "test": 10000},
    "svhn": {"train": 73257, "test": 26032, "extra": 531131},
    "caltech101": {"train": 3059, "test": 6084},
    "pets": {"train": 3680, "test": 3669},
    "eurosat": {"train": 27000},
    "dsprites_location": {"train": 737280},
    "norb_azimuth": {"train": 24300, "test": 24300},
    "clevr_count": {"train": 70000, "validation": 15000, "test": 15000},
    "dtd": {"train": 1880, "validation": 1880, "test": 1880},
}
# What task_adaptation's `train800val200` and `test` come to with these sizes.
PUBLISHED = {
    "cifar100": ("train[:800]+train[45000:45200]", "test"),
    "svhn": ("train[:800]+train[65931:66131]", "test"),
    "caltech101": ("train[:800]+train[2753:2953]", "test"),
    "pets": ("train[:800]+train[2944:3144]", "test"),
    "eurosat": ("train[:800]+train[16200:16400]", "train[21600:]"),
    "dsprites_location": ("train[:800]+train[589824:590024]", "train[663552:]"),
    "norb_azimuth": ("train[:800]+test[0:200]", "test[12150:]"),
    "clevr_count": ("train[:800]+train[63000:63200]", "validation"),
    "dtd": ("train[:800]+validation[0:200]", "test"),
}


def test_nineteen_tasks_in_three_groups() -> None:
    groups = [row.group for row in VTAB_TASKS]
    assert [groups.count(group) for group in vtab.VTAB_GROUPS] == [7, 4, 8]
    assert len({row.name for row in VTAB_TASKS}) == 19
    with pytest.raises(
        ValueError, match=r"VTAB does not have a task 'cifar10'\. Did you mean 'cifar100'"
    ):
        task("cifar10")


@pytest.mark.parametrize("name", PUBLISHED)
def test_splits_are_the_published_ones(name: str) -> None:
    splits = task(name).splits(SIZES[name])
    assert (splits["train800val200"], splits["test"]) == PUBLISHED[name]
    assert splits["train800val200"] == f"{splits['train800']}+{splits['val200']}"


def numbers(label: Any, values: Sequence[Any]) -> list[int]:
    return [int(label.read(value)) for value in values]


def test_label_maps_against_numpy() -> None:
    assert numbers(TURN, range(40)) == [int(np.floor(v / 2.5)) for v in range(40)]
    assert numbers(SPRITES_X, range(32)) == [v // 2 for v in range(32)]
    assert numbers(AZIMUTH, range(18)) == list(range(18))
    random = np.random.default_rng(0)
    for count in range(3, 11):
        objects = {
            "size": np.zeros(count, np.int64),
            "pixel_coords": random.uniform(7, 12, (count, 3)).astype(np.float32),
        }
        nearest = objects["pixel_coords"][:, 2].min()
        edges = np.array([0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0])  # task_adaptation's thresholds
        assert int(CLEVR_COUNT.read(objects)) == count - 3
        assert int(CLEVR_DISTANCE.read(objects)) == np.flatnonzero(edges < nearest).max()
        kinds = random.integers(0, 8, count)
        location = random.uniform(-5, 60, (count, 3)).astype(np.float32)
        vehicles = np.append(location[kinds < 3, 2], 1000.0)
        edges = np.array([-100.0, 8.0, 20.0, 999.0])
        distance = KITTI_DISTANCE.read(
            {"type": tf.constant(kinds), "location": tf.constant(location)}
        )
        assert int(distance) == np.flatnonzero(edges < vehicles.min()).max()


def test_street_without_vehicles_is_a_separate_class() -> None:
    people = {"type": tf.constant([3, 4]), "location": tf.constant([[0.0, 0.0, 5.0]] * 2)}
    assert int(KITTI_DISTANCE.read(people)) == 3


# All kinds of labels but the two below, and gray, two-valued and RGB pixels.
MOCKED = ("cifar100", "retinopathy", "dsprites_orientation", "norb_elevation")


@pytest.mark.parametrize("name", MOCKED)
def test_mocked_records(name: str) -> None:
    row = task(name)
    with tfds.testing.mock_data(num_examples=4):
        split = TaskSplit("test", row, tfds.builder(row.dataset), "test", 4)
        labels = split.labels()
        images, batch_labels = next(iter(data.pipeline(split, 16, 4, eval_transform="stretch")))
        raw = [pixels for pixels, *_ in split.images(split.dataset()).as_numpy_iterator()]
    assert len(split.class_names) == row.classes
    assert images.shape == (4, 16, 16, 3)
    for values in (labels, batch_labels.numpy()):  # the mock samples new ones each time
        assert values.shape == (4,)
        assert values.dtype == np.int32
        assert 0 <= values.min() <= values.max() < row.classes
    assert raw[0].shape[-1] == 3


def test_two_valued_pixels_become_black_and_white() -> None:
    row = task("dsprites_location")
    with tfds.testing.mock_data():
        split = TaskSplit("test", row, tfds.builder(row.dataset), "test", 4)
    stored = np.arange(16, dtype=np.uint8).reshape(4, 4, 1) % 2
    image = split.decode(tf.io.encode_png(stored))
    np.testing.assert_array_equal(image, np.repeat(stored * 255, 3, axis=-1))


@pytest.mark.parametrize("name", ["clevr_count", "clevr_distance", "kitti_distance"])
def test_mocked_records_of_many_objects(name: str) -> None:
    objects = {
        "size": tf.zeros(5, tf.int64),
        "pixel_coords": tf.constant([[0.0, 0.0, z] for z in (9.7, 12, 11, 13, 14)]),
        "type": tf.constant([0, 4, 7, 2, 1], tf.int64),
        "location": tf.constant([[0.0, 0.0, z] for z in (30.0, 3, 2, 19, 40)]),
    }

    def as_dataset(builder: Any, split: str, decoders: Any, **_: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors({"image": plain(7), "objects": objects}).repeat(2)

    row = task(name)
    with tfds.testing.mock_data(as_dataset_fn=as_dataset):
        split = TaskSplit("test", row, tfds.builder(row.dataset), "test", 2)
        labels = split.labels()
    expected = {"clevr_count": 2, "clevr_distance": 4, "kitti_distance": 1}[name]
    assert labels.tolist() == [expected, expected]
    assert split.class_names == tuple(map(str, range(row.classes)))


class KvVtab(tfds.core.GeneratorBasedBuilder):
    """1,300 images whose pixels and label encode their number."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        features = {
            "image": tfds.features.Image(shape=(2, 2, 3)),
            "label": tfds.features.ClassLabel(names=["even", "odd"]),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> Any:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Any:
        for i in range(1300):
            yield i, {"image": np.full((2, 2, 3), (i // 256, i % 256, 0), np.uint8), "label": i % 2}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    KvVtab(data_dir=folder).download_and_prepare()
    return folder


OURS = VtabTask("ours", "natural", "kv_vtab", 2, val=("train", 70), test=("train", 90))


def test_prepared_splits_are_disjoint(data_dir: Path) -> None:
    splits = task_splits(OURS, data_dir)
    sizes = {"train800": 800, "val200": 200, "train800val200": 1000, "test": 130}
    assert {name: len(split) for name, split in splits.items()} == sizes
    seen = {}
    for name, split in splits.items():
        pixels = [p[0, 0] for p, *_ in split.images(split.dataset()).as_numpy_iterator()]
        seen[name] = [256 * int(p[0]) + int(p[1]) for p in pixels]
        assert len(set(seen[name])) == sizes[name]
        np.testing.assert_array_equal(split.labels(), np.array(seen[name]) % 2)
    # TFDS reads the parts of a sum alternately.
    assert set(seen["train800val200"]) == set(seen["train800"]) | set(seen["val200"])
    assert not set(seen["train800val200"]) & set(seen["test"])
    shuffled = [number for *_, number in splits["val200"].dataset(shuffle_seed=1).take(9)]
    assert [int(number) for number in shuffled] != list(range(9))


@pytest.mark.parametrize("name", ["cifar100", "retinopathy"])
def test_missing_data_raises_at_once_and_explains_how_to_prepare_it(
    name: str, tmp_path: Path
) -> None:
    started = time.monotonic()
    with pytest.raises(data.DatasetUnavailableError) as caught:
        task_splits(task(name), tmp_path)
    assert time.monotonic() - started < 20
    assert f"is not prepared in {tmp_path}" in str(caught.value)
    assert "`tfds build " in str(caught.value)
    assert ("Kaggle" in str(caught.value)) == (name == "retinopathy")


def mocked_splits(row: VtabTask, data_dir: Any) -> dict[str, str]:
    if data_dir and row.name in data_dir:
        raise data.DatasetUnavailableError(f"{row.name}: not prepared")
    return {name: name for name in ("train800", "val200", "train800val200", "test")}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str, float]]:
    monkeypatch.setattr(vtab, "task_splits", mocked_splits)
    return []


def trainer(calls: list[tuple[str, str, str, float]], fail_at: int | None = None) -> vtab.Train:
    def train(row: VtabTask, train: Any, test: Any, setting: Setting) -> float:
        if fail_at is not None and len(calls) == fail_at:
            raise KeyboardInterrupt
        calls.append((row.name, train, test, setting.learning_rate))
        # The middle learning rate is best on validation; every task has another accuracy.
        return 1 - abs(setting.learning_rate - 0.01) - 0.01 * VTAB_TASKS.index(row)

    return train


SWEEP = tuple(Setting(learning_rate=rate) for rate in (0.003, 0.01, 0.03))


def test_sweep_selects_on_validation_and_tests_once(calls: list, tmp_path: Path) -> None:
    report = run_vtab(trainer(calls), tmp_path, sweep=SWEEP, log=lambda _: None)
    assert len(calls) == 19 * 4
    assert calls[:4] == [
        *(("caltech101", "train800", "val200", rate) for rate in (0.003, 0.01, 0.03)),
        ("caltech101", "train800val200", "test", 0.01),
    ]
    accuracies = 1 - 0.01 * np.arange(19)
    assert report.mean("natural") == pytest.approx(accuracies[:7].mean())
    assert report.mean("specialized") == pytest.approx(accuracies[7:11].mean())
    assert report.mean("structured") == pytest.approx(accuracies[11:].mean())
    assert report.mean() == pytest.approx(accuracies.mean())
    lines = str(report).splitlines()
    assert lines[0].split() == ["natural", "(7)", "97.00%"]
    assert lines[-1].split() == ["mean", "of", "19", "tasks", "91.00%"]
    assert len(lines) == 19 + 3 + 1
    assert "| specialized (4) | 91.50% |" in (tmp_path / "vtab.md").read_text()
    record = json.loads((tmp_path / "svhn.json").read_text())
    assert record["setting"]["learning_rate"] == 0.01


def test_a_single_setting_needs_no_validation(calls: list, tmp_path: Path) -> None:
    run_vtab(trainer(calls), tmp_path, tasks=VTAB_TASKS[:2], log=lambda _: None)
    assert [call[1] for call in calls] == ["train800val200"] * 2
    assert Setting() == Setting(0.01, 2500, 512, 384)  # the ViT paper's


@pytest.mark.parametrize("fail_at", range(0, 8))
def test_a_killed_run_continues_where_it_stopped(calls: list, tmp_path: Path, fail_at: int) -> None:
    options: dict[str, Any] = {"sweep": SWEEP, "tasks": VTAB_TASKS[:2], "log": lambda _: None}
    with pytest.raises(KeyboardInterrupt):
        run_vtab(trainer(calls, fail_at), tmp_path, **options)
    report = run_vtab(trainer(calls), tmp_path, **options)
    assert len(calls) == len(set(calls)) == 8  # nothing twice
    assert report.accuracies == {"caltech101": 1.0, "cifar100": pytest.approx(0.99)}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_missing_data_is_reported_and_leaves_its_group_without_a_mean(
    calls: list, tmp_path: Path
) -> None:
    lines: list[str] = []
    report = run_vtab(trainer(calls), tmp_path, data_dir="svhn", log=lines.append)
    assert "svhn: not prepared" in lines
    assert report.missing == {"svhn": "svhn: not prepared"}
    assert report.mean("natural") is None
    assert report.mean() is None
    assert report.mean("structured") is not None
    assert "| natural (7) | missing |" in report.to_markdown()
    everything = " ".join(row.name for row in VTAB_TASKS)
    with pytest.raises(data.DatasetUnavailableError, match="None of the 19"):
        run_vtab(trainer(calls), tmp_path / "b", data_dir=everything, log=lines.append)


def test_another_programs_table_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "vtab.md").write_text("mine")
    with pytest.raises(FileExistsError, match=r"vtab\.md exists without results"):
        vtab.run_vtab(lambda *_: 0.5, tmp_path, data_dir=tmp_path, log=lambda _: None)
    assert (tmp_path / "vtab.md").read_text() == "mine"


def test_results_of_another_model_are_refused(calls: list, tmp_path: Path) -> None:
    one: dict[str, Any] = {"tasks": VTAB_TASKS[:1], "log": lambda _: None}
    run_vtab(trainer(calls), tmp_path, identity="a", **one)
    with pytest.raises(ValueError, match="holds results of another model or sweep"):
        run_vtab(trainer(calls), tmp_path, identity="b", **one)
    with pytest.raises(ValueError, match="holds results of another model or sweep"):
        run_vtab(trainer(calls), tmp_path, identity="a", sweep=SWEEP, **one)
    (tmp_path / "caltech101.json").write_text('{"accuracy": ')
    with pytest.raises(ValueError, match="is damaged"):
        run_vtab(trainer(calls), tmp_path, identity="a", **one)
    with pytest.raises(ValueError, match="sweep is empty"):
        run_vtab(trainer(calls), tmp_path, sweep=(), **one)
    with pytest.raises(ValueError, match="tasks is empty"):
        run_vtab(trainer(calls), tmp_path, tasks=())


@pytest.mark.parametrize(
    "data_format", ["channels_last", pytest.param("channels_first", marks=pytest.mark.slow)]
)
def test_finetuning_learns(data_format: str) -> None:
    model = keras_vit.VisionTransformer(
        patch_size=4,
        hidden_dim=16,
        depth=1,
        num_heads=2,
        input_shape=(16, 8, 3) if data_format == "channels_last" else (3, 16, 8),
        data_format=data_format,
        num_classes=3,
    )
    before = [np.array(w) for w in model.get_weights()]
    random = np.random.default_rng(0)
    labels = np.arange(64) % 2
    images = (random.integers(0, 60, (64, 12, 20, 3)) + 150 * labels[:, None, None, None]).astype(
        np.uint8
    )
    split = data.ArraySplit("train", ("dark", "light"), images, labels)
    setting = Setting(
        learning_rate=0.1, steps=40, batch_size=32, image_size=8, warmup=5, accumulate=2
    )
    accuracy = finetuning(model, verbose=0)(task("camelyon"), split, split, setting)
    assert accuracy >= 0.95  # chance: 0.5
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)  # a copy was trained


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": float("nan")},
        {"learning_rate": 0.0},
        {"steps": 0},
        {"batch_size": -1},
        {"image_size": 0},
        {"warmup": -1},
        {"accumulate": 0},
        {"accumulate": 3},
        {"seed": -1},
    ],
)
def test_settings_out_of_range(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=f"{name}="):
        replace(Setting(), **change)


@pytest.mark.parametrize("accuracy", [float("nan"), 1.5])
def test_an_invalid_accuracy_is_refused(accuracy: float, calls: list, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"train returned {accuracy} for caltech101"):
        run_vtab(lambda *_: accuracy, tmp_path, tasks=VTAB_TASKS[:1], log=lambda _: None)
    assert not list(tmp_path.iterdir())


def test_command_line(
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = keras_vit.VisionTransformer(
        patch_size=4, hidden_dim=8, depth=1, num_heads=2, input_shape=(8, 8, 3), num_classes=3
    )
    model.save(tmp_path / "m.keras")
    common = [str(tmp_path / "m.keras"), "--vtab", "--data-dir", str(data_dir)]
    out = ["--out", str(tmp_path / "out")]
    quick = ["--steps", "2", "--image-size", "8", "--batch-size", "64"]
    assert cli.main(["evaluate", *common]) == 2
    assert "--vtab needs --out" in capsys.readouterr().err
    assert cli.main(["evaluate", *common, *out, *quick, "--tasks", "svhn"]) == 2
    assert "tfds build svhn_cropped" in capsys.readouterr().out
    monkeypatch.setattr("keras_vit_cli.evaluate.vtab_tasks.VTAB_TASKS", (OURS, task("svhn")))
    assert cli.main(["evaluate", *common, *out, *quick]) == 1
    printed = capsys.readouterr().out
    assert "natural (2)" in printed
    assert "missing" in printed
    assert json.loads((tmp_path / "out" / "ours.json").read_text())["setting"]["steps"] == 2
