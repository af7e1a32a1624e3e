"""Files of bands: against what tifffile, imagecodecs, NumPy and pydicom themselves read."""

import contextlib
import io
import logging
import struct
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from keras_vit._base.errors import DataRangeWarning
from keras_vit.curation.photo_sources import find_photos
from keras_vit.data import BadImageError, EvalTransform, band_statistics, load, pipeline, read_image
from keras_vit.data.decode.rasters import read_raster, shown
from tests.backend import refused, warned
from tests.data.image_fixtures import encode, one_quick, orientation, write

pytestmark = pytest.mark.backends("torch")  # Grain and NumPy read them
not_read = partial(refused, error=BadImageError)
pytest.importorskip("grain")
tifffile, imagecodecs, pydicom = map(pytest.importorskip, ("tifffile", "imagecodecs", "pydicom"))
RANDOM = np.random.default_rng(0)
FIVE = RANDOM.integers(0, 65536, (40, 50, 5)).astype("uint16")
IMAGES = RANDOM.integers(0, 4000, (20, 8, 8, 5)).astype("uint16")


def written(save: Callable[[io.BytesIO], Any]) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


def tiff(array: np.ndarray, **options: Any) -> bytes:
    options = {"photometric": "minisblack", **options}
    return written(lambda file: tifffile.imwrite(file, array, **options))


def npy(array: np.ndarray) -> bytes:
    return written(lambda file: np.save(file, array))


def dicom(stored: np.ndarray, bits: int = 12, **tags: Any) -> bytes:
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.UID("1.2.840.10008.5.1.4.1.1.1")
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    file = pydicom.dataset.FileDataset(None, {}, preamble=b"\0" * 128)
    file.file_meta = meta
    file.Rows, file.Columns, file.SamplesPerPixel = *stored.shape[:2], 1
    file.PhotometricInterpretation = "MONOCHROME2"
    file.BitsAllocated, file.BitsStored, file.HighBit = 16, bits, bits - 1
    file.PixelRepresentation = int(stored.dtype.kind == "i")
    for name, value in tags.items():
        setattr(file, name, value)
    file.PixelData = stored.tobytes()
    return written(partial(file.save_as, enforce_file_format=True))


def changed(contents: bytes, change: Callable[[Any], Any]) -> bytes:
    """A DICOM file, after a change of its tags."""
    file = pydicom.dcmread(io.BytesIO(contents))
    change(file)
    return written(partial(file.save_as, enforce_file_format=True))


TIFFS: dict[str, bytes] = {
    "contiguous": tiff(FIVE, planarconfig="contig"),
    "planar": tiff(np.moveaxis(FIVE, -1, 0), planarconfig="separate"),
    "pages": tiff(np.moveaxis(FIVE, -1, 0)),
    "deflate": tiff(FIVE, planarconfig="contig", compression="deflate", predictor=True),
    "strips": tiff(FIVE, planarconfig="contig", compression="lzw", rowsperstrip=7),
    "tiles": tiff(FIVE, planarconfig="contig", compression="zstd", tile=(16, 16)),
    "big": tiff(FIVE, planarconfig="contig", byteorder=">", bigtiff=True),
    "microscope": tiff(np.moveaxis(FIVE, -1, 0), ome=True, metadata={"axes": "CYX"}),
}
OTHERS = {"npy": npy(FIVE), "dicom": dicom(FIVE[..., 0] >> 4)}
OTHERS["png"] = imagecodecs.png_encode(FIVE[..., :3].copy())
FILES = {**TIFFS, **OTHERS}


@pytest.mark.parametrize("name", TIFFS)
def test_bands_equal_those_of_tifffile(name: str) -> None:
    read = read_raster(TIFFS[name])
    assert read.dtype == np.uint16
    np.testing.assert_array_equal(read, FIVE)
    theirs = tifffile.imread(io.BytesIO(TIFFS[name]))
    theirs = theirs if theirs.shape[-1] == 5 else np.moveaxis(theirs, 0, 2)
    np.testing.assert_array_equal(read, theirs)
    np.testing.assert_array_equal(read_raster(TIFFS[name], (4, 3, 2)), FIVE[..., [3, 2, 1]])


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float16", "float32", "float64"])
def test_every_depth(dtype: str) -> None:
    values = (RANDOM.normal(0, 90, (20, 21, 13)).clip(0 if dtype[0] == "u" else -99)).astype(dtype)
    expected = values.astype("float32") if dtype.startswith("float") else values
    for contents in (tiff(values, planarconfig="contig"), npy(values), npy(values[..., :1])):
        read = read_raster(contents)
        assert read.dtype == expected.dtype
        np.testing.assert_array_equal(read, expected[..., : read.shape[-1]])


def test_png_of_sixteen_bits_pictures_of_bands_and_dicom() -> None:
    # Of colors Pillow reads the high eight bits alone.
    np.testing.assert_array_equal(read_raster(OTHERS["png"]), FIVE[..., :3])
    gray = imagecodecs.png_encode(FIVE[..., 0].copy())
    theirs = np.asarray(Image.open(io.BytesIO(gray)))
    np.testing.assert_array_equal(read_raster(gray)[..., 0], theirs)
    assert (shown(FIVE).shape, shown(FIVE[..., :2]).shape) == ((40, 50, 3), (40, 50, 1))
    assert (shown(FIVE).min(), shown(FIVE).max()) == (0, 255)
    stored = FIVE[..., 0] >> 4
    signed = stored.astype("int16") - 2048
    inverted = {"PhotometricInterpretation": "MONOCHROME1"}
    slope = {"RescaleSlope": "2", "RescaleIntercept": "-1024"}
    empty = {"RescaleSlope": None, "RescaleIntercept": None}
    for contents, expected in (
        (OTHERS["dicom"], stored),
        (dicom(stored, **inverted), 4095 - stored),
        (dicom(stored, **slope), (2.0 * stored - 1024).astype("float32")),  # of tomography
        (dicom(signed, **inverted), -1 - signed),
        (dicom(stored, **inverted, **slope), (2.0 * stored - 1024).astype("float32")),
        (dicom(stored, **empty), stored),
        (jpeg_2000(), stored),
    ):
        read = read_raster(contents)
        assert read.dtype == expected.dtype
        np.testing.assert_array_equal(read[..., 0], expected)
    colors = (FIVE[..., :3] >> 8).astype("uint8")
    tags = {"SamplesPerPixel": 3, "PlanarConfiguration": 0, "BitsAllocated": 8, "HighBit": 7}
    contents = dicom(colors, bits=8, PhotometricInterpretation="RGB", **tags)
    np.testing.assert_array_equal(read_raster(contents), colors)
    lossless = changed(dicom(stored, **slope), lambda file: file.compress(pydicom.uid.RLELossless))
    theirs = pydicom.pixels.apply_modality_lut(stored, pydicom.dcmread(io.BytesIO(lossless)))
    np.testing.assert_array_equal(read_raster(lossless)[..., 0], theirs)
    not_read("2 frames", read_raster, dicom(np.tile(stored, (2, 1)), Rows=40, NumberOfFrames=2))


def patched(contents: bytes, **tags: int) -> bytes:
    """A TIFF file, some of whose tags of one number have another one."""
    with tifffile.TiffFile(file := io.BytesIO(contents)) as image:
        for name, value in tags.items():
            image.pages.first.tags[name].overwrite(value)
    return file.getvalue()


def huge_jpeg() -> bytes:
    """A TIFF file of 50 x 40 pixels, whose strip in JPEG says that it has 65,500 x 65,500."""
    options = {"photometric": "rgb", "planarconfig": "contig", "compression": "jpeg"}
    start, marker, rest = tiff(FIVE[..., :3].astype("uint8"), **options).partition(b"\xff\xc0")
    return start + marker + rest[:3] + (65500).to_bytes(2, "big") * 2 + rest[7:]


def numpy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117)
    return b"\x93NUMPY\1\0" + (118).to_bytes(2, "little") + text.encode() + b"\n"


def deflate(file: Any) -> None:
    file.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    file.add_new(0x00420011, "OB", bytes(2**20))


def jpeg_2000(size: tuple[int, int] | None = None) -> bytes:
    """A DICOM file in JPEG 2000, whose codestream may have another size."""
    stored = FIVE[..., 0] >> 4
    stream = bytearray(imagecodecs.jpeg2k_encode(stored, level=0, codecformat="j2k"))
    if size is not None:
        stream[8:16] = np.array(size, ">u4").tobytes()

    def compress(file: Any) -> None:
        file.file_meta.TransferSyntaxUID = pydicom.uid.JPEG2000Lossless
        file.PixelData = pydicom.encaps.encapsulate([bytes(stream)])

    return changed(dicom(stored, bits=16), compress)


def tiff_of_pages(pages: int) -> bytes:
    """A TIFF file of as many pages of 8 x 8 pixels."""
    short, long = ((256, 8), (257, 8), (258, 8), (262, 1)), ((273, 8), (278, 8), (279, 64))
    entries = [*((n, 3, 1, v) for n, v in short), *((n, 4, 1, v) for n, v in long)]
    page = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *e) for e in entries)
    following = [72 + (len(page) + 4) * number for number in range(1, pages)]
    parts = (page + struct.pack("<I", place) for place in [*following, 0])
    return struct.pack("<4sI64x", b"II*\0", 72) + b"".join(parts)


def of_images(*images: tuple[np.ndarray, dict[str, Any]]) -> bytes:
    with tifffile.TiffWriter(file := io.BytesIO()) as writer:
        for image, options in images:
            writer.write(image, **{"photometric": "minisblack", **options})
    return file.getvalue()


def with_mask(image: np.ndarray, mask: np.ndarray, number: int = 1) -> bytes:
    """A TIFF file with the internal mask that GDAL writes: True where there is a value."""
    options = {"planarconfig": "contig", "extratags": [(274, "H", 1, number, True)]}
    options |= {"photometric": "rgb"} if image.shape[2] == 3 else {}
    return of_images((image, options), (mask, {"subfiletype": 4, "compression": "deflate"}))


def sparse(image: np.ndarray, empty: int) -> bytes:
    """A TIFF file of tiles of 16 x 16, of which the one of this number is left out."""
    padded = np.pad(image, ((0, 8), (0, 14), (0, 0)))
    cut: Any = [padded[i : i + 16, j : j + 16] for i in (0, 16, 32) for j in range(0, 64, 16)]
    cut[empty] = None
    options = {"shape": image.shape, "dtype": image.dtype, "tile": (16, 16)}
    return tiff(iter(cut), planarconfig="contig", compression="deflate", **options)


@pytest.mark.parametrize("number", range(1, 9))
def test_an_orientation_is_undone(number: int) -> None:
    colors = with_hole((FIVE[..., :3] >> 8).astype("uint8") | 1, 0)
    png = encode(Image.fromarray(colors), "PNG", exif=orientation(number))
    theirs = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(png))))
    np.testing.assert_array_equal(read_raster(png), theirs)
    turned = with_mask(colors, colors[..., 0] > 0, number)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(turned))), theirs)
    np.testing.assert_array_equal(read_raster(turned), np.where(theirs > 0, theirs, np.nan))


HOLE = np.s_[32:, 16:32]  # a tile of 16 x 16, cut by the border


def with_hole(values: np.ndarray, value: float) -> np.ndarray:
    holed = values.copy()
    holed[HOLE] = value
    return holed


def nodata(values: np.ndarray, value: float, text: str) -> bytes:
    tags = [(42113, "s", 0, text, True)]
    return tiff(with_hole(values, value), planarconfig="contig", extratags=tags)


def padded(values: np.ndarray, value: int, bits: int = 16, **tags: Any) -> bytes:
    return dicom(with_hole(values, value), bits, **{"PixelPaddingValue": value, **tags})


TWELVE = np.minimum(FIVE[..., 0] >> 4, 4000)
HOUNSFIELD = TWELVE.astype("int16") - 2048
DEEP, FLOATS, DOUBLES = FIVE >> 4, FIVE.astype("float32") / 7, FIVE.astype("float64")
LOWEST, LOWEST_DOUBLE = np.finfo("float32").min, np.finfo("float64").min
RESCALED = padded(HOUNSFIELD, -3000, RescaleSlope="2", RescaleIntercept="-10")
# As some scanners write it, without a sign where pixels have one.
OTHER_SIGN = changed(RESCALED, lambda file: file.add_new(0x00280120, "US", 2**16 - 3000))
RANGE = {"PixelPaddingValue": -3000, "PixelPaddingRangeLimit": -3300}
WHITE = {"bits": 12, "PhotometricInterpretation": "MONOCHROME1"}
# Files of which the hole does not have a value, and their other values.
WITH_HOLES: dict[str, tuple[bytes, np.ndarray]] = {
    "GDAL_NODATA": (nodata(DEEP, 65535, "65535"), DEEP),
    "GDAL_NODATA of floats": (nodata(FLOATS, -9999, "-9999"), FLOATS),
    "the lowest float": (nodata(FLOATS, LOWEST, "-3.40282e+38"), FLOATS),
    "the lowest double": (nodata(DOUBLES, LOWEST_DOUBLE, "-1.79769313486e+308"), DOUBLES),
    "a mask of GDAL": (with_mask(FIVE, with_hole(np.ones((40, 50), bool), 0)), FIVE),
    "a sparse tile": (sparse(FIVE, 9), FIVE),
    "NaN": (npy(with_hole(FLOATS, np.nan)), FLOATS),
    "padding": (padded(HOUNSFIELD, -3000), HOUNSFIELD),
    "padding, the other sign": (OTHER_SIGN, 2.0 * HOUNSFIELD - 10),
    "padding, a range": (padded(HOUNSFIELD, -3200, **RANGE), HOUNSFIELD),
    "padding of MONOCHROME1": (padded(TWELVE, 4095, **WHITE), 4095 - TWELVE),
}


@pytest.mark.parametrize("name", WITH_HOLES)
def test_pixels_without_a_value_are_nan(name: str) -> None:
    contents, values = WITH_HOLES[name]
    expected = with_hole(values.reshape(40, 50, -1).astype("float32"), np.nan)
    with warnings.catch_warnings(action="error"):
        read = read_raster(contents)
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, expected)
    assert (shown(read)[HOLE] == 0).all()


def test_one_rule_for_pixels_without_a_value(tmp_path: Path) -> None:
    images = IMAGES[..., :2].astype("float32")
    images[::3, :4, :, 1] = np.nan
    folder, means = tiles(tmp_path / "a", images, ".npy"), np.nanmean(images, axis=(0, 1, 2))
    splits = load(folder, bands="all")  # of several depths, and not warned of
    train = np.stack([images[int(f.stem)] for f in splits.train.files]).astype("float64")
    statistics = band_statistics(splits.train)
    np.testing.assert_allclose(statistics, [f(train, (0, 1, 2)) for f in (np.nanmean, np.nanstd)])
    filled = EvalTransform(bands=(1, 2), nodata=tuple(means))
    assert EvalTransform.of(filled.to_dict()) == filled
    expected = np.where(np.isnan(images), means, images).astype("float32")
    for options in ({}, {"training": True, "augment": "none"}):
        batches = pipeline(splits.val, 8, 32, eval_transform=filled, **options)
        seen = sorted(map(bytes, next(iter(batches))[0]))
        assert seen == sorted(bytes(expected[int(f.stem)]) for f in splits.val.files)
    read = partial(read_image, folder / "a/0.npy", 8, 2)
    reason = "32 of 64 pixels do not have a value"
    one = read(transform=replace(filled, nodata=0))
    np.testing.assert_array_equal(one, np.nan_to_num(images[0]))
    assert reason in read(transform=replace(filled, nodata="refuse"))
    deviations = band_statistics(load(folder, bands="all", nodata=-1).train)[1]
    np.testing.assert_allclose(deviations, np.nan_to_num(train, nan=-1).std((0, 1, 2)))
    told = warned("7 of 20 files cannot be decoded", load, folder, bands="all", nodata="refuse")
    assert all(reason in why for _, why in told.report)
    assert not load(folder, bands=(1,), nodata="refuse").report  # a band that has all values
    for wrong in ("median", (1, 2, 3), float("nan"), None):
        refused("must be 'mean'", load, folder, bands=(1, 2), nodata=wrong)
    refused("give bands", load, folder, nodata=0)


Refusal = tuple[Callable[[], bytes], str]
# Of the fifth band, and of at most 100,000 pixels.
FIFTH: list[Refusal] = [
    (lambda: tiff(FIVE[..., :4], planarconfig="contig"), "has 4 bands, and band 5"),
    (lambda: tiff(FIVE[..., 0], photometric="miniswhite"), "MINISWHITE"),
    (lambda: tiff(np.zeros((2, 3, 20, 20), "uint8")), "write height, width, bands"),
    (lambda: npy(np.moveaxis(FIVE, -1, 0)), "np.moveaxis"),
    (lambda: npy(np.array([[None]])), "write numbers"),
    (lambda: npy(np.full((4, 4, 5), np.nan)), "not one pixel of these bands"),
    (lambda: npy(np.zeros((400, 400, 5))), "160000|400 x 400"),
    (lambda: npy(np.zeros((100, 100, 99))), "99 bands"),
]
PNG = OTHERS["png"]
# A few bytes that ask for gigabytes: refused for what the header says, not by an allocation.
HUGE: list[Refusal] = [
    (lambda: patched(TIFFS["tiles"], TileWidth=65520, TileLength=65520), "65520 x 65520"),
    (huge_jpeg, "65500 x 65500"),
    (lambda: numpy_header("'<f8'", (8192, 8192, 1)), "incomplete"),
    (lambda: numpy_header("'<f8'", (2000000, 2000000)), "2000000 x 2000000"),
    (lambda: numpy_header("('<f8', (100000000,))", (4, 4)), "write numbers"),
    (lambda: numpy_header("'|V1000000000'", (4, 4)), "write numbers"),
    (lambda: PNG[:16] + (2**30).to_bytes(4, "big") * 2 + PNG[24:], "1073741824"),
    (lambda: numpy_header("'<f8'", (8192, 8192, 2)), "in 2 bands of 64 bits"),
    (lambda: jpeg_2000((12000, 12000)), "whose compressed image has 12000 x 12000 in 1"),
    (lambda: tiff_of_pages(2**16), "too many parts"),
    (lambda: changed(OTHERS["dicom"], deflate), "a deflated DICOM file"),
]
SILENTLY_WRONG: list[Refusal] = [
    (lambda: tiff(np.moveaxis(FIVE, -1, 0), metadata={"axes": "TYX"}), "axes TYX"),
    (lambda: of_images((FIVE[..., 0], {}), (FIVE[:30, :30, 0], {})), "2 images of several sizes"),
    (lambda: tiff(FIVE[..., 0], extratags=[(50706, 1, 4, b"\1\4\0\0")]), "raw camera"),
    (lambda: dicom(FIVE[..., 0] >> 4, Rows=20), r"header says \(20, 50, 1\)"),
    (lambda: dicom(FIVE[..., 0] >> 4, RescaleSlope="0"), "rescale slope 0.0"),
    (lambda: dicom(FIVE[..., 0], ModalityLUTSequence=[]), "modality lookup table"),
    (lambda: dicom(FIVE[..., 0], SharedFunctionalGroupsSequence=[]), "enhanced DICOM"),
    (lambda: npy(np.full((3, 3), 1e300)), "band 1 holds infinity"),
    (lambda: with_mask(FIVE, FIVE[:9, :9, 0] > 0), r"mask \(9, 9\) is not of its size"),
]


def test_refusals_and_packages_that_are_missing(monkeypatch) -> None:
    fifth = {"bands": (5,), "max_pixels": 100_000}
    for rows, options in ((FIFTH, fifth), (HUGE, {}), (SILENTLY_WRONG, {})):
        for make, reason in rows:
            contents = make()
            with warnings.catch_warnings(action="error"):
                not_read(reason, read_raster, contents, **options)
    for bands in ((0,), (-1,), (1, 6)):  # they count from one
        message = f"has 5 bands, and band {bands[-1]} was asked for"
        not_read(message, read_raster, OTHERS["npy"], bands)
    for name, package in {"planar": "tifffile", "png": "imagecodecs", "dicom": "pydicom"}.items():
        monkeypatch.setitem(sys.modules, package, None)
        how = rf"{package} reads: pip install 'keras3-vit\[bands\]'"
        not_read(how, read_raster, FILES[name])
        monkeypatch.undo()


def test_threads_leave_the_filters_of_warnings() -> None:
    """A `catch_warnings` of each thread left "ignore" behind, for the whole process."""
    files, before = [OTHERS["dicom"], TIFFS["strips"], OTHERS["npy"]], list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        assert {read.shape[:2] for read in pool.map(read_raster, 50 * files)} == {(40, 50)}
    assert list(warnings.filters) == before


@pytest.mark.parametrize("name", [*one_quick(TIFFS), *OTHERS])
def test_damage(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A part of a file is an error or the whole image."""
    contents = FILES[name]
    whole = read_raster(contents)
    for length in [*range(0, len(contents), len(contents) // 60), len(contents) - 1]:
        with contextlib.suppress(BadImageError):
            np.testing.assert_array_equal(read_raster(contents[:length]), whole)
    assert not [r for r in caplog.records if r.name == "tifffile" and r.levelno >= logging.ERROR]


def tiles(folder: Path, images: np.ndarray, suffix: str = ".tif") -> Path:
    encoded = map(partial(tiff, planarconfig="contig") if suffix == ".tif" else npy, images)
    return write(folder, {f"{'ab'[i % 2]}/{i}{suffix}": file for i, file in enumerate(encoded)})


def numbered(files: Iterable[Path]) -> np.ndarray:
    return IMAGES[[int(file.stem) for file in files]]


def test_a_folder_of_bands_and_what_it_refuses(tmp_path: Path) -> None:
    folder = tiles(tmp_path / "tiles", IMAGES)
    for name, other in (("a/0.tif", "a/0"), ("b/1.tif", "b/1.gtiff")):
        (folder / name).rename(folder / other)
    splits = load(folder, bands=(4, 1))
    assert (splits.train.bands, splits.train.channels, splits.train.reader) == ((4, 1), 2, "grain")
    expected = numbered(splits.val.files)[..., [3, 0]].astype("float32")
    for training, augment in ((False, None), (True, "none")):
        ((images, labels),) = pipeline(splits.val, 8, 32, training=training, augment=augment)
        assert (sorted(map(bytes, images)), len(labels)) == (sorted(map(bytes, expected)), 4)
    means, stds = band_statistics(splits.train)
    values = numbered(splits.train.files)[..., [3, 0]].reshape(-1, 2)
    np.testing.assert_allclose(means, values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stds, values.std(0), rtol=1e-12)
    every = load(tmp_path / "tiles", bands="all").val
    cached = next(iter(pipeline(every, 8, 4, cache=True)))[0]
    np.testing.assert_array_equal(cached, numbered(every.files))
    one = read_image(splits.val.files[0], 8, 2, transform=EvalTransform(bands=(4, 1)))
    np.testing.assert_array_equal(one, expected[0])
    scans = {f"{'ab'[i % 2]}/1.2.{i}": dicom(IMAGES[i, ..., 0]) for i in range(4)}
    of_scans = write(tmp_path / "scans", scans)  # named by their identifier
    assert len(list(find_photos(of_scans).walk())) == 4
    assert load(of_scans, bands="all").val.bands == (1,)
    table = "\n".join(["file,height", *(f"{name},{i / 7:.3f}" for i, name in enumerate(scans))])
    write(of_scans, {"labels.csv": table.encode()})
    of_table = load(of_scans, labels="labels.csv", task="regression", bands=(1,), val_fraction=0.5)
    assert next(iter(pipeline(of_table.val, 8, 2)))[0].shape == (2, 8, 8, 1)
    four = tiff(IMAGES[0, ..., :4], planarconfig="contig")
    write(folder, {"a/short.tif": TIFFS["deflate"][:900], "a/four.tif": four})
    splits = warned("2 of 22 files cannot be decoded", load, folder, bands="all")
    assert "it has 4 bands, and the first file has 5" in str(dict(splits.report))
    (folder / "a" / "bytes.npy").write_bytes(npy(IMAGES[0].astype("uint8")))
    with pytest.warns(DataRangeWarning, match="20 files of uint16, 1 file of uint8"):
        warned("cannot be decoded", load, folder, bands="all")
    flat = np.stack([IMAGES[..., 0], np.full_like(IMAGES[..., 0], 7)], -1)
    train = load(tiles(tmp_path / "flat", flat), bands="all").train
    batches, third = partial(pipeline, splits.val, 8, 4), EvalTransform(bands=(3,))
    wrong = ((), (0, 1), (2, 2), "4,3", (1.5,), 3)
    for call, reason in (
        (partial(batches, channels=3), r"channels=3 does not fit .* of 5 bands"),
        (partial(batches, eval_transform=third), r"The model reads bands \(3,\)"),
        (partial(batches, eval_transform="big_vision"), "mode beside bands"),
        (partial(batches, True, augment="randaugment", num_classes=2), "rand_augment"),
        (partial(load, folder, bands="all", reader="tensorflow"), "leave reader out"),
        (partial(load, "digits", bands="all"), "for a folder of raster files"),
        (partial(band_statistics, load("digits").train), "has photographs"),
        (partial(band_statistics, train), "Band 2 is 7 in every pixel"),
        *((partial(load, folder, bands=bands), "different numbers from 1") for bands in wrong),
    ):
        refused(reason, call)
