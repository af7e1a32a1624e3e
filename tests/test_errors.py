"""Names from a user's files, as they may be printed, and names of arguments."""

import os
from pathlib import Path
from typing import Any

import pytest

from keras_vit._base.errors import check_arguments, printable


def test_what_is_printable() -> None:
    for name, printed in (
        ("photo[final].jpg", "photo[final].jpg"),
        ("Blüte 花.jpg", "Blüte 花.jpg"),
        ("نمی‌خواهم", "نمی‌خواهم"),  # its joiner belongs to the word
        ("C:\\photos", "C:\\photos"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\x9b2Jb", "a\\x9b2Jb"),
        ("one\ntwo\r\t", "one\\ntwo\\r\\t"),
        ("a\x00\x07\x7f", "a\\x00\\x07\\x7f"),
        ("gpj.\u202egnp", "gpj.\\u202egnp"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("tag\U000e0041", "tag\\U000e0041"),
        (os.fsdecode(b"caf\xe9.jpg"), "caf\\xe9.jpg"),
        ("lone \ud800", "lone \\ud800"),
        (Path("a\nb"), "a\\nb"),
    ):
        assert printable(name) == printed
        printable(name).encode()  # no surrogate is left


class Base:
    def __init__(self, *, depth: int = 1) -> None: ...


class Derived(Base):
    def __init__(self, scale: float, **kwargs: Any) -> None: ...


def test_arguments_of_a_base_class_are_accepted_where_they_are_passed_on() -> None:
    check_arguments(Derived, ["scale", "depth"])
    with pytest.raises(ValueError, match=r"Accepted: scale, depth\."):
        check_arguments(Derived, ["deep"])
    with pytest.raises(ValueError, match=r"Accepted: depth\."):
        check_arguments(Base, ["scale"])
