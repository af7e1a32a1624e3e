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
from tests.inspection.models import KINDS, SIZES, model_of
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
def written(
    files: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[Path, str]]:
    out = tmp_path_factory.mktemp("inspection") / "out"
    return out, inspect_files(model_of("token"), files, out, title="<Ti/16>", top=2)


def test_plots_and_page_are_written(written, files: list[Path]) -> None:
    out, failed = written
    assert {path.name for path in out.iterdir()} == {*PLOTS, "index.html"}
    assert list(failed) == [files[3]]


def test_the_page_needs_no_other_file(written) -> None:
    page = (written[0] / "index.html").read_text("utf-8")
    elements = Elements(page)
    for tag, attributes in elements.elements:
        for name in ("src", "href", "srcset", "data", "poster", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:"), (tag, value)
    assert "http" not in elements.text
    assert "@import" not in page
    assert "url(" not in page
    policy = next(a["content"] for a in elements.all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")


def test_the_page_is_accessible(written) -> None:
    elements = Elements((written[0] / "index.html").read_text("utf-8"))
    images = elements.all("img")
    assert len(images) == 3 + 5
    assert all(image["alt"] for image in images)
    (slider,) = elements.all("input")
    assert slider["type"] == "range"
    assert slider["id"] in [label.get("for") for label in elements.all("label")]
    assert (slider["min"], slider["max"]) == ("0", "3")
    assert len(elements.all("option")) == 1 + 2
    assert len(elements.all("h1")) == 1


def test_names_are_text(written, files: list[Path]) -> None:
    elements = Elements((written[0] / "index.html").read_text("utf-8"))
    assert not elements.all("b")
    assert files[0].name in elements.text
    assert "Where <Ti/16> looks" in elements.text
    reason = "broken.jpg: not a JPEG, PNG, BMP, GIF or WebP file"
    assert elements.text.count(reason) == 1


def test_the_overlays_are_the_attention(written, files: list[Path]) -> None:
    model = model_of("token")
    images = np.stack([read_image(file, (32, 12)) for file in files[:3]])
    heads, whole = readout_attention(model, images), class_attribution(model, images)
    data = page_data((written[0] / "index.html").read_text("utf-8"))
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


def test_a_page_is_not_overwritten_by_accident(written, files: list[Path]) -> None:
    with pytest.raises(FileExistsError, match="overwrite"):
        inspect_files(model_of("token"), files, written[0])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", [*sorted(PLOTS), "index.html"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_others_are_not_replaced(
    files: list[Path], tmp_path: Path, name: str, overwrite: bool
) -> None:
    (tmp_path / name).write_bytes(b"theirs")
    (tmp_path / "notes.txt").write_bytes(b"theirs")
    with pytest.raises(FileExistsError, match=rf"{name} was not written by keras-vit inspect"):
        inspect_files(model_of("registers"), files, tmp_path, overwrite=overwrite)
    assert contents(tmp_path) == {name: b"theirs", "notes.txt": b"theirs"}


def test_overwriting_replaces_and_removes_only_our_files(
    written, files: list[Path], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(written[0], tmp_path / "out"))
    (out / "notes.txt").write_bytes(b"theirs")
    inspect_files(model_of("registers"), files, out, overwrite=True)  # no similarity
    assert set(contents(out)) == {
        *(PLOTS - {"position_similarity.png"}),
        "index.html",
        "notes.txt",
    }
    (tmp_path / "file").write_bytes(b"theirs")
    with pytest.raises(NotADirectoryError, match="file is a file"):
        inspect_files(model_of("token"), files, tmp_path / "file", overwrite=True)


def test_a_name_that_is_not_utf_8(files: list[Path], tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path / "p") + b"\xff\n.png"))
    shutil.copy(files[2], file)
    missing = Path(os.fsdecode(os.fsencode(tmp_path / "missing") + b"\xfe.png"))
    assert list(inspect_files(model_of("token"), [file, missing], tmp_path / "out")) == [missing]
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert page_data(page)["images"][0]["name"] == r"p\xff\n.png"
    assert r"missing\xfe.png: No such file or directory" in Elements(page).text


def test_the_page_explains_a_missing_plot(files: list[Path], tmp_path: Path) -> None:
    inspect_files(model_of("registers"), files, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *(PLOTS - {"position_similarity.png"}),
        "index.html",
    }
    text = Elements((tmp_path / "index.html").read_text("utf-8")).text
    assert "position_embedding='relative' does not have position embeddings" in text


def test_features_without_a_head_have_no_predictions(files: list[Path], tmp_path: Path) -> None:
    inspect_files(model_of("all_tokens"), files, tmp_path)
    assert not Elements((tmp_path / "index.html").read_text("utf-8")).all("ol")


def test_errors(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No photograph could be read.*broken\.jpg"):
        inspect_files(model_of("token"), files[3:], tmp_path)
    arguments = {**SIZES, **KINDS["token"], "depth": 1, "include_preprocessing": False}
    normalized = type(model_of("token"))(**arguments)
    with pytest.raises(ValueError, match="include_preprocessing=True"):
        inspect_files(normalized, files, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "small.keras", tmp_path / "out"
    model_of("token").save(model)
    names = [str(file) for file in files]
    assert cli.main(["inspect", str(model), *names, "--out", str(out)]) == 1
    captured = capsys.readouterr()
    assert str(out / "index.html") in captured.out
    assert "broken.jpg cannot be read" in captured.err
    assert "Where small looks" in (out / "index.html").read_text("utf-8")
    assert cli.main(["inspect", str(model), names[0], "--out", str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert cli.main(["inspect", str(model), *names[:3], "--out", str(out), "--overwrite"]) == 0


def test_the_command_by_method_and_of_a_class(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "small.keras", tmp_path / "out"
    model_of("token").save(model)
    command = ["inspect", str(model), str(files[0]), "--out", str(out), "--overwrite"]
    explained = []
    for options in (["--for-class", "1"], ["--for-class", "3"], ["--method", "rollout"]):
        assert cli.main([*command, *options]) == 0
        data = page_data((out / "index.html").read_text("utf-8"))
        explained.append((data["method"], data["images"][0]["explained"]))
        plots = {path.stem for path in out.glob("*.png")} & {"attribution", "rollout"}
        assert plots == {data["method"]}  # that of the other method does not stay behind
    assert explained == [("attribution", "1"), ("attribution", "3"), ("rollout", "")]
    capsys.readouterr()
    assert cli.main([*command, "--for-class", "rose"]) == 2
    assert "There is no class 'rose' to explain" in capsys.readouterr().err
    assert cli.main([*command, "--method", "rollout", "--for-class", "1"]) == 2
    assert "Rollout is the same for every class" in capsys.readouterr().err


def test_the_page_of_a_model_around_a_transformer(files: list[Path], tmp_path: Path) -> None:
    around = [keras.Input((64, 24, 3)), keras.layers.Resizing(32, 12), model_of("token")]
    model = keras.Sequential([*around, keras.layers.Dense(3, "softmax")])
    assert list(inspect_files(model, files, tmp_path, top=3)) == [files[3]]
    page = (tmp_path / "index.html").read_text("utf-8")
    data = page_data(page)
    assert (data["grid"], data["method"]) == ([4, 3], "attribution")
    assert "width:100.000%;height:100.000%" in page
    shown = re.findall(r"class=probability>([\d.]+)%", page)
    assert sum(map(float, shown[:3])) == pytest.approx(100, abs=0.3)


def test_pixels_that_nothing_normalizes(files: list[Path], tmp_path: Path) -> None:
    """Around a model without preprocessing: those of files are a hundred times too large."""
    plain = type(model_of("token"))(**{**SIZES, "include_preprocessing": False})
    around = [keras.Input((32, 12, 3)), plain, keras.layers.Dense(3)]
    with pytest.raises(ValueError, match=r"values up to 2\d\d.*Rescaling\(1 / 127\.5, -1\)"):
        inspect_files(keras.Sequential(around), files, tmp_path)
    around.insert(1, keras.layers.Rescaling(1 / 127.5, -1))
    inspect_files(keras.Sequential(around), files, tmp_path)
