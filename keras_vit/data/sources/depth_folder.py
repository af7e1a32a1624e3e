"""Photographs with the depth of every pixel beside: NumPy's `.npy`, float TIFF, 16-bit PNG."""

from pathlib import Path

import numpy as np

from keras_vit._base.errors import listed, printable, warn_at_caller
from keras_vit.data.data_errors import BadImageError
from keras_vit.data.decode.image_files import read_contents
from keras_vit.data.decode.rasters import read_values
from keras_vit.data.sources.map_folder import MapSplit
from keras_vit.data.sources.mask_folder import read_mask
from keras_vit.tasks import Depth
from keras_vit.tasks.depth import INVERSE

_FEW = 20  # different numbers: as many classes, rather than depths


class DepthSplit(MapSplit):
    """Image files, and the map of depth of each.

    `labels()` are what `Depth.summary` returns.
    """

    task_class = Depth
    suffixes = (".npy", ".tif", ".tiff", ".png")
    layout = (
        "Give a map of depth for each photograph, with its name, folders and size: photos/a/1.jpg "
        "has maps/a/1.npy, 1.tif, 1.tiff or 1.png, of which the first counts. NaN, infinity, 0 and "
        "negative numbers are pixels without a measurement."
    )
    augment = "tiny"  # a closer crop would look nearer than its depth in meters

    @staticmethod
    def doubt(maps: Path, rows: np.ndarray) -> None:
        values = np.unique(rows[:, 1:])
        if len(values) <= _FEW and (values % 1 == 0).all():
            warn_at_caller(
                f"The maps in {printable(maps)} are taken for depth, and have the numbers "
                f"{listed([f'{value:g}' for value in values], 5)} alone: if these are classes, "
                'write PNG files of integers. If they are depths, say so: task="depth".'
            )

    @staticmethod
    def read_map(source: Path, task: Depth, max_pixels: int | None) -> np.ndarray:
        """Return the depth of each pixel, float32 `(height, width)`, 0 where it is not measured.

        Files are `.npy`, TIFF, of which GDAL_NODATA and internal masks are honored, or PNG. They
        are never unpickled, and sizes are checked before memory is allocated.

        Raises:
            BadImageError: It is damaged, too large, or not one number per pixel.
        """
        if source.suffix.lower() == ".png":
            values, palette = read_mask(source, max_pixels)
            if len(palette):
                raise BadImageError("colors of a palette in place of numbers")
        else:
            values = read_values(read_contents(source), max_pixels)
            if values.shape[2:] not in ((), (1,)):
                raise BadImageError(f"{values.shape[2]} bands, and a map of depth has one")
            values = values.reshape(values.shape[:2])
        if values.dtype.kind not in "iuf":
            raise BadImageError(f"values of {values.dtype}: write integers or floats")
        if task.depth_scale is None and values.dtype.kind != "f":
            raise BadImageError(
                "integers, whose unit is not known: give depth_scale, what 1 is worth, such as "
                "depth_scale=0.001 for millimeters in meters, in task=keras_vit.tasks.Depth(); of "
                "classes, write PNG files"
            )
        with np.errstate(all="ignore"):  # of what is not a measurement
            depths = np.ma.filled(values.astype(np.float64), 0)
            scale = task.depth_scale
            if scale == INVERSE and len(np.unique(values[values < 0])) > 1:  # no sign for a hole
                raise BadImageError(
                    f"inverse depths below 0, down to {values.min():.3g}, whose zero is not that "
                    "of a distance: add a constant to each map, so that the farthest is above 0"
                )
            depths = 1 / depths if scale == INVERSE else depths * float(scale or 1)
        return Depth().check_targets(depths[None])[0]
