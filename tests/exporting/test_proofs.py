"""Exported files prove themselves: by images, answers and sums that they carry."""

import json
import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit.data import EvalTransform
from keras_vit.exporting import FORMATS, check, load_exported, peer_folder
from keras_vit.exporting.contract import Contract
from keras_vit.exporting.exported import read_contract
from keras_vit.exporting.proof import Proof
from keras_vit.weights import CheckpointError
from keras_vit_cli import commands as cli
from tests import bank
from tests.exporting.artifacts import LONG, Artifacts, contract, formats
from tests.exporting.test_one_preparation import sensitive_model
from tests.models.test_task import TASKS
from tests.weights.models import flips

# With the engine alone; as a script it would import it anew.
SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "deploy/check_file.py"))["main"]
WEIGHTS = {"tf_saved_model": "variables/variables.data-00000-of-00001", "openvino": "model.bin"}
WEIGHTS["coreml"] = "Data/com.apple.CoreML/weights/weight.bin"


def copied(source: Path, folder: Path) -> Path:
    copy: Callable[..., Any] = shutil.copytree if source.is_dir() else shutil.copy
    return Path(copy(source, folder / source.name))


def proof_of(path: Path) -> tuple[Proof, bool]:
    about = read_contract(path)
    text, rest = FORMATS[about.format].implementation().read_proof(path)
    return Proof.from_text(text, about, rest)


def is_wrong(path: Path) -> bool:
    try:
        return not check(path).ok
    except CheckpointError:
        return True


@formats("onnx")
def test_damage_is_found(format: str, artifacts: Artifacts, tmp_path: Path) -> None:
    model = artifacts.model("sensitive", sensitive_model)
    path = copied(artifacts.path("sensitive", format), tmp_path)
    result = check(path)
    assert result.ok, result
    assert (result.is_whole, result.files, result.lost) == (True, 3, 0)
    assert result.differences["probabilities"] < 1e-3
    assert result.seconds > 0
    assert format in ("html", *LONG) or SCRIPT(path) == 0
    proof, _ = proof_of(path)
    assert sum(proof.steady) > 4
    pixels = np.concatenate([*proof.prepared(result.contract), proof.pixels.astype("float32")])
    expected = model.task.answers(bank.outputs(model, pixels))
    np.testing.assert_allclose(proof.expected["probabilities"], expected, atol=1e-4)
    assert np.ptp(expected, axis=0).max() > 0.1
    part = path / WEIGHTS.get(format, "")
    content = part.read_bytes()
    # Of the model: behind it are dates of a zip archive, and the spare bits of base64.
    ends: tuple[float, float] = 0, 0.6 * len(content)
    if format == "html":  # a browser compares the script and style with the page's policy
        ends = (first := content.index(b'part-graph">') + 12), content.index(b"</", first) - 12
    random = np.random.default_rng(0)
    for flipped in flips(content, np.linspace(*ends, 7).astype(int), random):
        part.write_bytes(flipped)
        assert is_wrong(path)
    # A page without its last tags is whole.
    last = int(ends[1]) if format == "html" else len(content) - 9
    for end in (int(sum(ends)) // 2, last):
        part.write_bytes(content[:end])
        assert is_wrong(path)


def test_answers_alone_find_what_sums_would_miss(artifacts: Artifacts, tmp_path: Path) -> None:
    """Other weights and other preparations, sealed as if they had been written so."""
    import onnx

    artifacts.model("sensitive", sensitive_model)
    proto = onnx.load(artifacts.path("sensitive", "onnx"))
    about = load_exported(artifacts.path("sensitive", "onnx")).contract
    proof, _ = proof_of(artifacts.path("sensitive", "onnx"))
    others = [
        replace(about, evaluation=EvalTransform(mode))
        for mode in ("stretch", "stretch_bicubic", "timm_squash", "big_vision")
    ]
    others += [replace(about, evaluation=EvalTransform("timm_center", 0.7))]
    kernel = max(proto.graph.initializer, key=lambda each: np.prod(each.dims))
    values = onnx.numpy_helper.to_array(kernel).copy()
    values.flat[5] *= 2**20  # a bit of its exponent
    for other in (about, *others, None):
        if other is None:
            kernel.CopyFrom(onnx.numpy_helper.from_array(values, kernel.name))
        path, texts = tmp_path / "m.onnx", {"keras_vit": (other or about).to_text()}
        onnx.helper.set_model_props(proto, texts)
        onnx.save(proto, path)
        implementation = FORMATS["onnx"].implementation()
        implementation.add_proof(path, proof.to_text(implementation.read_proof(path)[1]))
        result = check(path)
        assert result.is_whole
        assert result.ok == (other is about), other
    assert "its probabilities differ by" in str(result)
    assert SCRIPT(path) == 1


@pytest.mark.every_backend
@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_folders_are_proven(layout: str, tmp_path: Path, capsys: Any) -> None:
    """By transformers and timm alone: of bits that flip, and of another preparation."""
    name = {"huggingface": "transformers"}.get(layout, layout)
    pytest.importorskip(name, exc_type=ImportError)
    folder = tmp_path / "folder"
    sensitive_model().save(tmp_path / "m.keras")
    assert cli.main(["convert", str(tmp_path / "m.keras"), str(folder), "--layout", layout]) == 0
    assert f"keras-vit check {folder}" in capsys.readouterr().out
    for other, target in (("google", "m.npz"), ("timm", "timm")):  # also where timm is missing
        words = ["convert", str(folder), str(tmp_path / target), "--layout", other]
        assert cli.main(words) == 0
        assert "model.safetensors (" in capsys.readouterr().out
    result = check(folder)
    assert (result.ok, result.files, result.lost) == (True, 3, 0), result
    assert result.engine.startswith(f"{name} ")
    assert SCRIPT(folder) == 0
    weights, about = folder / "model.safetensors", read_contract(folder)
    proof, _ = Proof.from_text((folder / "keras_vit_proof.json").read_text(), about, "")
    content = weights.read_bytes()
    places = np.linspace(0, len(content) - 1, 5).astype(int)
    for flipped in flips(content, places, np.random.default_rng(0)):
        weights.write_bytes(flipped)
        assert is_wrong(folder)
    weights.write_bytes(content)
    file = folder / ("config.json" if layout == "timm" else "preprocessor_config.json")
    whole, key = file.read_text(), "mean" if layout == "timm" else "image_mean"
    config = json.loads(whole)
    config.get("pretrained_cfg", config)[key] = [0.4, 0.5, 0.5]
    file.write_text(json.dumps(config))
    # Sealed as if it had been written so.
    seal = proof.to_text(peer_folder.read_proof(folder)[1])
    (folder / "keras_vit_proof.json").write_text(seal)
    result = check(folder)
    assert (result.is_whole, result.ok) == (True, False)
    assert (folder / "keras_vit.json").unlink() is None
    assert cli.main(["check", str(folder)]) == 2
    assert f"convert the model again where {name} is installed" in capsys.readouterr().err


def test_the_command(
    artifacts: Artifacts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx

    artifacts.model("sensitive", sensitive_model)
    whole = artifacts.path("sensitive", "onnx")
    changed, before, foreign = (tmp_path / f"{name}.onnx" for name in ("a", "b", "c"))
    proto = onnx.load(whole)
    proto.producer_name = "another"
    onnx.save(proto, changed)
    onnx.helper.set_model_props(proto, {"keras_vit": contract().to_text()})
    onnx.save(proto, before)
    onnx.helper.set_model_props(proto, {})
    onnx.save(proto, foreign)
    bank.tiny().save(tmp_path / "m.keras")
    for file, status, words in (
        (whole, 0, "answers here as its model"),
        (changed, 1, "its bytes are not those that were written"),
        (before, 2, "does not carry images to check it by"),
        (foreign, 2, "was not exported by this package"),
        (tmp_path / "m.keras", 2, "is not an exported model"),
        (tmp_path, 2, "is not an exported model"),
        (tmp_path / "d.onnx", 2, "There is no exported file"),
    ):
        assert cli.main(["check", str(file)]) == status
        assert words in "".join(capsys.readouterr())


def test_a_damaged_proof_is_refused() -> None:
    about: Contract = contract(TASKS["multilabel"])
    proof = Proof.of(about, lambda x: {"probabilities": np.zeros((len(x), 2), "float32")})
    text = proof.to_text("")
    assert Proof.from_text(text, about, "")[1]
    assert not Proof.from_text(text, about, "other")[1]
    for part, other in (
        ('"steady": [', '"steady": [1, '),
        ('"probabilities": 0.0', '"probabilities": NaN'),
        ('"probabilities": 0.0', '"probabilities": -1'),
        ("[8, 2]", "[8, 2000000000]"),
        ("[8, 2]", "[7, 2]"),
        ('"pixels": "', '"pixels": "AAAA'),
        ('"sum"', '"some"'),
        (text, "[]"),
    ):
        assert part in text
        with pytest.raises(ValueError, match="its proof is damaged"):
            Proof.from_text(text.replace(part, other, 1), about, "")
