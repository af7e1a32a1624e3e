"""The weights on this machine: downloaded ones, the Hugging Face hub's cache, or a folder."""

import os
from collections.abc import Iterator
from pathlib import Path

from keras_vit import list_weights
from keras_vit._base.errors import printable
from keras_vit._base.files import cache_folder
from keras_vit.weights.containers.checkpoint_file import OPENERS, file_in_folder, holds_weights

_SUFFIXES = (".keras", *OPENERS)
_DEPTH = 2  # of folders in folders that are looked into


def local_weights(folder: Path | None = None) -> dict[str, int]:
    """Return what `keras_vit.load` takes, with the bytes of its file, the smallest first.

    Whether it can be read, nobody knows before it is loaded. Nothing is downloaded.

    With a folder these are the files and folders of models in it alone; else what this package has
    downloaded, and the repositories in the hub's cache (`HF_HUB_CACHE`, `HF_HOME`).

    Raises:
        FileNotFoundError: There are none; the message names the folders.
    """
    if folder is not None:
        paths = list(_in_folder(folder.expanduser())) if folder.expanduser().is_dir() else []
        sizes = {str(path): _bytes(path) for path in paths}
        places = [folder]
    else:
        hub = _hub()
        places = [cache_folder(), hub]
        rows = {cache_folder() / row.file_name: row.name for row in list_weights()}
        sizes = {name: path.stat().st_size for path, name in rows.items() if path.is_file()}
        repositories = [path for path in sorted(hub.glob("models--*")) if holds_weights(path)]
        sizes |= {str(path): _bytes(path) for path in repositories}
    if not sizes:
        where = " and ".join(printable(place) for place in places)
        raise FileNotFoundError(
            f"--weights auto chooses among weights on this machine, and there are none in {where}: "
            "give --weights MODEL:TAG, which is downloaded, or --weights auto:FOLDER, a folder "
            "with files or folders of models."
        )
    return dict(sorted(sizes.items(), key=lambda item: item[1]))


def _hub() -> Path:
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _in_folder(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    if holds_weights(folder):
        yield folder
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and depth:
            yield from _in_folder(path, depth - 1)
        elif path.is_file() and path.suffix in _SUFFIXES:
            yield path


def _bytes(path: Path) -> int:
    try:
        return (file_in_folder(path) if path.is_dir() else path).stat().st_size
    except OSError:  # a link to nowhere: loading it gives the reason
        return 0
