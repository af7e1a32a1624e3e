"""`load`: from the name of a source to its splits."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path

from keras_vit._base.errors import check_choice, check_positive, printable
from keras_vit._base.version import install_command
from keras_vit.data.decode.headers import MAX_PIXELS
from keras_vit.data.eval_transform import check_bands, check_nodata
from keras_vit.data.image_readers import resolve_reader
from keras_vit.data.sources.depth_folder import DepthSplit
from keras_vit.data.sources.digits import is_digits, load_digits
from keras_vit.data.sources.folder import FOLDER_LAYOUTS, FileOptions, load_folder, near_folders
from keras_vit.data.sources.label_table import TableOptions, load_table
from keras_vit.data.sources.map_folder import MapSplit, maps_in
from keras_vit.data.sources.mask_folder import MaskSplit
from keras_vit.data.sources.other_formats import advice_for, is_remote
from keras_vit.data.sources.record_files import holds_records, load_records
from keras_vit.data.sources.splits import Splits
from keras_vit.data.sources.tfds import is_dataset_name, is_prepared_folder, load_tfds
from keras_vit.tasks import TASKS, Task

# The kinds of maps: of a task, or without one the first of which there are files.
MAPS: tuple[type[MapSplit], ...] = (MaskSplit, DepthSplit)
_COLORS = ".color.png"  # what is written beside a map to look at it
_RECORDS = (
    "reader='grain' is for folders of images, tables and digits, and {} holds records, which "
    "TensorFlow reads: leave reader out."
)


def load(
    source: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    val_fraction: float | None = 0.2,
    seed: int = 0,
    on_bad_file: str = "skip",
    verify: bool = True,
    max_pixels: int | None = MAX_PIXELS,
    reader: str | None = None,
    bands: Sequence[int] | str | None = None,
    nodata: str | float | Sequence[float] = "mean",
    labels: str | os.PathLike[str] | None = None,
    task: str | Task | None = None,
    file_column: str | None = None,
    label_columns: str | Sequence[str] | None = None,
    separator: str | None = None,
    on_bad_row: str = "error",
) -> Splits:
    """Finds labeled images by name and splits them reproducibly.

    Args:
        source: one of

            - "digits": scikit-learn's handwritten digits, gray, 8 x 8 pixels, stratified;
              "digits/half": first half and second half, as in scikit-learn's own example;
            - a folder: `FOLDER/train/<class>/*` and `FOLDER/val/<class>/*` (or `valid`,
              `validation`, `dev`, `eval`, in any case), perhaps with `FOLDER/test/<class>/*`, which
              is kept as `splits["test"]`, or validates with a warning where there is no `val`;
              `FOLDER/<class>/*` with `train.txt` and `val.txt` that list relative paths;
              or `FOLDER/<class>/*` alone, with a stratified split. The folders' sorted names are
              the class names. Files are JPEG, PNG, BMP, GIF or WebP by their suffix, for Grain's
              reader AVIF, HEIC or TIFF as well; EXIF
              orientation is applied. A warning lists what else lies there, and how to convert it;
            - TFRecord or ArrayRecord files of `tf.train.Example` with an encoded image and an
              integer label (`image/encoded` and `image/class/label`, or `image` and `label`): a
              folder, or "records:" and a folder or a pattern, such as `"records:/data/train-*"`.
              Their names determine the split; `labels.txt` has the class names, one per line.
              ArrayRecord files are read by index, TFRecord files of up to 4 GiB into memory;
            - a TFDS data set such as "tf_flowers" or "tfds:cifar10", prepared or downloadable, or
              the folder of a prepared one.
        data_dir: where TFDS looks for prepared data sets and puts new ones.
        val_fraction: fraction of the images for validation where the source does not have such a
            split. None to draw none, as of data that a model is only evaluated on: data without
            splits are one, `load(..., val_fraction=None)["all"]`, and others have theirs under
            their names. Classes are those of all of them, even a single one, and numbers in a table
            are not scaled.
        seed: which images these are. TFDS slices take the last ones, whatever the seed.
        on_bad_file: "skip" files that cannot be decoded and classes without an image to train on,
            with a warning and in `report`; or "raise". In records, an image that cannot be decoded
            is replaced by a gray one where it occurs.
        verify: decode every file of a folder once, now, to find those that cannot be decoded;
            otherwise they are skipped later. Records are not verified.
        max_pixels: height times width that an image may have, read from its header before it is
            decoded; larger ones count as files that cannot be decoded. None for any size.
        reader: who reads the images: "tensorflow", with tf.data; or "grain", with Pillow, in
            Grain's threads, for folders, tables and digits. Both take the same images in the same
            order with the same crops; JPEG files are decoded as with `decoder="pillow"` by the
            second. None for TensorFlow where it is installed, otherwise Grain.
        bands: read the files of a folder or table as rasters in their own range, whatever the bit
            depth, and take these bands as channels, counted from 1, such as (4, 3, 2); or "all" of
            them in order, which have to be as many in every file. Files are then TIFF or GeoTIFF,
            PNG, NumPy's `.npy` or DICOM, by their suffix, and Grain reads them
            (`pip install 'keras3-vit[bands]'`). `keras_vit.data.band_statistics` has what a model
            of them needs. None for photographs, 0..255.
        nodata: with bands: what is done with pixels that do not have a value (GDAL_NODATA, masks,
            sparse tiles, NaN, DICOM's padding). "mean": they do not count in statistics, and
            `pipeline` writes the model's mean of the band; "refuse": such files count as files
            that cannot be decoded; or the number to write, or one for each band, as if the file
            had it.
        labels: a table with a row per image of the folder `source`, which may lie in it: a CSV,
            TSV, JSON lines or Parquet file. Its columns `split` (train, val, test) and `group`
            (what must not be on both sides, such as a patient) are honored. Or a folder of masks:
            PNG files with the number of a class in each pixel, gray or with a palette, and 255 for
            pixels of no known class, for photographs in any folders of `source`: `masks/a/1.png` is
            that of `a/1.jpg`. Folders `train`, `val` and `test` at the top are splits, and
            `masks/classes.txt` has the names, a line each, that of number 0 first. Or drawings: a
            folder of labelme's JSON files or of YOLO's text files of polygons, of the same names,
            or a JSON file of COCO (docs/tasks.md has the names of classes and the background). Or a
            folder of maps of depth, a positive number for every pixel: `.npy`, float TIFF, or PNG
            of 16 bits with `task=Depth(depth_scale=0.001)`; inverse depths, larger where nearer,
            with `depth_scale="inverse"`.
        task: what the labels of the table mean: "classification", "multilabel", "regression" or
            "ordinal", of masks "segmentation", of maps of depth "depth" or "relative_depth"; or a
            `keras_vit.tasks.Task`, whose names are then the only ones, such as
            `Ordinal(("low", "medium", "high"))`. None for a guess, which
            `splits.task_reason` explains.
        file_column: its column of paths relative to the folder; None for the one that has files.
        label_columns: its columns of labels: one, or several of 0 and 1, or of numbers; None for
            all that are left, but for those that number the rows.
        separator: between several labels in a cell, such as "|"; None for a guess. An empty cell
            is an image without any of them.
        on_bad_row: "error" for rows of missing files, empty cells and the like, which are all in
            the message; or "skip" them, with a warning and in `report.ignored`.

    Returns:
        `Splits`, with `train`, `val` and perhaps a "test", or "all" alone; with `task`,
        `class_names` and a `report` of what is not used.

    Raises:
        FileNotFoundError: the path, the table, a listed file, a shard or `labels.txt` does not
            exist, or it is on another machine (`gs://`, `s3://`, `https://`).
        NotADirectoryError: the path of a file; of an archive or a table, with what to do with it.
        ValueError: an unknown name, a folder in none of the layouts or with fewer than two classes
            to train on, TFRecord files of more than 4 GiB, an argument out of range, or a table
            that cannot be used, with its lines.
        BadImageError: files that cannot be decoded, with `on_bad_file="raise"`.
        DamagedShardError: a file of records is truncated or damaged; damage within a record of an
            ArrayRecord file is found when it is read, in a `tf.errors.OpError` with the same
            message.
        DatasetUnavailableError: a TFDS data set that is not prepared and cannot be downloaded.

    Example:
        >>> load("digits")
        Splits('digits', 10 classes: train 1437, val 360)
    """
    whole, val_fraction = (True, 0.2) if val_fraction is None else (False, val_fraction)
    if not 0 < val_fraction < 1:
        raise ValueError(f"val_fraction={val_fraction} must lie between 0 and 1, for instance 0.2")
    if not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed={seed!r} must be an integer, 0 or more")
    if max_pixels is not None:
        check_positive(max_pixels=max_pixels)
    check_choice(on_bad_file, "on_bad_file", ("skip", "raise"))
    if bands is not None and bands != "all":
        bands = check_bands(bands)
    nodata, who = check_nodata(nodata, bands), resolve_reader(reader, bands)
    reading = FileOptions(on_bad_file, verify, max_pixels, who, bands, whole, nodata)
    name = os.fspath(source)
    if labels is not None:
        table = TableOptions(labels, task, file_column, label_columns, separator, on_bad_row)
        return _load_labels(Path(name).expanduser(), table, val_fraction, seed, reading)
    if any(value is not None for value in (task, file_column, label_columns, separator)):
        raise ValueError(
            "task, file_column, label_columns and separator are about a table: give it as "
            "labels='labels.csv', or leave them out."
        )
    path, kind = Path(name).expanduser(), _kind(name)
    if bands is not None and (kind != "folder" or is_digits(name)):
        raise ValueError(
            f"bands={bands!r} is for a folder of raster files, which {printable(name)} is not."
        )
    if is_digits(name):
        return load_digits(name, val_fraction, seed, reading.reader, whole)
    tfds_dir = None if data_dir is None else os.fspath(data_dir)
    options = {"on_bad_file": on_bad_file, "max_pixels": max_pixels}
    if kind != "folder" and reader == "grain":
        raise ValueError(_RECORDS.format(printable(name)))
    if kind == "tfds":
        return load_tfds(name.removeprefix("tfds:"), tfds_dir, val_fraction, whole, **options)
    if kind == "records":
        return load_records(name.removeprefix("records:"), val_fraction, seed, whole, **options)
    if path.exists():
        return load_folder(path, val_fraction, seed, reading)
    _refuse_missing(name, source, tfds_dir, reading.reader)
    return load_tfds(name, tfds_dir, val_fraction, whole, **options)


def _load_labels(
    folder: Path, table: TableOptions, val_fraction: float, seed: int, reading: FileOptions
) -> Splits:
    """Load images whose labels are in a table, in a folder of maps, or drawn."""
    maps = maps_in(folder, table.labels)
    if maps is None:
        return load_table(folder, table, val_fraction, seed, reading)
    if any(v is not None for v in (table.file_column, table.label_columns, table.separator)):
        raise ValueError(
            "file_column, label_columns and separator are about a table, and "
            f"{printable(maps)} has maps of pixels: leave them out."
        )
    kind = _kind_of_maps(maps, table.task)
    return kind.load_maps(folder, maps, table.task, val_fraction, seed, reading)


def _kind_of_maps(maps: Path, task: str | Task | None) -> type[MapSplit]:
    """Return the row of `MAPS` that a task, or else the suffixes of the files, speak for."""
    if task is None and maps.is_dir():
        names = (path.name.lower() for path in maps.rglob("*"))
        suffixes = {Path(name).suffix for name in names if not name.endswith(_COLORS)}
        fitting = (kind for kind in MAPS if not suffixes.isdisjoint(kind.suffixes))
    else:
        meaning = TASKS.get(task.kind if isinstance(task, Task) else str(task), Task)
        fitting = (kind for kind in MAPS if issubclass(meaning, kind.task_class))
    return next(fitting, MAPS[0])


def _kind(name: str) -> str:
    """ "tfds", "records" or "folder", by a prefix or by what lies there."""
    if is_remote(location := name.removeprefix("records:")):
        raise FileNotFoundError(advice_for(location))
    path = Path(name).expanduser()
    if name.startswith("tfds:") or (path.is_dir() and is_prepared_folder(path)):
        return "tfds"
    if name.startswith("records:") or (path.is_dir() and holds_records(path)):
        return "records"
    return "folder"


def _refuse_missing(name: str, source: object, data_dir: str | None, reader: str | None) -> None:
    """Raises a FileNotFoundError for what is not here, and cannot be a data set of TFDS."""
    if advice := advice_for(name):
        raise FileNotFoundError(f"There is no {printable(name)} here. {advice}")
    near = " or ".join(near_folders(name))
    hint = f"Did you mean {near}? " if near else ""
    if isinstance(source, os.PathLike) or _looks_like_a_path(name, data_dir):
        raise FileNotFoundError(f"There is no {name}. {hint}{FOLDER_LAYOUTS}")
    if reader == "grain" or find_spec("tensorflow_datasets") is None:
        raise FileNotFoundError(
            f"There is no folder {printable(name)}. {hint}Is it a data set of TFDS? TensorFlow "
            f"reads those: {install_command('tensorflow')}"
        )


def _looks_like_a_path(name: str, data_dir: str | None) -> bool:
    if name.startswith((".", "~", os.sep)):
        return True
    # TFDS writes "name/configuration", so a separator alone does not make a path.
    return (os.sep in name or "/" in name) and not is_dataset_name(name, data_dir)
