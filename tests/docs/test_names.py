"""The first page of the reference has every public name, and says something of each."""

import re

import keras_vit
from docs.tools.names import ROOMS, markdown


def test_every_public_name_has_a_line() -> None:
    sections = re.split(r"^## ", markdown(), flags=re.M)[1:]
    assert len(sections) == len(ROOMS) == len(set(ROOMS))
    for room, section in zip(ROOMS, sections, strict=True):
        module = keras_vit
        for part in room.split(".")[1:]:
            module = getattr(module, part)
        rows = re.findall(r"^\| `(\w+)` \| (\S.{5,}) \|$", section, flags=re.M)
        assert [name for name, _ in rows] == list(module.__all__), room
        assert all(line.count("`") % 2 == 0 for _, line in rows), room
