"""The options of `keras-vit serve`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import POSITIONAL, Command, Integers, in_data, in_model, in_run
from keras_vit_cli.options.shared import BATCH, CLASSES, MOST_PIXELS


@dataclass(frozen=True)
class ServeOptions:
    """The options of `keras-vit serve`."""

    model: Path = in_model(
        "a .keras or weights file, the folder of a training run, an exported file, or a "
        "folder of numbered versions; a new version takes over while the server runs",
        name=POSITIONAL,
    )
    max_bytes: int = in_data(
        "refuse request bodies of more bytes than this",
        20 * 2**20,
        Integers(1, 2**40, metavar="BYTES"),
    )
    max_images: int = in_data(
        "refuse requests of more images than this", 64, Integers(1, 2**20, metavar="N")
    )
    max_pixels: int = in_data(
        "refuse images of more pixels (height times width) than this",
        shared.MAX_PIXELS,
        MOST_PIXELS,
    )
    host: str = in_run("address to listen on; 0.0.0.0 for all, without a password", "127.0.0.1")
    port: int = in_run(
        "port to listen on; 0 for any free one", 8000, Integers(0, 65535, metavar="PORT")
    )
    batch_size: int = in_run("the most images per batch; more suit a GPU", 4, BATCH)
    queue: int | None = in_run(
        "the most requests in progress; further ones are answered with 429 (default: twice "
        "--batch-size)",
        None,
        BATCH,
    )
    top: int = in_run("number of classes per answer", 5, CLASSES)
    log_requests: bool = in_run("print a line of JSON per request", False)


SERVE = Command(
    ServeOptions,
    "serve a model over HTTP, with a page on which one drops a photograph",
    "keras-vit serve runs/photos --port 8000",
)
