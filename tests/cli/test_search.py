"""`keras-vit embed`, `search` and `cluster`: from photographs to a page and a table."""

import csv
import json
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.curation import FeatureIndex
from keras_vit_cli import commands as cli
from tests.inspection.pages import NAME, Elements

image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, an index, and photographs of two colors, one of them with HTML in its name."""
    folder = tmp_path_factory.mktemp("home")
    random = np.random.default_rng(0)
    for channel, name in enumerate(("red", "green")):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(6):
            pixels = random.integers(0, 60, (20, 24, 3)).astype("uint8")
            pixels[..., channel] += 150
            file = NAME if i == 5 else f"{i}.png"
            image.fromarray(pixels).save(folder / "photos" / name / file)
    (folder / "photos/red/broken.jpg").write_bytes(b"\xff\xd8 not much more")
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(
        patch_size=4, hidden_dim=16, depth=1, num_heads=2, input_shape=(8, 8, 3), pooling="gap"
    )
    keras_vit.save_weights(model, folder / "model.keras")
    new = np.full((20, 24, 3), (180, 30, 30), "uint8")
    image.fromarray(new).save(folder / "new.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(["embed", "photos", "--model", "model.keras", "--out", "index"]) == 1
    return folder


@pytest.fixture(autouse=True)
def inside(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)


def rows_of(file: str) -> list[dict[str, str]]:
    with Path(file).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_embed_prints_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["embed", "photos", "--model", "model.keras", "--out", "index"]) == 1
    printed, error = capsys.readouterr()
    assert "12 images of 16 numbers, 0 read now, 1 cannot be read" in printed
    assert "photos/red/broken.jpg cannot be read" in error or "red/broken.jpg cannot" in error
    assert FeatureIndex.open("index").info["source"] == "../model.keras"
    assert cli.main(["embed", "nowhere", "--model", "model.keras", "--out", "index"]) == 2
    assert "no folder or table nowhere" in capsys.readouterr().err
    other = ["--layer", "pooled", "--dtype", "float32"]
    assert cli.main(["embed", "photos", "--model", "model.keras", "--out", "index", *other]) == 2
    assert "made with another layer: 'pre_logits', and this is 'pooled'" in capsys.readouterr().err


def test_search_writes_a_page_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["search", "index", "new.png", "photos/green/0.png", "nowhere.jpg", "--top", "5"]
    assert cli.main([*command, "--out", "pages/similar.html"]) == 1
    printed, error = capsys.readouterr()
    assert "nowhere.jpg cannot be read" in error
    assert "next: open pages/similar.html" in printed
    rows = rows_of("pages/similar.csv")
    assert [row["label"] for row in rows] == ["red"] * 5 + ["green"] * 5
    assert (rows[5]["file"], rows[5]["rank"], float(rows[5]["similarity"])) == (
        "green/0.png",
        "1",
        pytest.approx(1, abs=1e-4),
    )
    elements = Elements(Path("pages/similar.html").read_text("utf-8"))
    sources = [str(each["src"]) for each in elements.all("img")]
    assert len(sources) == 2 + 10
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert not elements.all("script")
    links = [str(each["href"]) for each in elements.all("a")]
    assert all(link.startswith("../photos/") for link in links)
    assert "<" not in "".join(links)


def test_search_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["search", "index", "photos/red/1.png", "--top", "2"]) == 0
    assert "red/1.png" in capsys.readouterr().out
    assert cli.main(["search", "photos", "photos/red/1.png"]) == 2
    assert "photos is not an index of features" in capsys.readouterr().err


def test_a_file_of_the_index_is_searched_without_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its features are there; another one's need the model, and that of the index."""
    keras.utils.set_random_seed(1)
    other = keras_vit.VisionTransformer(
        patch_size=4, hidden_dim=16, depth=1, num_heads=2, input_shape=(8, 8, 3), pooling="gap"
    )
    keras_vit.save_weights(other, tmp_path / "other.keras")
    words = ["--model", str(tmp_path / "other.keras"), "--top", "1"]
    assert cli.main(["search", "index", "photos/red/1.png", *words]) == 0
    assert cli.main(["search", "index", "new.png", *words]) == 2
    assert "made with other weights" in capsys.readouterr().err


def test_cluster_writes_a_page_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["cluster", "index", "--clusters", "2", "--examples", "4", "--out", "groups.html"]
    assert cli.main(command) == 0
    assert "2 clusters of 12 images: 6, 6" in capsys.readouterr().out
    rows = rows_of("groups.csv")
    assert len({(row["label"], row["cluster"]) for row in rows}) == 2
    assert sorted(row["file"] for row in rows) == list(FeatureIndex.open("index").files)
    page = Path("groups.html").read_text("utf-8")
    assert len(Elements(page).all("img")) == 2 * 4
    assert "labeled 100% red" in Elements(page).text


def test_names_are_texts_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["search", "index", f"photos/red/{NAME}", "--out", "named.html"]
    assert cli.main(command) == 0
    elements = Elements(Path("named.html").read_text("utf-8"))
    assert NAME in elements.text
    assert not elements.all("b")
    capsys.readouterr()


def test_what_another_program_wrote_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.html").write_text("<p>mine")
    Path("sums.csv").write_text("mine")
    for out, words in (
        ("mine.html", "was not written by"),
        ("sums.html", "sums.csv would be replaced"),
        ("page.txt", "must end in .html"),
    ):
        assert cli.main(["cluster", "index", "--out", out, "--overwrite"]) == 2
        assert words in capsys.readouterr().err
    words = ["cluster", "index", "--clusters", "2", "--out", "again.html"]
    assert [cli.main(words), cli.main(words), cli.main([*words, "--overwrite"])] == [0, 2, 0]


def test_a_photograph_that_is_gone_leaves_its_place_empty(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for i in range(3):
        photos.mkdir(exist_ok=True)
        image.new("RGB", (9, 9), (80 * i, 9, 9)).save(photos / f"{i}.png")
    out = tmp_path / "index"
    assert cli.main(["embed", str(photos), "--model", "model.keras", "--out", str(out)]) == 0
    (photos / "1.png").unlink()
    page = tmp_path / "page.html"
    assert cli.main(["search", str(out), str(photos / "0.png"), "--out", str(page)]) == 0
    assert "the file is gone" in page.read_text("utf-8")
    assert json.loads((out / "index.json").read_text("utf-8"))["rows"] == 3
