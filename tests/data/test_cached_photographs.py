"""Photographs kept decoded: the same pixels where they are small, Pillow's where they are not."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import data
from keras_vit.data import batch_plan
from keras_vit.data.sources import cached_files
from keras_vit.data.sources.cached_files import cached_photographs, note_of_cache
from keras_vit.training.run_identity import RunMismatchError
from keras_vit_cli.arguments import parse
from keras_vit_cli.options.option import UsageError
from tests import bank
from tests.backend import refused
from tests.data.image_fixtures import photographs

SIDE = 60
SIZES = ((80, 120), (200, 100), (50, 40), (SIDE, 90))  # width, height


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return photographs(tmp_path / "photos", SIZES, 13)


BOTH_READERS = pytest.mark.parametrize("reader", ["tensorflow", "grain"], indirect=True)


@pytest.fixture
def reader(request: pytest.FixtureRequest) -> str:
    """Of the tests that one could change, both."""
    return pytest.importorskip(getattr(request, "param", "tensorflow")).__name__


@pytest.fixture
def split(photos: Path, reader: str) -> Any:
    return data.load(photos, reader=reader).train


@pytest.fixture
def keep(split: Any, tmp_path: Path) -> Any:
    """Caches the split; the cached one, and the lines that were printed."""

    def cached(side: int = SIDE, channels: int = 3) -> tuple[Any, list[str]]:
        lines: list[str] = []
        return cached_photographs(split, side, channels, tmp_path / "cache", lines.append), lines

    return cached


def first_batch(split: Any, **options: Any) -> Any:
    return np.asarray(next(iter(data.pipeline(split, 32, len(split), training=True, **options)))[0])


@BOTH_READERS
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels(split: Any, keep: Any, channels: int) -> None:
    """Small photographs keep theirs; larger ones are Pillow's resize of what it decodes."""
    cached, lines = keep(SIDE, channels)
    assert f"{len(split)} training photographs" in lines[0]
    np.testing.assert_array_equal(cached.labels(), split.labels())
    for place, (now, _) in enumerate(cached.decoded(channels)):
        before = split.pixels(place, channels)
        height, width = before.shape[:2]
        if min(height, width) > SIDE:
            image = Image.fromarray(before[..., 0] if channels == 1 else before)
            scale = SIDE / min(height, width)
            size = round(width * scale), round(height * scale)
            resized = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
            before = resized.reshape(*resized.shape[:2], channels)
        np.testing.assert_array_equal(now, before)


@BOTH_READERS
def test_the_same_crops_and_others_may_read_the_cache(split, keep, tmp_path) -> None:
    """Where nothing is reduced, batches are equal bit for bit; the draws are those of the split."""
    cached, _ = keep(4096)
    # TensorFlow decodes the crop of a JPEG file alone, whose border differs by a few levels.
    kept = first_batch(split.with_decoder("pillow"), cache=True)
    np.testing.assert_array_equal(first_batch(cached), kept)
    np.testing.assert_array_equal(first_batch(cached, cache=True), kept)
    # Ways do not meet, and files have the usual mode, whichever of the threads wrote them.
    ways = [keep(side, channels)[0].files for side in (SIDE, SIDE + 1) for channels in (1, 3)]
    files = {file for files in ways for file in files}
    assert len(files) == 4 * len(split)
    (tmp_path / "usual").touch()
    assert {file.stat().st_mode for file in files} == {(tmp_path / "usual").stat().st_mode}


def test_only_what_changed_is_decoded_again(split: Any, keep: Any, tmp_path: Path) -> None:
    cached, _ = keep()
    written = {file: file.stat().st_mtime_ns for file in cached.files}
    expected = list(cached.decoded())
    (line,) = keep()[1]
    assert "B in " not in line
    cached.files[0].write_bytes(cached.files[0].read_bytes()[:-1])  # a power failure
    cached.files[1].unlink()
    size = cached.files[4].stat().st_size
    for length in (54, size):  # all but the header is zeros
        os.truncate(cached.files[4], length)
    shutil.copy(cached.files[6], cached.files[5])  # of other dimensions
    stat = split.files[2].stat()
    os.utime(split.files[2], ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    again, _ = keep()
    assert again.files[2] != cached.files[2]
    assert again.files[3:] == cached.files[3:]
    assert all(file.stat().st_mtime_ns == written[file] for file in again.files[6:])
    for (now, _), (before, _) in zip(again.decoded(), expected, strict=True):
        np.testing.assert_array_equal(now, before)
    again.files[0].unlink()
    os.mkfifo(again.files[0])
    refused("is a named pipe", keep, error=FileExistsError)


def test_an_interrupted_cache_goes_on(split, keep, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cached_files, "_SECONDS", -1.0)
    monkeypatch.setattr(cached_files, "_AT_ONCE", 2)

    def stop(line: str) -> None:
        if " of " in line and "training" not in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_photographs(split, SIDE, 3, tmp_path / "cache", stop)
    # What a kill left goes, not what another run may be writing, or a file of someone else.
    left = [tmp_path / f"cache/{SIDE}px/00/{name}.bmp" for name in (".a.1.part", ".a.2.part", "a")]
    for file, age in zip(left, (4000, 0, 4000), strict=True):
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, (time.time() - age,) * 2)
    cached, lines = keep()
    assert f"{len(split) - 2} of them are new" in lines[0]
    assert len(list(cached.decoded())) == len(split)
    assert [file.exists() for file in left] == [False, True, True]
    # Space is checked before anything is written.
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refused(r"needs .* kB, and 10 bytes are free in .*KERAS_HOME", keep, SIDE + 1, error=OSError)
    assert not [file for file in tmp_path.glob(f"cache/{SIDE + 1}px/**") if file.is_file()]


def test_a_photograph_that_broke_or_is_gone_is_not_kept(split, keep, capfd) -> None:
    """It is replaced by a gray image, as without a cache; once mended, it is read."""
    contents = split.files[0].read_bytes()
    for damage in (lambda file: file.write_bytes(contents[:100]), lambda file: file.unlink()):
        damage(split.files[0])
        cached, _ = keep()
        assert "replaced by a gray image" in capfd.readouterr().err
        assert [file.exists() for file in cached.files] == [False] + [True] * (len(split) - 1)
    split.files[0].write_bytes(contents)
    assert keep()[0].files[0].exists()


def test_what_cannot_be_kept_and_advice_where_it_pays(photos: Path, tmp_path, monkeypatch) -> None:
    split, digits = data.load(photos).train, data.load("digits").train
    for split_of, side, reason in (
        (digits, SIDE, "memory or records: leave cache"),
        (data.load(photos, verify=False).train, SIDE, "not verified: leave cache"),
        (split, 0, "cache=0 must be"),
    ):
        refused(reason, cached_photographs, split_of, side, 3, tmp_path / "cache", print)
    assert not (tmp_path / "cache").exists()
    words = ["train", "--data", "photos", "--weights", "a.npz", "--cache", "32"]
    for more, reason in (
        (["--freeze-backbone"], "no effect with --freeze-backbone"),
        (["--image-size", "64"], r"below --image-size 64.*give 128"),
    ):
        refused(reason, parse, [*words, *more], error=UsageError)
    # Advised of large photographs that do not fit in memory, and of no others.
    for name in ("_LARGE", "MEMORY_BYTES"):
        assert note_of_cache(split, 20, 3) == ""
        monkeypatch.setattr(cached_files, name, 0)
    assert note_of_cache(split, SIDE, 3) == ""  # not much smaller
    assert "cache=20 decodes them once, into" in note_of_cache(split, 20, 3)


@pytest.mark.backends("torch")
def test_fit(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is said first; another cache is another run; what cannot be right is refused."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    splits, recipe = data.load(photos), keras_vit.recipes.get("digits").scaled(steps=2)
    recipe, lines = replace(recipe, image_size=16, batch_size=4), []

    def fit(cache: int) -> None:
        options = {"cache": cache, "print_fn": lines.append}
        keras_vit.fit(bank.fresh(**bank.TINY), recipe, splits, tmp_path / "run", **options)

    refused("cache=15 pixels are fewer than the image size, 16", fit, 15)
    fit(32)
    assert sum("B in " in line for line in lines) == 1
    assert len(list((tmp_path / "home").rglob("*.bmp"))) == len(splits.train)
    refused("cache", fit, 64, error=RunMismatchError)


@BOTH_READERS
def test_prepared_batches_stay_where_images_are_too_large(photos, reader, monkeypatch) -> None:
    """The second pass of a validation equals the first, and reads no file."""
    splits = data.load(photos, reader=reader)
    expected = [np.asarray(x) for x, _ in data.pipeline(splits.val, 16, 2, cache=False)]
    monkeypatch.setattr(batch_plan, "_decoded_bytes", lambda *_: 1e12)
    batches = data.pipeline(splits.val, 16, 2, cache=None)
    for number in range(2):
        for (images, _), other in zip(batches, expected, strict=True):
            np.testing.assert_array_equal(images, other)
        for file in splits.val.files:
            file.unlink(missing_ok=number > 0)
