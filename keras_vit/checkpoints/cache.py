"""Released weights on disk: fetched once, whole or not at all, and the same ever after."""

import base64
import hashlib
import json
import os
import re
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.opening import open_container
from keras_vit.checkpoints.released import Weights
from keras_vit.checkpoints.sums import digest_of
from keras_vit.files import write_text

LEDGER = "sha256.json"


def cache_folder() -> Path:
    """Where released weights are kept: `keras_vit` in Keras's own cache (`KERAS_HOME`)."""
    return Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "keras_vit"


def checked_file(row: Weights) -> Path:
    """The file of a row of the catalogue, fetched if need be, and verified.

    A download is compared with the sum that its host publishes. SHA-256 of the file and of each
    of its tensors is written down at first use (`sha256.json`
    beside it). Every later use compares the file, and on a difference says which tensors changed.

    Raises:
        FileNotFoundError: It cannot be fetched; the message says what to put where.
        CheckpointError: It is not the file that was first used.
    """
    path = cache_folder() / row.file_name
    if not path.is_file():
        _fetch(row, path)
    digest = digest_of(path)
    ledger = path.with_name(LEDGER)
    known = _read(ledger)
    if path.name not in known:
        tensors = _tensor_digests(path)
        # Read anew: another process may have written meanwhile.
        known = {**_read(ledger), path.name: {"sha256": digest, "tensors": tensors}}
        write_text(ledger, json.dumps(known, indent=1))
    elif known[path.name]["sha256"] != digest:
        raise CheckpointError(
            f"{path} is not the file that was first used: its SHA-256 is {digest}, not "
            f"{known[path.name]['sha256']}{_changed(path, known[path.name]['tensors'])}. "
            f"Delete it to fetch {row.url} again."
        )
    return path


def _fetch(row: Weights, path: Path) -> None:
    # Under another name until it is whole: a download cut off is never taken for the file.
    part = path.with_name(f"part-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)  # else Keras would take another folder
    part.unlink(missing_ok=True)
    try:
        keras.utils.get_file(
            part.name, row.url, cache_dir=str(path.parent.parent), cache_subdir=path.parent.name
        )
    except Exception as error:  # Keras raises plain Exceptions where a download fails
        part.unlink(missing_ok=True)
        raise FileNotFoundError(
            f"{row.name} cannot be fetched ({error}): download {row.url} ({row.megabytes:,} MB) "
            f"elsewhere and put it at {path}"
        ) from error
    try:
        _compare_with_published(row.url, part)
        with open_container(part):  # an error page is no file of weights
            pass
    except CheckpointError:
        part.unlink()
        raise
    os.replace(part, path)


def _compare_with_published(url: str, path: Path) -> None:
    """Compares a download with the sum that its host publishes, where it publishes one.

    Hugging Face has the SHA-256 of large files in `X-Linked-ETag`, Google Storage an MD5 in
    `x-goog-hash`.
    """
    headers = _headers(url)
    etag = headers.get("X-Linked-ETag", "").strip('"')
    hashes = ",".join(headers.get_all("x-goog-hash", []))
    if re.fullmatch("[0-9a-f]{64}", etag):
        algorithm, published = "sha256", etag
    elif md5 := re.search(r"\bmd5=([^, ]+)", hashes):
        algorithm, published = "md5", base64.b64decode(md5[1]).hex()
    else:
        return
    found = digest_of(path, algorithm)
    if found != published:
        raise CheckpointError(
            f"What came from {url} has {algorithm} {found}, where its host publishes {published}: "
            "the download is damaged. Fetch it again."
        )


def _headers(url: str) -> Message:
    """The headers of the first answer: behind a redirect the sum is no longer told."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.build_opener(Stay).open(request, timeout=30) as answer:
            return answer.headers
    except urllib.error.HTTPError as redirect:
        return redirect.headers
    except OSError:  # the file came, so this host does not answer questions about it
        return Message()


def _tensor_digests(path: Path) -> dict[str, str]:
    with open_container(path) as container:
        return {
            name: hashlib.sha256(np.ascontiguousarray(tensor.read()).data).hexdigest()
            for name, tensor in container.tensors.items()
            if "float" in tensor.dtype
        }


def _changed(path: Path, known: dict[str, str]) -> str:
    """Which tensors differ, for the message; the file may be too broken to tell."""
    try:
        now = _tensor_digests(path)
    except CheckpointError as error:
        return f" ({error})"
    changed = sorted(name for name in known | now if known.get(name) != now.get(name))
    return f" (changed: {', '.join(changed[:3])})" if changed else ""


def _read(ledger: Path) -> dict[str, Any]:
    try:
        return json.loads(ledger.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CheckpointError(
            f"{ledger} is damaged ({error}). Delete it, and the files beside it that you doubt."
        ) from error
