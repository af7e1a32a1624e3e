"""TensorFlow Datasets: prepared data, slices, and being offline."""

import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.data import DamagedShardError, DatasetUnavailableError, load, pipeline
from tests.backend import refused
from tests.data.image_fixtures import levels, write_records
from tests.examples import load_example

unavailable = partial(refused, error=DatasetUnavailableError)
tf, tfds = map(pytest.importorskip, ("tensorflow", "tensorflow_datasets"))


class _Tiny(tfds.core.GeneratorBasedBuilder):
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
KINDS["KvNoLabels"] = {"LABEL": tfds.features.Scalar(tf.int64)}
BUILDERS = {name: type(name, (_Tiny,), options) for name, options in KINDS.items()}
FORMATS = {"KvArrayRecord": "array_record", "KvParquet": "parquet"}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    for name, builder in BUILDERS.items():
        options = {"file_format": FORMATS[name]} if name in FORMATS else {}
        builder(data_dir=folder, **options).download_and_prepare()
    return folder


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))


def test_splits_what_is_refused_and_prepared_folders(data_dir, tmp_path, monkeypatch) -> None:
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
    for name, parts in (("kv_three_splits", [*three]), ("kv_one_split", ["all"])):
        assert list(load(name, data_dir=data_dir, val_fraction=None)) == parts
    for name, message in (
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
    write_records(file, list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())[:-1])
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
