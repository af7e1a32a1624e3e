"""The folder that `inspect_files` and `keras-vit inspect` write."""

import os
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.data import read_image
from keras_vit.inspection import class_attribution, readout_attention
from keras_vit_cli import commands as cli
from keras_vit_cli.inspect.inspect_files import inspect_files
from tests.inspection.models import model_of, untrained
from tests.inspection.pages import Elements, page_data, write_images

pytest.importorskip("matplotlib")
PLOTS = {
    "attention.png",
    "attribution.png",
    "attention_distance.png",
    "position_similarity.png",
    "embedding_filters.png",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def written(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inspection") / "out"
    assert list(inspect_files(model_of("token"), files, out, title="<Ti/16>", top=2)) == [files[3]]
    return out


def page_in(folder: Path) -> str:
    return (folder / "index.html").read_text("utf-8")


def test_the_page_needs_no_other_file(written: Path) -> None:
    assert {path.name for path in written.iterdir()} == {*PLOTS, "index.html"}
    elements = Elements(page_in(written))
    for tag, attributes in elements.elements:
        for name in ("src", "href", "srcset", "data", "poster", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:"), (tag, value)
    assert "http" not in elements.text
    assert "@import" not in page_in(written)
    assert "url(" not in page_in(written)
    policy = next(a["content"] for a in elements.all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")


def test_the_page_is_accessible(written: Path) -> None:
    elements = Elements(page_in(written))
    images = elements.all("img")
    assert len(images) == 3 + 5
    assert all(image["alt"] for image in images)
    (slider,) = elements.all("input")
    assert slider["type"] == "range"
    assert slider["id"] in [label.get("for") for label in elements.all("label")]
    assert (slider["min"], slider["max"]) == ("0", "3")
    assert len(elements.all("option")) == 1 + 2
    assert len(elements.all("h1")) == 1


def test_names_are_text(written: Path, files: list[Path]) -> None:
    elements = Elements(page_in(written))
    assert not elements.all("b")
    assert files[0].name in elements.text
    assert "Where <Ti/16> looks" in elements.text
    reason = "broken.jpg: not a JPEG, PNG, BMP, GIF or WebP file"
    assert elements.text.count(reason) == 1


def test_the_overlays_are_the_attention(written: Path, files: list[Path]) -> None:
    model = model_of("token")
    images = np.stack([read_image(file, (32, 12)) for file in files[:3]])
    heads, whole = readout_attention(model, images), class_attribution(model, images)
    data = page_data(page_in(written))
    assert (data["depth"], data["heads"], data["grid"]) == (2, 2, [4, 3])
    for i, image in enumerate(data["images"]):
        assert image["name"] == files[i].name
        expected = [heads[i, 0].mean(0), *heads[i, 0], heads[i, 1].mean(0), *heads[i, 1]]
        for levels, (low, high), values in zip(
            image["maps"], image["ranges"], [*expected, whole[i]], strict=True
        ):
            assert (low, high) == pytest.approx((values.min(), values.max()), rel=6e-3)
            restored = low + levels / 255 * (high - low)
            assert np.abs(restored - values).max() < 0.01 * high


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", [*sorted(PLOTS), "index.html"])
def test_files_of_others_are_not_replaced(files: list[Path], tmp_path: Path, name: str) -> None:
    theirs = {name: b"theirs", "notes.txt": b"theirs"}
    for file, content in theirs.items():
        (tmp_path / file).write_bytes(content)
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=rf"{name} was not written by keras-vit inspect"):
            inspect_files(model_of("registers"), files, tmp_path, overwrite=overwrite)
        assert contents(tmp_path) == theirs


def test_overwriting_replaces_and_removes_only_our_files(
    written: Path, files: list[Path], tmp_path: Path
) -> None:
    """Also a plot that is not made again: here, of similarity, which the page explains."""
    with pytest.raises(FileExistsError, match="overwrite"):
        inspect_files(model_of("token"), files, written)
    out = Path(shutil.copytree(written, tmp_path / "out"))
    (out / "notes.txt").write_bytes(b"theirs")
    inspect_files(model_of("registers"), files, out, overwrite=True)
    ours = {*(PLOTS - {"position_similarity.png"}), "index.html"}
    assert set(contents(out)) == {*ours, "notes.txt"}
    text = Elements(page_in(out)).text
    assert "position_embedding='relative' does not have position embeddings" in text
    (tmp_path / "file").write_bytes(b"theirs")
    with pytest.raises(NotADirectoryError, match="file is a file"):
        inspect_files(model_of("token"), files, tmp_path / "file", overwrite=True)


def test_a_name_that_is_not_utf_8(files: list[Path], tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path / "p") + b"\xff\n.png"))
    shutil.copy(files[2], file)
    missing = Path(os.fsdecode(os.fsencode(tmp_path / "missing") + b"\xfe.png"))
    out = tmp_path / "out"
    # Features without a head, which have no predictions.
    assert list(inspect_files(model_of("all_tokens"), [file, missing], out)) == [missing]
    assert page_data(page_in(out))["images"][0]["name"] == r"p\xff\n.png"
    elements = Elements(page_in(out))
    assert r"missing\xfe.png: No such file or directory" in elements.text
    assert not elements.all("ol")


def test_errors(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No photograph could be read.*broken\.jpg"):
        inspect_files(model_of("token"), files[3:], tmp_path)
    with pytest.raises(ValueError, match="include_preprocessing=True"):
        inspect_files(untrained(include_preprocessing=False), files, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "small.keras", tmp_path / "out"
    model_of("token").save(model)

    def inspect(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(["inspect", str(model), *map(str, arguments), "--out", str(out)])
        return code, *capsys.readouterr()

    code, printed, error = inspect(*files)
    assert code == 1
    assert str(out / "index.html") in printed
    assert "broken.jpg cannot be read" in error
    assert "Where small looks" in page_in(out)
    for arguments, reason in (
        ((), "--overwrite"),
        (("--overwrite", "--for-class", "rose"), "There is no class 'rose' to explain"),
        (
            ("--overwrite", "--method", "rollout", "--for-class", "1"),
            "Rollout is the same for every class",
        ),
    ):
        code, _, error = inspect(files[0], *arguments)
        assert code == 2
        assert reason in error
    explained = []
    for options in (("--for-class", "1"), ("--for-class", "3"), ("--method", "rollout")):
        assert inspect(files[0], "--overwrite", *options)[0] == 0
        data = page_data(page_in(out))
        explained.append((data["method"], data["images"][0]["explained"]))
        plots = {path.stem for path in out.glob("*.png")} & {"attribution", "rollout"}
        assert plots == {data["method"]}  # that of the other method does not stay behind
    assert explained == [("attribution", "1"), ("attribution", "3"), ("rollout", "")]


def test_the_page_of_a_model_around_a_transformer(files: list[Path], tmp_path: Path) -> None:
    around = [keras.Input((64, 24, 3)), keras.layers.Resizing(32, 12), model_of("token")]
    model = keras.Sequential([*around, keras.layers.Dense(3, "softmax")])
    assert list(inspect_files(model, files, tmp_path, top=3)) == [files[3]]
    page = page_in(tmp_path)
    data = page_data(page)
    assert (data["grid"], data["method"]) == ([4, 3], "attribution")
    assert "width:100.000%;height:100.000%" in page
    shown = re.findall(r"class=probability>([\d.]+)%", page)
    assert sum(map(float, shown[:3])) == pytest.approx(100, abs=0.3)


def test_pixels_that_nothing_normalizes(files: list[Path], tmp_path: Path) -> None:
    """Around a model without preprocessing: those of files are a hundred times too large."""
    plain = untrained(include_preprocessing=False)
    around = [keras.Input((32, 12, 3)), plain, keras.layers.Dense(3)]
    with pytest.raises(ValueError, match=r"values up to 2\d\d.*Rescaling\(1 / 127\.5, -1\)"):
        inspect_files(keras.Sequential(around), files, tmp_path)
    around.insert(1, keras.layers.Rescaling(1 / 127.5, -1))
    inspect_files(keras.Sequential(around), files, tmp_path)
