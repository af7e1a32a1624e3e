"""Every kind of image file: its suffixes, its first bytes, and who reads it."""

import re
from pathlib import Path
from typing import NamedTuple

_PILLOW = "Image.open(file).convert('RGB').save('1.png')"
# Pillow's `convert` would turn all that is brighter than 255 white.
_DEEP = f"Pillow: {_PILLOW}; of 16 bits, scale the array to 0..255 before"
_PYDICOM = "pydicom: pydicom.dcmread(file).pixel_array, scaled to 0..255"

# Readers: TensorFlow's decoder and Pillow's, which Grain calls; Pillow alone; those of `bands`.
TENSORFLOW, PILLOW, BANDS = "tensorflow", "pillow", "bands"


class ImageKind(NamedTuple):
    """A kind of image file.

    Attributes:
        begins: A regular expression for the first bytes of a file, or None.
        readers: Which of `TENSORFLOW`, `PILLOW` and `BANDS` read it.
        converter: The package that reads what TensorFlow does not, and how.
        is_image: False for what lies beside images: videos, documents, archives.
    """

    name: str
    suffixes: tuple[str, ...]
    begins: bytes | None = None
    readers: tuple[str, ...] = ()
    converter: str = ""
    is_image: bool = True

    @property
    def pillow(self) -> str:
        """Pillow's name of it."""
        return "HEIF" if self.name == "HEIC" else self.name


_BY_BOTH = (TENSORFLOW, PILLOW)
_ISO = rb".{4}ftyp"  # of the container of AVIF and HEIC
KINDS = (
    ImageKind(
        "JPEG",
        (".jpg", ".jpeg", ".jpe", ".jfif", ".jif", ".pjpeg", ".pjp"),
        rb"\xff\xd8\xff",
        _BY_BOTH,
    ),
    ImageKind("PNG", (".png",), rb"\x89PNG\r\n\x1a\n", (*_BY_BOTH, BANDS)),
    ImageKind("BMP", (".bmp", ".dib"), rb"BM.{4}\0{4}", _BY_BOTH),
    ImageKind("GIF", (".gif",), rb"GIF8[79]a", _BY_BOTH),
    ImageKind("WebP", (".webp",), rb"RIFF.{4}WEBP", _BY_BOTH),
    ImageKind("TIFF", (".tif", ".tiff", ".gtiff"), rb"II[*+]\0|MM\0[*+]", (PILLOW, BANDS), _DEEP),
    ImageKind("AVIF", (".avif",), _ISO + rb"avi[fs]", (PILLOW,), f"Pillow 11.3: {_PILLOW}"),
    ImageKind(
        "HEIC",
        (".heic", ".heif", ".hif"),
        _ISO + rb"(hei|hev|mif1|msf1)",
        (PILLOW,),
        f"pillow-heif: register_heif_opener(); {_PILLOW}",
    ),
    ImageKind("DICOM", (".dcm", ".dicom", ".ima"), rb".{128}DICM", (BANDS,), _PYDICOM),
    ImageKind(
        "NumPy",
        (".npy",),
        rb"\x93NUMPY",
        (BANDS,),
        "NumPy: model.fit takes its arrays as they are",
    ),
    ImageKind(
        "JPEG 2000",
        (".jp2", ".j2k", ".jpx", ".jpf", ".j2c"),
        rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51",
        converter=_DEEP,
    ),
    ImageKind(
        "JPEG XL",
        (".jxl",),
        rb"\0\0\0\x0cJXL |\xff\x0a",
        converter=f"pillow-jxl-plugin: {_PILLOW}",
    ),
    ImageKind(
        "NIfTI",
        (".nii", ".nii.gz"),
        converter="nibabel: slices of nibabel.load(file).get_fdata()",
    ),
    ImageKind(
        "raw camera",
        (".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2", ".raw"),
        converter="rawpy: rawpy.imread(file).postprocess()",
    ),
    ImageKind(
        "whole-slide",
        (".svs", ".ndpi", ".mrxs", ".scn", ".vsi"),
        converter="openslide-python: tiles by OpenSlide(file).read_region",
    ),
    ImageKind(
        "Netpbm, TGA or PCX",
        (".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".pcx", ".ico"),
        converter=f"Pillow: {_PILLOW}",
    ),
    ImageKind("OpenEXR or HDR", (".exr", ".hdr"), converter="OpenCV: cv2.imread(file, -1)"),
    ImageKind(
        "Photoshop", (".psd",), rb"8BPS", converter="psd-tools: PSDImage.open(file).composite()"
    ),
    ImageKind("SVG", (".svg",), converter="CairoSVG: cairosvg.svg2png(url=file)"),
    ImageKind("PDF", (".pdf",), rb"%PDF", (), "pdf2image: convert_from_path(file)", False),
    ImageKind("NumPy archive", (".npz",), None, (), "NumPy: numpy.load(file)[name]", False),
    ImageKind(
        "video",
        (".mp4", ".avi", ".mov", ".mkv", ".webm"),
        converter="ffmpeg: ffmpeg -i FILE %05d.png",
        is_image=False,
    ),
)
_BY_SUFFIX = {suffix: kind for kind in KINDS for suffix in kind.suffixes}
_BYTES = 132  # as many as DICOM needs to be known


# Folders that a Mac's archives, disk stations and Windows leave behind, with thumbnails.
_SYSTEM_FOLDERS = {"__macosx", "@eadir", "#recycle", "$recycle.bin", "lost+found"}


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or the system's own.

    >>> is_hidden(".DS_Store"), is_hidden("@eaDir"), is_hidden("daisy")
    (True, True, False)
    """
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def kinds_of(reader: str) -> tuple[ImageKind, ...]:
    """Return the kinds that a reader reads.

    >>> [kind.name for kind in kinds_of("bands")]
    ['PNG', 'TIFF', 'DICOM', 'NumPy']
    """
    return tuple(kind for kind in KINDS if reader in kind.readers)


# Photographs of phones, and scans.
PILLOW_FORMATS = tuple(kind for kind in kinds_of(PILLOW) if TENSORFLOW not in kind.readers)


def suffixes_of(reader: str) -> tuple[str, ...]:
    """Return the suffixes of `kinds_of` a reader, sorted."""
    return tuple(sorted(suffix for kind in kinds_of(reader) for suffix in kind.suffixes))


def kind_of(path: Path) -> ImageKind | None:
    """Return a file's kind by its suffix, or by its first bytes where that does not name a kind.

    Bytes are read where there is no suffix, as in files named by a digest, or where it is a number,
    as in DICOM files named by their identifier. With any other suffix, such as `.bak`, a file is
    something else, whatever it holds.

    >>> kind_of(Path("photo.JFIF")).name, kind_of(Path("photo.txt"))
    ('JPEG', None)
    """
    suffix = path.suffix.lower()
    if kind := _BY_SUFFIX.get(suffix) or _BY_SUFFIX.get("".join(path.suffixes[-2:]).lower()):
        return kind
    return kind_by_bytes(path) if not suffix or suffix[1:].isdigit() else None


def is_image(path: Path) -> bool:
    """Return whether a file is an image by its `kind_of`, whether or not it is read here.

    >>> is_image(Path("a.jxl")), is_image(Path("a.MOV")), is_image(Path("a.txt"))
    (True, False, False)
    """
    kind = kind_of(path)
    return kind is not None and kind.is_image


def kind_by_bytes(path: Path) -> ImageKind | None:
    """Return the kind of a regular file by its first bytes, whatever its suffix."""
    try:
        # Whoever opens a named pipe would wait for its writer.
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return kind_of_contents(file.read(_BYTES))
    except OSError:
        return None


def kind_of_contents(contents: bytes) -> ImageKind | None:
    """Return the kind of a file with these first bytes.

    >>> kind_of_contents(b"II*\\0...").name
    'TIFF'
    """
    begin = contents[:_BYTES]
    known = (k for k in KINDS if k.begins and re.match(k.begins, begin, re.DOTALL))
    return next(known, None)


def pillow_format(contents: bytes) -> ImageKind | None:
    """Return the kind of a file with these first bytes, if Pillow reads it and TensorFlow does not.

    >>> pillow_format(b"II*\\0...").name, pillow_format(b"GIF89a")
    ('TIFF', None)
    """
    kind = kind_of_contents(contents)
    return kind if kind in PILLOW_FORMATS else None
