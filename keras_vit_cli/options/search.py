"""The options of `keras-vit search`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import POSITIONAL, Command, Integers, in_data, in_model, in_run

RESULTS = Integers(1, 1000)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of `keras-vit search`."""

    index: Path = in_data("the folder that keras-vit embed wrote", metavar="INDEX", name=POSITIONAL)
    files: tuple[Path, ...] = shared.images()
    model: Path | None = in_model(
        "the model that made the index (default: where the index notes that it was)",
        None,
        metavar="MODEL",
    )
    top: int = in_run("number of results per image", 12, RESULTS)
    out: Path | None = in_run(
        "HTML page to write, and a CSV file beside it (default: a table is printed)",
        None,
        metavar="PAGE.html",
    )
    overwrite: bool = in_run("replace the earlier page in --out", False)


SEARCH = Command(
    SearchOptions,
    "find the images of an index that are most like other ones",
    "keras-vit search index photo.jpg --out similar.html",
)
