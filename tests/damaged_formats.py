"""The formats that readers take: whole files of each, who reads them, and the errors allowed."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from keras_vit.curation import DamagedIndexError, FeatureIndex, embed
from keras_vit.curation.feature_index import modified_times
from keras_vit.data import BadImageError
from keras_vit.data import load as load_images
from keras_vit.data.decode.image_files import prepare_file
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.data.sources.table_files import TooLargeError
from keras_vit.data.sources.verification import checked_files, checked_rasters
from keras_vit.weights import CheckpointError, arguments_for, load, load_weights, save_weights
from keras_vit_cli.audit.decisions import read_decisions
from keras_vit_cli.options.config_file import read_config
from keras_vit_cli.options.option import UsageError
from keras_vit_cli.options.train import TRAIN
from tests.bank import TINY, fresh, tiny
from tests.data.image_fixtures import plain, write
from tests.data.test_decoder import FILES as PLAIN
from tests.data.test_pillow_formats import encoded
from tests.data.test_rasters import OTHERS, TIFFS, jpeg_2000

Parts = dict[str, bytes]
MAX_PIXELS = 2**20


class Format(NamedTuple):
    """Files of a format, as parts that are damaged before and after `write` puts sums to them."""

    seeds: Callable[[], list[Parts]]
    read: Callable[[Path], Any]
    errors: tuple[type[Exception], ...]  # that `read` may raise, with the file's name
    write: Callable[[Path, Parts], Path]


def one(name: str, seeds: Callable[[], list[bytes]], read: Any, *errors: Any) -> Format:
    """A format of single files of this name, which have one part."""

    def joined(folder: Path, parts: Parts) -> Path:
        return write(folder, {name: parts["all"]}) / name

    return Format(lambda: [{"all": content} for content in seeds()], read, errors, joined)


def read_image(readers: tuple[str, ...], path: Path) -> None:
    """By the check of a folder, and as it is evaluated; the reasons are the errors."""
    for reader in readers:
        for file, reason in checked_files([path], MAX_PIXELS, reader).unreadable:
            raise BadImageError(f"{file}: {reason}")
    prepare_file(path, 16, 3, MAX_PIXELS)


def read_bands(path: Path) -> None:
    for file, reason in checked_rasters([path], MAX_PIXELS, (1,), False, 0).unreadable:
        raise BadImageError(f"{file}: {reason}")
    prepare_file(path, 16, 1, MAX_PIXELS, EvalTransform(bands=(1,), nodata=(0,)))


def by_pillow(name: str, *options: Any) -> Format:
    kind = {"f.tif": "TIFF", "f.avif": "AVIF", "f.heic": "HEIF"}[name]
    seeds = partial(map, lambda each: encoded(kind, **each), ({}, *options))
    return one(name, lambda: [*seeds()], partial(read_image, ("grain",)), BadImageError)


def by_both(kind: str) -> Format:
    contents = [PLAIN[name] for name in PLAIN if name.startswith(kind)]
    read = partial(read_image, ("grain", "tensorflow"))
    return one(f"f.{kind}", lambda: contents, read, BadImageError)


@cache
def photos() -> Path:
    return write(Path("photos").absolute(), {f"{i}.png": plain(10 * i) for i in range(8)})


NAMES = ("file", "label", "split")
ROWS = [(f"{i}.png", "cat" if i % 3 else "dog|cat", "val" if i > 5 else "train") for i in range(8)]
LINES = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in ROWS]


def parquet() -> Iterator[bytes]:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    table = pa.table(dict(zip(NAMES, zip(*ROWS, strict=True), strict=True)))
    lists = pa.table({"file": table["file"], "tags": [["a", "b"]] * 8, "n": list(range(8))})
    for made, kind in ((table, "none"), (lists, "zstd")):
        write_table(made, file := io.BytesIO(), compression=kind)
        yield file.getvalue()


def table(name: str, seeds: Callable[[], list[bytes]]) -> Format:
    def read(path: Path) -> None:
        load_images(photos(), labels=path, verify=False, on_bad_row="skip")

    return one(name, seeds, read, ValueError, TooLargeError)


@cache
def whole_index() -> FeatureIndex:
    model = fresh(**TINY | {"patch_size": 4, "input_shape": (8, 8, 3)})
    return embed(model, photos(), Path("whole").absolute(), batch_size=4)


def index_parts() -> list[Parts]:
    return [{path.name: path.read_bytes() for path in whole_index().folder.iterdir()}]


def write_index(folder: Path, parts: Parts) -> Path:
    for name, whole in index_parts()[0].items():
        sums = [hashlib.sha256(each).hexdigest().encode() for each in (whole, parts[name])]
        parts["SHA256SUMS"] = parts["SHA256SUMS"].replace(*sums)
    return write(folder / "index", parts)


def read_index(path: Path) -> None:
    index = FeatureIndex.open(path, verify=True)
    modified_times(index)
    for row in range(len(index)):
        assert ".." not in Path(index.files[row]).parts
        assert index.path(row).is_relative_to(index.photos)


def decisions() -> list[bytes]:
    lines = (f"{i}.png,keep,,{whole_index().sums[i]}\n" for i in range(8))
    return [f"file,decision,label,sha256\n{''.join(lines)}".encode()]


def model_file(name: str, layout: str | None = None) -> bytes:
    """A small model's file as another program may write it, without the sum of its bytes."""
    path = Path(name).absolute()
    if layout:
        save_weights(tiny(), path, layout=layout)
    else:
        (tiny().save_weights if name == "m.weights.h5" else tiny().save)(path)
    return path.read_bytes().replace(b"keras_vit_sha256", b"another_program_")


def zipped(name: str, layout: str | None = None) -> Format:
    """A zip archive, whose entries are parts, so that damage of them has their checksums."""

    def seeds() -> list[Parts]:
        with zipfile.ZipFile(io.BytesIO(model_file(name, layout))) as archive:
            entries = {entry: archive.read(entry) for entry in archive.namelist()}
            return [entries | ({"comment": archive.comment} if archive.comment else {})]

    def pack(folder: Path, parts: Parts) -> Path:
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.comment = parts.pop("comment", b"")[: 2**16 - 1]
            for entry, content in parts.items():
                archive.writestr(zipfile.ZipInfo(entry), content)  # of no date
        return folder / name

    return Format(seeds, load, (CheckpointError,), pack)


def safetensors() -> list[Parts]:
    content = model_file("m.safetensors", "timm")
    end = 8 + int.from_bytes(content[:8], "little")
    return [{"header": content[8:end], "data": content[end:]}]


def write_safetensors(folder: Path, parts: Parts) -> Path:
    content = len(parts["header"]).to_bytes(8, "little") + parts["header"] + parts["data"]
    return write(folder, {"m.safetensors": content}) / "m.safetensors"


def sidecars() -> list[Parts]:
    """The configurations beside weights, which stay whole."""
    save_weights(tiny(), Path("whole").absolute(), layout="huggingface")
    return [{path.name: path.read_bytes() for path in Path("whole").glob("*.json")}]


def write_sidecars(folder: Path, parts: Parts) -> Path:
    weights = (Path("whole") / "model.safetensors").read_bytes()
    return write(folder / "weights", parts | {"model.safetensors": weights})


OPTIONS = b'{"epochs": 3, "augment": ["none"], "job": {"model": "ViT-Ti/16"}}'
FORMATS: dict[str, Format] = {
    **{kind: by_both(kind) for kind in ("jpeg", "png", "gif", "bmp", "webp")},
    "tiff": by_pillow("f.tif", *({"compression": c} for c in ("tiff_lzw", "jpeg", "packbits"))),
    "avif": by_pillow("f.avif"),
    "heic": by_pillow("f.heic"),
    "geotiff": one("f.tif", lambda: [*TIFFS.values()], read_bands, BadImageError),
    "png of bands": one("f.png", lambda: [OTHERS["png"]], read_bands, BadImageError),
    "npy": one("f.npy", lambda: [OTHERS["npy"]], read_bands, BadImageError),
    "dicom": one("f.dcm", lambda: [OTHERS["dicom"], jpeg_2000()], read_bands, BadImageError),
    "csv": table("t.csv", lambda: ["\n".join(map(",".join, (NAMES, *ROWS))).encode()]),
    "jsonl": table("t.jsonl", lambda: ["\n".join(LINES).encode()]),
    "parquet": table("t.parquet", lambda: [*parquet()]),
    "index": Format(index_parts, read_index, (DamagedIndexError,), write_index),
    "decisions": one(
        "d.csv", decisions, lambda path: read_decisions(path, whole_index()), ValueError
    ),
    "safetensors": Format(safetensors, load, (CheckpointError,), write_safetensors),
    "npz": zipped("m.npz", "google"),
    "keras": zipped("m.keras"),
    "h5": one("m.h5", lambda: [model_file("m.h5")], load, CheckpointError),
    "weights.h5": one(
        "m.weights.h5",
        lambda: [model_file("m.weights.h5")],
        lambda path: load_weights(tiny(), path),
        CheckpointError,
    ),
    "huggingface": Format(sidecars, arguments_for, (CheckpointError,), write_sidecars),
    "json": one("c.json", lambda: [OPTIONS], lambda path: read_config(path, TRAIN), UsageError),
}
