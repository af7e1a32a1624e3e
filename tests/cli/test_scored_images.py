"""No command scores an image that a run used, by the bytes of its file or by its look."""

import hashlib
import json
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.data import Split
from keras_vit.data.image_looks import looks_like
from keras_vit.data.seen_images import SeenImages
from keras_vit.evaluation.unseen_images import IMAGES, unseen_images
from keras_vit.training.training_set import looks_of
from keras_vit_cli import calibrate_command, commands, evaluate_command
from keras_vit_cli.arguments import parse
from keras_vit_cli.choose import choose_command
from keras_vit_cli.choose.choose_command import Labeled
from keras_vit_cli.model_files import scored_images
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.record import begin
from keras_vit_cli.train.run import Run
from tests import bank
from tests.backend import refused
from tests.cli.helpers import rows_of, write_rows
from tests.conftest import Command
from tests.data.image_fixtures import encode, orientation, plain, write

pytestmark = pytest.mark.usefixtures("here")
NAMES, MORE = ("dark", "light"), pytest.mark.thorough
# What each command loads a model by, and what it does with the images that it scores it on.
LOADS = [(evaluate_command, "open_classifier")]
LOADS += [(module, "load") for module in (calibrate_command, choose_command, commands)]
SCORES = [(calibrate_command, "predict_split"), (choose_command, "judge"), (commands, "compare")]
SCORES += [(evaluate_command, "own_results"), (evaluate_command, "transfer_rows")]
WHOLE = "evaluate model.keras --data", "calibrate model.keras --out other.keras --data"
WHOLE += ("evaluate model.keras --split all --data", "export model.keras --out exported --data")
PARTS = "evaluate model.keras --probe --data", "evaluate model.keras --knn 3 --data"
PARTS += ("choose --among model.keras --out choice --images 10000",)
TRAIN = "train --data photos --out run --epochs 1 --recipe from_scratch_tiny --seed 7"


def write_photo(folder: Path, name: str, number: int) -> None:
    pixels = np.random.default_rng(number).integers(0, 90, (16, 16, 3)) + 160 * ("light" in name)
    write(folder, {name: encode(Image.fromarray(pixels.astype("uint8")), "PNG")})


def write_photos(folder: Path, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        write_photo(folder, f"{NAMES[number % 2]}/{number}.png", number)


def contents(files: Any) -> set[str]:
    return {hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files}


class Scored(Exception):
    """A command has come to what scores these images."""


def scored_by(words: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What a command would score a model on, by all that it does before; nothing is computed."""

    def stop(*given: Any) -> None:
        raise Scored([each.files for each in given if isinstance(each, Split | Labeled)][-1])

    for name in ("export", "load_exported"):
        monkeypatch.setattr(commands, name, lambda *_, **__: None)
    for module, name in LOADS:
        monkeypatch.setattr(module, name, lambda *_: model)
    for module, name in [*SCORES, (keras_vit.evaluation, "evaluate")]:
        monkeypatch.setattr(module, name, stop)
    with pytest.raises((Scored, ValueError)) as raised:
        commands.run(parse(words.split()))
    if raised.type is Scored:
        return contents(raised.value.args[0])
    assert "can be scored" in str(raised.value)  # each of them has been used
    return set()


def run_of(tmp_path: Path, seed: int, seen: SeenImages | None = None, **options: Any) -> Run:
    job = Job(data=str(tmp_path / "photos"), out=tmp_path / "run", seed=seed, **options)
    run = Run(job, lambda line: None)
    run.load()
    run.hold_out()
    run.model = bank.tiny(task=run.loaded.task, num_classes=run.loaded.task.outputs)
    run.model.seen_images, run.measures = seen, False
    run.keep_apart()
    return run


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(i, marks=MORE) for i in range(4, 8))])
def test_nothing_that_a_run_used_is_scored(seed: int, tmp_path: Path, monkeypatch: Any) -> None:
    rng, photos = np.random.default_rng(seed), tmp_path / "photos"
    write_photos(photos, 120)
    for number in rng.choice(120, 9, replace=False):  # copies, of which splits know nothing
        name = NAMES[number % 2]
        shutil.copy(photos / name / f"{number}.png", photos / name / f"copy{number}.png")
    options: dict[str, Any] = {"val_fraction": float(rng.uniform(0.1, 0.5))}
    if seed % 2:
        options |= {"held_out": 0.3, "reader": "grain"}
    if seed % 3 == 1:
        options["coverage"] = 0.95 if seed < 7 else 0.8
    if seed % 4 > 1:  # the same labels from a table, by groups
        rows = [("file", "kind", "group")]
        for file in sorted(photos.rglob("*.png")):
            name = file.relative_to(photos).as_posix()
            rows.append((name, file.parent.name, str(rng.integers(30))))
        write_rows(tmp_path / "labels.csv", *rows)
        options["labels"] = str(tmp_path / "labels.csv")
    run = run_of(tmp_path, seed, **options)
    uses = run.images
    assert uses.calibrating is None or len(uses.calibrating) >= (19 if seed < 7 else 4)
    parts = [uses.splits.train, uses.tuning, uses.deciding, uses.calibrating]
    used = set().union(*(contents(part.files) for part in parts if part is not None))
    validated = contents(uses.known.val.files)
    assert validated
    assert not validated & used
    others = tmp_path / "others"
    for place, file in enumerate(sorted(photos.rglob("*.png"), reverse=True)):
        write(others, {f"{file.parent.name}/{place % 7}-{place}.png": file.read_bytes()})
    write_photos(others, int(rng.integers(1, 9)), 1000)
    Path("config.json").write_text(json.dumps({"job": asdict(run.job)}, default=str))
    assert scored_by("evaluate model.keras", run.model, monkeypatch) == validated
    for place in (photos, others):
        rest = contents(place.rglob("*.png")) - used
        assert validated <= rest
        for words in WHOLE:
            assert scored_by(f"{words} {place.name}", run.model, monkeypatch) == rest, words
        with pytest.raises(Scored) as raised:  # by `stop`, in place of the predictions
            keras_vit.evaluate(run.model, place)
        assert contents(raised.value.args[0]) == rest
        for words in PARTS:
            assert scored_by(f"{words} {place.name}", run.model, monkeypatch) <= rest, words
    words = "evaluate model.keras --split train --data others"
    assert scored_by(words, run.model, monkeypatch) == used
    asked = SimpleNamespace(model="model.keras", data="others", data_dir=None)
    assert "says nothing about others" in scored_images(run.model, asked, split_name="train").line
    images = scored_images(run.model, asked, fits=True, own_classes=False)
    assert not contents(images.split.files) & contents(images.train.files)
    assert f"{len(rest - contents(photos.rglob('*.png')))} new" in images.line
    with suppress(ValueError):  # where no image is left to validate on
        again = run_of(tmp_path, seed + 1, uses.seen, **options)  # starts from these weights
        assert not contents(again.images.known.val.files) & used


SAVED_ANEW = {
    "another format": lambda image, file: image.save(file.with_suffix(".png")),
    "half the size": lambda image, file: image.resize((48, 32)).save(file.with_suffix(".jpg")),
    "a square": lambda image, file: image.resize((64, 64)).save(file.with_suffix(".webp")),
    "a poor quality": lambda image, file: image.save(file.with_suffix(".jpg"), quality=40),
    "without colors": lambda image, file: image.convert("L").save(file.with_suffix(".jpg")),
    "turned": lambda image, file: image.transpose(Image.Transpose.ROTATE_90).save(
        file.with_suffix(".jpg"), exif=orientation(6)
    ),
    "with a comment": lambda image, file: image.save(file, comment="mine"),
}


def test_a_photograph_that_was_saved_anew_is_not_scored(tmp_path: Path, command: Command) -> None:
    rng = np.random.default_rng(0)
    for number in range(40):
        scene = Image.new("RGB", (96, 64), "gray")
        for side in (2, 4, 8, 16, 32):  # parts of every size, as in photographs
            parts = Image.fromarray(rng.integers(0, 256, (side, side, 3)).astype("uint8"))
            scene = Image.blend(scene, parts.resize(scene.size, Image.Resampling.BICUBIC), 0.4)
        content = encode(scene, "JPEG", quality=95)
        write(tmp_path / "photos", {f"{NAMES[number % 2]}/{number}.jpg": content})
    run = run_of(tmp_path, 0, reader="grain")
    trained, validated = (run.images.splits[name].files for name in ("train", "val"))
    run.model.save("model.keras")  # which lies anywhere, without its run
    for way, save in SAVED_ANEW.items():
        for file in (*trained, validated[0]):
            copy = tmp_path / way / file.parent.name / file.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(file) as image:
                save(image, copy)
        printed = command("evaluate model.keras --reader grain --data", tmp_path / way)
        left_out = f"left out: {len(trained)} that the model was made with, saved anew"
        assert f"1 image: 1 new; {left_out}" in " ".join(printed.split()), way
    # Nor is one validated on whose copy is trained on.
    for way, file in zip(Image.Transpose, run.images.known.val.files, strict=False):
        with Image.open(file) as image:
            image.resize((60, 40)).transpose(way).save(trained[0].with_name(f"copy{file.stem}.png"))
    kept = run_of(tmp_path, 3, reader="grain").images.splits
    assert len(kept.val) < 8
    twins = [sorted(f.stem.removeprefix("copy") for f in kept[n].files) for n in ("train", "val")]
    assert not {*twins[0]} & {*twins[1]}
    # Plain images all look the same: they are told apart by their bytes alone.
    write(tmp_path / "gray", {f"{NAMES[i % 2]}/{i}.png": plain(i) for i in range(8)})
    gray = keras_vit.data.load(tmp_path / "gray", val_fraction=None, reader="grain")["all"]
    seen = SeenImages.of({"trained on": gray.digests()[:4]}, [gray.looks()])
    assert seen.uses_of(gray).tolist() == ["trained on"] * 4 + ["new"] * 4
    # So do parts under a camera that stands still, half of which have a scratch.
    for number in range(40):
        pixels = np.asarray(scene) + rng.normal(0, 3, (64, 96, 3))
        pixels[30:32, 40 : 40 + 20 * (number % 2)] = 255
        content = encode(Image.fromarray(pixels.clip(0, 255).astype("uint8")), "PNG")
        write(tmp_path / "line", {f"{NAMES[number % 2]}/{number}.png": content})
    line = keras_vit.data.load(tmp_path / "line", val_fraction=0.25, reader="grain")
    assert looks_like(line.val.looks(), line.train.looks()).all()
    seen = SeenImages.of({"trained on": line.train.digests()}, looks_of(line.train))
    assert (seen.uses_of(line.val) == "new").all()


@pytest.mark.usefixtures("small_recipe", "no_export")
def test_a_run_says_and_keeps_what_it_scores(command: Command) -> None:
    write_photos(Path("photos"), 60)
    printed = command(f"{TRAIN} --val-fraction 0.4")
    assert "writing the report\nexporting the SavedModel\n" in printed
    facts = json.loads(Path("run/report.json").read_text())
    rows = rows_of(Path("run", IMAGES))
    assert {"trained on", "validated on"} <= {row["use"] for row in rows}
    of_photos = {row["image"]: row["sha256_begins"] for row in rows}
    for file in Path("photos").rglob("*.png"):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert digest.startswith(of_photos[file.relative_to("photos").as_posix()])

    def said(words: str) -> str:
        return " ".join(command(words).split())  # as one line

    note = "was made with 36 images of these"
    assert note in said("audit photos --model run --out audit")
    assert note in said("audit audit_index --out again")
    assert note.replace("image", "photograph") in Path("again/index.html").read_text()
    printed = said("evaluate run")
    assert "val: 24 images: 24 that the model was validated on" in printed
    assert f" {facts['report']['scores']['accuracy'][0]:.4g} " in printed
    write_photo(Path("photos"), "dark/new.png", 5000)
    printed = said("evaluate run --data photos --out scores")
    assert "24 that the model was validated on, 1 new; left out: 36 that the model was t" in printed
    assert json.loads(Path("scores/report.json").read_text())["report"]["examples"] == 25
    # What sets thresholds is used from then on.
    assert "24 that the model was validated on" in said("calibrate run --coverage 0.8")
    assert "1 image: 1 new; left out" in said("evaluate run-calibrated.keras --data photos")
    Path("photos/dark/new.png").unlink()
    error = command("evaluate run-calibrated.keras --data photos", status=2)
    assert "None of the 60 images of photos can be scored" in error
    # They set nothing else: what drops the thresholds may look at them again.
    again = said("calibrate run-calibrated.keras --data photos --coverage 0.8 --out again.keras")
    assert "24 images: 24 that the model was validated on; left out: 36" in again
    assert keras_vit.load("again.keras").seen_images.counts["calibrated on"] == 24
    Path("photos").rename("moved")
    error = command("evaluate run", status=2)
    assert "run was trained on 'photos', from another folder perhaps: " in error
    assert "Give --data with where" in error


@pytest.mark.parametrize("table", ["cleaned/cleaned.csv", "labels.csv"])
def test_a_run_finds_its_table_from_anywhere(table: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Where it was, or in the folder of the images; a folder of that name may not have one."""
    write_photos(Path("photos"), 12)
    place = Path(table if "/" in table else "photos/labels.csv")
    place.parent.mkdir(exist_ok=True)
    rows = [(f"{NAMES[i % 2]}/{i}.png", NAMES[i // 2 % 2]) for i in range(8)]
    write_rows(place, ("file", "kind"), *rows)
    for folder in ("run", "elsewhere"):
        Path(folder).mkdir()
    begin(Job(data="photos", labels=table, out=Path("run")), Path("run"), print)
    model = bank.tiny(task=keras_vit.tasks.Classification(NAMES), num_classes=2)

    def scored(data: Any) -> tuple[dict[int, int], str]:
        images = unseen_images(model, data, path=tmp_path / "run", split="all")
        numbers = [int(Path(file).stem) for file in images.split.files]
        return dict(zip(numbers, images.split.labels().tolist(), strict=True)), images.line

    for folder in ("", "elsewhere"):
        monkeypatch.chdir(tmp_path / folder)
        for data in (None, tmp_path / "photos"):
            labels, line = scored(data)
            assert labels == {i: i // 2 % 2 for i in range(8)}
            assert "not labeled by" not in line
    (tmp_path / place).unlink()
    shutil.move(tmp_path / "photos", "photos")
    labels, line = scored("photos")
    assert labels == {i: i % 2 for i in range(12)}
    assert f"not labeled by {table}, as those of its run were" in line


def test_a_test_folder_is_scored_whole(command: Command) -> None:
    model = bank.tiny(task=keras_vit.tasks.Classification(("grèbe", *NAMES)), num_classes=3)
    model.seen_images = SeenImages.of({"trained on": np.array([b"00" * 16])})
    model.save("model.keras")
    write_photos(Path("test"), 30)
    printed = command("evaluate model.keras --data test")
    assert "30 images: 30 new" in printed
    assert "Not tested, as there are no images: grèbe" in printed
    write_photo(Path("test"), normalize("NFD", "grèbe/1.png"), 77)
    assert "31 images: 31 new" in command("evaluate model.keras --data test")
    for number, part in enumerate(("train", "valid", "test"), 1):
        write_photos(Path("parts", part), 10 * number, 100 * number)
    scored = {"": 20, "--split Valid": 20, "--split testing": 30, "--split all": 60}
    for words, count in scored.items():
        printed = command(f"evaluate model.keras --data parts {words}")
        assert f"{count} images: {count} new" in printed
    write_photo(Path("test"), "fox/1.png", 1)
    error = command("evaluate model.keras --data test", status=2)
    assert "does not have the class fox (1 image)" in error
    twice = bank.tiny(
        task=keras_vit.tasks.Classification(("dark", "crane", "crane")), num_classes=3
    )
    for name in ("dark/1.png", "crane/1.png"):
        write_photo(Path("cranes"), name, 1)
    write_rows("cranes.csv", ("file", "kind"), ("dark/1.png", "dark"), ("crane/1.png", "crane"))
    refused("several classes of the name crane", unseen_images, twice, "cranes")
    table = {"labels": "cranes.csv", "task": "classification"}
    refused("'crane' in 'kind' is the name of several", unseen_images, twice, "cranes", **table)
    # Its features may be scored on any classes, those of a table, too.
    rows = [(f"{NAMES[n % 2]}/{n}.png", ("owl", "jay")[n % 2]) for n in range(30)]
    write_rows(Path("birds.csv"), ("file", "kind"), *rows)
    words = "evaluate model.keras --data test --labels birds.csv --knn 3"
    assert "3 nearest neighbors" in command(words)


def test_a_record_survives_files(tmp_path: Path) -> None:
    digests = np.array([hashlib.sha256(bytes([i])).hexdigest()[:32] for i in range(50)], "S32")
    model = bank.tiny(num_classes=3)
    model.seen_images = SeenImages.of({"trained on": digests[:30], "validated on": digests[25:40]})
    expected = ["trained on"] * 30 + ["validated on"] * 10 + ["new"] * 10
    for name, layout in (("a.keras", None), ("a.npz", "google"), ("a.safetensors", "timm")):
        keras_vit.save_weights(model, tmp_path / name, layout)
        read = keras_vit.load(tmp_path / name)
        assert read.seen_images.uses(digests).tolist() == expected
    other = model.copy()
    other.seen_images = SeenImages.of({"calibrated on": digests[35:45]})
    both = keras_vit.training.average_weights([model, other]).seen_images
    assert both.uses(digests).tolist() == [*expected[:35], *["calibrated on"] * 10, *["new"] * 5]
    assert model.with_classifier(5).seen_images.used == 30
    for damaged in ({"trained on": {"count": 1, "digests": "!"}}, {"trained on": 3}, [1], "x"):
        assert SeenImages.from_dict(damaged) is None


def test_doubts_about_the_images_are_kept_for_the_page(tmp_path: Path) -> None:
    """What is left out is printed elsewhere."""
    write_photos(tmp_path / "photos", 12)
    shutil.copy(tmp_path / "photos/dark/0.png", tmp_path / "photos/light/copy.png")
    (tmp_path / "photos/light/notes.doc").touch()
    doubt = "1 file with the content of one with another label"
    with pytest.warns(UserWarning, match=doubt) as warned:
        run = run_of(tmp_path, seed=0)
    assert len(warned) == 1
    assert [text.startswith(doubt) for text in run.facts["doubts"]] == [True]


def test_a_run_from_a_run_says_what_its_weights_know_of_the_training_images(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", 60)
    seen = run_of(tmp_path, seed=0).model.seen_images
    for kept in ({"held_out": 0.5}, {"coverage": 0.8}):
        (note,) = run_of(tmp_path, 0, seen, **kept).facts["doubts"]
        assert "were made with 48 of the 48 training images: what is measured on these" in note
    assert run_of(tmp_path, 1).images.apart(seen)[1].endswith("those that it held out")
    assert "doubts" not in run_of(tmp_path, 0, seen).facts  # nothing is measured on these
    (note,) = run_of(tmp_path, 0, SeenImages(counts={"trained on": 5000})).facts["doubts"]
    assert "5,000 images, which their file does not list" in note
