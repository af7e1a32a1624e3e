"""The options of `keras-vit cluster`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options.option import POSITIONAL, Command, Integers, in_data, in_run
from keras_vit_cli.options.shared import SEED

CLUSTERS = Integers(2, 10_000)
EXAMPLES = Integers(1, 100)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The options of `keras-vit cluster`."""

    index: Path = in_data("the folder that keras-vit embed wrote", metavar="INDEX", name=POSITIONAL)
    clusters: int | None = in_run(
        "number of clusters (default: of 2 to 30, the one with the best silhouette)",
        None,
        CLUSTERS,
    )
    examples: int = in_run("images of each cluster on the page", 12, EXAMPLES)
    seed: int = in_run("where the clusters start", 0, SEED)
    out: Path = in_run("HTML page to write, and a CSV file beside it", metavar="PAGE.html")
    overwrite: bool = in_run("replace the earlier page in --out", False)


CLUSTER = Command(
    ClusterOptions,
    "sort the images of an index into groups of similar ones",
    "keras-vit cluster index --out clusters.html",
)
