"""The page: one HTML file with images, attention and plots that needs no other file."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.errors import counted, printable
from keras_vit._base.files import write_text
from keras_vit.inspection.plots import HEAT
from keras_vit_cli.inspect.looks import Looks
from keras_vit_cli.page_parts import (
    breakable,
    file_list,
    in_base64,
    jpeg_uri,
    page_head,
    script_data,
    template,
)

_LAST_STOP = {
    "attribution": "what speaks for the answer below each image: attention times the gradient of "
    "the class's score, through all layers",
    "rollout": "attention rollout, which combines all layers and is the same for every class",
}


@dataclass(frozen=True)
class InspectedImage:
    """An image as the model saw it, what it predicted, and where it looked."""

    name: str  # of the file
    pixels: np.ndarray  # (height, width, channels) in 0..1
    prediction: list[dict[str, Any]]
    attention: np.ndarray  # (depth, heads, grid_h, grid_w)
    map: np.ndarray  # of all layers, (grid_h, grid_w)
    explained: str  # the name of the class that the map is of, "" where it is of none


@dataclass(frozen=True)
class Plot:
    """A plot as the bytes of a PNG file, or None where the caption explains why it is missing."""

    title: str
    caption: str
    png: bytes | None


def write_page(
    path: Path,
    title: str,
    looks: Looks,
    images: list[InspectedImage],
    plots: list[Plot],
    failed: dict[Path, str],
) -> None:
    """Writes the page from the template `page.html` beside this file.

    Names of files and classes may be any text, even bytes that are not UTF-8: they are escaped.
    """
    depth, heads, grid_h, grid_w = images[0].attention.shape
    data = {
        "depth": depth,
        "heads": heads,
        "grid": [grid_h, grid_w],
        "method": looks.method,
        "colors": in_base64(_colors().tobytes()),
        "images": [_maps(image) for image in images],
    }
    (height, width), (patch_h, patch_w) = images[0].pixels.shape[:2], looks.patch_pixels
    covered_h, covered_w = looks.covered
    title = escape(printable(title))
    page = template("inspect/page.html").substitute(
        head=page_head("inspect", f"Where {title} looks"),
        title=title,
        facts=escape(
            f"{counted(depth, 'layer')} of {counted(heads, 'head')}, {grid_h} × {grid_w} patches "
            f"of {patch_h} × {patch_w} pixels"
        ),
        reader=escape(looks.reader),
        method=looks.method,
        last_stop=_LAST_STOP[looks.method],
        depth=depth,
        last=depth + 1,
        head_options="".join(f'<option value="{h}">head {h}</option>' for h in range(1, heads + 1)),
        overlay=f"width:{100 * covered_w / width:.3f}%;height:{100 * covered_h / height:.3f}%",
        cards="\n".join(_card(i, image) for i, image in enumerate(images)),
        failed=_failed(failed),
        plots="\n".join(map(_figure, plots)),
        data=script_data(data),
    )
    write_text(path, page)


def _maps(image: InspectedImage) -> dict[str, Any]:
    """Return each map as bytes 0..255, scaled from its minimum to its maximum, and these two.

    Per layer the mean of the heads, then each head; the map of all layers comes last.
    """
    heads = image.attention
    layers = np.concatenate([heads.mean(axis=1, keepdims=True), heads], axis=1)
    maps = np.concatenate([layers.reshape(-1, *heads.shape[2:]), image.map[None]])
    low, high = maps.min(axis=(1, 2)), maps.max(axis=(1, 2))
    span = np.maximum(high - low, np.finfo("float32").tiny)[:, None, None]
    scaled = (maps - low[:, None, None]) / span
    return {
        "name": printable(image.name),
        "explained": printable(image.explained),
        "ranges": [[float(f"{x:.3g}"), float(f"{y:.3g}")] for x, y in zip(low, high, strict=True)],
        "maps": in_base64(np.round(255 * scaled).astype("uint8").tobytes()),
    }


def _card(index: int, image: InspectedImage) -> str:
    name, (height, width) = escape(printable(image.name)), image.pixels.shape[:2]
    heading = breakable(printable(image.name))
    rows = "".join(map(_prediction, image.prediction))
    return (
        f"<article class=card><h2>{heading}</h2>"
        f'<div class=photo><img src="{_jpeg(image.pixels)}" width={width} height={height} '
        f'alt="Photograph {name}"><canvas role=img id=overlay-{index} aria-label=""></canvas></div>'
        f"<p class=peak id=peak-{index}>&nbsp;</p>"
        + (f'<ol aria-label="Predicted classes of {name}">{rows}</ol>' if rows else "")
        + "</article>"
    )


def _prediction(row: dict[str, Any]) -> str:
    """Return a row of an answer (`Task.describe`) as HTML: a name and its probability or value.

    Of pixels, the part that the class has.
    """
    name, probability = next(iter(row.values())), row.get("probability", row.get("part"))
    if probability is None:
        text, bar = escape(printable(f"{row['value']:.4g} {row.get('unit', '')}".rstrip())), ""
    else:
        text = f"{probability:.1%}"
        bar = f'<span class=bar style="width:{text}"></span>' if probability > 0.01 else ""
    return (
        f"<li><span class=class>{breakable(printable(name))}</span>"
        f"<span class=probability>{text}</span>{bar}</li>"
    )


def _failed(files: dict[Path, str]) -> str:
    """Return files that are not among the images, folded away below them; nothing without any."""
    if not files:
        return ""
    what = "1 file is" if len(files) == 1 else f"{len(files)} files are"
    return (
        f"<details class=failed><summary>{what} not shown: cannot be read</summary>"
        f"<ul>{file_list(files)}</ul></details>"
    )


def _figure(plot: Plot) -> str:
    title, caption = escape(plot.title), escape(plot.caption)
    if plot.png is None:
        return f"<figure><h2>{title}</h2><figcaption>{caption}</figcaption></figure>"
    source = f"data:image/png;base64,{in_base64(plot.png)}"
    return (
        f'<figure><h2>{title}</h2><img src="{source}" alt="Plot: {title}. {caption}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _jpeg(pixels: np.ndarray) -> str:
    from PIL import Image

    levels = np.round(255 * pixels).astype("uint8")
    image = Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
    return jpeg_uri(image, quality=88)


def _colors() -> np.ndarray:
    """Return the 256 colors of the heat map, uint8 `(256, 3)`."""
    from matplotlib import colormaps

    return np.round(255 * colormaps[HEAT](np.arange(256))[:, :3]).astype("uint8")
