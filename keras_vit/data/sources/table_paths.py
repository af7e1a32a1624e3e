"""From the paths in a table to files of a folder, also where a path is written otherwise."""

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from keras_vit._base.errors import ReportedWarning, counted, printable, warn_at_caller
from keras_vit.data.decode.image_files import irregular
from keras_vit.data.decode.image_kinds import is_hidden
from keras_vit.data.sources.table_cells import shown
from keras_vit.data.sources.table_files import Cell, Unusable

_MOST = 3  # files that may be meant, in an error


class Match(NamedTuple):
    """The files that a path may mean, relative to the folder.

    Attributes:
        files: Those of which the path is the end; else the one that is the end of the path.
        above: What the path has before that one.
    """

    files: Sequence[str] = ()
    above: str = ""


class ImageFolder:
    """Finds the files of a folder by the paths of a table.

    A path that does not exist may be written otherwise: with backslashes, in another case or form
    of Unicode, without the suffix, from the root of another machine, or from above or below the
    folder. It means the file whose path is its end, or of whose path it is the end, where there is
    one alone.

    Args:
        suffixes: Of the files that are meant by paths written otherwise, in lower case.
    """

    def __init__(self, folder: Path, suffixes: Sequence[str]) -> None:
        self.folder, self.suffixes = folder, tuple(suffixes)
        self._root = os.path.abspath(folder)
        self._start = os.path.join(self._root, "")

    def find(self, cell: Cell) -> tuple[Path, str]:
        """Return the file of this very path, and, where it cannot be used, the reason."""
        if not isinstance(cell, str) or isinstance(cell, Unusable):
            return self.folder, f"{shown(cell)} is not one file"
        # As text: what ".." means must not depend on where a link leads.
        path = os.path.normpath(os.path.join(self._root, cell))
        if not path.startswith(self._start):
            return self.folder, f"{shown(cell)} is not in {printable(self.folder)}"
        file = self.folder / path.removeprefix(self._start)
        if os.path.isfile(path):
            return file, ""
        kind = irregular(file) if os.path.exists(path) else None
        return file, f"{shown(cell)} is {kind or f'not a file in {printable(self.folder)}'}"

    def find_all(
        self, cells: Sequence[Cell], name: str, bad: dict[int, str]
    ) -> tuple[list[Path], list[str]]:
        """Return each cell's file, and a note, also a warning, if any paths had to be corrected.

        Args:
            bad: Takes the reasons of the rows that do not have a file.
        """
        files, matches = [], {}
        for row, cell in enumerate(cells):
            file, reason = self.find(cell)
            files.append(file)
            if reason and row not in bad:
                bad[row] = reason if cell else f"the cell of {name!r} is empty"
                matches[row] = self.match(cell)
        # Several beginnings would be several folders, of which this one is not all.
        above = {match.above for match in matches.values() if len(match.files) == 1} - {""}
        examples = []
        for row, (near, beginning) in matches.items():
            if len(near) == 1 and (len(above) == 1 or not beginning):
                files[row] = self.folder / near[0]
                examples.append(f"{shown(cells[row])} as {printable(near[0])}")
                del bad[row]
            elif near := near or self.near(cells[row]):
                bad[row] += f", where there is {printable(' and '.join(near[:_MOST]))}"
        if not examples:
            return files, []
        count = counted(len(examples), "path")
        note = f"{count} of {name!r} taken for the only file that fits, such as {examples[0]}"
        warn_at_caller(note, ReportedWarning)
        return files, [note]

    def is_file(self, cell: Cell) -> bool:
        """Return whether a cell is the path of a file."""
        return not self.find(cell)[1]

    def has(self, cell: Cell) -> bool:
        """Return whether a cell means one file, perhaps in another way of writing."""
        return self.is_file(cell) or len(self.match(cell).files) == 1

    def match(self, cell: Cell) -> Match:
        """Return the files that a path may mean where it is written otherwise."""
        path = _fold(cell) if isinstance(cell, str) else ""
        parts = [part for part in re.split(r"[\\/]+", path) if part not in ("", ".")]
        if not parts or ".." in parts:
            return Match()
        ends, whole = self._images
        if files := ends.get("/".join(parts)):
            return Match(files)
        is_rooted = re.match(r"[\\/]|[a-z]+:", path)  # of a machine
        for start in range(1, len(parts)):
            files = whole.get("/".join(parts[start:]), [])
            if files and (is_rooted or parts[start - 1] == _fold(os.path.basename(self._root))):
                return Match(files, "/".join(parts[:start]))
        return Match()

    def near(self, cell: Cell) -> Sequence[str]:
        """Return files of the same name, where they are few; else of one that a tool may change.

        It has another suffix, zeros that a spreadsheet dropped, or `%20`, or Label Studio's digits.
        """
        path = _fold(unquote(cell)) if isinstance(cell, str) else ""
        name = re.sub(r"^[\da-f]{8}-", "", re.split(r"[\\/]+", path)[-1])
        stem = os.path.splitext(name)[0]
        zeros = ["0" * n + stem for n in range(1, 10)] if stem.isdigit() else []
        ends = self._images[0]
        files = next((ends[each] for each in (name, stem, *zeros) if each in ends), [])
        return files if len(files) <= _MOST else ()

    @cached_property
    def _images(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """The images below the folder by the ends of their paths, and by whole paths.

        With and without the suffix.
        """
        ends: dict[str, list[str]] = defaultdict(list)
        whole: dict[str, list[str]] = defaultdict(list)
        for place, folders, names in os.walk(self._root):
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            for name in sorted(name for name in names if not is_hidden(name)):
                path = os.path.join(place, name)
                file = os.path.relpath(path, self._root).replace(os.sep, "/")
                stem, suffix = os.path.splitext(_fold(file))
                if suffix not in self.suffixes or not os.path.isfile(path):
                    continue
                for key in (stem, stem + suffix):
                    whole[key].append(file)
                    parts = key.split("/")
                    for start in range(len(parts)):
                        ends["/".join(parts[start:])].append(file)
        return ends, whole


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", text).lower()
