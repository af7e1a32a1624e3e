"""`keras-vit search` and `cluster`: the photographs of an index that are like other ones."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from keras_vit import load
from keras_vit._base.errors import counted, printable
from keras_vit._base.files import cache_folder
from keras_vit.curation import Clusters, FeatureIndex, SearchResult, find_clusters, find_similar
from keras_vit.weights.catalog import find_named
from keras_vit_cli.options.photo_options import ClusterOptions, SearchOptions
from keras_vit_cli.printing import print_table, print_text, print_unreadable
from keras_vit_cli.search.result_page import Card, Section, check_page, write_result_page
from keras_vit_cli.search.result_table import (
    CLUSTER_COLUMNS,
    SEARCH_COLUMNS,
    label_of,
    write_csv,
)

MOST_CLUSTERS = 100  # on the page, the largest; the table has all


def search(options: SearchOptions) -> int:
    """Prints or writes the most similar; the exit status is 1 where files cannot be read.

    Raises:
        DamagedIndexError: `index` is something else, or damaged.
        IndexMismatchError: The model is not that of the index.
        FileExistsError: See `check_page`.
        ValueError: No file can be read.
    """
    out = options.out
    if out is not None:
        check_page(out, options.overwrite)
    index = FeatureIndex.open(options.index)
    # The model on the command line, or the one that the index notes.
    result = find_similar(
        index, options.files, options.top, lambda: load(options.model or _noted_model(index))
    )
    print_unreadable(result.failed)
    if not result.files:
        raise ValueError("No photograph could be read: see the reasons above.")
    _note_changed(index, np.unique(result.nearest.rows).tolist())
    if out is None:
        print_table(_table(index, result))
    else:
        title = f"Like {result.files[0].name}" if len(result.files) == 1 else "Similar photographs"
        sections, failed = sections_of(index, result), result.failed
        write_result_page(out, title, facts_of(index), sections, failed, index.bands)
        _write_table(out, SEARCH_COLUMNS, _rows(index, result))
    return 1 if result.failed else 0


def _note_changed(index: FeatureIndex, rows: Iterable[int]) -> None:
    """Print how many of the results are not the files that the features are of."""

    def is_same(row: int) -> bool:
        try:
            return os.stat(index.path(row)).st_size == index.sizes[row]
        except OSError:
            return False

    if changed := [index.files[row] for row in rows if not is_same(row)]:
        print_text(
            f"note: {counted(len(changed), 'photograph')} of the results, such as "
            f"{printable(changed[0])}, moved, deleted or changed since the index was made: "
            "keras-vit embed renews it"
        )


def _write_table(page: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    table = page.with_suffix(".csv")
    write_csv(table, columns, rows)
    print_text(f"written to {page} and {table}\nnext: open {page} in a browser")


def facts_of(index: FeatureIndex) -> str:
    """Return what an index is, in a line."""
    info = index.info
    pooling = f", {info['pooling']} of its tokens" if info["pooling"] else ""
    return (
        f"{counted(len(index), 'photograph')} of {index.photos}, by {info['layer']} of "
        f"{info['model']}{pooling}"
    )


def _noted_model(index: FeatureIndex) -> Path | str:
    """Return the file that an index names, or its released weights, where it may choose them.

    Others may have made the index: it leads neither to files elsewhere nor to a download.
    """
    folder, source = index.folder, index.info.get("source")
    if source is None:
        raise ValueError(f"{printable(folder)} does not note where its model is: give --model.")
    path = Path(os.path.realpath(folder / source))
    places = Path(os.path.realpath(folder)).parent, Path.cwd()
    row = None if path.exists() else find_named(source)
    if row is not None and (cache_folder() / row.file_name).is_file():
        return source
    if row is None and any(path.is_relative_to(place) for place in places):
        return path
    reason = "lies neither beside it nor in this folder" if row is None else "would be downloaded"
    shown = printable(path if row is None else source)
    raise ValueError(
        f"{printable(folder)} names the model {shown}, which {reason}: if you trust it, give "
        f"--model {shown}"
    )


def _rows(index: FeatureIndex, result: SearchResult) -> Iterator[tuple[str | int | float, ...]]:
    for i, file in enumerate(result.files):
        rows, similarities = result.nearest.rows[i], result.nearest.similarities[i]
        for rank, (row, cosine) in enumerate(zip(rows, similarities, strict=True), 1):
            cells = (index.files[row], round(float(cosine), 6), label_of(index, row))
            yield (str(file), rank, *cells)


def sections_of(index: FeatureIndex, result: SearchResult) -> Iterator[Section]:
    """Yield the parts of the page: one per photograph that was searched for."""
    for i, file in enumerate(result.files):
        rows, similarities = result.nearest.rows[i], result.nearest.similarities[i]
        cards = []
        for row, cosine in zip(rows, similarities, strict=True):
            label = label_of(index, row)
            facts = f"{cosine:.3f}" + (f" · {label}" if label else "")
            cards.append(Card(index.files[row], index.path(row), facts))
        note = "The most similar first, with the cosine of their features: 1 is the same."
        yield Section(str(file), note, cards, query=file)


def _table(index: FeatureIndex, result: SearchResult) -> Table:
    table = Table("query", "file", "similarity", "label")
    for query, rank, file, cosine, label in _rows(index, result):
        cells = (query if rank == 1 else "", file, f"{cosine:.3f}", label)
        table.add_row(*(Text(printable(str(cell))) for cell in cells))
    return table


def cluster(options: ClusterOptions) -> None:
    """Writes the page and the table.

    Raises:
        DamagedIndexError: `index` is something else, or damaged.
        FileExistsError: See `check_page`.
        ImportError: scikit-learn is not installed.
        ValueError: There are fewer images than clusters.
    """
    out = options.out
    check_page(out, options.overwrite)
    index = FeatureIndex.open(options.index)
    groups = find_clusters(index, options.clusters, options.seed)
    count = counted(len(groups.centers), "cluster")
    facts = (
        f"{facts_of(index)}. k-means on features of length 1; mean silhouette "
        f"{groups.silhouette:.2f}."
    )
    if len(groups.centers) > MOST_CLUSTERS:
        facts += f" The {MOST_CLUSTERS} largest clusters are shown, and all are in the CSV file."
    title = f"{count} of {index.photos.name}"
    of_clusters = map(groups.members, range(len(groups.sizes[:MOST_CLUSTERS])))
    _note_changed(index, (row for rows in of_clusters for row in rows[: options.examples]))
    sections = _clusters(index, groups, options.examples)
    write_result_page(out, title, facts, sections, {}, index.bands)
    rows = (
        (
            index.files[row],
            int(groups.labels[row]) + 1,
            round(float(groups.similarities[row]), 6),
            label_of(index, row),
        )
        for row in range(len(index))
    )
    sizes = ", ".join(f"{size:,}" for size in groups.sizes[:10])
    more = ", ..." if len(groups.sizes) > 10 else ""
    print_text(
        f"{count} of {counted(len(index), 'image')}: {sizes}{more}; mean silhouette "
        f"{groups.silhouette:.2f}"
    )
    _write_table(out, CLUSTER_COLUMNS, rows)


def _clusters(index: FeatureIndex, groups: Clusters, examples: int) -> Iterator[Section]:
    for number, size in enumerate(groups.sizes[:MOST_CLUSTERS]):
        rows = groups.members(number)
        labels = Counter(filter(None, (label_of(index, row) for row in rows)))
        parts = ", ".join(f"{count / size:.0%} {name}" for name, count in labels.most_common(3))
        note = f"The nearest to its center first{f'; labeled {parts}' if parts else ''}."
        cards = [
            Card(index.files[row], index.path(row), f"{groups.similarities[row]:.3f}")
            for row in rows[:examples]
        ]
        yield Section(f"Cluster {number + 1}: {counted(int(size), 'image')}", note, cards)
