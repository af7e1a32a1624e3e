"""Photographs ──► an index of their features: new and changed files alone, one pass, resumable.

    find_photos ──► groups ── decoded ahead, in threads ──► Encoder ──► rows ── log ──► index

Rows are appended to `features.safetensors`, and then a line per group of files to `log.jsonl`, with
the sum of its rows: whatever moment a run is killed at, the next one goes on after the last line
whose rows are there. Groups are the same in both, so that the bytes are, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, tee, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from keras_vit._base.errors import check_choice
from keras_vit._base.files import (
    append,
    atomic_write,
    cache_folder,
    named_errors,
    open_to_append,
    path_from,
    write_text,
)
from keras_vit._base.manifest import read_manifest
from keras_vit._base.output_folder import OutputFolder
from keras_vit._base.processors import available_processors
from keras_vit._base.version import __version__
from keras_vit.curation.curation_errors import IndexMismatchError
from keras_vit.curation.feature_index import (
    FEATURES,
    FILES,
    HEADER,
    INFO,
    KIND,
    MODIFIED,
    VERSION,
    FeatureIndex,
    check_identity,
    features_header,
    map_features,
    read_entries,
    read_info,
    read_times,
)
from keras_vit.curation.photo_encoder import DTYPES, Encoder
from keras_vit.curation.photo_sources import Photo, PhotoList, PhotoSource, find_photos
from keras_vit.data import MAX_PIXELS, BadImageError
from keras_vit.data.decode.bit_depth import HEADER_BYTES, has_sixteen_bits, warn_of_sixteen_bits
from keras_vit.data.decode.image_files import read_contents, unreadable_reason
from keras_vit.data.seen_images import PREFIX_BYTES, SeenImages
from keras_vit.models.image_model import ImageModel

LOG = "log.jsonl"
# Files of a group whose rows are known, so that memory stays the same however many there are.
_MOST_KNOWN = 4096
_GROUPS_AHEAD = 2
_KEYS = ("file", "size", "sha256", "label", "split", "error")

Entry = dict[str, Any]


class Progress(NamedTuple):
    """How far `embed` is.

    Attributes:
        files: Files done, those included whose rows were known.
        computed: Files of these that were read.
        unreadable: Files of these that cannot be decoded.
    """

    files: int
    computed: int
    unreadable: int


@dataclass
class _Item:
    """A file to be embedded: what the walk found, and its row in an earlier index."""

    photo: Photo
    size: int
    modified: int
    known: Entry | None  # of the same name
    row: int
    is_unchanged: bool

    def entry(self, sha256: str | None, error: str | None) -> Entry:
        photo = self.photo
        values = (photo.name, self.size, sha256, photo.label, photo.split, error)
        return {**dict(zip(_KEYS, values, strict=True)), "modified": self.modified}

    def is_logged_as(self, entry: Entry) -> bool:
        return entry == self.entry(entry["sha256"], entry["error"])


Group = list[_Item]


def embed(
    model: ImageModel,
    photos: PhotoSource | PhotoList,
    out: str | os.PathLike[str],
    layer: str = "pre_logits",
    dtype: str = "float16",
    batch_size: int = 32,
    *,
    pooling: str | None = None,
    max_pixels: int = MAX_PIXELS,
    source: str | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
    elsewhere: Elsewhere | None = None,
) -> FeatureIndex:
    """Computes the features of photographs, and writes them as an index.

    Where `out` is an index already, only new and changed files are computed: those whose size or
    time of change is another one, and then whose sum is. Files that are gone are left out. A call
    that was killed is gone on with by the same call, and ends with the same bytes. The former index
    stays until the new one is complete.

    Args:
        model: A model of this package that takes pixels.
        photos: A folder, a table or a list of files: see `find_photos`, or what it returns. Nothing
            there is changed.
        out: The folder of the index.
        layer: One of `model.feature_names`.
        dtype: `"float16"`, which keeps 11 bits of each number, or `"float32"`.
        batch_size: Images per batch.
        pooling: For a layer with a vector per token: the `"mean"` of the patches, or the class
            `"token"`.
        max_pixels: Largest height times width of a file to decode.
        source: What the model was loaded from, which the index notes for later searches.
        report: Called after each batch.
        elsewhere: Calls `encode_ahead` on the batches, in order, in other processes; None: here.

    Returns:
        The index, whose files that cannot be decoded are `unreadable`.

    Raises:
        IndexMismatchError: `out` is an index by other weights, layer, dtype or preparation, or of
            another folder.
        DamagedIndexError: The index in `out` is damaged.
        FileExistsError: `out` has files that this function did not write.
        BlockingIOError: Another process is writing it.
        ValueError: There is no image, an argument is out of range, or a feature is not finite.

    Example:

    >>> import tempfile, keras_vit
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from keras_vit.curation import embed
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "photos").mkdir()
    >>> for color in ("red", "blue"):
    ...     Image.new("RGB", (8, 8), color).save(folder / f"photos/{color}.png")
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 3))
    >>> index = embed(model, folder / "photos", folder / "index", dtype="float32")
    >>> index.files, index.rows(0, 2).shape
    (('blue.png', 'red.png'), (2, 16))
    """
    check_choice(dtype, "dtype", DTYPES)
    encoder = Encoder(model, layer, pooling, batch_size, max_pixels)
    listed, out = photos if isinstance(photos, PhotoList) else find_photos(photos), Path(out)
    identity = {**encoder.identity, "dtype": dtype}
    output = OutputFolder(
        out,
        KIND,
        results=(FEATURES, FILES, INFO, MODIFIED),
        scratch=(LOG,),
        protected=[listed.root] if listed.is_folder else [],
        resumable=True,
    )
    output.check(overwrite=True)
    if output.is_finished():  # a run was killed while the index took its place
        output.publish()
    former = FeatureIndex.open(out) if out.is_dir() and any(out.iterdir()) else None
    if former is not None:
        check_identity(out, former.info, identity, model.name)
        _check_photos(former, listed)
        if former.photos.exists() and _is_current(former, listed):
            return former
    info = {
        "version": VERSION,
        "keras_vit": __version__,
        "model": model.name,
        "source": source,
        **identity,
        "dimension": encoder.dimension,
        "photos": path_from(output.place, listed.root),
        "is_folder": listed.is_folder,
        "table": listed.table,
    }
    is_begun = read_manifest(output.workspace) is not None and (output.workspace / INFO).exists()
    if is_begun:
        check_identity(output.workspace, read_info(output.workspace), identity, model.name)
    with output.opened(overwrite=True, resume=is_begun) as workspace:
        write_text(workspace / INFO, _as_json({**info, "rows": 0, "class_names": []}))
        _write_rows(workspace, encoder, listed, former, info, report, elsewhere)
        info["left_out"] = dict(listed.left_out)
        _write_tables(workspace, info, model.seen_images)
        output.finish()
        output.publish()
    return FeatureIndex.open(out)


def index_of(
    model: ImageModel,
    photos: PhotoSource | FeatureIndex,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> FeatureIndex:
    """Return the index of photographs: an index that is given, or one that is made.

    Args:
        model: Which the index has to be of.
        photos: An index, the folder of one, or what `embed` takes.
        folder: Where an index is made; None for one in the cache of this package.
        **options: As `embed` takes them.

    Raises:
        IndexMismatchError: See `embed`.

    Example:

    >>> import tempfile, keras_vit
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from keras_vit.curation import index_of
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "photos").mkdir()
    >>> Image.new("RGB", (8, 8), "red").save(folder / "photos/red.png")
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(8, 8, 3))
    >>> index = index_of(model, folder / "photos", folder / "index")
    >>> index_of(model, folder / "index").files
    ('red.png',)
    """
    if isinstance(photos, str | os.PathLike) and (Path(photos) / INFO).is_file():
        photos = FeatureIndex.open(photos)
    if isinstance(photos, FeatureIndex):
        made_by = photos.encoder(model).identity
        made_by |= {k: v for k, v in options.items() if k in ("layer", "pooling", "dtype")}
        check_identity(photos.folder, photos.info, made_by, model.name)
        return photos
    if folder is None:
        keys = ("layer", "pooling", "max_pixels")
        encoder = Encoder(model, **{key: options[key] for key in keys if key in options})
        names = os.fspath(find_photos(photos).root.resolve())
        if not isinstance(photos, str | os.PathLike):
            names += "".join(sorted(f"\0{os.fspath(photo)}" for photo in photos))
        key = json.dumps([names, encoder.identity, options.get("dtype")], sort_keys=True)
        folder = cache_folder() / "indexes" / hashlib.sha256(key.encode()).hexdigest()[:32]
        folder.parent.mkdir(parents=True, exist_ok=True)
    return embed(model, photos, folder, **options)


def _check_photos(former: FeatureIndex, listed: PhotoList) -> None:
    """Raises an IndexMismatchError where the photographs are in another folder than before.

    A folder that was moved is not there any more.
    """
    if former.photos.exists() and not os.path.samefile(former.photos, listed.root):
        raise IndexMismatchError(
            f"{former.folder} is of the photographs in {former.photos}, and these are in "
            f"{listed.root}. Give another folder for their index."
        )


def _is_current(former: FeatureIndex, listed: PhotoList) -> bool:
    """Return whether nothing has changed since an index was written."""
    pairs = zip_longest(_items(listed, former), read_entries(former.folder))
    return all(
        item is not None
        and entry is not None
        and item.is_unchanged
        and item.photo == (entry["file"], entry["label"], entry["split"])
        for item, entry in pairs
    )


def _items(listed: PhotoList, former: FeatureIndex | None) -> Iterator[_Item]:
    """Yield the files in order, each beside what an earlier index has of it; both are sorted."""
    earlier = _former_entries(former)
    entry, row, modified = next(earlier, (None, 0, 0))
    for photo in listed.walk():
        size, changed = listed.status(photo.name)
        while entry is not None and entry["file"] < photo.name:
            entry, row, modified = next(earlier, (None, 0, 0))
        if entry is None or entry["file"] != photo.name:
            yield _Item(photo, size, changed, None, 0, False)
            continue
        # Without a sum the file could not be read, which may have changed.
        same = (entry["size"], modified) == (size, changed) and entry["sha256"] is not None
        yield _Item(photo, size, changed, entry, row, same)


def _former_entries(former: FeatureIndex | None) -> Iterator[tuple[Entry | None, int, int]]:
    """Yield the entries of an index, with the row of each and when its file was modified."""
    if former is None:
        return
    times = read_times(former.folder)  # without them all files are read, and their sums compared
    row = 0
    for i, entry in enumerate(read_entries(former.folder)):
        yield entry, row, int(times[i]) if i < len(times) else -1
        row += entry["error"] is None


def _groups(items: Iterable[_Item], batch_size: int) -> Iterator[Group]:
    """Yield files in groups with at most a batch to read."""
    group: Group = []
    to_read = 0
    for item in items:
        group.append(item)
        to_read += not item.is_unchanged
        if to_read == batch_size or len(group) >= _MOST_KNOWN:
            yield group
            group, to_read = [], 0
    if group:
        yield group


def _write_rows(
    workspace: Path,
    encoder: Encoder,
    listed: PhotoList,
    former: FeatureIndex | None,
    info: Entry,
    report: Callable[[Progress], None],
    elsewhere: Elsewhere | None,
) -> None:
    """Writes the rows of all files, after those that a killed run has written."""
    features, log = workspace / FEATURES, workspace / LOG
    features.touch()
    log.touch()
    groups = _groups(_items(listed, former), encoder.batch_size)
    groups, done = _after_log(features, log, groups, info)
    files, computed, unreadable = done
    report(done)
    groups, ahead = tee(groups)
    requests = ([_request(item, listed.root) for item in g if not item.is_unchanged] for g in ahead)
    elsewhere, warned = elsewhere or partial(encode_ahead, encoder), False
    with (
        open_to_append(features, new=False) as rows_file,
        open_to_append(log, new=False) as log_file,
    ):
        for group, encoded in zip(groups, elsewhere(requests), strict=True):
            deep = [] if warned else _sixteen_bits(group, encoded)
            if deep:  # one warning, as soon as there is a reason for it
                warn_of_sixteen_bits(deep, len(encoded))
                warned = True
            rows, entries = _rows_of(group, encoded, encoder.dimension, former)
            content = _stored(rows, info["dtype"]).tobytes()
            append(rows_file, content)
            line = json.dumps({"sum": zlib.crc32(content), "rows": len(rows), "files": entries})
            append(log_file, f"{line}\n".encode())
            files += len(group)
            computed += sum(not item.is_unchanged for item in group)
            unreadable += sum(entry["error"] is not None for entry in entries)
            report(Progress(files, computed, unreadable))


def _after_log(
    features: Path, log: Path, groups: Iterator[Group], info: Entry
) -> tuple[Iterator[Group], Progress]:
    """Return the groups still to be done and the progress, and cut both files to it.

    A group is done where the log has its files as they are now, and its rows have the log's sum.
    """
    row_bytes = info["dimension"] * np.dtype(info["dtype"]).itemsize
    files = unreadable = end = 0
    rows_end = HEADER
    rest: list[Group] = []
    with features.open("rb") as rows_file, log.open("rb") as log_file:
        rows_file.seek(HEADER)
        for group in groups:
            line = log_file.readline()
            entries = _logged(line)
            if entries is None or not _is_done(group, entries, rows_file, row_bytes):
                rest = [group]
                break
            end += len(line)
            files += len(group)
            unreadable += sum(entry["error"] is not None for entry in entries["files"])
            rows_end = rows_file.tell()
    os.truncate(features, rows_end)  # a new file gets zeros, whose place the header will take
    os.truncate(log, end)
    return chain(rest, groups), Progress(files, 0, unreadable)


def _logged(line: bytes) -> Entry | None:
    """Return a whole line of the log; None at its end, or where it was cut off."""
    if not line.endswith(b"\n"):
        return None
    try:
        entries: Entry = json.loads(line)
    except ValueError:
        return None
    return entries


def _is_done(group: Group, logged: Entry, rows_file: BinaryIO, row_bytes: int) -> bool:
    entries = logged["files"]
    if len(group) != len(entries):
        return False
    if not all(item.is_logged_as(entry) for item, entry in zip(group, entries, strict=True)):
        return False
    content = rows_file.read(logged["rows"] * row_bytes)
    return len(content) == logged["rows"] * row_bytes and zlib.crc32(content) == logged["sum"]


class Encoded(NamedTuple):
    """What reading a file gave: its SHA-256, and its features or the reason for their absence.

    A file whose sum is the `known` one has neither: its features are known.
    """

    sha256: str | None
    row: np.ndarray | None
    error: str | None
    has_sixteen_bits: bool = False


# A file, and its SHA-256 and error in an earlier index, if it is in one.
Request = tuple[Path, tuple[str | None, str | None] | None]
Elsewhere = Callable[[Iterator[list[Request]]], Iterable[list[Encoded]]]
_Pixels = Encoded  # while `row` still is the prepared image


def _request(item: _Item, root: Path) -> Request:
    known = item.known
    return root / item.photo.name, None if known is None else (known["sha256"], known["error"])


def _sixteen_bits(group: Group, encoded: list[Encoded]) -> list[str]:
    """Return the names of the files that were read and have more bits than are seen."""
    read = (item.photo.name for item in group if not item.is_unchanged)
    return [name for name, each in zip(read, encoded, strict=True) if each.has_sixteen_bits]


def _read(request: Request, encoder: Encoder) -> _Pixels:
    """Reads a file once, for its sum and its pixels; a known sum does not need the pixels."""
    digest = None
    path, known = request
    try:
        contents = read_contents(path)
        digest = hashlib.sha256(contents).hexdigest()
        if known is not None and digest == known[0]:
            return Encoded(digest, None, known[1])
        deep = has_sixteen_bits(contents[:HEADER_BYTES])
        return Encoded(digest, encoder.prepare(contents), None, deep)
    except (OSError, BadImageError) as error:
        digest = digest if isinstance(error, BadImageError) else None
        return Encoded(digest, None, unreadable_reason(error))


def encode_ahead(encoder: Encoder, batches: Iterable[Sequence[Request]]) -> Iterator[list[Encoded]]:
    """Read and encode batches of files, a few of which threads read while others compute.

    The decoders release Python's lock.
    """
    waiting: deque[list[Future[_Pixels]]] = deque()
    with ThreadPoolExecutor(min(4, available_processors())) as threads:
        for batch in chain(batches, [None] * _GROUPS_AHEAD):
            if batch is not None:
                waiting.append([threads.submit(_read, each, encoder) for each in batch])
            if waiting and (batch is None or len(waiting) > _GROUPS_AHEAD):
                read = [future.result() for future in waiting.popleft()]
                pixels = [each.row for each in read if each.row is not None]
                rows = iter(encoder(np.stack(pixels)) if pixels else ())
                yield [e if e.row is None else e._replace(row=next(rows)) for e in read]


def _rows_of(
    group: Group, encoded: list[Encoded], dimension: int, former: FeatureIndex | None
) -> tuple[np.ndarray, list[Entry]]:
    """Return the rows of a group's files, computed and known ones, and their entries."""
    results = iter(encoded)
    rows: list[np.ndarray] = []
    entries: list[Entry] = []
    for item in group:
        if item.is_unchanged:
            assert item.known is not None
            each = Encoded(item.known["sha256"], None, item.known["error"])
        else:
            each = next(results)
        entries.append(item.entry(each.sha256, each.error))
        if each.error is not None:
            continue
        if each.row is None:
            assert former is not None
            rows.append(np.asarray(former.features[item.row]))
        else:
            rows.append(each.row)
    return (np.stack(rows) if rows else np.zeros((0, dimension))), entries


def _stored(rows: np.ndarray, dtype: str) -> np.ndarray:
    """Return rows as the file has them; an error where float16 does not have the number."""
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(rows, np.dtype(dtype).newbyteorder("<"))
    if not np.isfinite(stored).all():
        raise ValueError(
            f"A feature of {np.abs(rows).max():.4g} is beyond the largest number of dtype="
            f'{dtype!r}, 65504. Give dtype="float32".'
        )
    return stored


def _write_tables(workspace: Path, info: Entry, seen: SeenImages | None) -> None:
    """Makes the other files from the log, a line at a time."""
    times, digests, width = array("q"), bytearray(), 2 * PREFIX_BYTES
    names: set[str] = set()
    rows = 0
    with (
        (workspace / LOG).open("rb") as log,
        atomic_write(workspace / FILES) as temporary,
        temporary.open("wb") as file,
    ):
        for entry in (entry for line in log for entry in json.loads(line)["files"]):
            times.append(entry.pop("modified"))
            names |= {entry["label"]} - {None}
            if entry["error"] is None:
                rows += 1
                digests += entry["sha256"][:width].encode("ascii")
            file.write(json.dumps(entry).encode() + b"\n")
    with atomic_write(workspace / MODIFIED) as temporary:
        np.save(temporary, np.frombuffer(times, np.int64))
    place = workspace / FEATURES
    with named_errors(place), place.open("r+b") as features:
        features.write(features_header(info["dtype"], rows, info["dimension"]))
        features.flush()
        os.fsync(features.fileno())
    if seen is not None and seen.is_listed:
        info["made_with"] = seen.used_among(np.frombuffer(digests, f"S{width}"))
    write_text(workspace / INFO, _as_json({**info, "rows": rows, "class_names": sorted(names)}))
    map_features(workspace, read_info(workspace))  # raises an error if its size is not right


def _as_json(info: Entry) -> str:
    return json.dumps(info, indent=1) + "\n"
