"""Released weights on disk: downloaded once with `keras.utils.get_file`, their sums listed.

`get_file` alone would leave half a file under its name when the process is killed. Sums are asked
of the hosts: nobody publishes them elsewhere, so that the catalog cannot have them.
"""

import base64
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any

import keras

from keras_vit._base.files import cache_folder, write_text
from keras_vit._base.manifest import MANIFEST, read_sums, sha256
from keras_vit.weights.checkpoint_error import CheckpointError, reason
from keras_vit.weights.containers.checkpoint_file import (
    OPENERS,
    file_in_folder,
    holds_weights,
    open_container,
)
from keras_vit.weights.released import Weights


def cached_file(row: Weights) -> Path:
    """Return the file of a row of the catalog, downloaded if need be.

    A download is compared with the sum that its host publishes. The sum of the file is listed in
    the `SHA256SUMS` beside it at first use, with which it is compared whenever it is loaded.
    """
    path = cache_folder() / row.file_name
    if not path.is_file():
        _download(row, path)
        _list_sum(path)
    elif path.name not in _listed(path.with_name(MANIFEST)):
        _list_sum(path)
    return path


def _list_sum(path: Path) -> None:
    """Puts the sum of a file into the list of its folder."""
    digest, sums = sha256(path), path.with_name(MANIFEST)
    # Read after the file: another process may have written meanwhile.
    lines = (f"{d}  {name}\n" for name, d in {**_listed(sums), path.name: digest}.items())
    write_text(sums, "".join(lines))


def _listed(sums: Path) -> dict[str, str]:
    try:
        return read_sums(sums)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CheckpointError(
            f"{error} Delete {sums} and the files beside it, which are then downloaded again."
        ) from error


def resolve(
    file: str | Path, layout: str | None, find: Callable[[str], Weights | None]
) -> tuple[Path, str | None, dict[str, Any]]:
    """Find a file of weights: `file` itself, in the folder `file`, or released under that name.

    Returns its path, its layout (None to recognize it), and the model's arguments that no tensor
    of it shows.
    """
    name = os.path.expanduser(file)
    path = Path(name)
    is_folder = path.is_dir() and path.suffix not in OPENERS
    # Any folder may be called like a tag: then it is meant if it holds weights.
    row = None if path.is_file() or (is_folder and holds_weights(path)) else find(name)
    if row is None:
        return file_in_folder(path) if is_folder else path, layout, {}
    return cached_file(row), layout or row.layout, row.arguments


def _download(row: Weights, path: Path) -> None:
    # Under another name until it is whole: a download cut off is never taken for the file.
    part = path.with_name(f"part-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)  # else Keras would take another folder
    part.unlink(missing_ok=True)
    algorithm, published = _published_sum(row.url)
    try:
        keras.utils.get_file(
            part.name,
            row.url,
            file_hash=published,
            hash_algorithm=algorithm,
            cache_dir=str(path.parent.parent),
            cache_subdir=path.parent.name,
        )
    except Exception as error:  # Keras raises plain Exceptions where a download fails
        part.unlink(missing_ok=True)
        if published and isinstance(error, ValueError):
            raise CheckpointError(
                f"{row.url} came with another {algorithm} than the {published} that its host "
                "publishes: the download is damaged. Download it again."
            ) from error
        guess = " (the name of this file is a guess)" if row.url_is_guessed else ""
        raise FileNotFoundError(
            f"{row.name} cannot be downloaded ({reason(error)}): download {row.url}{guess} "
            f"({row.megabytes:,} MB) elsewhere and put it at {path}"
        ) from error
    try:
        with open_container(part):  # an error page is not a file of weights
            pass
    except CheckpointError:
        part.unlink()
        raise
    os.replace(part, path)


def _published_sum(url: str) -> tuple[str, str | None]:
    """Return the algorithm and checksum that a host publishes for a file; None without one.

    Hugging Face has the SHA-256 of large files in `X-Linked-ETag`, Google Storage an MD5 in
    `x-goog-hash`.
    """
    headers = _headers(url)
    etag = headers.get("X-Linked-ETag", "").strip('"')
    if re.fullmatch("[0-9a-f]{64}", etag):
        return "sha256", etag
    hashes = ",".join(headers.get_all("x-goog-hash", []))
    if md5 := re.search(r"\bmd5=([^, ]+)", hashes):
        return "md5", base64.b64decode(md5[1]).hex()
    return "auto", None


def _headers(url: str) -> Message:
    """Return the headers of the first answer: the one behind a redirect does not have the sum."""

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.build_opener(NoRedirects).open(request, timeout=30) as answer:
            return answer.headers
    except urllib.error.HTTPError as redirect:
        return redirect.headers
    except OSError:  # the download will report it, if it fails as well
        return Message()
