"""A beginner's mistakes: messages name what was wrong, what is accepted, and the fix as options."""

import json
import shlex
import shutil
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit._base.errors import ReadingWarning
from keras_vit.data import DataRangeWarning
from keras_vit.tasks import Depth, Regression, Segmentation
from keras_vit_cli import printing
from keras_vit_cli.exit_status import message_of
from keras_vit_cli.library_words import in_options
from keras_vit_cli.options import COMMANDS
from keras_vit_cli.train import run
from keras_vit_cli.train.job import Job
from tests.cli.helpers import COLORS, color_photos, save_tiny, sums
from tests.conftest import Command
from tests.data.image_fixtures import encode, plain, write

pytestmark = pytest.mark.usefixtures("inside")
# The words, and what the message holds: what was wrong | what is accepted | the fix.
MISTAKES = """
trian --data photos -> 'trian' | choose from | Did you mean 'train' or
train --data photos --epocs 3 -> --epocs | keras-vit train --help | Did you mean --epochs?
train -> required: --data | --data | keras-vit train --help
train --data phtos/ -> no folder at phtos/ | CLASS/*.jpg | Did you mean photos?
train --data photos/gren/0.jpg -> photos/gren/0.jpg | CLASS/*.jpg | photos/green/0.jpg?
train --data photos/red/0.jpg -> is a file | several of them | the folder around
train --data flat -> 0 class folders | FOLDER/<class>/*.jpg | --labels labels.csv
train --data photos/red -> 0 class folders | FOLDER/<class>/*.jpg | give the folder around it
train --data lone -> the split train without class | give train/<class>/*.jpg | --labels
train --data one -> 1 class folder and | needs two or more | FOLDER/<class>/*.jpg
train --data empty -> 0 class folders | two or more | Give FOLDER/<class>/*.jpg
train --data photos.zip -> is an archive | the folder | unzip photos.zip -d DATA
train --data scans -> 2 PDF files | JPEG, PNG | Convert to PNG first
train --data photos --labels lables.csv -> no table at lables.csv | CSV, TSV | photos/labels.csv?
train --data photos --labels nofile.csv -> No column has files | relative | --file-column
train --data photos --labels labels.csv --label-columns colr -> 'colr' | a column | mean 'color'
train --data photos --labels missing.csv -> 'red/99.jpg' is not | Correct | --on-bad-row
train --data photos --labels labels.csv --task multi -> 'multi' | ordinal | mean 'multilabel'?
train --data photos --task ordinal -> --task has no effect | without --labels | keras-vit train -h
train --data photos --model m.keras -> No model | folders are given as --weights | their model
train --data photos --model ViT-B/17 -> 'ViT-B/17' | No model | Did you mean 'ViT-B/16'
evaluate run photos -> photos | given as --data FOLDER
train --data photos --recipe mesured -> 'mesured' | No recipe | Did you mean 'measured'
train --data photos --recipe mixer -> --recipe mixer is not for a Vision | give --model, such as
train --data photos --loss huber -> --loss huber is not a loss of classification | give softmax
train --data photos --labels two.csv --task multilabel --loss softmax -> binary_crossentropy or asym
train --data photos --freeze-backbone -> pretrained | give --weights | leave
train --data photos --weights m.keras --coverage 0.9 -> at least 9 training images | or more
train --data photos --weights m.kears -> at m.kears | MODEL:TAG | you mean m.keras
train --data photos --model ViT-Ti/16 --weights mixer.npz -> than ViT-Ti/16 | tokens_mlp_dim | Leave
plan ViT-B/16 --image-size 15 -> 15 x 15 pixels is smaller | one patch | 16
train --data photos --depth 3 -> Did you mean --depth-scale
list --weights dinov9 -> No released weights match 'dinov9'
train --data digits --cache 8 -> --cache 8 | of a folder or table | leave --cache out
train --data photos --out photos -> lies in photos | which is read | --out runs/run1
train --data photos --out mine -> mine holds files | not of an earlier run | give another --out
predict runs/nowhere photos/red/0.jpg -> at runs/nowhere | .keras or weights | list --weights
predict run photos/red/0.jpg -> run.partial | no finished | photos --out run --resume
predict run.partial photos/red/0.jpg -> no finished model | Continue | --resume
predict photos photos/red/0.jpg -> no model.keras | in 'photos' | training run
predict labels.txt photos/red/0.jpg -> does not have the suffix | .npz | give one that
predict m.keras photos/red/o.jpg -> no image at photos | image files | Did you mean
predict m.keras photos/*.tiff -> does not match any file | part of a name | photos/**/*.jpg
predict m.keras empty -> No image is in the folder empty | .jpg | Give one with
predict m.keras photos/red/0.jpg --out a.csv --ray m.keras -> 'm.keras' is not | Give the address
predict m.keras photos/red/0.jpg --out a.csv --ray auto --maps maps -> --ray does not make maps
predict m.keras photos/red/0.jpg --out s3://b/a.csv --ray auto -> --out s3://b/a.csv is in a bucket
predict m.keras s3://photos -> --ray s3://BUCKET/FOLDER
evaluate m.keras --data photos --split tset -> 'tset' | choose from | mean 'test'?
evaluate m.keras --data photos --split test -> --split test is not known
evaluate m.keras -> does not say what it was trained on: give --data
evaluate m.keras --data digits -> predicts 2 classes (green, red), and the data has 10 (0, 1,
evaluate m.keras --data photos --knn 99 -> --knn 99 is more than the
calibrate m.keras --data photos --split val --coverage 0.999 -> at least 999 images
calibrate m.keras --data photos --out a.h5 -> must end in .keras
calibrate m.keras --data photos --out m.keras -> exists. Give --overwrite
calibrate masks.keras --data photos --labels two.csv -> segmentation has neither | of classification
calibrate m.keras --data photos --labels masks -> answers classification | has segmentation
evaluate m.keras --data halves --knn -> fitted on train, and | give a folder with train/ too
evaluate masks.keras --data photos --labels masks --probe -> score classes | has segmentation of
compare m.keras --data photos --out page -> 1 model given: give two to 8
compare m.keras n.keras --out page.html -> is the name of a file | give its name, such as 'page'
compare m.keras m.keras --data photos --out page -> m.keras is given twice
compare m.keras n.keras --data photos --out page -> n.keras answers regression of 1 and m.keras
average m.keras --out one.keras -> two or more
choose photos --among m.keras --out failed --layers block_9 -> No feature 'block_9'
choose photos --among m.keras --out failed --poolings token -> --poolings has no effect
choose photos --among m.keras --out mine --overwrite -> files that are not of an earlier choice
pretrain photos --weights m.keras --labels photos/few.csv --out out -> There is no table at
pretrain photos --weights m.keras --out out -> 2 labeled images to compare the weights by | takes 20
pretrain photos --weights m.keras --labels none --out out -> --labels none has none
pretrain photos --weights none --blocks 1 --out out -> --blocks has no effect
pretrain photos --weights m.keras --blocks 9 --keep after --out out -> has 1 block
pretrain photos --weights m.keras --out photos/out -> is, holds or lies in photos
export m.keras --format onix --out x -> 'onix' | litert | Did you mean 'onnx'?
export m.keras --format onnx --out x -> --out x must end in .onnx | .onnx | 'x.onnx'
export m.keras --format html --out x.htm -> .htm must end in .html | 'x.html', or 'x' for a folder
export m.keras --out m.keras/1 -> lies in m.keras, which is a file | give a path in a folder
export d.keras --format html --out page.html -> depth answers every pixel
export m.keras --format onnx --out x.onnx --quantize auto -> give --data
export m.keras --format onnx --out x.onnx --quantize auto --max-flips 0 -> above 0 and at most 100
export m.keras --format onnx --out x.onnx --quantize int8 --max-flips 1% -> without --quantize auto
export m.keras --format onnx --out x.onnx --labels labels.csv -> no effect without --data
export m.keras --format torch --out r/p/1/model.pt2 --triton -> --triton is for --format onnx
export m.keras --format onnx --out x.onnx --triton -> REPOSITORY/NAME/VERSION
export m.keras --format onnx --out r/photos/v1/model.onnx --triton -> REPOSITORY/NAME
search photos photos/red/0.jpg -> not an index | SHA256SUMS | keras-vit embed PHOTOS
audit photos --out audit -> photos is not an index | sees the images | give the --model
audit photos --model m.keras --out photos/audit -> which is read
audit photos --masks photos --out audit -> --masks needs the --model
audit photos --masks photos --model m.keras --index i --out audit -> --index is for labels of images
"""
ROWS = [line.split(" -> ") for line in MISTAKES.strip().splitlines()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    photos = color_photos(folder / "photos", 3)
    rows = [f"{color}/{i}.jpg,{color},{i}" for color in COLORS for i in range(3)]
    rows.insert(0, "file,color,size")
    (photos / "labels.csv").write_text("\n".join(rows))
    lines = [row.rpartition(",")[0] for row in rows]
    (photos / "two.csv").write_text("\n".join(lines))
    (photos / "missing.csv").write_text("\n".join([*lines, "red/99.jpg,red"]))
    (photos / "nofile.csv").write_text("name,color\nanna,green\nben,red\n")
    write(folder / "flat", {"a.png": plain(1), "b.png": plain(2)})
    write(folder / "lone", {"train/a.png": plain(1)})
    write(folder / "one", {"red/a.png": plain(1)})
    write(folder / "halves", {f"{s}/{c}/a.png": plain(1) for s in ("val", "test") for c in COLORS})
    write(folder / "scans", {"a/1.pdf": b"%PDF", "b/1.pdf": b"%PDF"})
    write(folder, {"mine/notes.txt": b"mine", "labels.txt": b"red", "broken.jpg": b"\xff\xd8\xff"})
    (folder / "empty").mkdir()
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        archive.writestr("red/0.jpg", b"")
    command = ["keras-vit", "train", "--data", "photos", "--out", "run", "--overwrite"]
    config = json.dumps({"command": " ".join(command)})
    write(folder, {"run.partial/config.json": config.encode()})
    save_tiny(folder / "m.keras")
    save_tiny(folder / "n.keras", task=Regression(("weight",)))
    save_tiny(folder / "d.keras", task=Depth())
    save_tiny(folder / "masks.keras", task=Segmentation(COLORS))
    mask = encode(Image.fromarray(np.eye(20, 24, dtype="uint8")), "PNG")
    write(folder / "masks", {f"{color}/{i}.png": mask for color in COLORS for i in range(3)})
    sizes = {"patch_size": 8, "hidden_dim": 8, "depth": 1, "input_shape": (32, 32, 3)}
    mixer = keras_vit.models.MLPMixer(**sizes)
    keras_vit.save_weights(mixer, folder / "mixer.npz", layout="google")
    return folder


@pytest.mark.parametrize(("words", "reasons"), ROWS, ids=[row[0] for row in ROWS])
def test_a_mistake_is_explained(words: str, reasons: str, command: Command) -> None:
    before = sums(Path())
    error = command(words, status=2)
    for part in reasons.split(" | "):
        assert part.strip() in error
    assert "KERAS_VIT_TRACEBACK" not in error  # which marks an unexpected error
    assert sums(Path()) == before


def test_a_run_without_tensorflow_says_so_first(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    monkeypatch.setattr(run.Run, "load", None)
    with pytest.raises(TypeError):
        run.train(Job(data="photos", out=Path("without")), lines.append)
    assert "no SavedModel" in lines[-1]
    assert "pip install 'keras3-vit[tensorflow]'" in lines[-1]


def test_packages_are_named_before_any_work(command: Command, monkeypatch: Any) -> None:
    write(Path("tiles"), {"a/1.dcm": b"", "b/1.npy": b""})
    shutil.copy("photos/labels.csv", "labels.parquet")
    for package, words in (
        ("matplotlib", "train --data photos"),
        ("pyarrow", "train --data photos --labels labels.parquet"),
        ("pyarrow", "predict m.keras photos --out answers.parquet"),
        ("sklearn", "audit photos --model m.keras --out audit"),
        ("openvino", "export m.keras --format openvino --out exported"),
        ("pydicom", "train --data tiles --bands all"),
        ("uvicorn", "serve m.keras"),
        ("ray", "predict m.keras photos --out a.csv --ray auto"),
        ("ray", "embed photos --model m.keras --out i --ray auto"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            patch.setattr("keras_vit_cli.commands.load", None)
            error = command(words, status=2)
        assert package in error
        assert "pip install" in error
        assert not Path("audit_index").exists()


# The command | a message of the library | what is printed.
MESSAGES = """
train | cache=9 is too few: leave cache= out. | --cache 9 is too few: leave --cache out.
train | give one as label_columns=. | give one as --label-columns.
train | no pixels (nodata='mean') | no pixels (--nodata mean)
train | give depth_scale, such as depth_scale=0.1 | give --depth-scale, such as --depth-scale 0.1
train | load it with bands=(4, 3, 2). | load it with --bands 4,3,2.
predict | read all bits by load(bands='all') | read all bits by keras-vit train --bands all
train | give balance="weights" or balance="logits" | give --balance weights or --balance logits
train | separator=' ', separator=',' or | --separator ' ', --separator , or
train | separator='|'. | --separator '|'.
train | held_out=0, learning_rate=1e-05 | --held-out 0, --learning-rate 1e-05
train | distillation='hard', checkpoint_seconds=0.5 | --distill hard, --checkpoint-every 0.5
train | is not empty: out= or overwrite=True | is not empty: --out or --overwrite
train | overwrite=False, coverage=None | overwrite=False, coverage=None
train | by val_fraction and seed, which seed= sets | by --val-fraction and seed, which --seed sets
train | recipe.scaled(steps=9) shortens it | --steps 9 shortens it
train | task=keras_vit.tasks.Ordinal(('a b', 'c')) | --order 'a b,c'
train | f(seed=1), f(x, seed=1), a.b(c(seed=1), 2) | f(seed=1), f(x, seed=1), a.b(c(seed=1), 2)
train | seed=1/a.png, runs/seed=1, 'seed=1', seed==1 | seed=1/a.png, runs/seed=1, 'seed=1', seed==1
train | out='a\\x1b', num_classes=3, patch_size | out='a\\x1b', num_classes=3, patch_size
plan | num_classes=3 | --num-classes 3
export | path='a.onnx' is one. Give another path= | --out a.onnx is one. Give another --out
export | give model= or image_size | give model= or --image-size
evaluate | k=99 and shots=3, fewshot=(1, 5) | --knn 99 and --fewshot 3, --fewshot 1 5
search | keras_vit.curation.embed(m, n, o). | keras-vit embed PHOTOS --model MODEL --out INDEX.
convert | keras_vit.export, keras_vit.exporting.f | keras-vit export, keras_vit.exporting.f
evaluate | 1 row left out, see splits.report.ignored: a; see splits.report | 1 row left out: a
evaluate | give it to keras_vit.exporting.load_exported. | give it to keras-vit predict or compare.
serve | which keras_vit.list_weights() shows | which keras-vit list --weights shows
"""
MESSAGE_ROWS = [line.split(" | ") for line in MESSAGES.strip().splitlines()]


@pytest.mark.parametrize(("command", "text", "printed"), MESSAGE_ROWS)
def test_arguments_become_options(command: str, text: str, printed: str) -> None:
    assert in_options(text, command) == printed
    assert message_of(ValueError(text), command) == printed
    assert message_of(ValueError(text)) == text
    with printing.short_warnings(command):
        line = warnings.formatwarning(DataRangeWarning(text), DataRangeWarning, "file.py", 1)
    assert line == f"keras-vit: warning: {printed}\n"


def test_a_warning_of_the_data_is_printed_once() -> None:
    """From several calls of the library; and a note on how files are read is not a doubt."""
    with warnings.catch_warnings(record=True) as warned, printing.short_warnings("train"):
        with printing.noted("train") as doubts:
            for category in (ReadingWarning, UserWarning):
                warnings.warn_explicit(category.__name__, category, printing.__file__, 1)
        for line in (1, 2):
            warnings.showwarning(UserWarning("of data"), UserWarning, printing.__file__, line)
            warnings.showwarning(UserWarning("of others"), UserWarning, "elsewhere.py", line)
    shown = [str(each.message) for each in warned]
    assert doubts == ["UserWarning"]
    assert sorted(shown) == [
        *("ReadingWarning", "UserWarning", "of data", "of others", "of others")
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_known_by_its_argument(command: str) -> None:
    for row in COMMANDS[command].rows:
        if name := row.settings.get("dest"):
            is_flag = "action" in row.settings
            words = shlex.split(in_options(f"give {name}={True if is_flag else 'a'}.", command))
            assert words == (["give", f"{row.name}."] if is_flag else ["give", row.name, "a."])
