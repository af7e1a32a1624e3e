"""A photograph's depth by Depth Anything V2, as a colored image beside it.

    KERAS_BACKEND=torch python examples/depth.py FOLDER photo.jpg --out depth.png

The folder, such as Depth-Anything-V2-Small-hf, is transformers' of that model: `config.json` and
`model.safetensors`. Bright is near: relative models return inverse depth without a unit. The size
is chosen as by transformers: both sides are multiples of the patch, and one of them is `--side`,
whichever changes the photograph less. (The code of its authors takes the larger of the two, so that
its answers differ.) About ten seconds on two CPU cores with ViT-S.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageOps

import keras_vit
from keras_vit.layers import MapResize


def size_for(height: int, width: int, side: int = 518, multiple: int = 14) -> tuple[int, int]:
    """Height and width to resize a photograph to: transformers' `keep_aspect_ratio`.

    >>> size_for(480, 640)
    (518, 686)
    """
    scales = side / height, side / width
    scale = scales[1] if abs(1 - scales[1]) < abs(1 - scales[0]) else scales[0]
    rows, columns = (max(round(scale * n / multiple), 1) for n in (height, width))
    return rows * multiple, columns * multiple


def depth_of(folder: Path, photo: Image.Image, side: int = 518) -> np.ndarray:
    """Depth of each pixel of a photograph, `(height, width)`."""
    multiple = keras_vit.load(folder).patch_size[0]
    height, width = size_for(photo.height, photo.width, side, multiple)
    model = keras_vit.load(folder, input_shape=(height, width, 3))
    resized = photo.resize((width, height), Image.Resampling.BICUBIC)
    depth = model.predict(np.asarray(resized)[None], verbose=0)
    return np.asarray(MapResize((photo.height, photo.width))(depth))[0, ..., 0]


def colored(depth: np.ndarray) -> np.ndarray:
    """The colors of a map, from its least value to its largest, uint8 `(height, width, 3)`."""
    scaled = (depth - depth.min()) / max(float(np.ptp(depth)), 1e-6)
    return (matplotlib.colormaps["inferno"](scaled)[..., :3] * 255).round().astype(np.uint8)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the model")
    parser.add_argument("photo", type=Path, help="an image file")
    parser.add_argument("--out", type=Path, default=Path("depth.png"), help="file to write")
    parser.add_argument("--side", type=int, default=518, help="pixels of one side of the image")
    options = parser.parse_args(arguments)
    if options.side < 1:
        parser.error(f"--side {options.side} must be at least 1, such as 518.")
    with Image.open(options.photo) as file:
        photo = ImageOps.exif_transpose(file).convert("RGB")
    depth = depth_of(options.folder, photo, options.side)
    Image.fromarray(np.hstack([np.asarray(photo), colored(depth)])).save(options.out)
    print(f"{options.out}: depth from {depth.min():.3g} to {depth.max():.3g}")


if __name__ == "__main__":
    main()
