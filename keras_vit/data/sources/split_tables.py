"""Labels that lie in each split's folder, as Hugging Face, Roboflow and others write them."""

import os
from pathlib import Path

from keras_vit._base.errors import listed, printable
from keras_vit.data.sources.split_names import folders_in, split_of
from keras_vit.data.sources.table_files import SUFFIXES, Table, read_table


def files_of_splits(folder: Path, name: str | os.PathLike[str]) -> list[Path]:
    """Return `FOLDER/train/NAME`, `FOLDER/val/NAME` and so on; none without the one of train."""
    if not folder.is_dir() or len(Path(name).parts) != 1:
        return []
    files = [part / name for part in folders_in(folder) if split_of(part.name)]
    there = [file for file in files if file.is_file()]
    return there if any(split_of(file.parent.name) == "train" for file in there) else []


def labels_in_splits(folder: Path) -> str:
    """Return a hint where the folder of a split has its labels; or ""."""
    for part in folders_in(folder):
        for file in sorted(part.iterdir()) if split_of(part.name) else ():
            if file.suffix.lower() in (*SUFFIXES, ".json") and files_of_splits(folder, file.name):
                place = printable(f"{part.name}/{file.name}")
                return f" There is {place}: is it the labels? Then give labels={file.name!r}."
    return ""


def read_tables_of_splits(folder: Path, name: str | os.PathLike[str]) -> Table:
    """Return the tables of all splits as one, with paths from the folder, and a column `split`.

    Raises:
        ValueError: They differ in their columns.
    """
    files = files_of_splits(folder, name)
    tables = [read_table(file) for file in files]
    columns = list(tables[0].columns)
    joined = Table(folder / name, {column: [] for column in columns}, [], {})
    has_split = any(column.lower() == "split" for column in columns)
    if not has_split:
        joined.columns["split"] = []
    for table in tables:
        if set(table.columns) != set(columns):
            others = sorted(set(table.columns) ^ set(columns))
            raise ValueError(
                f"{printable(table.path)} and {printable(files[0])} do not have the same columns: "
                f"{printable(listed(others))} is in one of them."
            )
        part = table.path.parent
        first = len(joined.places)
        for column in columns:
            cells = table.columns[column]
            texts = [cell for cell in cells[:100] if isinstance(cell, str) and cell]
            files_there = sum(os.path.isfile(os.path.join(part, text)) for text in texts)
            is_path = bool(texts) and 2 * files_there >= len(texts)
            joined.columns[column] += [
                f"{part.name}/{cell}" if is_path and cell else cell for cell in cells
            ]
        if not has_split:
            joined.columns["split"] += [part.name] * len(table.places)
        joined.places.extend(f"{part.name}/{table.path.name}, {place}" for place in table.places)
        joined.broken.update((first + row, reason) for row, reason in table.broken.items())
    return joined
