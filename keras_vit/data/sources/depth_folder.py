"""Photographs with the depth of every pixel beside: NumPy's `.npy`, float TIFF, 16-bit PNG."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from keras_vit._base.errors import printable
from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.image_files import read_contents
from keras_vit.data.decode.rasters import read_values
from keras_vit.data.sources.folder import FileOptions
from keras_vit.data.sources.map_folder import (
    MapSplit,
    beside,
    check_complete,
    check_map_size,
    each_map,
    photographs_in,
    readable,
    size_of,
    splits_of_maps,
)
from keras_vit.data.sources.mask_folder import read_mask
from keras_vit.data.sources.splits import Splits
from keras_vit.tasks import TASKS, Depth, Task, get
from keras_vit.tasks.depth import INVERSE

FLOATS = (".npy", ".tif", ".tiff")  # which masks are not
_COLORS = ".color.png"  # what is written beside a map to look at it
SUFFIXES = (*FLOATS, ".png")
_LAYOUT = (
    "Give a map of depth for each photograph, with its name, folders and size: photos/a/1.jpg has "
    "maps/a/1.npy, 1.tif, 1.tiff or 1.png, of which the first counts. NaN, infinity, 0 and "
    "negative numbers are pixels without a measurement."
)


class DepthSplit(MapSplit):
    """Image files, and the map of depth of each.

    `labels()` are what `Depth.summary` returns.
    """

    augment = "tiny"  # a closer crop would look nearer than its depth in meters

    def label_map(self, index: int) -> np.ndarray:
        assert isinstance(self.task, Depth)
        return read_depth(self.sources[index], self.task.depth_scale, self.max_pixels)


def is_depth(maps: Path, task: str | Task | None) -> bool:
    """Return whether labels are maps of depth: by their task, or else by files without a mask."""
    if task is not None or not maps.is_dir():
        kind = task.kind if isinstance(task, Task) else str(task)
        return issubclass(TASKS.get(kind, Task), Depth)
    files = [path for path in maps.rglob("*") if not path.name.lower().endswith(_COLORS)]
    suffixes = {path.suffix.lower() for path in files}
    return not suffixes.isdisjoint(FLOATS) and ".png" not in suffixes


def load_depth(
    folder: Path,
    maps: Path,
    task: str | Task | None,
    val_fraction: float,
    seed: int,
    options: FileOptions,
) -> Splits:
    """Find the photographs and maps of two folders, and check that they fit each other.

    Args and errors are those of `load_masks`; the task is "depth", "relative_depth", or a `Depth`
    with what 1 in a file is worth. A map of which no pixel is measured does not fit.
    """
    if not maps.is_dir():
        raise ValueError(f"{printable(maps)} is a file, not a folder of maps of depth. {_LAYOUT}")
    paths = photographs_in(folder, maps, options, _LAYOUT)
    sources = beside(paths, folder, maps, *SUFFIXES)
    check_complete(paths, sources, (folder, maps), SUFFIXES[0], "map", _LAYOUT)
    paths, checked = readable(paths, options)
    meaning = get(task or Depth.kind)
    assert isinstance(meaning, Depth)

    def look(path: Path) -> np.ndarray:
        size = size_of(path, options.max_pixels)
        depths = read_depth(sources[path], meaning.depth_scale, options.max_pixels)
        check_map_size(depths.shape, size)
        if not (depths > 0).any():
            raise ValueError("not one of its pixels is measured")
        return meaning.summary(depths[None])[0]

    rows = np.array(each_map(paths, look, sources, "map", _LAYOUT))
    of_each, part = [sources[path] for path in paths], (val_fraction, seed)
    return splits_of_maps(
        DepthSplit, folder, (paths, checked), of_each, meaning, rows, part, options
    )


def read_depth(file: Path, depth_scale: float | str | None, max_pixels: int | None) -> np.ndarray:
    """Return the depth of each pixel, float32 `(height, width)`, 0 where it is not measured.

    Files are never unpickled, and sizes are checked before memory is allocated.

    Args:
        file: `.npy`, TIFF (of which GDAL_NODATA and internal masks are honored) or PNG.
        depth_scale: As of `Depth`.
        max_pixels: Height times width that is accepted.

    Raises:
        BadImageError: It is damaged, too large, or not one number per pixel.
    """
    if file.suffix.lower() == ".png":
        values, palette = read_mask(file, max_pixels)
        if len(palette):
            raise BadImageError("colors of a palette in place of numbers")
    else:
        values = read_values(read_contents(file), max_pixels)
        if values.shape[2:] not in ((), (1,)):
            raise BadImageError(f"{values.shape[2]} bands, and a map of depth has one")
        values = values.reshape(values.shape[:2])
    if values.dtype.kind not in "iuf":
        raise BadImageError(f"values of {values.dtype}: write integers or floats")
    if depth_scale is None and values.dtype.kind != "f":
        raise BadImageError(
            "integers, whose unit is not known: give depth_scale, what 1 is worth, such as "
            "depth_scale=0.001 for millimeters in meters, in task=keras_vit.tasks.Depth()"
        )
    with np.errstate(all="ignore"):  # of what is not a measurement
        depths = np.ma.filled(values.astype(np.float64), 0)
        depths = 1 / depths if depth_scale == INVERSE else depths * float(depth_scale or 1)
    return Depth().check_targets(depths[None])[0]
