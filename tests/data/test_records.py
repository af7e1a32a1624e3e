"""Files of records and TensorFlow Datasets: found, read, resumed, damaged in every way, offline."""

import gzip
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.data import DamagedShardError, DatasetUnavailableError, RecordSplit, load, pipeline
from keras_vit.data.sources.records import Records, Shard, open_records
from keras_vit.evaluation.unseen_images import unseen_images
from tests import bank
from tests.backend import refused
from tests.data import image_fixtures
from tests.data.image_fixtures import example, levels, one_quick, plain, write_examples
from tests.examples import load_example

tf, tfds = map(pytest.importorskip, ("tensorflow", "tensorflow_datasets"))
op_error = partial(refused, error=tf.errors.OpError)
unavailable = partial(refused, error=DatasetUnavailableError)
array_record = pytest.importorskip("array_record.python.array_record_module")
COUNT = 23
NAMES = "".join(f"number {i}\n" for i in range(128))


def examples(start: int = 0, count: int = COUNT) -> list[tuple[bytes, int]]:
    """Gray images whose level is their number, and so is their label."""
    return [(plain(i), i) for i in range(start, start + count)]


def write_array_record(file: Path, records: list[tuple[bytes, int]]) -> None:
    writer = array_record.ArrayRecordWriter(str(file), "group_size:1")
    for image, label in records:
        writer.write(example(image, label))
    writer.close()


TWO_SPLITS = {"train": examples(), "validation": examples(100, 5)}
WRITERS = {"tfrecord": write_examples, "array_record": write_array_record}
Folder = Callable[..., Path]
BYTES = [example(*pair) for pair in examples()]
SECOND, FIRST_SHARD = len(BYTES[16]) + 16, sum(len(record) + 16 for record in BYTES[:8])
DAMAGE: dict[str, tuple[int, Callable[[bytes], bytes], str]] = {
    "cut by 1": (1, lambda shard: shard[:-1], "truncated"),
    "cut by a record": (1, lambda shard: shard[: -len(BYTES[15]) - 11], "truncated"),
    # Of the second record: its length, and its data, which follow 12 bytes.
    "a length": (2, lambda shard: flipped(shard, SECOND + 1), f"corrupted record at {SECOND} "),
    "data": (2, lambda shard: flipped(shard, SECOND + 40), f"corrupted record at {SECOND + 12} "),
    "zeros at the end": (0, lambda shard: shard + bytes(32), f"corrupted record at {FIRST_SHARD}"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Writes `{name: records}` in shards, with labels.txt."""

    def write(kind: str = "tfrecord", splits: Any = TWO_SPLITS, shards=3, where="data") -> Path:
        place = tmp_path / where
        place.mkdir()
        for name, records in splits.items():
            for i, part in enumerate(np.array_split(np.arange(len(records)), shards)):
                file = place / f"{name}.{kind}-{i:05}-of-{shards:05}"
                WRITERS[kind](file, [records[j] for j in part])
        (place / "labels.txt").write_text(NAMES)
        return place

    return write


def labels(split: Any, **order: Any) -> list[int]:
    """The labels in the order of a pass; nothing is decoded."""
    read = split.dataset(**order).map(lambda example, label: split.read(example, label)[1])
    return [int(label) for label in read]


@pytest.mark.parametrize("kind", WRITERS)
def test_folders_of_splits_or_one_group_and_a_run_that_goes_on(folder: Folder, kind: str) -> None:
    splits = load(folder(kind))
    assert repr(splits).endswith(", 128 classes: train 23, val 5)")
    assert levels(pipeline(splits.train, 8, 4)) == list(range(COUNT))
    np.testing.assert_array_equal(splits.val.labels(), np.arange(100, 105))
    image_fixtures.check_stopped_run(splits.train, 4, 14, (8,))  # two passes over 23, and more
    place = folder(kind, {"part": examples()}, where="group")
    splits = load(place, val_fraction=0.3)
    train, val = (labels(splits[name]) for name in ("train", "val"))
    assert (len(train), len(val)) == (16, 7)
    assert sorted(train + val) == list(range(COUNT))
    assert labels(load(place, val_fraction=0.3).val) == val
    assert labels(load(place, val_fraction=0.3, seed=1).val) != val


def test_the_order_of_every_pass_whatever_the_format_and_the_shards(folder: Folder) -> None:
    ways = [("tfrecord", 3), ("array_record", 3), ("tfrecord", 1)]
    ways += [("array_record", 30), ("tfrecord", 30)]  # some of them are empty
    splits = [load(folder(kind, shards=n, where=f"{kind}{n}")).train for kind, n in ways]
    orders = [labels(split, shuffle_seed=0, epoch=1) for split in splits]
    assert orders == [orders[0]] * len(ways)
    assert labels(splits[0], shuffle_seed=1, epoch=1) != orders[0]
    split, epochs = splits[0], tf.data.Dataset.range(200)
    passes = epochs.flat_map(lambda epoch: split.dataset(0, epoch=epoch).batch(COUNT))
    orders, no_labels = map(np.array, zip(*passes.as_numpy_iterator(), strict=True))
    assert (np.sort(orders) == np.arange(COUNT)).all()
    assert len(np.unique(orders, axis=0)) == 200
    assert (no_labels == -1).all()  # they are in the records
    # Each image is as often in each place: 200 passes and 23 x 23 pairs, chi-square.
    counts = np.zeros((COUNT, COUNT))
    np.add.at(counts, (orders, np.arange(COUNT)), 1)
    expected, freedom = 200 / COUNT, (COUNT - 1) ** 2
    assert abs(((counts - expected) ** 2 / expected).sum() - freedom) < 5 * np.sqrt(2 * freedom)
    # As many as ImageNet-21k has, of which none is read.
    millions = Records([Shard("none", 0, 14_197_122, 14_197_122)], [])
    split = RecordSplit("train", ("a", "b"), millions, lambda record: (record, 0))
    count, began = len(split), time.monotonic()
    first = [int(i) for i, *_ in split.dataset(shuffle_seed=0, start=1000).take(100)]
    last = [int(i) for i, *_ in split.dataset(shuffle_seed=0, start=count - 100)]
    assert time.monotonic() - began < 5  # all of them would take longer
    assert (len(last), len({*first, *last})) == (100, 200)


def test_where_records_may_be_and_a_parser_of_ones_own(tmp_path: Path) -> None:
    for name in ("Train", "dev", "testing"):
        (tmp_path / name).mkdir()
        write_examples(tmp_path / name / "0.tfrecords", examples(count=4), "image", "label")
    (tmp_path / "coarse_label.labels.txt").write_text("x\ny\n")  # as of cifar100
    (tmp_path / "label.labels.txt").write_text(NAMES)
    splits = load(tmp_path)
    assert (list(splits), labels(splits["test"])) == (["train", "val", "test"], [0, 1, 2, 3])
    assert len(load(f"records:{tmp_path}/Train/*", val_fraction=None)["all"]) == 4
    with pytest.warns(match="and not val: test is validated on"):
        assert list(load(f"records:{tmp_path}/[Tt]*/*")) == ["train", "val"]
    for source in ("dev/*", "dev"):
        only_val = load(f"records:{tmp_path}/{source}", val_fraction=0.25)
        assert {name: len(part) for name, part in only_val.items()} == {"train": 3, "val": 1}
        for words, line in (({}, "val: 4 images"), ({"split": "all"}, "all: 4 images")):
            scored = unseen_images(bank.tiny(), f"records:{tmp_path}/{source}", **words)
            assert scored.line.startswith(line)
    scored = unseen_images(bank.tiny(), f"records:{tmp_path}/dev", fits=True, own_classes=False)
    assert (len(scored.split), len(scored.train or ())) == (1, 3)
    job = {"data": f"records:{tmp_path}/dev", "val_fraction": 0.5}
    (tmp_path / "config.json").write_text(json.dumps({"job": job}))  # of a run on these alone
    assert unseen_images(bank.tiny(), path=tmp_path).line.startswith("val: 2 images")
    # TensorFlow turns Python's `if` of a tensor into a graph's, as in any `map`.
    text, number = (tf.io.FixedLenFeature((), kind) for kind in (tf.string, tf.int64))

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(record, {"image": text, "label": number})
        label = parsed["label"]
        if label > 0:
            label = tf.ones_like(label)
        return parsed["image"], label

    records = open_records([str(tmp_path / "dev/0.tfrecords")])
    split = RecordSplit("train", ("none", "some"), records, parse)
    assert next(iter(pipeline(split, 8, 4)))[1].numpy().tolist() == [0, 1, 1, 1]


def flipped(contents: bytes, byte: int) -> bytes:
    return contents[:byte] + bytes([contents[byte] ^ 0x40]) + contents[byte + 1 :]


@pytest.mark.parametrize("case", one_quick(DAMAGE))
def test_a_damaged_shard_is_refused_before_training(folder: Folder, case: str) -> None:
    shard, change, message = DAMAGE[case]
    place = folder()
    file = place / f"train.tfrecord-0000{shard}-of-00003"
    file.write_bytes(change(file.read_bytes()))
    refused(f"{file.name} is damaged: {message}", load, place, error=DamagedShardError)


def test_features_labels_and_files_that_do_not_fit(tmp_path: Path) -> None:
    names, file = tmp_path / "labels.txt", tmp_path / "train.tfrecord"
    write_examples(file, examples(), "pixels", "class")
    refused("labels.txt is missing", load, tmp_path, error=FileNotFoundError)
    features = r"the features class, pixels; .* expected as image/enc"
    names.write_text(NAMES)
    refused(features, load, tmp_path)
    names.write_text("\na\nb\n")
    refused("labels.txt, line 1, is empty", load, tmp_path)
    names.write_text("a\nb\nc\nd\ne\n")
    write_examples(file, examples(count=6))
    splits = load(tmp_path)
    op_error("record 5 has the label 5, but the 5", lambda: [p.labels() for p in splits.values()])
    compressed = gzip.compress(file.read_bytes())
    image_fixtures.write_records(file, [b"not an example"] * 4)
    for content, error, message in (
        (compressed, DamagedShardError, r"train.tfrecord is damaged: .* compressed\?"),
        (b"a text that is long enough" * 2, DamagedShardError, "Is this even a TFRecord file"),
        (file.read_bytes(), DamagedShardError, r"record 0 is not a tf.train.Example"),
        (b"", ValueError, "train hold 0 records: too few"),
    ):
        file.write_bytes(content)
        refused(message, load, tmp_path, error=error)
    write_array_record(tmp_path / "train.array_record", examples())
    refused(r"is an ArrayRecord file and .*train.tfrecord is not", load, tmp_path)


def test_damaged_array_records_and_missing_files(folder: Folder, tmp_path: Path) -> None:
    place = folder("array_record")
    file = place / "train.array_record-00001-of-00003"
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    refused(rf"{file.name} is damaged: ", load, place, error=DamagedShardError)
    file.write_bytes(flipped(content, 200))  # in one of the first records
    op_error(rf"{file.name}, record \d is damaged: .* at byte \d+", load(place).train.labels)
    place, shard = folder(where="missing"), "train.tfrecord-00001-of-00003"
    (place / shard).unlink()
    refused(rf"1 of 3 files are missing, .*{shard}", load, place, error=FileNotFoundError)
    write_examples(place / "more.tfrecord", examples())
    (place / shard).touch()
    refused("belongs neither to train, val nor test", load, place)


def test_an_image_that_does_not_decode_is_replaced_or_an_error(folder: Folder, capfd) -> None:
    records = [(plain(9)[:-20], 1), *examples(count=3)]
    for kind in WRITERS:
        place = folder(kind, {"train": records, "val": records}, shards=1, where=kind)
        assert levels(pipeline(load(place).train, 8, 4)) == [127, 0, 1, 2]
        printed = capfd.readouterr().err
        assert f"train.{kind}-00000-of-00001, record 0" in printed
        assert "the PNG file is damaged or incomplete; replaced by a gray image" in printed
    large = "20 x 16 pixels, more than max_pixels=20"
    for max_pixels, reason in ((None, "the PNG file is damaged"), (20, large)):
        split = load(place, on_bad_file="raise", max_pixels=max_pixels).train
        op_error(f"BadImageError: .*, record 0: .*{reason}", list, pipeline(split, 8, 4))


def test_large_tfrecord_files_are_converted_once(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("keras_vit.data.sources.records.MEMORY_GIB", 1e-6)
    place = folder()
    refused(r"train.tfrecord-00000-.*/to_array_record.py /", load, place)
    convert = load_example("to_array_record").main
    words = [str(place), "--out", str(tmp_path / "converted")]
    convert(words)
    again = load(tmp_path / "converted")
    monkeypatch.undo()
    before = load(place)
    assert again.class_names == before.class_names
    for name, split in before.items():
        order = {"shuffle_seed": 0, "epoch": 1}
        assert labels(again[name], **order) == labels(split, **order)
    converted = next((tmp_path / "converted").glob("train.array_record-00001-of-00003"))
    moment = converted.stat().st_mtime_ns
    convert(words)  # goes on where it stopped
    assert converted.stat().st_mtime_ns == moment
    # TensorFlow leaves out a record whose header is cut off, and says nothing.
    file = next(place.glob("train.tfrecord-00000-*"))
    file.write_bytes(file.read_bytes() + b"\x08\x00\x00")
    words[-1] = str(tmp_path / "new")
    refused("truncated record at its end", convert, words, error=DamagedShardError)
    assert not list((tmp_path / "new").glob("*array_record-00000-*"))


class Tiny(tfds.core.GeneratorBasedBuilder):
    """20 gray images whose level is their number; the label is the number modulo 2."""

    VERSION = tfds.core.Version("1.0.0")
    SPLITS = ("train",)
    LABEL = tfds.features.ClassLabel(names=["even", "odd"])

    def _info(self):
        features = {"image": tfds.features.Image(shape=(None, None, 3)), "label": self.LABEL}
        info = {"features": tfds.features.FeaturesDict(features), "supervised_keys": (*features,)}
        return tfds.core.DatasetInfo(builder=self, **info)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples() for split in self.SPLITS}

    def _generate_examples(self):
        for i in range(20):
            yield i, {"image": np.full((10 + i, 12, 3), i, np.uint8), "label": i % 2}


SPLITS = ("train", "validation", "test")
KINDS: Any = {"KvOneSplit": {}, "KvThreeSplits": {"SPLITS": SPLITS}, "KvParquet": {}}
KINDS |= {name: {"SPLITS": SPLITS[::2]} for name in ("KvTwoSplits", "KvArrayRecord")}
KINDS |= {"KvTestAlone": {"SPLITS": SPLITS[2:]}, "KvNoTrain": {"SPLITS": SPLITS[1:]}}
KINDS["KvNoLabels"] = {"LABEL": tfds.features.Scalar(tf.int64)}
BUILDERS = {name: type(name, (Tiny,), options) for name, options in KINDS.items()}
FORMATS = {"KvArrayRecord": "array_record", "KvParquet": "parquet"}


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))


def test_splits_what_is_refused_and_prepared_folders(tmp_path: Path, monkeypatch) -> None:
    data_dir = tmp_path / "tfds"
    for name, builder in BUILDERS.items():
        options = {"file_format": FORMATS[name]} if name in FORMATS else {}
        builder(data_dir=data_dir, **options).download_and_prepare()
    splits = load("kv_one_split", data_dir=data_dir, val_fraction=0.25)
    assert repr(splits) == "Splits('kv_one_split', 2 classes: train 15, val 5)"
    train, val = (levels(pipeline(split, 8, 4)) for split in (splits.train, splits.val))
    assert sorted(train + val) == list(range(20))
    assert (len(train), len(val)) == (15, 5)
    assert splits.val.labels().tolist() == [n % 2 for n in val]
    two, three = (load(f"kv_{count}_splits", data_dir=data_dir) for count in ("two", "three"))
    assert (two.train.tfds_split, two.val.tfds_split, len(two)) == ("train", "test", 2)
    names = {"train": "train", "val": "validation", "test": "test"}
    assert {name: split.tfds_split for name, split in three.items()} == names
    assert len(load("kv_test_alone", data_dir=data_dir).train) == 16  # as of any single split
    whole = [("kv_three_splits", [*three]), ("kv_one_split", ["all"]), ("kv_test_alone", ["test"])]
    for name, parts in [*whole, ("kv_no_train", ["val", "test"])]:
        assert list(load(name, data_dir=data_dir, val_fraction=None)) == parts
    for name, message in (
        ("kv_no_train", "the splits validation, test and no train: there is nothing"),
        ("kv_no_labels", "'kv_no_labels' does not have pairs of an image and a class"),
        ("kv_parquet", r"prepared as parquet files, .* tfds build kv_parq"),
        ("tf_flower", "'tf_flower' is neither 'digits', nor a TFDS .*did you mean tf_flowers"),
        ("zzz", "'zzz' is neither 'digits', nor a TFDS .*lists all"),
    ):
        refused(message, load, name, data_dir=data_dir)
    folder = next(path.parent for path in data_dir.glob("kv_array_record/*/dataset_info.json"))
    by_folder, by_name = load(folder), load("kv_array_record", data_dir=data_dir)
    assert levels(pipeline(by_folder.val, 8, 4)) == levels(pipeline(by_name.val, 8, 4))
    folder = next(path.parent for path in data_dir.glob("kv_two_splits/*/dataset_info.json"))
    copy = shutil.copytree(folder, tmp_path / "copy")
    file = next(copy.glob("*train*"))
    records = list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
    image_fixtures.write_records(file, records[:-1])
    refused("has 19 records and not the 20 that were written", load, copy, error=DamagedShardError)
    expected = levels(pipeline(load("kv_two_splits", data_dir=data_dir).train, 8, 4, training=True))
    monkeypatch.setattr("keras_vit.data.sources.records.MEMORY_GIB", 1e-6)
    refused(r"TFRecord files of .*/to_array_record.py /", load, "kv_two_splits", data_dir=data_dir)
    prepared = tmp_path / "prepared"
    shutil.copytree(data_dir / "kv_two_splits", prepared / "kv_two_splits")
    load_example("to_array_record").main([str(prepared), "--out", str(tmp_path / "new")])
    converted = load("kv_two_splits", data_dir=tmp_path / "new").train
    assert levels(pipeline(converted, 8, 4, training=True)) == expected


def test_misspelled_folders_are_proposed_first_and_offline_says_so(tmp_path, monkeypatch) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / ".photo").mkdir()  # hidden folders do not hold images
    monkeypatch.chdir(tmp_path)
    refused(r"did you mean photos\b", load, "photo")
    refused(r"Did you mean .*photos\?", load, f"{tmp_path}/phots", error=FileNotFoundError)
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")  # the discard port: nobody answers
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    # urllib keeps the first opener of a process, proxies included: not this one.
    monkeypatch.setattr("urllib.request._opener", None)
    start = time.monotonic()
    unavailable("is not prepared .* cannot be downloaded", load, "tf_flowers", data_dir=tmp_path)
    # A host that neither answers nor refuses: the probe has to end by itself.
    monkeypatch.setattr("keras_vit.data.sources.tfds._PROBE_SECONDS", 0.1)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: time.sleep(30))
    unavailable("cannot be reached", load, "tf_flowers", data_dir=tmp_path)
    assert time.monotonic() - start < 8


def test_downloads_get_an_index_and_fail_with_one_error(tmp_path: Path, monkeypatch) -> None:
    def fail(*_, **__):
        raise ConnectionError("the host hung up")

    monkeypatch.setattr("keras_vit.data.sources.tfds._online", lambda: True)
    assert len(load("kv_two_splits", data_dir=tmp_path).train) == 20
    assert list(tmp_path.glob("kv_two_splits/*/*.array_record*"))
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    unavailable("could not be .*: the host hung up", load, "tf_flowers", data_dir=tmp_path)
