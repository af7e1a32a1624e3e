"""`keras-vit embed`: the features of a folder of photographs, once, as an index."""

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.progress import TextColumn

from keras_vit import load
from keras_vit._base.errors import counted, printable
from keras_vit._base.files import path_from
from keras_vit._base.manifest import read_manifest
from keras_vit.curation import FeatureIndex
from keras_vit.curation import embed as compute
from keras_vit.curation.embedding import Progress
from keras_vit.curation.feature_index import KIND, read_entries
from keras_vit.data.sources.other_formats import shown_left_out
from keras_vit.evaluation.answer_row import Row
from keras_vit.evaluation.unseen_images import seen_images_of
from keras_vit_cli.model_files import with_decoder
from keras_vit_cli.options.photo_options import EmbedOptions
from keras_vit_cli.predict.answer_files import parquet_writer
from keras_vit_cli.printing import print_next, print_text, print_unreadable, progress_bar
from keras_vit_cli.ray_engine import embed_on_ray, name_for_ray, photos_for_ray


def embed(options: EmbedOptions) -> int:
    """Writes or updates an index; the exit status is 1 where files cannot be decoded.

    Raises:
        FileExistsError: `out` is a table that is there.
        IndexMismatchError: There is an index by another model, layer or preparation.
        ValueError: There is no image.
    """
    out = options.out
    is_table = out.suffix.lower() == ".parquet" and not out.is_dir()
    if is_table:
        if os.path.lexists(out):
            raise FileExistsError(f"{printable(out)} exists. Give another --out, or delete it.")
        options = replace(options, out=index_beside(out))
    index = write_index(options)
    if is_table:
        _write_table(index, options.photos, out)
        print_text(f"written to {out}: {counted(len(index) + len(index.unreadable), 'row')}")
    print_next("search", options.out, "photo.jpg", "--out", "similar.html")
    return 1 if index.unreadable else 0


def index_beside(out: Path) -> Path:
    """Return the folder of the index that a file or folder is made of, where none is given."""
    return out.with_name(f"{out.absolute().name}_index")


def _write_table(index: FeatureIndex, photos: Path, out: Path) -> None:
    """Writes the rows of an index, with files as `predict` has them, and float32 features."""
    folder, row = photos if index.info["is_folder"] else photos.parent, 0
    first: Row = {"file": "", "error": None, "label": None, "split": None}
    with parquet_writer(out, {**first, "features": np.zeros(0, np.float32)}) as write:
        for entry in read_entries(index.folder):
            known = {key: entry[key] for key in ("error", "label", "split")}
            is_read = entry["error"] is None
            features = index.rows(row, row + 1)[0] if is_read else None
            write([{"file": name_for_ray(folder / entry["file"]), **known, "features": features}])
            row += is_read


def write_index(options: EmbedOptions) -> FeatureIndex:
    """Writes or updates an index, and prints what was done; errors are those of `embed`."""
    path = options.model
    model = with_decoder(load(path), options.decoder)
    model.seen_images = seen_images_of(model, path)
    began, last = time.monotonic(), Progress(0, 0, 0)
    # How many files there are is known at the end alone.
    with progress_bar(TextColumn("{task.description}")) as bar:
        task = bar.add_task("looking for images")

        def report(progress: Progress) -> None:
            nonlocal last
            last = progress
            rate = progress.computed / (time.monotonic() - began)
            failed = f", {progress.unreadable:,} cannot be read" if progress.unreadable else ""
            bar.update(task, description=f"{progress.files:,} images, {rate:.1f}/s{failed}")

        index = compute(
            model,
            options.photos if options.ray is None else photos_for_ray(options.photos),
            options.out,
            options.layer,
            options.dtype,
            options.batch_size,
            pooling=options.pooling,
            max_pixels=options.max_pixels,
            # From the index to the model, or the name of released weights.
            source=path_from(options.out, path) if path.exists() else str(path),
            report=report,
            elsewhere=None if options.ray is None else embed_on_ray(options),
        )
    print_unreadable(index.unreadable, f"{options.out}/files.jsonl")
    if model.seen_images is not None:
        print_made_with(model.name, model.seen_images.used_among(np.array(index.sums, "S")))
    seconds = time.monotonic() - began
    images = counted(len(index), "image")
    rate = f", {last.computed / seconds:.1f}/s" if last.computed else ""
    failed = f", {len(index.unreadable):,} cannot be read" if index.unreadable else ""
    if left_out := index.info.get("left_out"):
        print_text(f"left out: {shown_left_out(left_out)}")
    print_text(
        f"written to {options.out}: {images} of {index.dimension} numbers, {last.computed:,} "
        f"read now{rate}{failed}"
    )
    return index


def is_index(path: Path) -> bool:
    """Return whether a path is the folder of an index."""
    manifest = read_manifest(path) if path.is_dir() else None
    return manifest is not None and manifest.kind == KIND


def index_from(photos: Path, model: Path | None, index: Path | None, out: Path) -> FeatureIndex:
    """Return the index that is given, or that of images, made beside `out` or brought up to date.

    Raises:
        ValueError: There are images without a model, or an index with one.
    """
    if is_index(photos):
        if model is not None or index is not None:
            raise ValueError(
                f"{printable(photos)} is an index already: leave --model and --index out, or give "
                "the images."
            )
        return FeatureIndex.open(photos)
    if model is None:
        raise ValueError(
            f"{printable(photos)} is not an index of features: give the --model that sees the "
            "images, such as the folder of a training run."
        )
    return write_index(EmbedOptions(photos=photos, model=model, out=index or index_beside(out)))


def print_made_with(model: str, known: int | None) -> None:
    """Prints that a model was made with some of the images that its features are of."""
    if known:
        print_text(
            f"note: {model} was made with {counted(known, 'image')} of these: what is found in "
            "them by its features, such as wrong labels, may look right to it"
        )
