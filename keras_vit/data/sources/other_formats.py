"""Image formats that are not decoded, such as JPEG 2000 and HEIC, and the way to one that is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from keras_vit._base.errors import printable
from keras_vit.data.decode.decoder import IMAGE_SUFFIXES
from keras_vit.data.decode.image_files import irregular
from keras_vit.data.decode.pillow_formats import PILLOW_FORMATS
from keras_vit.data.decode.rasters import RASTER_SUFFIXES

_PILLOW = "Image.open(file).convert('RGB').save('1.png')"
# Pillow's `convert` would turn all that is brighter than 255 white.
_DEEP = f"{_PILLOW}; of 16 bits, scale the array to 0..255 before"
_PYDICOM = "pydicom.dcmread(file).pixel_array, scaled to 0..255"
# Of those that Grain's reader takes as they are.
_OTHERWISE = {
    "TIFF": f"Pillow: {_DEEP}",
    "AVIF": f"Pillow 11.3: {_PILLOW}",
    "HEIC": f"pillow-heif: register_heif_opener(); {_PILLOW}",
}


class OtherFormat(NamedTuple):
    """Images that are not decoded here.

    Attributes:
        name: What its users call it.
        suffixes: Of its files, in lower case.
        reader: The package that reads it, and how.
        begins: A regular expression for the first bytes of a file, or None.
    """

    name: str
    suffixes: tuple[str, ...]
    reader: str
    begins: bytes | None = None


OTHER_FORMATS = (
    *(OtherFormat(k.name, k.suffixes, _OTHERWISE[k.name], k.begins) for k in PILLOW_FORMATS),
    OtherFormat(
        "JPEG 2000",
        (".jp2", ".j2k", ".jpx", ".jpf", ".j2c"),
        f"Pillow: {_DEEP}",
        rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51",
    ),
    OtherFormat("JPEG XL", (".jxl",), f"pillow-jxl-plugin: {_PILLOW}", rb"\0\0\0\x0cJXL |\xff\x0a"),
    OtherFormat("DICOM", (".dcm", ".dicom", ".ima"), f"pydicom: {_PYDICOM}", rb".{128}DICM"),
    OtherFormat("NIfTI", (".nii", ".nii.gz"), "nibabel: slices of nibabel.load(file).get_fdata()"),
    OtherFormat(
        "raw camera",
        (".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2", ".raw"),
        "rawpy: rawpy.imread(file).postprocess()",
    ),
    OtherFormat(
        "whole-slide",
        (".svs", ".ndpi", ".mrxs", ".scn", ".vsi"),
        "openslide-python: tiles by OpenSlide(file).read_region",
    ),
    OtherFormat(
        "Netpbm, TGA or PCX",
        (".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".pcx", ".ico"),
        f"Pillow: {_PILLOW}",
    ),
    OtherFormat("OpenEXR or HDR", (".exr", ".hdr"), "OpenCV: cv2.imread(file, -1)"),
    OtherFormat("Photoshop", (".psd",), "psd-tools: PSDImage.open(file).composite()", rb"8BPS"),
    OtherFormat("SVG", (".svg",), "CairoSVG: cairosvg.svg2png(url=file)"),
    OtherFormat("PDF", (".pdf",), "pdf2image: convert_from_path(file)", rb"%PDF"),
    OtherFormat("NumPy", (".npy", ".npz"), "NumPy: model.fit takes its arrays as they are"),
    OtherFormat(
        "video", (".mp4", ".avi", ".mov", ".mkv", ".webm"), "ffmpeg: ffmpeg -i FILE %05d.png"
    ),
)
_BYTES = 132  # as many as DICOM needs to be known


def other_format(path: Path) -> OtherFormat | None:
    """The format of a file by its suffix, or, without a suffix, by its first bytes."""
    name = path.name.lower()
    for kind in OTHER_FORMATS:
        if name.endswith(kind.suffixes):
            return kind
    if path.suffix or irregular(path):
        return None
    try:
        with path.open("rb") as file:
            return format_of_contents(file.read(_BYTES))
    except OSError:
        return None


def format_of_contents(contents: bytes) -> OtherFormat | None:
    """The format of a file's first bytes."""
    known = (
        k for k in OTHER_FORMATS if k.begins and re.match(k.begins, contents[:_BYTES], re.DOTALL)
    )
    return next(known, None)


def why_ignored(path: Path, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> str:
    """Why a file of a class folder is not used: its format, as far as it is known."""
    kind = other_format(path)
    known = f"not one of {' '.join(suffixes)}"
    return known if kind is None else f"{kind.name}, {known}"


def how_to_convert(paths: Iterable[Path]) -> str:
    """How many files there are of each format that is not read, and how to convert them.

    Empty where there are none.
    """
    counts = Counter(kind for path in paths if (kind := other_format(path)) is not None)
    if not counts:
        return ""
    files = " and ".join(f"{n:,} {k.name} file{'s'[: n > 1]}" for k, n in counts.most_common())
    readers = "; ".join(f"{kind.name} by {kind.reader}" for kind, _ in counts.most_common())
    by_grain = " and ".join(
        kind.name for kind, _ in counts.most_common() if kind.name in _OTHERWISE
    )
    hints = [
        f"It holds {files}, and of images JPEG, PNG, BMP, GIF and WebP are read here.",
        f"Convert to PNG first ({readers}).",
    ]
    if by_grain:
        hints.append(f"Or let Grain read {by_grain} as it is: reader='grain' (--reader grain).")
    if any(set(kind.suffixes) & set(RASTER_SUFFIXES) for kind in counts):
        hints.append("Bands, and more than 8 bits, are read with bands='all' (--bands all).")
    return " ".join(hints)


# The scheme of an address -> the command that copies a folder of it.
REMOTE = {
    "gs": "gcloud storage cp --recursive {} DATA",
    "s3": "aws s3 cp --recursive {} DATA",
    "hdfs": "hdfs dfs -get {} DATA",
    "abfs": "azcopy copy --recursive {} DATA",
    "az": "azcopy copy --recursive {} DATA",
    "hf": "hf download --repo-type dataset --local-dir DATA {}",
    "http": "curl -LO {}",
    "https": "curl -LO {}",
    "ftp": "curl -LO {}",
}
ARCHIVES = {
    ".zip": "unzip {} -d DATA",
    ".tar": "tar -xf {} -C DATA",
    ".tgz": "tar -xf {} -C DATA",
    ".tar.gz": "tar -xf {} -C DATA",
    ".tar.bz2": "tar -xf {} -C DATA",
    ".tar.xz": "tar -xf {} -C DATA",
    ".7z": "7z x {} -oDATA",
    ".rar": "unrar x {} DATA/",
}
TABLES = (".csv", ".tsv", ".xlsx", ".xls", ".json", ".jsonl", ".parquet")
_ADDRESS = re.compile(r"([a-z0-9]+):/{1,2}(?=[^/])")  # pathlib leaves one slash of two


def is_remote(source: str) -> bool:
    """Whether a source is the address of a storage elsewhere, such as `gs://bucket/folder`."""
    address = _ADDRESS.match(source.lower())
    return address is not None and address[1] in REMOTE


def advice_for(source: str) -> str | None:
    """What to do with a source that is not a folder, as a sentence; None for one without advice."""
    name, shown = source.lower(), printable(source)
    if is_remote(source):
        address = _ADDRESS.match(name)
        assert address is not None
        whole = f"{address[1]}://{shown[address.end() :]}"
        return (
            f"{whole} is not on this machine, and images are read from its disks. Copy it first: "
            f"{REMOTE[address[1]].format(quote(whole))}"
        )
    for suffix, command in ARCHIVES.items():
        if name.endswith(suffix):
            return (
                f"{shown} is an archive. Unpack it, and give the folder: "
                f"mkdir -p DATA && {command.format(quote(shown))}"
            )
    if name.endswith(TABLES):
        return (
            f"{shown} is a table. Give the folder of its images, and the table as CSV, TSV, JSON "
            "lines or Parquet file beside it: load(FOLDER, labels='labels.csv'), --data FOLDER "
            "--labels labels.csv."
        )
    if name.endswith(IMAGE_SUFFIXES):
        return (
            f"{shown} is a file, not a folder of images: give the folder around the folders of "
            "the classes, each with several of them."
        )
    kind = other_format(Path(source))
    if kind is not None:
        return f"{shown} is a {kind.name} file, which is not read here ({kind.reader})."
    return None
