"""Repositories as they lie in the Hugging Face hub's cache."""

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import keras
import pytest
from safetensors.numpy import load_file, save

from keras_vit.weights import load, load_weights
from keras_vit.weights.containers.checkpoint_file import file_in_folder
from keras_vit_cli import commands as cli
from tests.bank import fresh, pixels, small
from tests.weights.models import assert_same_weights, refused, saved, stripped

missing = partial(refused, error=FileNotFoundError)
COMMIT = "3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3"
REPOSITORY = "models--google--vit-base-patch16-224"
CONFIG = {
    "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 32,
    "num_attention_heads": 4, "hidden_act": "relu", "layer_norm_eps": 1e-12, "image_size": 32,
    "patch_size": 8, "id2label": {str(i): name for i, name in enumerate("abcde")},
}  # fmt: skip


def add_file(repository: Path, name: str, content: bytes, commit: str = COMMIT) -> Path:
    """A file as `hf download` leaves it: large ones are called by their SHA-256."""
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    is_large = name.endswith(".safetensors")
    blob = repository / "blobs" / (hashlib.sha256(content).hexdigest() if is_large else git)
    link = repository / "snapshots" / commit / name
    for folder in (blob.parent, link.parent):
        folder.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link.symlink_to(Path("../../blobs") / blob.name)
    return link


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in the user's home with one repository."""
    monkeypatch.setenv("HOME", str(tmp_path))
    repository = tmp_path / ".cache" / "huggingface" / "hub" / REPOSITORY
    whole = stripped(saved(tmp_path, "huggingface", activation="relu"))
    add_file(repository, "model.safetensors", whole.read_bytes())
    add_file(repository, "config.json", json.dumps(CONFIG).encode())
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / ".no_exist" / COMMIT).mkdir(parents=True)
    return repository


def test_repositories_and_snapshots_open(repository: Path, monkeypatch: Any, capsys: Any) -> None:
    snapshot = repository / "snapshots" / COMMIT
    home = f"~/.cache/huggingface/hub/{REPOSITORY}"
    for place in (repository, snapshot, snapshot / "model.safetensors", home, Path(home)):
        model = load(place)
        assert_same_weights(model, small(activation="relu"))
        assert (model.activation, model.class_names) == ("relu", tuple("abcde"))
    load_weights(small(), home)
    monkeypatch.chdir(repository.parent)
    assert load(REPOSITORY).num_classes == 5
    keras.utils.save_img("a.png", pixels(40, 40, 3))
    for place in (str(repository), home):
        assert cli.main(["predict", place, "a.png"]) == 0
        assert "%" in capsys.readouterr().out


def test_main_is_the_snapshot_that_counts(repository: Path) -> None:
    other, main = "a" * 40, repository / "refs" / "main"
    main.unlink()  # the only one counts
    assert_same_weights(load(repository), small(activation="relu"))
    main.write_text(COMMIT)
    add_file(repository, "config.json", b"{}", other)
    assert file_in_folder(repository).parent.name == COMMIT
    main.write_text(f"{other}\n")
    missing(rf"There is no model\.keras .* in '.*{other}'", load, repository)
    for commit in ("b" * 40, "../..", "..", "", "x" * 1000):
        main.write_text(commit)
        missing(f"not name one .*{COMMIT}, {other}", load, repository)


def test_shards_in_the_cache(repository: Path) -> None:
    state = load_file(file_in_folder(repository))
    file_in_folder(repository).unlink()
    weight_map = {}
    for i in (1, 2):
        file = f"model-0000{i}-of-00002.safetensors"
        part = {name: state[name] for name in sorted(state)[i - 1 :: 2]}
        add_file(repository, file, save(part))
        weight_map |= dict.fromkeys(part, file)
    index = json.dumps({"weight_map": weight_map}).encode()
    add_file(repository, "model.safetensors.index.json", index)
    assert_same_weights(load(repository), small(activation="relu"))
    damage((repository / "snapshots" / COMMIT / "model-00002-of-00002.safetensors").resolve())
    refused(r"model-00002-of-00002.*its name in the cache", load, repository)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_blob_that_is_damaged_missing_or_a_device(repository: Path) -> None:
    link, model = file_in_folder(repository), fresh(activation="relu")
    damage(link.resolve())
    refused(r"its name in the cache is .* Delete .*blobs/", load_weights, model, repository)
    assert_same_weights(model, small(activation="relu"))
    link.resolve().unlink()
    for place in (repository, link.parent):
        missing(r"is a link to .*blobs/.*download it again", load, place)
    link.unlink()
    link.symlink_to("/dev/zero")
    refused("is a device", load, repository)
    missing("There is no model", load, "~/no/such/folder")
