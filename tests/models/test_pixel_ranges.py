"""The range of images and of labels, judged by a batch of them alone."""

import re
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest

from keras_vit.data import DataRangeWarning
from keras_vit.trainer.pixel_ranges import check_label_rows, check_pixels
from tests.bank import pixels

PIXELS = pixels(8, 16, 16, 3).astype("float32")
UNIT = PIXELS / 255
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
DIGITS = np.round(UNIT[..., :1] * 16)


def warnings_of(images: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_pixels(images, "vit", **options)
    # At the line of the caller.
    assert {(one.category, one.filename) for one in caught} <= {(DataRangeWarning, __file__)}
    return [str(one.message) for one in caught]


# What is given, what is seen, and the fix.
WRONG: dict[str, tuple[np.ndarray, str, str]] = {
    "0..1": (UNIT, "from 0 to 1,.* scaled to 0..1", r"multiply them by 255.*Rescaling\(255\)"),
    "0..1, one image": (UNIT[:1], "scaled to 0..1", "multiply them by 255"),
    "0..1, half precision": (UNIT.astype("float16"), "scaled to 0..1", "multiply them by 255"),
    "-1..1": (UNIT * 2 - 1, "from -1 to 1", r"Rescaling\(127.5, offset=127.5\)"),
    "ImageNet": ((UNIT - MEAN) / STD, "from -2.12 to 2.64", "include_preprocessing=False"),
    "0..16": (DIGITS, "from 0 to 16,.* scikit-learn's digits", r"Rescaling\(255 / 16\)"),
    "0..16, integers": (DIGITS.astype("int64"), "counted in 16 levels", r"Rescaling\(255 / 16\)"),
    "flat": (100 + UNIT * 9, "from 100 to 109,.* flat: they differ by no more than 16", "stretch"),
    "mean subtracted": (PIXELS - 120, "from -120 to 135,.* centered", "offset=128"),
    "signed bytes": ((PIXELS - 128).astype("int8"), "from -128 to 127,.* centered", "offset=128"),
    "12 bit": (UNIT * 4095, "from 0 to 4095,.* 12 bits", r"Rescaling\(255 / 4095\)"),
    "16 bit": (UNIT * 65535, "from 0 to 65535,.* 16 bits", r"Rescaling\(255 / 65535\)"),
    "uint16": ((UNIT * 65535).astype("uint16"), "from 0 to 65535", r"Rescaling\(255 / 65535\)"),
    "dark uint16": ((UNIT * 300).astype("uint16"), "from 0 to 300", "12 bits, or dark ones in 16"),
    "Hounsfield": (UNIT * 4095 - 1024, "from -1024 to 3071,.* Hounsfield", "np.clip"),
    "micrograms": (UNIT * 1e6, "from 0 to 1000000,.* a scale of their own", "Rescaling"),
}


@pytest.mark.parametrize("case", WRONG)
def test_images_in_another_range_are_one_warning(case: str) -> None:
    images, *says = WRONG[case]
    (message,) = warnings_of(images)
    for words in ("vit takes pixels from 0 to 255", *says):
        assert re.search(words, message), words


DARK = np.random.default_rng(0).poisson(3, (8, 16, 16, 3)).astype("uint8")  # 0 to 12
RIGHT: dict[str, np.ndarray] = {
    "pixels": PIXELS,
    "bytes": PIXELS.astype("uint8"),
    "16-bit integers of bytes": PIXELS.astype("uint16"),
    "dark bytes": DARK,
    "masks in bytes": DARK // 8,
    "one dark photograph": DARK[:1].astype("float32"),
    "one flat photograph": 90 + DARK[:1].astype("float32"),
    "a dark photograph among others": np.concatenate([DARK[:3], PIXELS[:1]]),
    "zeros": np.zeros((8, 16, 16, 3)),
    "ones": np.ones((8, 16, 16, 3)),
    "a color each": np.arange(8.0)[:, None, None, None] + np.zeros((8, 16, 16, 3)),
    "one pixel": np.array([[[[0.3]]]]),
    "overshoot of a cubic resize": np.where(PIXELS < 9, -14, np.where(PIXELS > 240, 270, PIXELS)),
    "none": np.zeros((0, 16, 16, 3)),
}


def test_no_false_alarm_and_one_of_normalized_images() -> None:
    assert {case: warnings_of(images) for case, images in RIGHT.items()} == {k: [] for k in RIGHT}
    for images in (PIXELS, PIXELS.astype("uint8"), PIXELS[:1]):
        (message,) = warnings_of(images, normalized=True)
        assert "range from 0 to 255, and vit takes normalized images, about -3 to 3" in message
        assert "include_preprocessing=True" in message
    (message,) = warnings_of(UNIT * 4095 - 1024, normalized=True)
    assert "not normalized" in message
    for images in (UNIT * 2 - 1, (UNIT - MEAN) / STD, UNIT, (PIXELS - 128) / 10, DARK * 0):
        assert warnings_of(images, normalized=True) == []


def test_what_is_not_finite_is_an_error_and_a_batch_is_warned_of_once() -> None:
    images = UNIT.copy()
    for value, normalized in product((np.nan, np.inf, -np.inf), (True, False)):
        images[3, 2, 1, 0] = value
        with pytest.raises(ValueError, match=rf"hold {value}, first in image 3.*np\.nan_to_num"):
            check_pixels(images, "vit", normalized)
    batches = (PIXELS, np.zeros_like(PIXELS), PIXELS[:0])
    assert [bool(check_pixels(images, "vit")) for images in batches] == [True, False, False]
    warned: set[str] = set()
    shares = (UNIT, UNIT * 0.9, UNIT * 65535)
    assert [len(warnings_of(images, warned=warned)) for images in shares] == [1, 0, 1]


def test_rows_of_labels() -> None:
    rows = np.eye(5)[[0, 2, 4]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smooth, mixed = rows * 0.9 + 0.02, 0.7 * rows + 0.3 * rows[::-1]
        for labels in (rows, rows.astype("uint8"), smooth, mixed.astype("float16"), rows > 0):
            check_label_rows(labels, "the loss")
    for labels, seen in ((rows * 2 - 1, "from -1 to 1"), (rows * 3, "from 0 to 3")):
        with pytest.warns(DataRangeWarning, match=f"{seen}, and the loss takes 0 to 1") as caught:
            check_label_rows(labels, "the loss")
        assert len(caught) == 1
    with pytest.raises(ValueError, match=r"labels hold nan.*sample_weight"):
        check_label_rows(np.where(rows, np.nan, 0), "the loss")
