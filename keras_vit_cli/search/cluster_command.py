"""`keras-vit cluster`: the photographs of an index in groups of similar ones."""

from collections import Counter
from collections.abc import Iterator

from keras_vit._base.errors import counted
from keras_vit.curation import Clusters, FeatureIndex, find_clusters
from keras_vit_cli.options.photo_options import ClusterOptions
from keras_vit_cli.printing import print_text
from keras_vit_cli.search.result_page import Card, Section, check_page, write_result_page
from keras_vit_cli.search.result_table import CLUSTER_COLUMNS, label_of, write_csv
from keras_vit_cli.search.search_command import facts_of

# Clusters on the page, the largest; the table has all.
MOST_SHOWN = 100


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
    if len(groups.centers) > MOST_SHOWN:
        facts += f" The {MOST_SHOWN} largest clusters are shown, and all are in the CSV file."
    out.parent.mkdir(parents=True, exist_ok=True)
    title = f"{count} of {index.photos.name}"
    sections = _sections(index, groups, options.examples)
    write_result_page(out, title, facts, sections, {}, index.bands)
    table = out.with_suffix(".csv")
    rows = (
        (
            index.files[row],
            int(groups.labels[row]) + 1,
            round(float(groups.similarities[row]), 6),
            label_of(index, row),
        )
        for row in range(len(index))
    )
    write_csv(table, CLUSTER_COLUMNS, rows)
    sizes = ", ".join(f"{size:,}" for size in groups.sizes[:10])
    more = ", ..." if len(groups.sizes) > 10 else ""
    print_text(
        f"{count} of {counted(len(index), 'image')}: {sizes}{more}; mean silhouette "
        f"{groups.silhouette:.2f}"
    )
    print_text(f"written to {out} and {table}\nnext: open {out} in a browser")


def _sections(index: FeatureIndex, groups: Clusters, examples: int) -> Iterator[Section]:
    for number, size in enumerate(groups.sizes[:MOST_SHOWN]):
        rows = groups.members(number)
        labels = Counter(filter(None, (label_of(index, row) for row in rows)))
        parts = ", ".join(f"{count / size:.0%} {name}" for name, count in labels.most_common(3))
        note = f"The nearest to its center first{f'; labeled {parts}' if parts else ''}."
        cards = [
            Card(index.files[row], index.path(row), f"{groups.similarities[row]:.3f}")
            for row in rows[:examples]
        ]
        yield Section(f"Cluster {number + 1}: {counted(int(size), 'image')}", note, cards)
