"""Sources that cannot be read here, and advice on how to make a folder of images from them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote

from keras_vit._base.errors import counted, listed, printable
from keras_vit.data.decode.image_kinds import (
    BANDS,
    PILLOW,
    TENSORFLOW,
    ImageKind,
    kind_by_bytes,
    kind_of,
)


def why_ignored(path: Path, suffixes: Iterable[str]) -> str:
    """Return why a file of a class folder is not used: its format, as far as it is known."""
    known = f"not one of {' '.join(suffixes)}"
    if kind := kind_of(path):
        return f"{kind.name}, {known}"
    if kind := kind_by_bytes(path):
        return f"{known}; its first bytes are {kind.name}'s: rename it to {kind.suffixes[0]}"
    return known


def note_left_out(path: Path, counts: Counter[str]) -> None:
    """Counts a path that is not an image by its suffix."""
    suffix = path.suffix.lower() or "without a suffix"
    counts["links to folders" if path.is_dir() else suffix] += 1


def shown_left_out(counts: Mapping[str, int]) -> str:
    """Return how many files are not images, for a message.

    >>> shown_left_out({".txt": 2, ".db": 1})
    '3 files that are not images (.txt 2, .db 1)'
    """
    most = sorted(counts.items(), key=lambda item: -item[1])
    kinds = printable(listed([f"{suffix} {count:,}" for suffix, count in most]))
    number = sum(counts.values())
    are = "is not an image" if number == 1 else "are not images"
    return f"{counted(number, 'file')} that {are} ({kinds})"


def how_to_convert(paths: Iterable[Path]) -> str:
    """Return how many files there are of each format that is not read, and how to convert them.

    Without one, how to unpack the first archive; empty where there is none either.
    """
    paths = list(paths)
    counts: Counter[ImageKind] = Counter(
        kind for path in paths if (kind := kind_of(path)) and TENSORFLOW not in kind.readers
    )
    if not counts:
        archives = (path for path in paths if path.name.lower().endswith(tuple(ARCHIVES)))
        return next((advice for path in archives if (advice := advice_for(str(path)))), "")
    kinds = [kind for kind, _ in counts.most_common()]
    files = " and ".join(f"{counts[k]:,} {k.name} file{'s'[: counts[k] > 1]}" for k in kinds)
    converters = "; ".join(f"{kind.name} by {kind.converter}" for kind in kinds)
    hints = [
        f"It holds {files}, and of images JPEG, PNG, BMP, GIF and WebP are read here.",
        f"Convert to PNG first ({converters}).",
    ]
    if by_grain := " and ".join(kind.name for kind in kinds if PILLOW in kind.readers):
        hints.append(f"Or let Grain read {by_grain} as it is: reader='grain'.")
    if any(BANDS in kind.readers for kind in kinds):
        hints.append("Bands, and more than 8 bits, are read by load(bands='all').")
    return " ".join(hints)


# The scheme of an address -> the command that copies a folder of it.
REMOTE = {
    "gs": "gcloud storage cp --recursive {} DATA",
    "s3": "aws s3 cp --recursive {} DATA",
    "hdfs": "hdfs dfs -get {} DATA",
    "abfs": "azcopy copy --recursive {} DATA",
    "az": "azcopy copy --recursive {} DATA",
    "hf": "hf download --repo-type dataset --local-dir DATA {}",
    "http": "curl -LO {}",
    "https": "curl -LO {}",
    "ftp": "curl -LO {}",
}
ARCHIVES = {
    ".zip": "unzip {} -d DATA",
    ".tar": "tar -xf {} -C DATA",
    ".tgz": "tar -xf {} -C DATA",
    ".tar.gz": "tar -xf {} -C DATA",
    ".tar.bz2": "tar -xf {} -C DATA",
    ".tar.xz": "tar -xf {} -C DATA",
    ".7z": "7z x {} -oDATA",
    ".rar": "unrar x {} DATA/",
}
TABLES = (".csv", ".tsv", ".xlsx", ".xls", ".json", ".jsonl", ".parquet")
_ADDRESS = re.compile(r"([a-z0-9]+):/{1,2}(?=[^/])")  # pathlib leaves one slash of two


def is_remote(source: str) -> bool:
    """Return whether a source is an address of remote storage, such as `gs://bucket/folder`."""
    address = _ADDRESS.match(source.lower())
    return address is not None and address[1] in REMOTE


def advice_for(source: str) -> str | None:
    """Return a sentence on what to do with a source that is not a folder; None without advice."""
    name, shown = source.lower(), printable(source)
    if is_remote(source):
        address = _ADDRESS.match(name)
        assert address is not None
        whole = f"{address[1]}://{shown[address.end() :]}"
        return (
            f"{whole} is not on this machine, and images are read from its disks. Copy it first: "
            f"{REMOTE[address[1]].format(quote(whole))}"
        )
    for suffix, command in ARCHIVES.items():
        if name.endswith(suffix):
            return (
                f"{shown} is an archive. Unpack it, and give the folder: "
                f"mkdir -p DATA && {command.format(quote(shown))}"
            )
    if name.endswith(TABLES):
        return (
            f"{shown} is a table. Give the folder of its images, and beside it the table as CSV, "
            "TSV, JSON lines or Parquet file, labels='labels.csv'."
        )
    kind = kind_of(Path(source))
    if kind is None:
        return None
    if TENSORFLOW in kind.readers:
        return (
            f"{shown} is a file, not a folder of images: give the folder around the folders of "
            "the classes, each with several of them."
        )
    return f"{shown} is a {kind.name} file, which is not read here ({kind.converter})."
